"""The law that rows are judged by: robust to bad rows, and flexible enough not to blame good ones.

Two steps. `robust_law` fits the law without the rows that it cannot meet, and drops them in turns
until the set is stable. `local_residuals` then takes out what a law of this form misses smoothly:
an offset of each (budget, recurrence) cell and a tilt of each valley that varies with budget and
recurrence. On the built-in tables that leaves 4 mnats of 9, so an under-tuned run stands out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loopworth.law.gain import FloatArray
from loopworth.law.joint import GAIN, Problem
from loopworth.law.rivals import make_problem
from loopworth.law.solve import polish, seed_grid
from loopworth.runs import HUBER_DELTA
from loopworth.table.values import distinct

Mask = NDArray[np.bool_]

FEWEST_RUNS = 10
"""Below this many rows no law is fitted to judge them."""

GROSS = 0.06
"""Log residual that no under-tuned run has: another unit, a diverged run, a wrong entry."""

_STARTS = 3
_ROUNDS = 6
_GROSS_SCALES = 8.0
_FEWEST_A_LEVEL = 5
# Spreads of cell offsets and of tilts in log loss. Twice as large, 2 % of random halves of the
# built-in tables raise an alarm; half as large, a shifted cell is taken for shifted runs.
_OFFSET, _TILT = 0.002, 0.003
_LETS_GO = 9.0  # Tukey's constant; at 6 the edge of a four-run cell is let go on a clean table
_LEAST_SCALE = 3e-4  # of log loss: below it losses are as exact as they are written


@dataclass(frozen=True)
class Rows:
    """The numbers of the rows that are judged, one entry a row."""

    n_once: FloatArray
    n_rec: FloatArray
    recurrence: FloatArray
    tokens: FloatArray
    val_loss: FloatArray

    @property
    def huber_delta(self) -> float:
        """The paper's: what is looked for here stands out far beyond it."""
        return HUBER_DELTA

    def __len__(self) -> int:
        return len(self.val_loss)


@dataclass(frozen=True)
class Reference:
    """A robust law: `log_residual` is ln observed minus ln predicted, `trusted` what it was fitted
    to, `scale` the robust standard deviation of the trusted log residuals.
    """

    rows: Rows
    problem: Problem
    theta: FloatArray
    log_residual: FloatArray
    trusted: Mask
    scale: float

    @property
    def predicted(self) -> FloatArray:
        """Predicted loss of every row, in the unit of the trusted ones."""
        return np.asarray(np.exp(self.problem.log_prediction(self.theta[None])[0]))

    def residual_with(self, **changed: FloatArray) -> FloatArray:
        """Return the log residuals that the rows would have with other tokens or parameters."""
        rows = replace(self.rows, **changed)
        problem = make_problem(rows, self.problem.gain.key)
        moved: FloatArray = problem.log_loss - problem.log_prediction(self.theta[None])[0]
        return moved


def robust_law(rows: Rows, trusted: Mask | None = None) -> Reference | None:
    """Fit the law to the rows that agree with it; None where there are too few.

    `trusted` starts the search: the rows believed to be right, by default all.
    """
    mask = np.ones(len(rows), dtype=bool) if trusted is None else trusted.copy()
    if mask.sum() < FEWEST_RUNS:
        return None
    problem = make_problem(rows, "power" if _varies(rows.recurrence[mask]) else "none")
    theta = _solve(problem, mask.astype(float))
    seen: set[bytes] = set()
    for _ in range(_ROUNDS):
        residual = problem.log_loss - problem.log_prediction(theta[None])[0]
        scale = _robust_scale(residual[mask])
        limit = max(GROSS, _GROSS_SCALES * scale)
        agreeing = np.abs(residual) <= limit
        if agreeing.sum() < FEWEST_RUNS or mask.tobytes() in seen or (agreeing == mask).all():
            break
        seen.add(mask.tobytes())
        mask = agreeing
        theta = _solve(problem, mask.astype(float), theta)
    residual = problem.log_loss - problem.log_prediction(theta[None])[0]
    return Reference(rows, problem, theta, residual, mask, _robust_scale(residual[mask]))


