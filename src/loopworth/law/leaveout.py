"""Refits without some runs: what moves phi, and how far the law misses what it has not seen.

Every refit is a row of weights in which the runs left out count 0, so all of them are one batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopworth.findings import Finding, name_rows
from loopworth.law.fitted import FittedLaw
from loopworth.law.gain import FloatArray
from loopworth.law.joint import E, Problem
from loopworth.law.rivals import make_problem
from loopworth.law.solve import optimise, polish
from loopworth.runs import RunTable
from loopworth.table.values import distinct

INFLUENTIAL = 0.25
"""A run that moves phi by more than this share of its standard error is named."""

_FEWEST_BUDGETS = 3  # to fit before the next one is predicted
_MOST_RUNS = 300  # refitted one by one: in a larger table those with the largest first-order effect
_MOST_BUDGETS = 8  # left out in turn; a table with more of them is sampled evenly
_SHOWN = 5


@dataclass(frozen=True)
class Influence:
    """What phi becomes without one run or one cell.

    `rows` are the runs left out, `change` is phi without them minus phi, and `share` that change
    in standard errors of phi.
    """

    rows: tuple[int, ...]
    budget_flops: float
    recurrence: float
    change: float
    share: float

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self) | {"rows": list(self.rows)}


@dataclass(frozen=True)
class InfluenceTable:
    """Leave-one-run-out and leave-one-cell-out of phi.

    standard_error   of phi, the yardstick of `share`
    jackknife_se     of phi over the G cells: sqrt((G-1)/G sum (phi_-g - mean)^2)
    n_runs           of the table; beyond 300 only those of the largest first-order effect are tried
    runs, cells      sorted, the largest change first
    influential      the runs that move phi by more than a quarter of its standard error
    phi_without      phi without all of these at once, None where there are none
    """

    standard_error: float
    jackknife_se: float
    n_runs: int
    runs: tuple[Influence, ...]
    cells: tuple[Influence, ...]
    influential: tuple[Influence, ...]
    phi: float
    phi_without: float | None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "standard_error": self.standard_error,
            "jackknife_se": self.jackknife_se,
            "n_runs": self.n_runs,
            "phi": self.phi,
            "phi_without": self.phi_without,
            "influential": [x.to_json() for x in self.influential],
            "runs": [x.to_json() for x in self.runs],
            "cells": [x.to_json() for x in self.cells],
        }


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


def influence(
    runs: RunTable, problem: Problem, theta: FloatArray, standard_error: float | None = None
) -> InfluenceTable | None:
    """Return the influence of every run and cell on phi, None for a law without phi.

    `standard_error` is the yardstick, by default the jackknife over cells.

    >>> from loopworth import load_runs
    >>> table = load_runs("schwethelm2026:hyperconnections")
    >>> problem = make_problem(table)
    >>> worst = influence(table, problem, optimise(problem).theta).runs[0]
    >>> worst.rows, round(worst.change, 2)
    ((1,), -0.02)
    """
    if "phi" not in problem.gain.parameters:
        return None
    column = problem.names.index("phi")
    phi = float(theta[column])
    size = len(runs)
    labels = distinct(runs.cells)
    tried = _leading(problem, theta, column)
    without_run = np.ones((len(tried), size))
    without_run[np.arange(len(tried)), tried] = 0.0
    without_cell = (runs.cells[None, :] != labels[:, None]).astype(float)
    found = _refit(problem, theta, np.concatenate([without_run, without_cell]))[:, column]
    by_cell = found[len(tried) :]
    spread = float(((by_cell - by_cell.mean()) ** 2).sum())
    jackknife = math.sqrt((len(labels) - 1) / len(labels) * spread)
    error = jackknife if standard_error is None else standard_error

    def entry(members: NDArray[np.intp], value: float) -> Influence:
        first = int(members[0])
        return Influence(
            tuple(int(row) for row in runs.rows[members]),
            float(runs.budgets[first]),
            float(runs.recurrence[first]),
            value - phi,
            (value - phi) / error if error > 0 else 0.0,
        )

    of_runs = _sorted(entry(np.array([k]), float(found[i])) for i, k in enumerate(tried))
    of_cells = _sorted(
        entry(np.flatnonzero(runs.cells == label), float(by_cell[k]))
        for k, label in enumerate(labels)
    )
    named = tuple(x for x in of_runs if abs(x.share) > INFLUENTIAL)
    without = None
    if named and size - len(named) > len(theta):
        keep = ~np.isin(runs.rows, [row for x in named for row in x.rows])
        without = float(_refit(problem, theta, keep[None].astype(float))[0, column])
    return InfluenceTable(error, jackknife, size, of_runs, of_cells, named, phi, without)


def _leading(problem: Problem, theta: FloatArray, column: int) -> NDArray[np.intp]:
    """Return the runs worth leaving out: all, or those whose score moves the constant most.

    To first order leaving run i out moves theta by K^-1 J_i psi_i (the infinitesimal jackknife).
    """
    if len(problem) <= _MOST_RUNS:
        return np.arange(len(problem))
    jacobian = problem.jacobian(theta[None])[0]
    residual = problem.log_prediction(theta[None])[0] - problem.log_loss
    score = jacobian * np.clip(residual, -problem.delta, problem.delta)
    effect = np.abs((np.linalg.pinv(jacobian @ jacobian.T) @ score)[column])
    return np.sort(np.argsort(-effect, kind="stable")[:_MOST_RUNS])


def _sorted(entries: Iterator[Influence]) -> tuple[Influence, ...]:
    return tuple(sorted(entries, key=lambda x: -abs(x.change)))


def _refit(problem: Problem, theta: FloatArray, weights: FloatArray) -> FloatArray:
    """Solve each row of weights from the optimum and from a neighbour's solution, (B, p)."""
    first = polish(problem, np.tile(theta, (len(weights), 1)), weights)
    second = polish(problem, np.roll(first.theta, 1, axis=0), weights)
    lower = second.objective < first.objective
    return np.where(lower[:, None], second.theta, first.theta)


