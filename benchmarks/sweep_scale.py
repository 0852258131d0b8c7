"""How long a sweep of 10,000 runs takes to plan, list and collect, and how much memory.

    python benchmarks/sweep_scale.py [RUNS]

Nothing is trained: the results are written beforehand, with a loss that follows from the spec.
"""

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from loopworth.plan import Plan, iso_depth
from loopworth.report.board import board
from loopworth.sweep.collect import collect
from loopworth.sweep.folder import SweepFolder
from loopworth.sweep.status import read_status
from loopworth.train.result import run_row


def make_plan(runs: int) -> Plan:
    """Return a plan of 5 budgets, 10 widths, 4 recurrences and as many seeds as it takes."""
    seeds = range(max(1, runs // 200))
    grid = {budget * 1e17: range(640, 1920, 128) for budget in (1, 2, 4, 8, 16)}
    return Plan("scale", iso_depth(grid, seeds=seeds))


def write_results(sweep: SweepFolder, plan: Plan) -> None:
    for cell, planned in zip(sweep.cells, plan.runs, strict=True):
        folder = sweep.run_path(cell)
        folder.mkdir(parents=True)
        loss = 2 + int(cell.hash[:6], 16) / 2**24
        row = run_row(
            planned.run, planned.horizon, val_loss=loss, val_bits_per_byte=loss, seconds=1.0
        )
        (folder / "result.json").write_text(json.dumps(row, indent=1))


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as place:
        start = time.perf_counter()
        sweep = SweepFolder(Path(place) / "sweep")
        plan = make_plan(runs)
        made = time.perf_counter()
        sweep.grow(plan)
        planned = time.perf_counter()
        read_status(SweepFolder(sweep.path))
        empty = time.perf_counter()
        write_results(sweep, plan)
        ready = time.perf_counter()
        board(read_status(SweepFolder(sweep.path)))
        listed = time.perf_counter()
        table = collect(SweepFolder(sweep.path))
        collected = time.perf_counter()
        times = {
            "recipe": made - start,
            "planned": planned - made,
            "listed, none started": empty - planned,
            "listed, all complete": listed - ready,
            "collected": collected - listed,
        }
        for name, seconds in times.items():
            print(f"{name:<22} {seconds:6.2f} s")
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{len(table.rows)} runs, {sum(times.values()):.1f} s in all, {memory:.0f} MiB at most"
        )


if __name__ == "__main__":
    main()
