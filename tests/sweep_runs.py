"""What the tests of sweeps share: small plans, a training without torch, a launcher to kill."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from loopworth.plan import Plan, PlannedRun, iso_depth
from loopworth.spec import DataSpec, OptimSpec, RunSpec
from loopworth.sweep.collect import collect
from loopworth.sweep.engines import Resources
from loopworth.sweep.folder import SweepFolder
from loopworth.sweep.launch import Launched, run_sweep
from loopworth.sweep.local import LocalEngine

HERE = Path(__file__).parent
MODEL = {"head_dim": 8, "vocab_size": 320, "context": 32}


class Quick(Resources):
    """Runs of `sweep_worker.py`."""

    def command(self, *arguments: str | Path) -> list[str]:
        return [sys.executable, str(HERE / "sweep_worker.py"), *map(str, arguments)]


def plan(
    data: Path | str,
    *,
    budgets: Sequence[float] = (2e9, 4e9),
    widths: Sequence[int] = (16, 24),
    recurrences: Sequence[int] = (1, 2),
    seeds: Sequence[int] = (42,),
) -> Plan:
    runs = iso_depth(
        dict.fromkeys(budgets, widths),
        depth=4, ends=(1, 1), recurrences=recurrences, seeds=seeds, model=MODEL,
        run={
            "data": DataSpec(source=str(data)), "batch_tokens": 256, "validation_tokens": 1024,
            "optim": OptimSpec(matrix_lr=0.02, batch_exponent=0),
        },
    )  # fmt: skip
    return Plan("tests", runs)


def with_seeds(data: Path | str, *seeds: int) -> Plan:
    """Return a plan of one run for each seed."""
    return plan(data, budgets=[2e9], widths=[16], recurrences=[1], seeds=seeds)


def engine(sweep: SweepFolder, workers: int = 2) -> LocalEngine:
    return LocalEngine(workers, sweep.path / "workers")


def launch(sweep: SweepFolder, made: Plan | None = None, *, workers: int = 2, **how) -> Launched:
    return run_sweep(sweep, engine(sweep, workers), Quick(), plan=made, **how)


def train_swept(run: RunSpec, out: Path) -> None:
    """Train a run in this process to the numbers that it has in a sweep on a CPU."""
    from loopworth.train.machine import Machine
    from loopworth.train.stack import train_stack

    train_stack([run], [out], Machine(device="cpu", threads=1, peak_flops=1e12))


def table(sweep: SweepFolder) -> str:
    return collect(sweep).to_csv()


def spec_of(planned: PlannedRun) -> RunSpec:
    return RunSpec.from_json(json.dumps(planned.run.to_json()))


if __name__ == "__main__":  # a launcher of its own, which a test may kill
    launch(SweepFolder(sys.argv[1]), attempts=int((*sys.argv, 3)[2]))
