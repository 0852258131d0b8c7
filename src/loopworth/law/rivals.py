"""What a single phi hides: other gains, other conventions, each recurrence, each budget half."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, get_args

import numpy as np

from loopworth.findings import Finding
from loopworth.law.diagnose import Goodness, goodness, scale_parameters
from loopworth.law.fitted import FittedLaw
from loopworth.law.gain import GAINS, FloatArray, make_gain
from loopworth.law.intervals import Bootstrap, Interval
from loopworth.law.joint import GAIN, Problem
from loopworth.law.solve import Optimum, optimise
from loopworth.law.valley import nearby_bootstrap
from loopworth.ledger import CountInjection
from loopworth.runs import RunTable

DECISIVE_AICC = 10.0
"""A difference beyond which the weaker law is called refuted (Burnham and Anderson 2002)."""


@dataclass(frozen=True)
class LawRow:
    """One gain fitted to the same runs; `delta_aicc` is the distance to the best of the table."""

    law: FittedLaw
    formula: str
    goodness: Goodness
    delta_aicc: float | None
    optimum: Optimum

    @property
    def key(self) -> str:
        """The gain's key in the registry."""
        return self.law.key

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "formula": self.formula,
            "n_parameters": len(self.optimum.theta),
            **asdict(self.goodness),
            "delta_aicc": self.delta_aicc,
            "seeds": self.optimum.seeds,
            "seeds_agreeing": self.optimum.seeds_agreeing,
            "fitted_law": self.law.to_json(),
            "g": {f"{r:g}": self.law.g(r) for r in self.law.recurrences},
        }


@dataclass(frozen=True)
class ConventionRow:
    """Phi with the injection counted in one of its three places."""

    injection: str
    phi: float
    ci95: Interval | None
    objective: float
    r2: float

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self) | {"ci95": list(self.ci95) if self.ci95 else None}


@dataclass(frozen=True)
class GainRow:
    """g at one recurrence with a value of its own, and phi(r) = ln g / ln r with its interval."""

    recurrence: float
    g: float
    phi: float
    ci95: Interval | None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self) | {"ci95": list(self.ci95) if self.ci95 else None}


@dataclass(frozen=True)
class RecurrenceRow:
    """The plain Chinchilla law of the runs at one recurrence, in their unique parameters."""

    recurrence: float
    n_runs: int
    parameters: dict[str, float]
    goodness: Goodness

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        head = {"recurrence": self.recurrence, "n_runs": self.n_runs}
        return head | self.parameters | asdict(self.goodness)


@dataclass(frozen=True)
class HalfRow:
    """Phi of one half of the budgets."""

    half: str
    budgets: tuple[float, ...]
    n_runs: int
    phi: float

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self) | {"budgets": list(self.budgets)}


class Columns(Protocol):
    """What a law needs of runs: a RunTable, or rows that are not a table yet."""

    @property
    def n_once(self) -> FloatArray: ...  # noqa: D102
    @property
    def n_rec(self) -> FloatArray: ...  # noqa: D102
    @property
    def recurrence(self) -> FloatArray: ...  # noqa: D102
    @property
    def tokens(self) -> FloatArray: ...  # noqa: D102
    @property
    def val_loss(self) -> FloatArray: ...  # noqa: D102
    @property
    def huber_delta(self) -> float: ...  # noqa: D102


def make_problem(runs: Columns, law: str = "power") -> Problem:
    """Return the problem that the solver takes, for a table as its convention counts it."""
    return Problem.of(
        make_gain(law, runs.recurrence),
        n_once=runs.n_once,
        n_rec=runs.n_rec,
        recurrence=runs.recurrence,
        tokens=runs.tokens,
        val_loss=runs.val_loss,
        delta=runs.huber_delta,
    )


def law_rows(runs: RunTable, known: Mapping[str, Optimum]) -> tuple[LawRow, ...]:
    """Fit every gain that the runs can carry; `known` optima are taken as they are.

    A gain with more constants than there are recurrences above 1, or a law with more constants
    than runs, is left out.
    """
    levels = len({r for r in runs.recurrence.tolist() if r > 1})
    rows = []
    for key in GAINS:
        problem = make_problem(runs, key)
        constants = len(problem.gain.parameters)
        if key not in known and (constants > levels or len(runs) < GAIN + constants):
            continue
        optimum = known[key] if key in known else optimise(problem)
        fitted = FittedLaw.from_theta(problem.gain, runs.recurrence, optimum.theta)
        good = goodness(problem, optimum.theta)
        rows.append(LawRow(fitted, problem.gain.formula, good, None, optimum))
    return _ranked(rows)


def without_free(rows: Sequence[LawRow]) -> tuple[LawRow, ...]:
    """Leave out the law `free`, whose g(r) are no numbers where no run has r = 1."""
    return _ranked([row for row in rows if row.key != "free"])


def _ranked(rows: Sequence[LawRow]) -> tuple[LawRow, ...]:
    """Say how far each law is from the best."""
    best = min((row.goodness.aicc for row in rows if row.goodness.aicc is not None), default=None)
    return tuple(
        replace(row, delta_aicc=row.goodness.aicc - best)
        if row.goodness.aicc is not None and best is not None
        else row
        for row in rows
    )


