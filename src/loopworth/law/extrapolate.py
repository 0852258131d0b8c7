"""Predictions outside the grid, with intervals that know how the law has missed before.

A bootstrap interval at a larger budget says how well the constants are known if the law is true.
The law is not: fitted to the smaller budgets it misses the next one, always to the same side, and
fitted to the other recurrences it misses the one left out. So a prediction is widened by those
held-out errors, once for every step that it lies beyond the grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import NormalDist, median
from typing import Any

import numpy as np

from loopworth.findings import Finding
from loopworth.law.fitted import FittedLaw
from loopworth.law.gain import FloatArray
from loopworth.law.intervals import COVERAGE, Bootstrap, Interval
from loopworth.law.joint import GAIN
from loopworth.law.leaveout import rms
from loopworth.law.points import Point
from loopworth.law.result import Fit
from loopworth.table.values import distinct

_NORMAL = NormalDist().inv_cdf(0.5 + COVERAGE / 2)  # half a 95 % interval in standard deviations
_RULE = (
    "wide95 = predicted +- 1.96 sqrt(sd_bootstrap^2 + sd_held_out^2); sd_bootstrap = width of ci95 "
    "/ 3.92; sd_held_out^2 = max(steps * rolling-origin RMS, leave-one-budget-out RMS)^2 + "
    "(recurrence_steps * leave-one-recurrence-out RMS)^2"
)


@dataclass(frozen=True)
class Prediction:
    """A law at one point; losses in nats per token.

    ci95     from the bootstrap of the constants, None without it
    steps    how many budget steps of the grid the point lies beyond it, 0 inside
    recurrence_steps   0 at a recurrence that was run; else 1, or as many steps of the grid's ln r
             as the point lies beyond its largest where those are more
    wide95   predicted ± 1.96 sd with sd^2 = sd_bootstrap^2 + sd_held_out^2. sd_bootstrap is a
             normal's with the width of ci95. sd_held_out^2 adds two squares: `steps` times the
             rolling-origin RMS, never below the leave-one-budget-out RMS, its value inside the
             grid; and `recurrence_steps` times the leave-one-recurrence-out RMS. A law that is bent
             by its range misses each further step to the same side, so an error grows with the
             steps, not with their root. None without a bootstrap or the hold-outs that it needs
    inside   whether the measured loss lies in wide95, None where there is no loss or no interval
    """

    name: str
    recurrence: float
    tokens: float
    observed: float
    predicted: float
    ci95: Interval | None
    steps: float
    wide95: Interval | None
    inside: bool | None
    sd_bootstrap: float | None = None
    sd_held_out: float | None = None
    recurrence_steps: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        pairs = {
            k: list(v) if v else None for k, v in (("ci95", self.ci95), ("wide95", self.wide95))
        }
        return asdict(self) | pairs | {"rule": _RULE}


def extrapolate(
    fit: Fit, points: Sequence[Point], law: str | None = None
) -> tuple[Prediction, ...]:
    """Predict points outside the grid with the widened interval; points the law cannot reach go.

    `points` must be counted under the convention of the fit; `law` is that of the fit, or `power`
    or `bounded`, which every fit that has a gain resamples beside it.
    """
    fitted, draws = fit.law, fit.bootstrap
    if law is not None and law != fit.law.key:
        fitted = next(row.law for row in fit.laws if row.key == law)
        draws = fit.draws.get(law)
    return predict(
        fitted,
        draws,
        [point for point in points if fitted.knows(point.recurrence)],
        rms(fit.held_out, "rolling", fitted.key),
        inside_rms=rms(fit.held_out, "budget", fitted.key),
        budgets=distinct(fit.runs.budgets).tolist(),
        recurrence_rms=rms(fit.held_out, "recurrence", fitted.key),
        recurrences=distinct(fit.runs.recurrence).tolist(),
    )


def predict(
    law: FittedLaw,
    draws: Bootstrap | None,
    where: Sequence[Point],
    held_out_rms: float | None,
    *,
    inside_rms: float | None = None,
    budgets: Sequence[float] = (),
    recurrence_rms: float | None = None,
    recurrences: Sequence[float] = (),
) -> tuple[Prediction, ...]:
    """Predict each point with its bootstrap interval and the widened one (see `Prediction`).

    held_out_rms     rolling-origin RMS in nats: what one budget step beyond the grid has cost
    inside_rms       leave-one-budget-out RMS, the least error anywhere; by default held_out_rms
    budgets          of the grid in FLOPs; their median ratio is one step. With fewer than two,
                     every point counts as one step beyond
    recurrence_rms   leave-one-recurrence-out RMS: what an r that was not run has cost
    recurrences      that were run; without them every point counts as at one that was
    """
    least = held_out_rms if inside_rms is None else inside_rms
    found = []
    for point in where:
        place = (point.n_once, point.n_rec, point.recurrence, point.tokens)
        predicted = float(law.predict(*place))
        steps = _steps(budgets, point.budget_flops)
        across = _recurrence_steps(recurrences, point.recurrence)
        ci95 = draws.interval(losses(law, draws, point), predicted) if draws else None
        spread = (ci95[1] - ci95[0]) / (2 * _NORMAL) if ci95 else None
        missed = least
        if steps > 0:
            missed = None if held_out_rms is None else max(steps * held_out_rms, least or 0.0)
        if missed is not None and across > 0:
            missed = None if recurrence_rms is None else math.hypot(missed, across * recurrence_rms)
        wide95 = inside = None
        if missed is not None and spread is not None:
            half = _NORMAL * math.hypot(spread, missed)
            wide95 = (predicted - half, predicted + half)
            if math.isfinite(point.val_loss):
                inside = wide95[0] <= point.val_loss <= wide95[1]
        seen = (point.name, point.recurrence, point.tokens, point.val_loss)
        found.append(
            Prediction(*seen, predicted, ci95, steps, wide95, inside, spread, missed, across)
        )
    return tuple(found)


def losses(law: FittedLaw, boot: Bootstrap, point: Point) -> FloatArray:
    """Return the prediction of every resample of a law at one point, nats per token, shape (S,)."""
    theta = boot.theta
    g, _, _ = law.gain.evaluate(theta[:, GAIN:], np.array([point.recurrence]))
    # A resample whose gain has fallen below zero may have no parameters left to predict from.
    n_eff = point.n_once + g[:, 0] * point.n_rec
    n_eff = np.where(n_eff > 0, n_eff, np.nan)
    a, alpha, b, beta, e = theta[:, :GAIN].T
    loss: FloatArray = np.exp(e) + np.exp(a) * n_eff**-alpha + np.exp(b) * point.tokens**-beta
    return loss


def _steps(grid: Sequence[float], budget: float) -> float:
    """Return how many budget steps of the grid a budget lies beyond its largest; 0 inside."""
    budgets = sorted(b for b in grid if math.isfinite(b))
    if len(budgets) < 2:
        return 1.0
    step = median(math.log(b / a) for a, b in pairwise(budgets))
    return max(math.log(budget / budgets[-1]) / step, 0.0)


def _recurrence_steps(grid: Sequence[float], recurrence: float) -> float:
    """Return 0 at a recurrence of the grid, and how many steps of ln r away any other counts."""
    if not len(grid) or any(math.isclose(recurrence, r, rel_tol=1e-6) for r in grid):
        return 0.0
    levels = sorted(grid)
    if len(levels) < 2 or recurrence < levels[-1]:
        return 1.0
    step = median(math.log(b / a) for a, b in pairwise(levels))
    return max(math.log(recurrence / levels[-1]) / step, 1.0)


def extrapolation_findings(predictions: Sequence[Prediction]) -> Iterator[Finding]:
    """Yield the points that even the widened interval misses."""
    missed = [x for x in predictions if x.inside is False]
    if missed:
        worst = max(missed, key=lambda x: abs(x.observed - x.predicted))
        yield Finding(
            "extrapolation_missed",
            "warning",
            f"{len(missed)} of {len(predictions)} runs beyond the grid lie outside the widened "
            f"interval; the worst is {worst.name}: {worst.observed:.3f} against "
            f"{worst.predicted:.3f} nats.",
            remedy="Do not extrapolate this law.",
        )
