"""Intervals from the block bootstrap over (budget, recurrence) cells.

Runs of one cell share what the law misses there, so they are resampled together; a bootstrap of
single runs is about 1.6 times too narrow on the table of arXiv 2604.21106.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from loopworth.law.gain import FloatArray
from loopworth.law.joint import GAIN, Problem
from loopworth.law.solve import Solution, polish, seed_grid
from loopworth.law.student import t_quantile
from loopworth.table.values import distinct

Interval = tuple[float, float]
COVERAGE = 0.95
FEWEST_RESAMPLES = 40
"""The least resamples that have a run in each 2.5 % tail; fewer give no interval."""

_STANDARD = NormalDist()
NORMAL = _STANDARD.inv_cdf(0.5 + COVERAGE / 2)
"""Half a 95 % interval in standard deviations, 1.96; its square is the chi-square threshold."""

_SPARE_SEEDS = 8  # seeds of the grid for the few resamples that look unsolved


@dataclass(frozen=True)
class Bootstrap:
    """The optima of resampled tables: theta (S, p), objective (S,), converged (S,), weights (S, n).

    `agreeing` is the share of resamples in which a second, independent start found no lower point.
    """

    theta: FloatArray
    objective: FloatArray
    converged: NDArray[np.bool_]
    weights: FloatArray
    agreeing: float

    @cached_property
    def blocks(self) -> int:
        """How many blocks were drawn from: runs of one block always enter together."""
        return len(np.unique(self.weights, axis=1).T)

    def interval(self, values: FloatArray, estimate: float) -> Interval | None:
        """Return the 95 % interval of `values` (S,), leaving out resamples that did not converge.

        `estimate` is the value on all runs. None where too few are left (`bootstrap_interval`).
        """
        return bootstrap_interval(values[self.converged], estimate, self.blocks)


def bootstrap_interval(values: FloatArray, estimate: float, blocks: int) -> Interval | None:
    """Return the 95 % interval of an estimate from its resampled values (S,).

    The bias-corrected percentile interval (Efron 1987, JASA 82, 171): with z0 the normal quantile
    of the share of values below the estimate, its ends are the quantiles at the levels
    Phi(2 z0 -+ 1.96). Both are then moved away from the estimate by t(0.975, G - 1) / 1.96 for G
    blocks, since a percentile interval takes the spread of few blocks for known (Hesterberg 2015,
    The American Statistician 69, 371), though never beyond the outermost value. On simulated sweeps
    (benchmarks/README.md) this covers 93 to 97 % where the plain percentiles cover 91.5 to 97.5 %.
    None for fewer than 40 finite values or 2 blocks.

    >>> bootstrap_interval(np.linspace(-2.0, 2.0, 401), 0.0, 1000)
    (-1.902..., 1.902...)
    """
    kept = values[np.isfinite(values)]
    if len(kept) < FEWEST_RESAMPLES or blocks < 2:
        return None
    shift = 2 * _normal_share(kept, estimate)
    levels = [_STANDARD.cdf(shift - NORMAL), _STANDARD.cdf(shift + NORMAL)]
    low, high = np.quantile(kept, levels)
    wider = _widening(blocks)
    least, most = float(kept.min()), float(kept.max())
    left = max(estimate - wider * (estimate - float(low)), least)
    right = min(estimate + wider * (float(high) - estimate), most)
    return min(left, estimate), max(right, estimate)


def probability_positive(values: FloatArray, estimate: float, blocks: int) -> float | None:
    """Return how sure it is that an estimate is above 0: the level of its one-sided interval.

    It is the level at which the lower end of `bootstrap_interval` lies at 0, so that it exceeds
    97.5 % where that interval lies above 0 and nowhere else. The bare share of values above 0 is
    another number where the values are not centred on the estimate, and contradicts the interval.
    None where there is no interval.

    >>> values = np.linspace(-1.0, 3.0, 401)
    >>> round(probability_positive(values, 1.0, 1000), 2)
    0.75
    """
    kept = values[np.isfinite(values)]
    ends = bootstrap_interval(values, estimate, blocks)
    if ends is None:
        return None
    spare = 0.5 / len(kept)
    if kept.min() > 0 and estimate > 0:
        return 1 - spare
    if kept.max() < 0 and estimate < 0:
        return spare
    # Ends lie at estimate + wider (quantile - estimate), so 0 is the quantile at `place`.
    place = estimate * (1 - 1 / _widening(blocks))
    level = _STANDARD.cdf(2 * _normal_share(kept, estimate) - _normal_share(kept, place))
    level = min(max(level, spare), 1 - spare)
    # Quantiles are interpolated and shares are not: the interval has the last word.
    half = 0.5 - COVERAGE / 2
    if ends[0] > 0:
        return max(level, 1 - half)
    return min(level, half) if ends[1] < 0 else min(max(level, half), 1 - half)


def _normal_share(values: FloatArray, place: float) -> float:
    """Return the normal quantile of the share of values below a place, never infinite."""
    below = float((values < place).mean() + 0.5 * (values == place).mean())
    spare = 0.5 / len(values)
    return _STANDARD.inv_cdf(min(max(below, spare), 1 - spare))


def _widening(blocks: int) -> float:
    """Return how much further from the estimate the ends of an interval of few blocks lie."""
    return t_quantile(0.5 + COVERAGE / 2, blocks - 1) / NORMAL


def resample_cells(cells: NDArray[np.integer], resamples: int, seed: int) -> FloatArray:
    """Return how often each run enters each resample, shape (resamples, n).

    Cells are drawn with replacement, as many as there are.

    >>> weights = resample_cells(np.array([0, 0, 1, 2]), 5, seed=0)
    >>> weights.shape, bool((weights[:, 0] == weights[:, 1]).all())
    ((5, 4), True)
    """
    labels = distinct(cells)
    count = len(labels)
    even = np.full(count, 1 / count)
    draws = np.random.default_rng(seed).multinomial(count, even, resamples).astype(float)
    return np.asarray(draws[:, np.searchsorted(labels, cells)])


def block_bootstrap(
    problem: Problem,
    weights: FloatArray,
    starts: FloatArray,
    *,
    second_look: bool = True,
    on_progress: Callable[[int], None] | None = None,
) -> Bootstrap:
    """Solve every resample, warm: from its row of `starts` (S, p) or from one optimum (p,).

    With `second_look` each resample starts twice more: from the solution of another one, which is a
    perturbation of the size that resampling itself makes, and from the best point where the gain
    is as low as its lowest seed, the only other valley seen. Resamples that did not converge, or
    sit on the box, also start from seeds of the grid. Cold starts alone give useless intervals: on
    the table of arXiv 2604.21106 [-0.92, 1.09] where warm ones give [0.40, 0.51].
    """
    starts = np.broadcast_to(starts, (len(weights), starts.shape[-1]))
    best = polish(problem, starts, weights, on_progress=on_progress)
    agreeing = 1.0
    if second_look:
        low = np.broadcast_to(_low_gain(problem, starts[0]), starts.shape)
        others = polish(problem, np.roll(best.theta, 1, axis=0), weights, on_progress=on_progress)
        others, _ = better(others, polish(problem, low, weights, on_progress=on_progress))
        best, improved = better(best, others)
        agreeing = 1.0 - float(improved.mean())
    on_box = ((best.theta <= problem.lower) | (best.theta >= problem.upper)).any(axis=1)
    doubtful = np.flatnonzero(~best.converged | on_box)
    if len(doubtful):
        grid = seed_grid(problem)
        for seed in grid[:: max(1, len(grid) // _SPARE_SEEDS)]:
            tried = polish(problem, np.tile(seed, (len(doubtful), 1)), weights[doubtful])
            best = _merge(best, tried, doubtful)
    return Bootstrap(best.theta, best.objective, best.converged, weights, agreeing)


def _low_gain(problem: Problem, theta: FloatArray) -> FloatArray:
    """Return the best point on all runs where the gain is held at its lowest seed."""
    start = theta.copy()
    start[GAIN:] = problem.gain.seeds[0]
    found: FloatArray = polish(problem, start, fixed=range(GAIN, len(theta))).theta[0]
    return found


def better(one: Solution, two: Solution) -> tuple[Solution, NDArray[np.bool_]]:
    """Return the lower of two solutions row by row, and where the second was lower by more."""
    merged = _merge(one, two, np.arange(len(one.theta)))
    return merged, two.objective < one.objective * (1 - 1e-7)


def _merge(best: Solution, tried: Solution, rows: NDArray[np.intp]) -> Solution:
    """Put the rows of `tried` that are lower in the place of those of `best`."""
    lower = tried.objective < best.objective[rows]
    taken = rows[lower]
    theta, objective = best.theta.copy(), best.objective.copy()
    converged, steps = best.converged.copy(), best.steps.copy()
    theta[taken], objective[taken] = tried.theta[lower], tried.objective[lower]
    converged[taken], steps[taken] = tried.converged[lower], tried.steps[lower]
    return Solution(theta, objective, converged, steps)
