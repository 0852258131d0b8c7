"""How a law predicts runs that it was not fitted to: by budget, by recurrence, and the next budget.

Every part of a table is a row of weights in which the runs left out count 0, so all refits of a law
are one batch, warm from the optimum of the whole table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopworth.law.gain import GAINS, FloatArray
from loopworth.law.joint import GAIN, E, Problem
from loopworth.law.rivals import make_problem
from loopworth.law.solve import optimise, polish, seed_grid
from loopworth.runs import RunTable
from loopworth.table.values import distinct

_SEEDS = 4  # of the grid, for the few refits that do not converge
_FEWEST_BUDGETS = 3  # to fit before the next one is predicted
_MOST_BUDGETS = 8  # left out in turn; a table with more of them is sampled evenly


@dataclass(frozen=True)
class HeldOutRow:
    """How a law fitted without some runs predicts them; losses in nats per token.

    kind       rolling: fitted to the smaller budgets, predicts the next; budget, recurrence: fitted
               to all others
    left_out   the budget in FLOPs, or the recurrence
    bias       mean of observed minus predicted; rmse likewise
    E          the floor of that fit, which slides when a law is bent by its range
    """

    kind: str
    law: str
    left_out: float
    n_fitted: int
    n_runs: int
    bias: float
    rmse: float
    E: float

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def held_out(
    runs: RunTable,
    laws: Sequence[str] = GAINS,
    optima: Mapping[str, FloatArray] | None = None,
) -> tuple[HeldOutRow, ...]:
    """Return rolling-origin, leave-one-budget-out and leave-one-recurrence-out of each law.

    `optima` holds the theta of laws that are fitted already, by key; the others are fitted first.
    A law that knows no g at a recurrence it has not seen (`free`) has no rows of that kind. A part
    is left out only where the rest has more runs than the law has constants and two recurrences.

    >>> from loopworth import load_runs
    >>> rows = held_out(load_runs("schwethelm2026"), ["power"])
    >>> [round(row.bias, 3) for row in rows if row.kind == "rolling"]
    [-0.012, -0.012, -0.013]
    """
    parts = _parts(runs)
    rows: list[HeldOutRow] = []
    for law in laws:
        problem = make_problem(runs, law)
        if not carries(problem, runs.recurrence):
            continue
        usable = [part for part in parts if _predictable(problem, runs, part)]
        if usable:
            known = (optima or {}).get(law)
            theta = optimise(problem).theta if known is None else known
            rows += _held_out_rows(problem, law, theta, usable)
    return tuple(rows)


@dataclass(frozen=True)
class _Part:
    """Some runs to fit, and others to predict."""

    kind: str
    left_out: float
    fitted: NDArray[np.bool_]
    tested: NDArray[np.bool_]


def _parts(runs: RunTable) -> list[_Part]:
    budgets = [b for b in distinct(runs.budgets).tolist() if math.isfinite(b)]
    levels = distinct(runs.recurrence).tolist()
    chosen = _evenly(budgets[_FEWEST_BUDGETS:])
    parts = [_Part("rolling", b, runs.budgets < b, runs.budgets == b) for b in chosen]
    if len(budgets) > _FEWEST_BUDGETS:
        parts += [
            _Part("budget", b, runs.budgets != b, runs.budgets == b) for b in _evenly(budgets)
        ]
    if len(levels) > 2:
        parts += [
            _Part("recurrence", r, runs.recurrence != r, runs.recurrence == r)
            for r in levels
            if r > 1
        ]
    return parts


def _predictable(problem: Problem, runs: RunTable, part: _Part) -> bool:
    if part.kind == "recurrence" and problem.gain.key == "free":
        return False
    return carries(problem, runs.recurrence[part.fitted])


def _held_out_rows(
    problem: Problem, law: str, theta: FloatArray, parts: Sequence[_Part]
) -> list[HeldOutRow]:
    fitted = np.array([part.fitted for part in parts])
    solved = refit(problem, theta, fitted.astype(float), far=True)
    return [
        HeldOutRow(
            part.kind,
            law,
            part.left_out,
            int(part.fitted.sum()),
            int(part.tested.sum()),
            float(miss.mean()),
            float(np.sqrt((miss**2).mean())),
            math.exp(float(found[E])),
        )
        for part, found, miss in (
            (part, solved[k], all_[part.tested])
            for k, (part, all_) in enumerate(zip(parts, misses(problem, solved), strict=True))
        )
    ]


def _evenly(budgets: Sequence[float]) -> list[float]:
    """Return all budgets, or as many as are affordable from the smallest to the largest."""
    if len(budgets) <= _MOST_BUDGETS:
        return list(budgets)
    places = np.linspace(0, len(budgets) - 1, _MOST_BUDGETS).round().astype(int)
    return [budgets[place] for place in places]


def rms(rows: Sequence[HeldOutRow], kind: str, law: str) -> float | None:
    """Return the root mean square held-out error of one kind, nats; None without such rows."""
    chosen = [row for row in rows if row.kind == kind and row.law == law]
    runs = sum(row.n_runs for row in chosen)
    return math.sqrt(sum(row.n_runs * row.rmse**2 for row in chosen) / runs) if runs else None


def refit(
    problem: Problem, theta: FloatArray, weights: FloatArray, *, far: bool = False
) -> FloatArray:
    """Solve each row of weights from the optimum and from a neighbour's solution, (B, p).

    With `far`, for parts that are not nearly the whole, they also start where the gain is as low as
    its lowest seed, the only other valley seen; rows that do not converge, from seeds of the grid.
    """
    first = polish(problem, np.tile(theta, (len(weights), 1)), weights)
    found, objective = first.theta.copy(), first.objective.copy()

    def again(starts: FloatArray, rows: NDArray[np.intp]) -> None:
        tried = polish(problem, starts, weights[rows])
        lower = tried.objective < objective[rows]
        found[rows[lower]], objective[rows[lower]] = tried.theta[lower], tried.objective[lower]

    doubtful, every = np.flatnonzero(~first.converged), np.arange(len(weights))
    again(np.roll(first.theta, 1, axis=0), every)
    if far and problem.gain.parameters:
        low = theta.copy()
        low[GAIN:] = problem.gain.seeds[0]
        low = polish(problem, low, fixed=range(GAIN, len(theta))).theta[0]
        again(np.tile(low, (len(weights), 1)), every)
    if len(doubtful):
        grid = seed_grid(problem)
        for seed in grid[:: max(1, len(grid) // _SEEDS)]:
            again(np.tile(seed, (len(doubtful), 1)), doubtful)
    return found


def misses(problem: Problem, theta: FloatArray) -> FloatArray:
    """Return observed minus predicted loss in nats, (B, n), for theta (B, p)."""
    return np.asarray(np.exp(problem.log_loss) - np.exp(problem.log_prediction(theta)))


def carries(problem: Problem, recurrence: FloatArray) -> bool:
    """Tell whether runs at these recurrences have what the constants of the law need."""
    levels = [r for r in distinct(recurrence).tolist() if r > 1]
    gains = len(problem.gain.parameters)
    # `free` knows nothing of a recurrence that is gone.
    enough = len(levels) == gains if problem.gain.key == "free" else len(levels) >= gains
    return enough and len(recurrence) > len(problem.names)