def convention_rows(
    runs: RunTable, optimum: Optimum, boot: Bootstrap | None
) -> tuple[ConventionRow, ...]:
    """Return phi of the law `power` for each place where the injection can be counted.

    `optimum` and `boot` are those of `power` under the table's own convention. The same resamples
    are solved under the others, from their own optima moved by the difference of the conventions.
    """
    rows = []
    known = runs.conventions()
    for place in get_args(CountInjection):
        convention = replace(runs.convention, injection=place)
        if convention not in known:
            continue
        problem, theta, moved = make_problem(runs.under(convention)), optimum.theta, boot
        if convention != runs.convention:
            theta = optimise(problem, extra_starts=optimum.theta[None]).theta
            if boot is not None:
                starts = boot.theta + (theta - optimum.theta)
                moved = nearby_bootstrap(problem, boot.weights, starts)
        good = goodness(problem, theta)
        ci95 = moved.interval(moved.theta[:, GAIN], float(theta[GAIN])) if moved else None
        rows.append(ConventionRow(place, float(theta[GAIN]), ci95, good.objective, good.r2))
    return tuple(rows)


def gain_rows(
    runs: RunTable, laws: Sequence[LawRow], power: Bootstrap | None
) -> tuple[GainRow, ...]:
    """Return g and phi(r) of the law `free`, with intervals from the resamples of `power`.

    A resample that drew no run at some recurrence says nothing about it and is left out there.
    """
    free = next((row for row in laws if row.key == "free"), None)
    if free is None:
        return ()
    problem = make_problem(runs, "free")
    levels = np.array(free.law.recurrences)
    draws = None
    if power is not None:
        gains = levels ** power.theta[:, GAIN:]
        starts = np.concatenate([power.theta[:, :GAIN], gains], axis=1)
        boot = nearby_bootstrap(problem, power.weights, starts)
        # Without runs at r = 1 all g move together against A, so the resample says nothing either.
        drawn = {r: power.weights[:, runs.recurrence == r].any(axis=1) for r in (1.0, *levels)}
        anchored = drawn[1.0] if (runs.recurrence == 1.0).any() else True
        present = np.stack([drawn[r] & anchored for r in levels], axis=1)
        draws = np.where(present, np.log(boot.theta[:, GAIN:]) / np.log(levels), np.nan)
    return tuple(
        GainRow(
            float(r),
            free.law.g(r),
            free.law.phi(r),
            boot.interval(draws[:, k], free.law.phi(r)) if draws is not None else None,
        )
        for k, r in enumerate(levels)
    )


def recurrence_rows(runs: RunTable) -> tuple[RecurrenceRow, ...]:
    """Fit L = E + A N^-alpha + B D^-beta to the runs of each recurrence (arXiv 2604.21106, tab. 1).

    Recurrences with fewer runs than the five constants are left out.
    """
    rows = []
    for r in sorted(set(runs.recurrence.tolist())):
        part = runs.select(runs.recurrence == r)
        if len(part) < GAIN:
            continue
        problem = make_problem(part, "none")
        theta = optimise(problem).theta
        rows.append(RecurrenceRow(r, len(part), scale_parameters(theta), goodness(problem, theta)))
    return tuple(rows)


def half_rows(runs: RunTable) -> tuple[HalfRow, ...]:
    """Return phi of the lower and the upper half of the budgets, none where a half is too small."""
    budgets = sorted(set(runs.budgets[np.isfinite(runs.budgets)].tolist()))
    middle = len(budgets) // 2
    rows = []
    for name, chosen in (("low", budgets[:middle]), ("high", budgets[-middle:] if middle else [])):
        part = runs.select(np.isin(runs.budgets, chosen))
        if len(part) <= GAIN + 1 or len(set(part.recurrence.tolist())) < 2:
            return ()
        theta = optimise(make_problem(part)).theta
        rows.append(HalfRow(name, tuple(chosen), len(part), float(theta[GAIN])))
    return tuple(rows)


def rival_findings(laws: Sequence[LawRow], anchored: bool = True) -> tuple[Finding, ...]:
    """Return what the table of laws says about a fit that reports one phi.

    Where no run has r = 1 (`anchored` is false) the free g(r) are no numbers, only a better law.
    """
    by_key = {row.key: row for row in laws}
    power, free = by_key.get("power"), by_key.get("free")
    if not (power and free) or power.goodness.aicc is None or free.goodness.aicc is None:
        return ()
    gap = power.goodness.aicc - free.goodness.aicc
    if gap <= DECISIVE_AICC:
        return ()
    values, remedy = "", "Add runs at r = 1, which make phi(r) a number at each r."
    if anchored:
        shown = ", ".join(f"{free.law.phi(r):.2f} at r = {r:g}" for r in free.law.recurrences)
        values, remedy = (
            f", with phi(r) = {shown}",
            "Quote phi(r) with its set of recurrences, not phi alone.",
        )
    return (
        Finding(
            "phi_depends_on_recurrence",
            "warning",
            f"One phi does not describe these runs: a free g(r) is {gap:.0f} AICc better{values}.",
            remedy=remedy,
        ),
    )
