"""The solver: damped Newton on many problems at once, and the proof that an optimum is global.

The Huber objective is piecewise smooth with a threshold far below the misfit, so first-order
methods crawl along its kinks (500 random L-BFGS-B starts find the optimum of the paper's table in
2-17 % of the cases). Here each step uses the exact Hessian, its eigenvalues by their absolute value
(saddle-free Newton, arXiv 1406.2572), plus a share of the curvature of iteratively reweighted least
squares that grows when a step fails. Almost every start arrives, and a bootstrap is one batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loopworth.law.gain import FloatArray
from loopworth.law.joint import ALPHA, BETA, GAIN, A, B, E, Problem

_LANES = 128  # problems stepped together: enough to amortise numpy's calls, few enough to be cached
_MAX_STEPS = 400
# Share of the reweighted curvature in a step, 0 is Newton: its start, and what success and failure
# make of it. Of 36 settings tried on the three built-in studies these took the fewest steps.
_FIRST_DAMPING, _EASE, _BRAKE = 0.3, 0.5, 8.0
_TOLERANCE = 1e-12  # predicted decrease over the objective at which a problem is solved
_FLOOR = 1e-12  # log residual that counts as zero: noiseless tables must end as well
_PATIENCE = 25  # steps after which a problem that has gained nothing is taken as solved
_AGREE = 1e-7  # relative distance of objectives that are the same optimum
_ALPHA_SEEDS = (0.1, 0.2, 0.35, 0.6)
_BETA_SEEDS = (0.2, 0.35, 0.5, 0.8)


@dataclass(frozen=True)
class Solution:
    """What a batch of starts came to: theta (B, p), objective (B,), converged (B,), steps (B,)."""

    theta: FloatArray
    objective: FloatArray
    converged: NDArray[np.bool_]
    steps: NDArray[np.intp]


@dataclass(frozen=True)
class Optimum:
    """The best point found from independent seeds, and how many of them agree on it."""

    theta: FloatArray
    objective: float
    seeds: int
    seeds_agreeing: int
    converged: bool
    rivals: FloatArray
    """Other local optima reached, best first, shape (m, p): starts for resampled problems."""


def polish(
    problem: Problem,
    starts: FloatArray,
    weights: FloatArray | None = None,
    fixed: Sequence[int] = (),
    on_progress: Callable[[int], None] | None = None,
) -> Solution:
    """Minimise the objective from each start, every row with its own weights.

    `starts` is (B, p); `weights` (n,) or (B, n), default 1; columns in `fixed` keep their start's
    value. The box of the problem holds throughout. `on_progress` is told how many rows are done.
    """
    starts = np.clip(np.atleast_2d(np.asarray(starts, dtype=float)), problem.lower, problem.upper)
    rows = len(starts)
    full = np.ones(len(problem)) if weights is None else np.asarray(weights, dtype=float)
    full = np.broadcast_to(full, (rows, len(problem)))
    free = np.array([k for k in range(starts.shape[1]) if k not in set(fixed)], dtype=np.intp)
    newton = _Newton(problem, starts, full, free)
    newton.run(on_progress)
    return Solution(newton.theta, newton.objective, newton.converged, newton.steps)


class _Newton:
    """Many problems on their way down, `_LANES` at a time; a solved one makes room for the next."""

    def __init__(
        self, problem: Problem, starts: FloatArray, weights: FloatArray, free: NDArray[np.intp]
    ) -> None:
        self.problem, self.weights, self.free = problem, weights, free
        rows, size = starts.shape
        self.theta = starts.copy()
        # Before its first evaluation a problem has no slope: its first trial is its start.
        self.objective = np.full(rows, np.inf)
        self.gradient = np.zeros((rows, size))
        self.hessian, self.majorant = np.zeros((2, rows, size, size))
        self.damping = np.full(rows, _FIRST_DAMPING)
        self.before = np.full(rows, np.inf)  # the objective when patience was last counted
        self.converged = np.zeros(rows, dtype=bool)
        self.steps = np.zeros(rows, dtype=np.intp)
        self.floor = weights.sum(axis=1) * _FLOOR**2
        # A step in these coordinates moves the curves at the centre of the data, not at N = 1.
        self.centre = np.eye(size)
        self.centre[A, ALPHA] = float(np.log(problem.n_once + problem.n_rec).mean())
        self.centre[B, BETA] = float(problem.log_tokens.mean())

    def run(self, on_progress: Callable[[int], None] | None = None) -> None:
        """Solve every problem; `on_progress` hears how many have ended since its last call."""
        active, waiting = np.arange(0), 0
        while len(active) or waiting < len(self.theta):
            room = min(_LANES - len(active), len(self.theta) - waiting)
            active = np.concatenate([active, np.arange(waiting, waiting + room)])
            waiting += room
            self.steps[active] += 1
            step, predicted = self._step(active)
            better = self._try(active, step)
            small = predicted <= _TOLERANCE * self.objective[active] + self.floor[active]
            settled = (self.damping[active] < _FIRST_DAMPING) | ~better
            done = small & settled & (self.steps[active] > 1)
            done |= self._stalled(active)
            self.converged[active[done]] = True
            ended = done | (self.steps[active] > _MAX_STEPS)
            active = active[~ended]
            if on_progress is not None:
                on_progress(int(ended.sum()))

    def _stalled(self, active: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Tell the problems that wander along a flat valley: their runs leave a constant open."""
        counted = self.steps[active] % _PATIENCE == 0
        now = self.objective[active]
        stalled = counted & (now >= self.before[active] * (1.0 - 0.01 * _AGREE))
        self.before[active[counted]] = now[counted]
        return np.asarray(stalled)

    def _step(self, active: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
        """Return the damped Newton step (m, p) and the decrease it predicts (m,)."""
        theta, gradient = self.theta[active], self.gradient[active]
        damping = self.damping[active, None]
        hessian = self.hessian[active] + damping[:, :, None] * self.majorant[active]
        low, high = theta <= self.problem.lower, theta >= self.problem.upper
        held = np.asarray((low & (gradient > 0)) | (high & (gradient < 0)))
        frozen = np.ones(theta.shape[1], dtype=bool)
        frozen[self.free] = False
        held |= frozen
        # Rows on the box step in their own coordinates, where the box is a box.
        on_box = np.asarray(held.any(axis=1))[:, None, None]
        change = np.where(on_box, np.eye(theta.shape[1]), self.centre)
        keep = ~held
        gradient = np.where(keep, gradient, 0.0)
        hessian = hessian * (keep[:, :, None] & keep[:, None, :])
        gradient = np.matmul(change.transpose(0, 2, 1), gradient[:, :, None])[:, :, 0]
        hessian = np.matmul(np.matmul(change.transpose(0, 2, 1), hessian), change)
        diagonal = np.abs(np.einsum("bii->bi", hessian))
        scale = np.sqrt(np.maximum(diagonal, 1e-12 * diagonal.max(axis=1, keepdims=True) + 1e-300))
        curvature, basis = np.linalg.eigh(hessian / (scale[:, :, None] * scale[:, None, :]))
        slope = np.matmul(basis.transpose(0, 2, 1), (gradient / scale)[:, :, None])[:, :, 0]
        softened = np.abs(curvature) + 1e-3 * damping + 1e-12
        step = -np.matmul(basis, (slope / softened)[:, :, None])[:, :, 0] / scale
        step = np.matmul(change, step[:, :, None])[:, :, 0]
        step[held] = 0.0
        return step, (slope * slope / softened).sum(axis=1)

    def _bend(self, theta: FloatArray, step: FloatArray) -> FloatArray:
        """Return the end of a step that is straight in E and in the amplitudes at the centre.

        The valleys of the objective trade the floor against a term of small exponent: they curve in
        (b, beta, e) but are straight in E, B' = B D0^-beta and beta B'; likewise for A. Bending the
        step halves the number of steps.
        """
        end = theta + step
        for amplitude, exponent in ((A, ALPHA), (B, BETA)):
            centre = self.centre[amplitude, exponent]
            grown = _growth(step[:, amplitude] - centre * step[:, exponent])
            turned = step[:, exponent] / grown
            end[:, exponent] = theta[:, exponent] + turned
            end[:, amplitude] = theta[:, amplitude] + np.log(grown) + centre * turned
        end[:, E] = theta[:, E] + np.log(_growth(step[:, E]))
        return np.where(step == 0.0, theta, end)  # held columns stay

    def _try(self, active: NDArray[np.intp], step: FloatArray) -> NDArray[np.bool_]:
        """Take the steps that descend; damp the others harder."""
        trial = self._bend(self.theta[active], step)
        trial = np.clip(trial, self.problem.lower, self.problem.upper)
        then = self.problem.evaluate(trial, self.weights[active])
        better = then.objective < self.objective[active]
        moved, stuck = active[better], active[~better]
        self.theta[moved] = trial[better]
        self.objective[moved] = then.objective[better]
        self.gradient[moved] = then.gradient[better]
        self.hessian[moved] = then.hessian[better]
        self.majorant[moved] = then.majorant[better]
        self.damping[moved] = np.maximum(self.damping[moved] * _EASE, 1e-8)
        self.damping[stuck] = np.maximum(self.damping[stuck], 1e-4) * _BRAKE
        return better


def _growth(x: FloatArray) -> FloatArray:
    """Return 1 + x, continued smoothly to stay positive below x = -1/2."""
    return np.where(x > -0.5, 1.0 + x, 0.5 * np.exp(np.clip(2.0 * x + 1.0, -10.0, 0.0)))


def seed_grid(problem: Problem, weights: FloatArray | None = None) -> FloatArray:
    """Return starts that cover the box: a grid in the exponents and the gain, (m, p).

    E, A and B enter the law linearly, so at each grid point they come from weighted least squares
    on the relative loss (variable projection) instead of a draw.
    """
    loss = np.exp(problem.log_loss)
    root = np.sqrt(np.ones(len(problem)) if weights is None else weights)
    seeds = []
    for alpha, beta, theta in itertools.product(_ALPHA_SEEDS, _BETA_SEEDS, problem.gain.seeds):
        g, _, _ = problem.gain.evaluate(np.array([theta]), problem.levels)
        n_eff = problem.n_once + g[0, problem.level] * problem.n_rec
        columns = np.stack(
            [n_eff**-alpha, np.exp(-beta * problem.log_tokens), np.ones(len(problem))], axis=1
        )
        columns *= (root / loss)[:, None]
        scale = columns.max(axis=0)
        solved = np.linalg.lstsq(columns / scale, root, rcond=None)[0]
        # A term that least squares turns negative starts as a small positive one instead.
        a, b, e = np.log(np.maximum(solved, 1e-3 * np.abs(solved).max()) / scale)
        start = np.empty(GAIN + len(theta))
        start[[A, ALPHA, B, BETA, E]] = a, alpha, b, beta, e
        start[GAIN:] = theta
        seeds.append(start)
    return np.array(seeds)


def optimise(
    problem: Problem,
    weights: FloatArray | None = None,
    extra_starts: FloatArray | None = None,
) -> Optimum:
    """Return the global optimum of one problem, from every seed of the grid.

    `extra_starts` (m, p) join the seeds, for instance the optimum of a nested law.
    """
    starts = seed_grid(problem, weights)
    if extra_starts is not None:
        starts = np.concatenate([starts, extra_starts])
    solution = polish(problem, starts, weights)
    order = np.argsort(solution.objective, kind="stable")
    best = order[0]
    objective = float(solution.objective[best])
    slack = _AGREE * objective + len(problem) * _FLOOR
    agreeing = int((solution.objective <= objective + slack).sum())
    return Optimum(
        solution.theta[best],
        objective,
        len(starts),
        agreeing,
        bool(solution.converged[best]),
        _distinct(solution, order[agreeing:], slack),
    )


def _distinct(solution: Solution, order: NDArray[np.intp], slack: float) -> FloatArray:
    """Return one theta for each further local optimum, at most four."""
    kept: list[int] = []
    for k in order:
        if not solution.converged[k]:
            continue
        if all(abs(solution.objective[k] - solution.objective[m]) > slack for m in kept):
            kept.append(int(k))
    return solution.theta[kept[:4]]
