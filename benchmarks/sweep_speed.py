"""How busy the workers of a local sweep are, and what the launcher costs a run.

    python benchmarks/sweep_speed.py [--workers 2] [--runs 24] [--budget 1e10] [--stack]

Small real runs on the built-in text. Between handing a run to a worker and seeing its end lies the
training, which status.json has, and the rest: claim, status, pipes, reading the result. The first
run of a worker waits for the import of torch and is told apart. With --stack runs are trained
together, as sweeps do it; a run then has a share of the time of its stack, and less is told.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from loopworth.plan import Plan, iso_depth
from loopworth.spec import OptimSpec
from loopworth.sweep.engines import Resources
from loopworth.sweep.folder import SweepFolder
from loopworth.sweep.launch import Begun, Happening, run_sweep
from loopworth.sweep.registry import open_engine


def make_plan(budget: float, runs: int) -> Plan:
    model = {"head_dim": 8, "vocab_size": 320, "context": 64}
    run = {
        "batch_tokens": 512, "validation_tokens": 2**14,
        "optim": OptimSpec(matrix_lr=0.02, batch_exponent=0),
    }  # fmt: skip
    made = iso_depth(
        {budget: [16, 24, 32]}, depth=10, ends=(1, 1), seeds=range(-(-runs // 12)), model=model,
        run=run,
    )  # fmt: skip
    return Plan("speed", made[:runs])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--budget", type=float, default=1e10)
    parser.add_argument("--stack", action="store_true")
    options = parser.parse_args()
    begun: dict[str, float] = {}
    ended: dict[str, float] = {}

    def tell(happening: Happening) -> None:
        (begun if isinstance(happening, Begun) else ended)[happening.cell.name] = time.monotonic()

    with tempfile.TemporaryDirectory() as place:
        sweep = SweepFolder(Path(place) / "sweep")
        resources = Resources(threads=1, device="cpu", stack=options.stack)
        engine = open_engine("local", sweep.path, options.workers, resources)
        start = time.monotonic()
        run_sweep(sweep, engine, resources, plan=make_plan(options.budget, options.runs), tell=tell)
        wall = time.monotonic() - start
        worked = {
            path.parent.name: json.loads(path.read_text())["seconds"]
            for path in sweep.path.glob("runs/*/status.json")
        }
    whole = sum(worked.values()) / options.workers / wall
    print(f"{len(begun)} runs, {options.workers} workers, {wall:.1f} s of wall time")
    print(f"workers busy, start and imports included: {whole:.1%}")
    if options.stack:
        return
    order = sorted(begun, key=begun.__getitem__)
    warm = order[options.workers :]
    overhead = [ended[name] - begun[name] - worked[name] for name in warm]
    first = max(ended[name] for name in order[: options.workers])
    steady = max(ended.values()) - first
    inside = sum(max(0.0, min(worked[n], ended[n] - first)) for n in worked)
    print(f"median run {sorted(worked[n] for n in warm)[len(warm) // 2]:.2f} s")
    print(
        f"overhead of a run: {sum(overhead) / len(overhead):.3f} s, at most {max(overhead):.3f} s"
    )
    print(f"workers busy after their first run: {inside / (options.workers * steady):.1%}")


if __name__ == "__main__":
    main()
