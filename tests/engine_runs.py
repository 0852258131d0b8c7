"""What the tests of engines share: runs that last long enough to be disturbed."""

from dataclasses import replace
from pathlib import Path

from loopworth.plan import Plan
from sweep_runs import with_seeds


def long(data: Path, *seeds: int, steps: int = 1000) -> Plan:
    """Return runs of `sweep_worker.py` that take some milliseconds a step."""
    runs = [
        replace(planned, run=replace(planned.run, budget_flops=None, steps=steps))
        for planned in with_seeds(data, *seeds).runs
    ]
    return Plan("tests", tuple(runs))
