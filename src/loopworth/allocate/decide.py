"""The run that would decide between `power` and `bounded`, and how many of it are needed.

Two laws that fit the same recurrences alike are told apart where they disagree. At twice the
largest recurrence, at the optimum of the largest budget, they predict losses that lie Delta apart.
A run there has an error of its own of sigma nats, so the mean of n runs has sigma / sqrt(n). A
two-sided test of one law at level 5 % finds the other with probability 80 % once Delta exceeds
(z_0.975 + z_0.8) sigma / sqrt(n), the sample size of a one-sample z test (Cohen 1988, Statistical
Power Analysis, section 2.4; the other tail, below 1e-5, is left out), so

    n = ((1.960 + 0.842) sigma / Delta)^2 = (2.80 sigma / Delta)^2.

For sigma stands the RMSE of the law on its runs, the larger of the two laws. Most of it is misfit
that the runs of one (budget, recurrence) cell share, which more runs of that cell do not average
out: the runs count in full only spread over budgets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from loopworth.allocate.family import Family, families
from loopworth.allocate.optimum import frontier
from loopworth.law import Fit
from loopworth.law.extrapolate import Prediction, extrapolate, losses
from loopworth.law.intervals import Interval
from loopworth.law.points import Point
from loopworth.law.rivals import LawRow
from loopworth.law.untested import RIVALS, paired
from loopworth.quantities import format_flops, format_quantity
from loopworth.table.values import distinct

_LEVEL, _POWER = 0.05, 0.8
_NEEDED = NormalDist().inv_cdf(1 - _LEVEL / 2) + NormalDist().inv_cdf(_POWER)
_FURTHER = 2.0  # times the largest recurrence that was run
_MOST_RUNS = 10_000  # beyond which two laws are called the same


@dataclass(frozen=True)
class DecidingRun:
    """Where two laws part, what each predicts there, and how many runs tell them apart.

    place        the run: recurrence, parameters under the fit's convention, tokens, budget
    n_unique     unique parameters of the architecture, None where the table gives none
    power, bounded   losses in nats per token, their intervals widened by the hold-outs
    gap          Delta: loss under `bounded` minus loss under `power`, nats; with the 95 % interval
                 of the paired resamples
    rmse         sigma: error of one run in nats
    runs         how many runs are needed; None where the laws agree
    budgets      over how many budgets they should be spread: all of the table, or a run each
    """

    place: Point
    n_unique: float | None
    power: Prediction
    bounded: Prediction
    gap: float
    gap_ci95: Interval | None
    rmse: float
    runs: int | None
    budgets: int

    @property
    def sentence(self) -> str:
        """The deciding run in words."""
        where = f"r = {self.place.recurrence:g}"
        if math.isfinite(self.place.budget_flops):
            where += f" and {format_flops(self.place.budget_flops)} FLOPs"
        size = "the size of the best run at the largest r"
        if self.n_unique is not None:
            size = f"{format_quantity(self.n_unique)} parameters"
        text = (
            f"At {where} ({size}, {format_quantity(self.place.tokens)} tokens) power predicts "
            f"{self.power.predicted:.3f} nats, bounded {self.bounded.predicted:.3f}: "
            f"{1e3 * abs(self.gap):.1f} mnats apart. "
        )
        if self.runs is None:
            return f"{text}No number of runs there tells them apart."
        spread = f", spread over {self.budgets} budgets," if self.budgets > 1 else ""
        many = "run" if self.runs == 1 else "runs"
        return (
            f"{text}With {1e3 * self.rmse:.1f} mnats a run, {self.runs} {many} at that r{spread} "
            f"{'tells' if self.runs == 1 else 'tell'} them apart (80 % power at 5 %)."
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, the sentence included."""
        return {
            **asdict(self.place),
            "val_loss": None,
            "n_unique": self.n_unique,
            "power": self.power.to_json() | {"observed": None},
            "bounded": self.bounded.to_json() | {"observed": None},
            "gap": self.gap,
            "gap_ci95": list(self.gap_ci95) if self.gap_ci95 else None,
            "rmse": self.rmse,
            "runs": self.runs,
            "budgets": self.budgets,
            "sentence": self.sentence,
        }