def held_out(runs: RunTable, laws: Sequence[str] = ("power", "bounded")) -> tuple[HeldOutRow, ...]:
    """Return rolling-origin, leave-one-budget-out and leave-one-recurrence-out of each law.

    A law that knows no g at a recurrence it has not seen (`free`) has no rows of that kind. A part
    is left out only where the rest has more runs than the law has constants and two recurrences.

    >>> from loopworth import load_runs
    >>> rows = held_out(load_runs("schwethelm2026"), ["power"])
    >>> [round(row.bias, 3) for row in rows if row.kind == "rolling"]
    [-0.012, -0.012, -0.013]
    """
    budgets = [b for b in distinct(runs.budgets).tolist() if math.isfinite(b)]
    levels = distinct(runs.recurrence).tolist()
    parts: list[tuple[str, float, NDArray[np.bool_], NDArray[np.bool_]]] = []
    chosen = _evenly(budgets[_FEWEST_BUDGETS:])
    parts += [("rolling", b, runs.budgets < b, runs.budgets == b) for b in chosen]
    if len(budgets) > _FEWEST_BUDGETS:
        parts += [("budget", b, runs.budgets != b, runs.budgets == b) for b in _evenly(budgets)]
    if len(levels) > 2:
        parts += [
            ("recurrence", r, runs.recurrence != r, runs.recurrence == r) for r in levels if r > 1
        ]
    rows = []
    for law in laws:
        for kind, left_out, fitted, tested in parts:
            row = _predict_held_out(runs, law, kind, left_out, fitted, tested)
            if row is not None:
                rows.append(row)
    return tuple(rows)


def _evenly(budgets: Sequence[float]) -> list[float]:
    """Return all budgets, or as many as are affordable from the smallest to the largest."""
    if len(budgets) <= _MOST_BUDGETS:
        return list(budgets)
    places = np.linspace(0, len(budgets) - 1, _MOST_BUDGETS).round().astype(int)
    return [budgets[place] for place in places]


def _predict_held_out(
    runs: RunTable,
    law: str,
    kind: str,
    left_out: float,
    fitted: NDArray[np.bool_],
    tested: NDArray[np.bool_],
) -> HeldOutRow | None:
    part, rest = runs.select(fitted), runs.select(tested)
    problem = make_problem(part, law)
    levels = [r for r in distinct(part.recurrence).tolist() if r > 1]
    if len(problem.gain.parameters) > len(levels) or len(part) <= len(problem.names):
        return None
    if law == "free" and kind == "recurrence":
        return None
    theta = optimise(problem).theta
    value = FittedLaw.from_theta(problem.gain, part.recurrence, theta)
    try:
        predicted = value.predict(rest.n_once, rest.n_rec, rest.recurrence, rest.tokens)
    except ValueError:  # g vanishes, or is unknown, at a recurrence that the part has not seen
        return None
    miss = rest.val_loss - predicted
    return HeldOutRow(
        kind,
        law,
        left_out,
        len(part),
        len(rest),
        float(miss.mean()),
        float(np.sqrt((miss**2).mean())),
        math.exp(float(theta[E])),
    )


def rms(rows: Sequence[HeldOutRow], kind: str, law: str) -> float | None:
    """Return the root mean square held-out error of one kind, nats; None without such rows."""
    chosen = [row for row in rows if row.kind == kind and row.law == law]
    runs = sum(row.n_runs for row in chosen)
    return math.sqrt(sum(row.n_runs * row.rmse**2 for row in chosen) / runs) if runs else None


def leaveout_findings(
    table: InfluenceTable | None, rows: Sequence[HeldOutRow], law: str
) -> Iterator[Finding]:
    """Yield the runs that carry phi, and the drift of a law that is always wrong one way."""
    if table is not None and table.influential:
        worst = table.influential[0]
        named = tuple(row for x in table.influential for row in x.rows)
        shown = name_rows(named[:_SHOWN])
        more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
        yield Finding(
            "influential_runs",
            "note",
            f"Phi rests on single runs: without {name_rows(worst.rows)} (r = {worst.recurrence:g})"
            f" it moves by {worst.change:+.3f}, and {len(named)} of {table.n_runs} runs move it"
            f" by more than a quarter of its standard error ({shown}{more}). "
            + (
                "" if table.phi_without is None else f"Without them phi is {table.phi_without:.3f}."
            ),
            rows=named,
            remedy="Rerun these with another seed before leaning on phi.",
        )
    rolling = [row for row in rows if row.kind == "rolling" and row.law == law]
    if len(rolling) > 1 and len({row.bias > 0 for row in rolling}) == 1:
        bias = 1e3 * sum(row.bias for row in rolling) / len(rolling)
        floors = ", ".join(f"{row.E:.2f}" for row in rolling)
        yield Finding(
            "extrapolation_drifts",
            "warning",
            f"Fitted to the smaller budgets, the law predicts the next one {abs(bias):.0f} mnats "
            f"too {'low' if bias > 0 else 'high'} every time, while E slides: {floors}.",
            remedy="Widen predictions beyond the largest budget by this error.",
        )
