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
from loopworth.law.heldout import HeldOutRow, carries, held_out, misses, refit, rms
from loopworth.law.intervals import COVERAGE, Interval
from loopworth.law.joint import GAIN, Problem
from loopworth.law.student import t_quantile
from loopworth.quantities import format_count
from loopworth.runs import RunTable
from loopworth.table.values import distinct

__all__ = [
    "FitWithout",
    "HeldOutRow",
    "Influence",
    "InfluenceTable",
    "fit_without",
    "held_out",
    "influence",
    "leaveout_findings",
    "outlier_findings",
    "outlying_rows",
    "rms",
    "t_quantile",
]

INFLUENTIAL = 0.25
"""A run that moves phi by more than this share of its standard error is named."""

LEAST_MOVE = 1e-3
"""A run that moves phi by less than this is not named, however small the standard error is."""

OUTLYING = 8.0
"""A run whose log residual exceeds this many robust standard deviations is an outlier."""

_NORMAL_MAD = 1.4826  # standard deviation over median absolute deviation of normal errors
_MOST_RUNS = 300  # refitted one by one: in a larger table those with the largest first-order effect
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
class FitWithout:
    """The law of the runs that are left without `rows`; `rmse` is theirs, in nats."""

    rows: tuple[int, ...]
    n_runs: int
    law: FittedLaw
    rmse: float

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "rows": list(self.rows),
            "n_runs": self.n_runs,
            "rmse": self.rmse,
            "fitted_law": self.law.to_json(),
        }


@dataclass(frozen=True)
class InfluenceTable:
    """Leave-one-run-out and leave-one-cell-out of phi.

    standard_error   of phi, the yardstick of `share`
    jackknife_se     of phi over the G cells: sqrt((G-1)/G sum (phi_-g - mean)^2)
    jackknife95      phi +- t(0.975, G-1) of these (Efron and Stein 1981), None for one cell
    n_runs           of the table; beyond 300 only those of the largest first-order effect are tried
    runs, cells      sorted, the largest change first
    influential      the runs that move phi by over a quarter of its standard error, and by 0.001
    phi_without      phi without all of these at once, None where there are none
    without_influential   the law without these runs
    """

    standard_error: float
    jackknife_se: float
    n_runs: int
    runs: tuple[Influence, ...]
    cells: tuple[Influence, ...]
    influential: tuple[Influence, ...]
    phi: float
    phi_without: float | None
    jackknife95: Interval | None = None
    without_influential: FitWithout | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "standard_error": self.standard_error,
            "jackknife_se": self.jackknife_se,
            "jackknife95": list(self.jackknife95) if self.jackknife95 else None,
            "n_runs": self.n_runs,
            "phi": self.phi,
            "phi_without": self.phi_without,
            "influential": [x.to_json() for x in self.influential],
            "runs": [x.to_json() for x in self.runs],
            "cells": [x.to_json() for x in self.cells],
            "without_influential": (
                self.without_influential.to_json() if self.without_influential else None
            ),
        }


def influence(
    runs: RunTable, problem: Problem, theta: FloatArray, standard_error: float | None = None
) -> InfluenceTable | None:
    """Return the influence of every run and cell on phi, None for a law without phi.

    `standard_error` is the yardstick, by default the jackknife over cells.

    >>> from loopworth import load_runs
    >>> from loopworth.law.rivals import make_problem
    >>> from loopworth.law.solve import optimise
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
    found = refit(problem, theta, np.concatenate([without_run, without_cell]))[:, column]
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
    named = tuple(x for x in of_runs if abs(x.share) > INFLUENTIAL and abs(x.change) >= LEAST_MOVE)
    without = fit_without(runs, problem, theta, [row for x in named for row in x.rows])
    interval = None
    if len(labels) > 1:
        reach = t_quantile(0.5 + COVERAGE / 2, len(labels) - 1) * jackknife
        interval = (phi - reach, phi + reach)
    return InfluenceTable(
        error,
        jackknife,
        size,
        of_runs,
        of_cells,
        named,
        phi,
        None if without is None else without.law.gain_parameters[column - GAIN],
        interval,
        without,
    )


def outlying_rows(runs: RunTable, problem: Problem, theta: FloatArray) -> tuple[int, ...]:
    """Return the rows that lie far from the law theta (p,), by the spread of the others.

    The spread is 1.48 times the median absolute log residual: few outliers do not inflate it.

    >>> from loopworth import load_runs
    >>> from loopworth.law.rivals import make_problem
    >>> from loopworth.law.solve import optimise
    >>> table = load_runs("schwethelm2026")
    >>> problem = make_problem(table)
    >>> outlying_rows(table, problem, optimise(problem).theta)
    ()
    """
    size = np.abs(problem.log_prediction(theta[None])[0] - problem.log_loss)
    # Where a table is nearly exact, what is left is rounding: the Huber threshold is the least.
    spread = max(_NORMAL_MAD * float(np.median(size)), problem.delta)
    return tuple(int(row) for row in runs.rows[size > OUTLYING * spread])


def fit_without(
    runs: RunTable, problem: Problem, theta: FloatArray, rows: Sequence[int]
) -> FitWithout | None:
    """Return the law without these rows, which are numbers of `runs.rows`.

    None without rows, and where what is left cannot carry the law.

    >>> from loopworth import load_runs
    >>> from loopworth.law.rivals import make_problem
    >>> from loopworth.law.solve import optimise
    >>> table = load_runs("schwethelm2026:hyperconnections")
    >>> problem = make_problem(table)
    >>> left = fit_without(table, problem, optimise(problem).theta, [1, 2, 17])
    >>> left.n_runs, round(left.law.phi(4), 2)
    (80, 0.6)
    """
    keep = ~np.isin(runs.rows, list(rows))
    if keep.all() or not carries(problem, runs.recurrence[keep]):
        return None
    found = refit(problem, theta, keep[None].astype(float))
    miss = misses(problem, found)[0, keep]
    law = FittedLaw.from_theta(problem.gain, runs.recurrence, found[0])
    left_out = tuple(int(row) for row in runs.rows[~keep])
    return FitWithout(left_out, int(keep.sum()), law, float(np.sqrt((miss**2).mean())))


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


def leaveout_findings(
    table: InfluenceTable | None, rows: Sequence[HeldOutRow], law: str
) -> Iterator[Finding]:
    """Yield the runs that carry phi, and the drift of a law that is always wrong one way."""
    if table is not None and table.influential:
        worst = table.influential[0]
        named = tuple(row for x in table.influential for row in x.rows)
        shown = name_rows(named[:_SHOWN])
        more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
        one = len(named) == 1
        left = f"Without {'it' if one else 'them'} phi is "
        yield Finding(
            "influential_runs",
            "note",
            f"Phi rests on single runs: without {name_rows(worst.rows)} (r = {worst.recurrence:g})"
            f" it moves by {worst.change:+.3f}, and {len(named)} of"
            f" {format_count(table.n_runs)} runs "
            f"{'moves' if one else 'move'} it by more than a quarter of its standard"
            f" error ({shown}{more}). "
            + ("" if table.phi_without is None else f"{left}{table.phi_without:.3f}."),
            rows=named,
            remedy="Rerun these with another seed before leaning on phi.",
        )
    rolling = [row for row in rows if row.kind == "rolling" and row.law == law]
    # Beyond what the scatter of the runs alone makes of a mean.
    sure = all(abs(row.bias) > 2 * row.rmse / math.sqrt(row.n_runs) for row in rolling)
    if len(rolling) > 1 and sure and len({row.bias > 0 for row in rolling}) == 1:
        bias = 1e3 * sum(row.bias for row in rolling) / len(rolling)
        floors = ", ".join(f"{row.E:.2f}" for row in rolling)
        yield Finding(
            "extrapolation_drifts",
            "warning",
            f"Fitted to the smaller budgets, the law predicts the next one {abs(bias):.0f} mnats "
            f"too {'low' if bias > 0 else 'high'} every time, while E slides: {floors}.",
            remedy="Widen predictions beyond the largest budget by this error.",
        )


def outlier_findings(left: FitWithout | None, law: FittedLaw) -> Iterator[Finding]:
    """Yield the runs that lie far from the law, with what its constants are without them."""
    if left is None:
        return
    then = left.law
    names = law.gain.parameters if law.key != "free" else ()
    moved = ", ".join(
        f"{name} is {after:.3f} instead of {before:.3f}"
        for name, after, before in zip(
            names, then.gain_parameters, law.gain_parameters, strict=bool(names)
        )
    )
    yield Finding(
        "outlying_runs",
        "warning",
        f"{name_rows(left.rows).capitalize()} "
        f"{'lies' if len(left.rows) == 1 else 'lie'} more than {OUTLYING:g} robust standard "
        f"deviations from the law. Without them {moved + ', ' if moved else ''}"
        f"A is {then.A:.3g}, alpha {then.alpha:.3f}, B {then.B:.4g}, beta {then.beta:.3f} and "
        f"E {then.E:.3f}.",
        rows=left.rows,
        remedy="Check these runs for divergence or another recipe, and drop them if they differ.",
        evidence=left.to_json(),
    )