def runs_needed(gap: float, sigma: float) -> int | None:
    """Return how many runs with errors of sigma show a difference of `gap`, both in nats.

    None beyond ten thousand: such laws agree.

    >>> runs_needed(0.01, 0.009), runs_needed(0.003, 0.009), runs_needed(0.0, 0.009)
    (7, 71, None)
    """
    if abs(gap) * math.sqrt(_MOST_RUNS) <= _NEEDED * sigma:
        return None
    return max(math.ceil((_NEEDED * sigma / gap) ** 2), 1)


def deciding_run(fit: Fit) -> DecidingRun | None:
    """Return the run that would decide between `power` and `bounded`, None without both laws.

    The architecture is that of the largest recurrence with its block passed twice as often, at the
    width where `power` has its optimum of the largest budget. A table without architectures gives
    the parameters and tokens of its best run at the largest recurrence and budget instead.

    >>> from loopworth import fit
    >>> found = deciding_run(fit("schwethelm2026", bootstrap=0))
    >>> found.place.recurrence, round(found.gap, 3), found.runs
    (16.0, 0.012, 6)
    """
    rows: Mapping[str, LawRow] = {row.key: row for row in fit.laws}
    if not all(key in rows and rows[key].law.recurrences for key in RIVALS):
        return None
    power, bounded = (rows[key] for key in RIVALS)
    point, n_unique = _optimum(fit, power) or _best_run(fit)
    (ours,), (theirs,) = (extrapolate(fit, [point], key) for key in RIVALS)
    gap = theirs.predicted - ours.predicted
    ends = None
    if all(key in fit.draws for key in RIVALS):
        parts = [losses(rows[key].law, fit.draws[key], point) for key in RIVALS]
        ends = paired(fit.draws).interval(parts[1] - parts[0], gap)
    rmse = max(power.goodness.rmse, bounded.goodness.rmse)
    runs = runs_needed(gap, rmse)
    count = len([b for b in distinct(fit.runs.budgets).tolist() if math.isfinite(b)])
    budgets = max(min(count, runs or count), 1)
    return DecidingRun(point, n_unique, ours, theirs, gap, ends, rmse, runs, budgets)


def _optimum(fit: Fit, power: LawRow) -> tuple[Point, float] | None:
    """Return the optimum of the largest budget at twice the largest recurrence."""
    top = max(power.law.recurrences)
    found = [family for family in families(fit.runs) if family.recurrence == top]
    if not found or found[0].spec is None or not found[0].budgets:
        return None
    recurrence = _FURTHER * top
    whole = int(recurrence) if recurrence.is_integer() else recurrence
    family = Family.of(replace(found[0].spec, recurrence=whole), fit.convention)
    budget = max(found[0].budgets)
    best = frontier(power.law, [family], [budget])
    if not best:
        return None
    once, rec = family.n_once(best[0].width), family.n_rec(best[0].width)
    point = _point(recurrence, once, rec, best[0].tokens, budget)
    return point, best[0].n_star


def _best_run(fit: Fit) -> tuple[Point, None]:
    """Return the run of least loss at the largest recurrence and budget, looped twice as often."""
    runs = fit.runs
    top = float(runs.recurrence.max())
    chosen = np.flatnonzero(runs.recurrence == top)
    budgets = runs.budgets[chosen]
    if np.isfinite(budgets).any():
        chosen = chosen[budgets == np.nanmax(budgets)]
    best = int(chosen[np.argmin(runs.val_loss[chosen])])
    sizes = (float(runs.n_once[best]), float(runs.n_rec[best]), float(runs.tokens[best]))
    return _point(_FURTHER * top, *sizes, float(runs.budgets[best])), None


def _point(recurrence: float, once: float, rec: float, tokens: float, budget: float) -> Point:
    return Point(f"r = {recurrence:g}", recurrence, once, rec, tokens, budget, math.nan, None)