def free_law(reference: Reference) -> Reference:
    """Give every recurrence with enough trusted rows its own gain, from where `power` arrived."""
    rows, mask = reference.rows, reference.trusted
    levels = distinct(rows.recurrence)
    counts = [int((rows.recurrence[mask] == r).sum()) for r in levels]
    constants = GAIN + len(levels) - 1
    if len(levels) < 3 or min(counts) < _FEWEST_A_LEVEL or mask.sum() < constants + GAIN:
        return reference
    problem = make_problem(rows, "free")
    gains = levels[levels > 1] ** reference.theta[GAIN]
    start = np.concatenate([reference.theta[:GAIN], gains])
    theta = polish(problem, start[None], mask.astype(float)).theta[0]
    residual = problem.log_loss - problem.log_prediction(theta[None])[0]
    return Reference(rows, problem, theta, residual, mask, _robust_scale(residual[mask]))


def local_residuals(
    reference: Reference, cells: NDArray[np.int64], budgets: FloatArray
) -> tuple[FloatArray, float]:
    """Return the log residuals without their smooth part, and their robust standard deviation.

    Offsets and tilts are drawn to zero by the spreads that they have on the built-in tables, so
    that a cell of two runs explains little and a thinned grid is not fitted to death.
    """
    rows, residual = reference.rows, reference.log_residual
    log_n = np.log(rows.n_once + rows.n_rec)
    offsets = np.stack([cells == cell for cell in distinct(cells)], axis=1).astype(float)
    tilt = log_n - offsets @ (offsets.T @ log_n / offsets.sum(axis=0))
    columns = [np.ones(len(rows)), *offsets.T, tilt, tilt**2]
    for factor in (np.log(budgets), np.log(rows.recurrence)):
        spread = factor - factor.mean()
        if np.ptp(spread) > 0:
            columns.append(tilt * spread / spread.std())
    design = np.stack(columns, axis=1)
    prior = np.full(design.shape[1], _TILT)
    prior[0], prior[1 : 1 + offsets.shape[1]] = np.inf, _OFFSET
    return _shrunk_regression(design, residual, 1 / prior)


def _solve(problem: Problem, weights: FloatArray, theta: FloatArray | None = None) -> FloatArray:
    """Return the best of a few seeds, and of the last optimum."""
    seeds = seed_grid(problem, weights)
    full = np.broadcast_to(weights, (len(seeds), len(weights)))
    first = np.argsort(problem.objective(seeds, full), kind="stable")[:_STARTS]
    starts = seeds[first] if theta is None else np.concatenate([seeds[first], theta[None]])
    solution = polish(problem, starts, weights)
    best: FloatArray = solution.theta[int(np.argmin(solution.objective))]
    return best


def _shrunk_regression(
    design: FloatArray, values: FloatArray, precision: FloatArray
) -> tuple[FloatArray, float]:
    """Return residuals and scale of a ridge that lets go of outliers: Huber, then biweight."""
    weights = np.ones(len(values))
    residual = values - _middle(values)
    scale = _robust_scale(residual)
    penalty, nothing = np.diag(precision), np.zeros(len(precision))
    for step in range(24):
        root = np.sqrt(weights) / scale
        stacked = np.concatenate([design * root[:, None], penalty])
        target = np.concatenate([values * root, nothing])
        solved = np.linalg.lstsq(stacked, target, rcond=None)[0]
        residual = values - design @ solved
        scale = _robust_scale(residual)
        size = np.abs(residual) / scale
        if step < 12:
            weights = 1.345 / np.maximum(size, 1.345)
        else:
            weights = np.maximum(1 - (size / _LETS_GO) ** 2, 1e-6) ** 2
    scaled = design * (np.sqrt(weights) / scale)[:, None]
    inner = scaled.T @ scaled
    used = float(np.trace(np.linalg.solve(inner + penalty**2, inner)))
    spare = max(len(values) - used, 0.2 * len(values))
    return residual, scale * float(np.sqrt(len(values) / spare))


def _varies(values: FloatArray) -> bool:
    return bool(values.max() > values.min())


def _middle(values: FloatArray) -> float:
    return float(np.sort(values)[len(values) // 2])


def _robust_scale(residual: FloatArray) -> float:
    return max(1.4826 * _middle(np.abs(residual)), _LEAST_SCALE)
