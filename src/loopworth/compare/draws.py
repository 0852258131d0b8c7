"""One law in one table and in every resample of it, and what the difference of two is worth.

The draws of both tables follow the valley of their own optimum (`loopworth.law.valley`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopworth.findings import join_words
from loopworth.law.diagnose import Goodness, anchored, goodness, refuse_equal_losses
from loopworth.law.gain import FloatArray
from loopworth.law.intervals import (
    FEWEST_RESAMPLES,
    Bootstrap,
    Interval,
    bootstrap_interval,
    probability_positive,
)
from loopworth.law.joint import GAIN, Problem
from loopworth.law.rivals import make_problem
from loopworth.law.solve import Optimum, optimise, polish
from loopworth.law.valley import elsewhere, valley_bootstrap
from loopworth.quantities import format_change, format_count
from loopworth.runs import RunTable
from loopworth.table.values import distinct


@dataclass(frozen=True)
class Difference:
    """A change, its 95 % interval and the probability that it is above 0; None without resamples.

    The probability is the level of the one-sided interval that ends at 0 (`probability_positive`),
    so it exceeds 97.5 % where the interval lies above 0 and nowhere else.
    """

    estimate: float
    ci95: Interval | None = None
    p_positive: float | None = None

    @property
    def established(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.ci95 is not None and (self.ci95[0] > 0 or self.ci95[1] < 0)

    @property
    def words(self) -> str:
        """The change with its interval and signs.

        >>> Difference(0.2178, (0.0367, 0.3248), 0.99).words
        '+0.22 [+0.04, +0.32]'
        """
        return format_change(self.estimate, self.ci95)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "estimate": self.estimate,
            "ci95": list(self.ci95) if self.ci95 else None,
            "p_positive": self.p_positive,
        }


@dataclass(frozen=True)
class LawFit:
    """One law fitted to one table, and to its resamples where there are any.

    bootstrap   each resample in the valley of the optimum
    lowest      each resample at its lowest point, wherever that is
    """

    problem: Problem
    optimum: Optimum
    goodness: Goodness
    bootstrap: Bootstrap | None
    lowest: Bootstrap | None = None

    @property
    def elsewhere(self) -> NDArray[np.bool_]:
        """Tell which resamples have their lowest point in another valley: (S,)."""
        return elsewhere(self.bootstrap, self.lowest)

    def anywhere(self) -> LawFit:
        """Return the fit with each resample at its lowest point."""
        return self if self.lowest is None else replace(self, bootstrap=self.lowest)

    @property
    def all_theta(self) -> FloatArray:
        """The optimum, then that of every resample: (1 + S, p)."""
        if self.bootstrap is None:
            return self.optimum.theta[None]
        return np.concatenate([self.optimum.theta[None], self.bootstrap.theta])

    def column(self, name: str) -> FloatArray:
        """Return one constant: the estimate, then that of every resample (1 + S,)."""
        column: FloatArray = self.all_theta[:, self.problem.names.index(name)]
        return column


@dataclass(frozen=True)
class TableFit:
    """A table under the law that is compared, and under the law `free` where the runs allow it."""

    name: str
    runs: RunTable
    law: LawFit
    free: LawFit | None

    @property
    def anchored(self) -> bool:
        """Whether runs at r = 1 fix the unit of a free g(r)."""
        return anchored(self.runs)

    @property
    def levels(self) -> tuple[float, ...]:
        """The recurrences above 1, in rising order."""
        return tuple(r for r in distinct(self.runs.recurrence).tolist() if r > 1)


def fit_table(
    name: str,
    runs: RunTable,
    law: str,
    weights: FloatArray | None,
    on_progress: Callable[[int], None] | None = None,
) -> TableFit:
    """Fit `law` and `free` to a table and, with weights (S, n), to its resamples.

    Raises ValueError where the runs are fewer than the constants of the law, or of one loss.
    """
    refuse_equal_losses(runs)
    problem = make_problem(runs, law)
    levels = np.array([r for r in distinct(runs.recurrence).tolist() if r > 1])
    if len(runs) < len(problem.names) or len(problem.gain.parameters) > len(levels):
        raise ValueError(
            f"{name} has {_counted(runs)}, too few for the {len(problem.names)} constants of the "
            f"law {law!r}; add runs, or compare under another law"
        )
    optimum = optimise(problem)
    good = goodness(problem, optimum.theta)
    draws: tuple[Bootstrap | None, Bootstrap | None] = (None, None)
    if weights is not None:
        draws = valley_bootstrap(problem, optimum.theta, weights, on_progress)
    main = LawFit(problem, optimum, good, *draws)
    if law == "free":
        return TableFit(name, runs, main, main)
    return TableFit(name, runs, main, _free(runs, main, levels, weights))


def _counted(runs: RunTable) -> str:
    """Count the runs of a table and name its recurrences."""
    levels = join_words(f"{r:g}" for r in distinct(runs.recurrence).tolist())
    return f"{format_count(len(runs))} run{'s' * (len(runs) != 1)} at r = {levels}"


def _free(
    runs: RunTable, main: LawFit, levels: FloatArray, weights: FloatArray | None
) -> LawFit | None:
    """Fit g at each r, every resample from where the other law ended there."""
    problem = make_problem(runs, "free")
    if len(runs) < len(problem.names):
        return None
    gain = main.problem.gain

    def moved(theta: FloatArray) -> FloatArray:
        return np.concatenate([theta[:, :GAIN], gain.evaluate(theta[:, GAIN:], levels)[0]], axis=1)

    optimum = optimise(problem, extra_starts=moved(main.optimum.theta[None]))
    boot = None
    if weights is not None and main.bootstrap is not None:
        # A resample without runs at some r says nothing about g there, and would never converge.
        whole = np.all([weights[:, runs.recurrence == r].any(axis=1) for r in levels], axis=0)
        found = polish(problem, moved(main.bootstrap.theta[whole]), weights[whole])
        theta = np.full((len(weights), len(problem.names)), np.nan)
        objective, converged = theta[:, 0].copy(), np.zeros(len(weights), dtype=bool)
        theta[whole], objective[whole] = found.theta, found.objective
        converged[whole] = found.converged
        boot = Bootstrap(theta, objective, converged, weights, 1.0)
    return LawFit(problem, optimum, goodness(problem, optimum.theta), boot)


def estimate_interval(fit: LawFit, column: int) -> Interval | None:
    """Return the interval of one constant, None without resamples."""
    boot = fit.bootstrap
    if boot is None:
        return None
    return boot.interval(boot.theta[:, column], float(fit.optimum.theta[column]))


def difference(base: LawFit, method: LawFit, values: FloatArray) -> Difference:
    """Return what paired values are worth: (1 + S,), the estimate and then its resamples.

    Every interval and every probability of a comparison is made here. The interval is
    `bootstrap_interval`, of the resamples that converged in both tables.
    """
    estimate = float(values[0])
    if base.bootstrap is None or method.bootstrap is None:
        return Difference(estimate)
    kept = values[1:][both_converged(base, method) & np.isfinite(values[1:])]
    if len(kept) < FEWEST_RESAMPLES:
        return Difference(estimate)
    blocks = min(base.bootstrap.blocks, method.bootstrap.blocks)
    return Difference(
        estimate,
        bootstrap_interval(kept, estimate, blocks),
        probability_positive(kept, estimate, blocks),
    )


def change_of(name: str, base: LawFit, method: LawFit) -> Difference:
    """Return the change of one constant that both laws have."""
    return difference(base, method, method.column(name) - base.column(name))


def both_converged(base: LawFit, method: LawFit) -> NDArray[np.bool_]:
    """Tell which resamples converged in both tables."""
    assert base.bootstrap is not None
    assert method.bootstrap is not None
    return np.asarray(base.bootstrap.converged & method.bootstrap.converged)
