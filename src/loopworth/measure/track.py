"""Phi while a sweep is at work: fitted again as runs end, so that its interval narrows in view."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loopworth.law import Estimate
from loopworth.law.intervals import resample_cells
from loopworth.law.joint import GAIN
from loopworth.law.rivals import make_problem
from loopworth.law.solve import optimise
from loopworth.law.threshold import suitable_huber_delta
from loopworth.law.valley import nearby_bootstrap
from loopworth.measure.measuring import by_study
from loopworth.runs import RunTable, load_runs
from loopworth.sweep.collect import collected_rows
from loopworth.sweep.files import write_whole
from loopworth.sweep.status import SweepStatus

HISTORY = "phi.jsonl"
_RESAMPLES = 100  # the last word has 1,000
_SPARE_RUNS = 6  # beyond the constants of the law, before which a phi says nothing
_PACE = 20.0  # a fit may take this share of the time, and not more: 1 / 20
_LEAST_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class PhiPoint:
    """Phi from the first `runs` runs of a sweep's first study, with its 95 % interval."""

    runs: int
    phi: float
    ci95: tuple[float, float] | None

    @property
    def estimate(self) -> Estimate:
        """The same as `fit` has it."""
        return Estimate(self.phi, self.ci95)


class PhiTrack:
    """Fits phi anew when runs have ended, at a pace that costs the sweep little.

    folder   of the sweep; the points are kept in its phi.jsonl, so a sweep that goes on has them
    clock    seconds, for tests
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._place, self._clock = folder / HISTORY, clock
        self.points = _read(self._place)
        self._due = -np.inf
        self._seen = 0

    def update(self, status: SweepStatus) -> PhiPoint | None:
        """Return a new point where there is one: more runs have ended, and it is time."""
        done = status.counts["complete"]
        start = self._clock()
        if done == self._seen or (start < self._due and not status.complete):
            return None
        self._seen = done
        point = interim_phi(status)
        took = self._clock() - start
        self._due = start + max(_LEAST_SECONDS, _PACE * took)
        if point is None or (self.points and self.points[-1] == point):
            return None
        self.points = [each for each in self.points if each.runs < point.runs] + [point]
        lines = [json.dumps(asdict(each)) + "\n" for each in self.points]
        write_whole(self._place, "".join(lines).encode())
        return point


def interim_phi(status: SweepStatus) -> PhiPoint | None:
    """Return phi of the first study from the runs that are complete; None while that says nothing.

    It takes six runs more than the law has constants, two budgets, and r = 1 among two recurrences.
    """
    rows = collected_rows(status)
    if not rows:
        return None
    first = next(iter(by_study(rows).values()))
    try:
        runs = load_runs([dict(row) for row in first])
    except ValueError:  # too early: the last word will say it
        return None
    return _phi(runs)


def _phi(runs: RunTable) -> PhiPoint | None:
    levels, budgets = set(runs.recurrence.tolist()), set(runs.budgets.tolist())
    if len(levels) < 2 or 1.0 not in levels or len(budgets) < 2:
        return None
    problem = make_problem(runs)
    if len(runs) < len(problem.names) + _SPARE_RUNS:
        return None
    problem = make_problem(runs.with_huber_delta(suitable_huber_delta(runs)))
    theta = optimise(problem).theta
    weights = resample_cells(runs.cells, _RESAMPLES, 0)
    starts = np.broadcast_to(theta, (len(weights), len(theta)))
    boot = nearby_bootstrap(problem, weights, starts)
    phi = float(theta[GAIN])
    return PhiPoint(len(runs), phi, boot.interval(boot.theta[:, GAIN], phi))


def _read(place: Path) -> list[PhiPoint]:
    """Return what an earlier launcher kept; a damaged history is begun anew."""
    try:
        entries: list[Any] = [json.loads(line) for line in place.read_text().splitlines()]
        return [
            PhiPoint(x["runs"], x["phi"], tuple(x["ci95"]) if x["ci95"] else None) for x in entries
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []
