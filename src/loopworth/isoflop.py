"""Iso-FLOP parabolas: the measured optimum of each budget and recurrence, before any law.

At one budget and recurrence the validation loss is a valley in ln N. A parabola through the runs
gives its minimum, but only where it opens upwards and turns inside the measured widths; elsewhere
the result says why there is none. Valleys are flat, so a minimum travels with the range of N that
is as good. Source: arXiv 2604.21106, the iso-FLOP figure and its table of minima.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from loopworth.findings import Finding, join_words, name_rows
from loopworth.ledger import Convention
from loopworth.quantities import format_flops, format_quantity
from loopworth.runs import RunTable
from loopworth.table.values import distinct

FloatArray = NDArray[np.float64]
Status = Literal["minimum", "edge", "opens downwards", "flat", "too few widths"]

NEAR_OPTIMAL_NATS = 0.001
"""Losses closer than this, measured or predicted, are called equal: about another seed's noise."""

FEWEST_WIDTHS = 3
# A valley that bends by less than this over half the grid is not told from rounding.
_FLAT_NATS = 1e-6
# A list of parabolas in a sentence stays readable.
_SHOWN = 6


@dataclass(frozen=True, slots=True)
class IsoflopMinimum:
    """One parabola, loss = level + slope u + curvature u^2 with u = ln(N / center).

    Fields
      study, recurrence, budget_flops   the group of runs; budget in FLOPs
      rows, n_runs, n_widths            its runs, and how many different N they have
      status       minimum; edge (opens upwards, turns outside the measured N); opens downwards;
                   flat; too few widths (below 3). Only `minimum` has the fields with `star`
      n_measured   smallest and largest N: unique parameters without embeddings and head,
                   with norms and injection
      center, level, slope, curvature   the parabola in nats; None with too few widths
      rmse         of the parabola in nats; 0 where it passes through three points
      opens_upwards, inside             the two conditions of a minimum
      n_star, loss_star, tokens_star    where the parabola turns: N, nats per token, tokens
      n_low, n_high                     N within NEAR_OPTIMAL_NATS of it; may leave the grid
      log_n_star_se                     standard error of ln N*, None without spare runs
    """

    study: str
    recurrence: float
    budget_flops: float
    rows: tuple[int, ...]
    n_runs: int
    n_widths: int
    n_measured: tuple[float, float]
    status: Status
    opens_upwards: bool = False
    inside: bool = False
    center: float | None = None
    level: float | None = None
    slope: float | None = None
    curvature: float | None = None
    rmse: float | None = None
    n_star: float | None = None
    loss_star: float | None = None
    tokens_star: float | None = None
    n_low: float | None = None
    n_high: float | None = None
    log_n_star_se: float | None = None

    def loss_at(self, parameters: float) -> float:
        """Return the parabola's loss in nats at N unique parameters.

        Raises ValueError where there is no parabola.
        """
        if self.center is None or self.level is None or self.slope is None:
            raise ValueError(
                f"no parabola at {self.name}: {self.n_widths} widths, "
                f"{FEWEST_WIDTHS} are needed; check `status` first"
            )
        u = math.log(parameters / self.center)
        return self.level + u * (self.slope + u * (self.curvature or 0.0))

    @property
    def name(self) -> str:
        """The group in words: its recurrence and budget."""
        return f"r = {self.recurrence:g} at {format_flops(self.budget_flops)} FLOPs"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; what is unknown is None."""
        return asdict(self) | {"rows": list(self.rows), "n_measured": list(self.n_measured)}


def isoflop_minima(runs: RunTable) -> tuple[IsoflopMinimum, ...]:
    """Fit one parabola of val_loss in ln N to each study, recurrence and budget, in this order.

    N is the published count (norms and injection in, embeddings out) under whatever convention the
    table stands, so that minima do not move with it; a table that cannot be counted so is taken as
    it is. Runs without a budget are left out; `isoflop_findings` names them.

    >>> from loopworth.runs import load_runs
    >>> minima = isoflop_minima(load_runs("schwethelm2026:baseline"))
    >>> len(minima), minima[0].name, minima[0].status
    (24, 'r = 1 at 4.64e17 FLOPs', 'minimum')
    >>> round(minima[0].n_star / 1e6), round(minima[0].loss_star, 3)
    (68, 2.852)
    """
    if not isinstance(runs, RunTable):
        raise ValueError(
            f"runs is of type {type(runs).__name__}; give a RunTable, as load_runs makes it"
        )
    unique = _unique_parameters(runs)
    members: dict[tuple[str, float, float], list[int]] = {}
    for i in np.flatnonzero(np.isfinite(runs.budgets)):
        key = (runs.study[i], float(runs.recurrence[i]), float(runs.budgets[i]))
        members.setdefault(key, []).append(int(i))
    minima = []
    for (study, recurrence, budget), group in sorted(members.items()):
        rows = tuple(int(row) for row in runs.rows[group])
        log_n = np.log(unique[group])
        widths = len(distinct(np.round(log_n, 9)))
        fields = _parabola(log_n, runs.val_loss[group], runs.tokens[group], widths)
        span = (float(unique[group].min()), float(unique[group].max()))
        minima.append(
            IsoflopMinimum(study, recurrence, budget, rows, len(group), widths, span, **fields)
        )
    return tuple(minima)


def _unique_parameters(runs: RunTable) -> FloatArray:
    published = Convention()
    counted = runs.under(published) if published in runs.conventions() else runs
    return counted.n_once + counted.n_rec


def _parabola(
    log_n: FloatArray, loss: FloatArray, tokens: FloatArray, widths: int
) -> dict[str, Any]:
    """Return the fields of IsoflopMinimum that one group of runs decides."""
    if widths < FEWEST_WIDTHS:
        return {"status": "too few widths"}
    center = float(log_n.mean())
    u = log_n - center
    half = float(np.ptp(u)) / 2.0  # scales the columns to the same size
    design = (u[:, None] / half) ** np.arange(3)
    scaled: FloatArray = np.linalg.lstsq(design, loss, rcond=None)[0].astype(float)
    residual: FloatArray = loss - design @ scaled
    level, slope, curvature = (float(x) for x in scaled / half ** np.arange(3))
    fields: dict[str, Any] = {
        "center": math.exp(center),
        "level": level,
        "slope": slope,
        "curvature": curvature,
        "rmse": float(np.sqrt(np.mean(residual**2))),
    }
    if abs(float(scaled[2])) < _FLAT_NATS:
        return fields | {"status": "flat"}
    if curvature < 0.0:
        return fields | {"status": "opens downwards"}
    turn = -slope / (2.0 * curvature)
    fields |= {"opens_upwards": True}
    if not u.min() <= turn <= u.max():
        return fields | {"status": "edge"}
    reach = math.sqrt(NEAR_OPTIMAL_NATS / curvature)
    return fields | {
        "status": "minimum",
        "inside": True,
        "n_star": math.exp(center + turn),
        "loss_star": level + turn * (slope + turn * curvature),
        "tokens_star": _tokens_at(turn / half, design, tokens),
        "n_low": math.exp(center + turn - reach),
        "n_high": math.exp(center + turn + reach),
        "log_n_star_se": _turn_error(design, residual, scaled, half),
    }


def _tokens_at(x: float, design: FloatArray, tokens: FloatArray) -> float | None:
    """Return D at the minimum from the runs' own tokens: ln D is smooth in ln N."""
    if not np.all(tokens > 0.0):
        return None
    curve, *_ = np.linalg.lstsq(design, np.log(tokens), rcond=None)
    return math.exp(float(np.array([1.0, x, x * x]) @ curve))


def _turn_error(
    design: FloatArray, residual: FloatArray, scaled: FloatArray, half: float
) -> float | None:
    """Return the standard error of ln N* by the delta method."""
    spare = len(residual) - 3
    if spare < 1:
        return None
    covariance = np.linalg.inv(design.T @ design) * float(residual @ residual) / spare
    slope, bend = float(scaled[1]), float(scaled[2])
    gradient = np.array([0.0, -0.5 / bend, 0.5 * slope / bend**2]) * half
    return math.sqrt(float(gradient @ covariance @ gradient))


@dataclass(frozen=True, slots=True)
class OptimalExponents:
    """How the measured optimum grows with the budget: N* ~ C^n_exponent, D* ~ C^d_exponent.

    Slopes of ln N* and ln D* on ln C over the budgets with a minimum, each with its standard error
    (None with two budgets). N is not D / C: FLOPs per token are not 6 N, so the two need not sum
    to 1.
    """

    study: str
    recurrence: float
    n_budgets: int
    n_exponent: float
    n_se: float | None
    d_exponent: float | None
    d_se: float | None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def optimal_exponents(minima: Iterable[IsoflopMinimum]) -> tuple[OptimalExponents, ...]:
    """Regress ln N* and ln D* on ln C, for each study and recurrence with two budgets or more.

    >>> from loopworth.runs import load_runs
    >>> growth = optimal_exponents(isoflop_minima(load_runs("schwethelm2026:baseline")))
    >>> [(x.recurrence, round(x.n_exponent, 1)) for x in growth][:2]
    [(1.0, 0.5), (2.0, 0.6)]
    """
    groups: dict[tuple[str, float], list[IsoflopMinimum]] = {}
    for minimum in minima:
        if minimum.status == "minimum":
            groups.setdefault((minimum.study, minimum.recurrence), []).append(minimum)
    results = []
    for (study, recurrence), group in groups.items():
        budgets = [x.budget_flops for x in group]
        if len(set(budgets)) < 2:
            continue
        n_exponent, n_se = _log_slope(budgets, [x.n_star or math.nan for x in group])
        d_exponent: float | None = None
        d_se: float | None = None
        if all(x.tokens_star is not None for x in group):
            d_exponent, d_se = _log_slope(budgets, [x.tokens_star or math.nan for x in group])
        results.append(
            OptimalExponents(study, recurrence, len(group), n_exponent, n_se, d_exponent, d_se)
        )
    return tuple(results)


def _log_slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, float | None]:
    """Return the slope of ln y on ln x and its standard error."""
    log_x, log_y = np.log(x), np.log(y)
    log_x -= log_x.mean()
    spread = float(log_x @ log_x)
    slope = float(log_x @ log_y) / spread
    residual = log_y - log_y.mean() - slope * log_x
    spare = len(x) - 2
    error = math.sqrt(float(residual @ residual) / spare / spread) if spare > 0 else None
    return slope, error


@dataclass(frozen=True, slots=True)
class LossGap:
    """What looping costs at one budget: the minimum's loss above that of r = 1, in nats."""

    study: str
    recurrence: float
    budget_flops: float
    nats: float

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def loss_gaps(minima: Sequence[IsoflopMinimum]) -> tuple[LossGap, ...]:
    """Return the gap to r = 1 wherever both minima exist.

    The r = 1 minimum is that of the same study, or else the only one at this budget.

    >>> from loopworth.runs import load_runs
    >>> gaps = loss_gaps(isoflop_minima(load_runs("schwethelm2026:baseline")))
    >>> round(min(x.nats for x in gaps if x.recurrence == 2), 2)
    0.03
    """
    unlooped: dict[float, dict[str, float]] = {}
    for x in minima:
        if x.recurrence == 1.0 and x.loss_star is not None:
            unlooped.setdefault(x.budget_flops, {})[x.study] = x.loss_star
    gaps = []
    for x in minima:
        known = unlooped.get(x.budget_flops, {})
        base = known.get(x.study, next(iter(known.values())) if len(known) == 1 else None)
        if x.recurrence != 1.0 and x.loss_star is not None and base is not None:
            gaps.append(LossGap(x.study, x.recurrence, x.budget_flops, x.loss_star - base))
    return tuple(gaps)


_REFUSED: dict[str, tuple[Literal["warning", "note"], str, str]] = {
    "edge": (
        "warning",
        "it would lie outside the measured widths",
        "Run wider or narrower models at these budgets.",
    ),
    "opens downwards": (
        "warning",
        "the parabola opens downwards",
        "Add widths on both sides: a few runs on one flank bend over by their noise alone. If only "
        "some groups do, look among their rows for a diverged run.",
    ),
    "flat": ("note", "the losses are flat", "Run more widths at these budgets."),
    "too few widths": (
        "note",
        f"fewer than {FEWEST_WIDTHS} different N were run",
        "Run more widths at these budgets.",
    ),
}


def isoflop_findings(runs: RunTable, minima: Sequence[IsoflopMinimum]) -> tuple[Finding, ...]:
    """Say which parabolas give no minimum and why, and which rows belong to no budget.

    >>> from loopworth.runs import load_runs
    >>> runs = load_runs("schwethelm2026:baseline")
    >>> isoflop_findings(runs, isoflop_minima(runs))
    ()
    """
    findings = []
    several = len({x.study for x in minima if x.recurrence != 1.0}) > 1
    for status, (severity, why, remedy) in _REFUSED.items():
        failed = [x for x in minima if x.status == status]
        if not failed:
            continue
        rows = tuple(sorted(row for x in failed for row in x.rows))
        places = [f"{_label(x, several)} ({_measured(x)}{name_rows(x.rows)})" for x in failed]
        if len(places) > _SHOWN:
            places[_SHOWN:] = [f"{len(places) - _SHOWN} more"]
        message = (
            f"No iso-FLOP optimum for {len(failed)} of {len(minima)} groups of runs, since {why}: "
            f"{join_words(places)}."
        )
        code = "isoflop_" + status.replace(" ", "_")
        findings.append(Finding(code, severity, message, rows, remedy))
    lost = tuple(int(row) for row in runs.rows[~np.isfinite(runs.budgets)])
    if lost:
        message = f"No budget is known for {name_rows(lost)}; they enter no iso-FLOP parabola."
        remedy = "Give budget_flops, or an architecture from which it follows."
        findings.append(Finding("isoflop_no_budget", "note", message, lost, remedy))
    return tuple(findings)


def _label(minimum: IsoflopMinimum, several: bool) -> str:
    return f"{minimum.name} in {minimum.study}" if several and minimum.study else minimum.name


def _measured(minimum: IsoflopMinimum) -> str:
    low, high = (format_quantity(x) for x in minimum.n_measured)
    return f"N from {low} to {high}, " if minimum.n_widths > 1 else ""
