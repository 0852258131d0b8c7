"""The compute-optimal frontier of a law: best N, D and width for a budget, per recurrence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopworth.allocate.family import Family, families
from loopworth.isoflop import NEAR_OPTIMAL_NATS
from loopworth.law.fitted import FittedLaw
from loopworth.runs import RunTable

FloatArray = NDArray[np.float64]

# The bracket in ln(width): from narrower than a head to wider than any model.
_LOG_WIDTHS = (math.log(8.0), math.log(1e9))
_HALVINGS = 55  # leaves 2^-55 of it, which is the rounding of x


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """The best use of one budget at one recurrence, as the law has it.

    Fields
      budget_flops     C in FLOPs      width   d_model, continuous
      n_star, tokens   N* (unique, embeddings out) and D*     loss   L* in nats per token
      n_low, n_high    range of N whose loss is within NEAR_OPTIMAL_NATS of L*
      n_exponent, d_exponent   d ln N* / d ln C and d ln D* / d ln C at this budget. The exponents
                       printed in arXiv 2604.21106 take F as a power of N, which adds about 0.07 to
                       that of N: the true F bends upwards in ln N
      gap_to_r1        L* above that of r = 1 at the same budget, nats; None without an r = 1 family
      inside           N* lies in the measured range of N; extrapolated: C lies outside the measured
                       budgets. Both None for a family that comes from no runs
    """

    study: str
    recurrence: float
    budget_flops: float
    n_star: float
    tokens: float
    loss: float
    width: float
    train_flops_per_token: float
    n_low: float
    n_high: float
    n_exponent: float
    d_exponent: float
    inside: bool | None
    extrapolated: bool | None
    gap_to_r1: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def frontier(
    law: FittedLaw,
    source: RunTable | Iterable[Family],
    budgets: Sequence[float] | None = None,
    *,
    tolerance: float = NEAR_OPTIMAL_NATS,
) -> tuple[FrontierPoint, ...]:
    """Return N*(C), D*(C) and L*(C) of every family, with D = C / F(d) and continuous widths.

    `budgets` in FLOPs; without them, those that any of the families was measured at. A point where
    the law has no optimum (a term of it is zero) is left out; `frontier_findings` says so. Raises
    ValueError for a budget that is not positive and for a recurrence that the law does not know.

    >>> law = FittedLaw("power", (2.0, 4.0, 8.0), 28.4, 0.2, 911.0, 0.368, 1.57, (0.458,))
    >>> from loopworth.ledger import Convention
    >>> from loopworth.spec import ModelSpec
    >>> (point,) = frontier(law, [Family.of(ModelSpec(640), Convention("once"))], [1e19])
    >>> round(point.n_star / 1e6), round(point.tokens / 1e9, 1), round(point.loss, 2)
    (246, 2.1, 2.46)
    """
    chosen = families(source) if isinstance(source, RunTable) else tuple(source)
    if budgets is None:
        budgets = sorted({budget for family in chosen for budget in family.budgets})
    wrong = [budget for budget in budgets if not 0.0 < budget < math.inf]
    if wrong:
        raise ValueError(f"budget {wrong[0]:g} must be a positive, finite number of FLOPs")
    if not (chosen and budgets):
        return ()
    pairs = [(family, float(budget)) for family in chosen for budget in budgets]
    valley = _Valley.of(law, pairs)
    best = valley.minimum()
    optimal = _is_optimum(valley, best)
    low, high = valley.within(best, tolerance)
    n_slope, d_slope = valley.exponents(best)
    loss = valley.loss(best)
    points = []
    for i in np.flatnonzero(optimal):
        family, budget = pairs[i]
        width, measured = math.exp(best[i]), family.n_measured
        n_star, flops = family.n_unique(width), family.train_flops(width)
        points.append(
            FrontierPoint(
                family.study,
                family.recurrence,
                budget,
                n_star,
                budget / flops,
                float(loss[i]),
                width,
                flops,
                family.n_unique(math.exp(low[i])),
                family.n_unique(math.exp(high[i])),
                float(n_slope[i]),
                float(d_slope[i]),
                None if measured is None else measured[0] <= n_star <= measured[1],
                _is_outside(budget, family.budgets),
            )
        )
    return tuple(_with_gaps(points))


def _is_optimum(valley: _Valley, best: FloatArray) -> NDArray[np.bool_]:
    inside = (best > _LOG_WIDTHS[0] + 1e-6) & (best < _LOG_WIDTHS[1] - 1e-6)
    return inside & np.isfinite(valley.loss(best))


def _is_outside(budget: float, measured: Sequence[float]) -> bool | None:
    if not measured:
        return None
    slack = 1.0 + 1e-9
    return not min(measured) / slack <= budget <= max(measured) * slack


def _with_gaps(points: Sequence[FrontierPoint]) -> Iterable[FrontierPoint]:
    """Fill in the gap to r = 1 of the same study, or of the only study that has it."""
    unlooped: dict[float, dict[str, float]] = {}
    for point in points:
        if point.recurrence == 1.0:
            unlooped.setdefault(point.budget_flops, {})[point.study] = point.loss
    for point in points:
        known = unlooped.get(point.budget_flops, {})
        base = known.get(point.study, next(iter(known.values())) if len(known) == 1 else None)
        yield point if base is None else replace(point, gap_to_r1=point.loss - base)


@dataclass(frozen=True)
class _Valley:
    """Predicted loss against x = ln d for many (family, budget) pairs at once; arrays are (n,).

    L(x) = E + A N_eff(x)^-alpha + B (C / F(x))^-beta. Its slope has the sign of
    ln(beta B F^beta C^-beta e_F) - ln(alpha A N_eff^-alpha e_N), e the elasticities in d, which
    rises with x: one root, found by bisection, whatever the scales.
    """

    law: FittedLaw
    log_budget: FloatArray
    n_eff: FloatArray  # (3, n) coefficients
    n_unique: FloatArray
    flops: FloatArray

    @classmethod
    def of(cls, law: FittedLaw, pairs: Sequence[tuple[Family, float]]) -> _Valley:
        gains = {family.recurrence: law.g(family.recurrence) for family, _ in pairs}
        once, rec, unique, flops = (
            np.array([getattr(family, name) for family, _ in pairs], dtype=float).T
            for name in ("n_once", "n_rec", "n_unique", "train_flops")
        )
        gain = np.array([gains[family.recurrence] for family, _ in pairs])
        log_budget = np.log([budget for _, budget in pairs])
        return cls(law, log_budget, once + gain * rec, unique, flops)

    def loss(self, x: FloatArray) -> FloatArray:
        law = self.law
        capacity = law.A * _curve(self.n_eff, x)[0] ** -law.alpha
        tokens = np.exp(self.log_budget) / _curve(self.flops, x)[0]
        total: FloatArray = law.E + capacity + law.B * tokens**-law.beta
        return total

    def uphill(self, x: FloatArray) -> NDArray[np.bool_]:
        """Tell where the loss rises with the width."""
        law = self.law
        n, n_slope, _ = _curve(self.n_eff, x)
        f, f_slope, _ = _curve(self.flops, x)
        with np.errstate(divide="ignore"):  # a law without one of its terms has no valley
            rise = np.log(law.beta * law.B * f_slope) + law.beta * (np.log(f) - self.log_budget)
            fall = np.log(law.alpha * law.A * n_slope) - law.alpha * np.log(n)
        return np.asarray(rise > fall)

    def minimum(self) -> FloatArray:
        """Return ln d of the least loss, or an end of the range where there is none."""
        low, high = (np.full_like(self.log_budget, end) for end in _LOG_WIDTHS)
        return _bisect(self.uphill, low, high)

    def within(self, best: FloatArray, tolerance: float) -> tuple[FloatArray, FloatArray]:
        """Return the ends of the range of ln d whose loss is within `tolerance` of the least."""
        ceiling = self.loss(best) + tolerance
        low, high = (np.full_like(best, end) for end in _LOG_WIDTHS)
        left = _bisect(lambda x: self.loss(x) <= ceiling, low, best)
        return left, _bisect(lambda x: self.loss(x) > ceiling, best, high)

    def exponents(self, best: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return d ln N*/d ln C and d ln D*/d ln C, by differentiating the optimum's condition."""
        law = self.law
        _, n_slope, n_bend = _curve(self.n_eff, best)
        _, f_slope, f_bend = _curve(self.flops, best)
        _, unique_slope, _ = _curve(self.n_unique, best)
        stiffness = law.beta * f_slope + law.alpha * n_slope + f_bend / f_slope - n_bend / n_slope
        with np.errstate(divide="ignore", invalid="ignore"):
            widening = law.beta / stiffness  # d ln d* / d ln C
        return unique_slope * widening, 1.0 - f_slope * widening


def _curve(coefficients: FloatArray, x: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return a polynomial's value at d = e^x, its elasticity, and the elasticity's own slope."""
    d = np.exp(x)
    constant, linear, square = coefficients[0], coefficients[1] * d, coefficients[2] * d * d
    value = constant + linear + square
    slope = (linear + 2.0 * square) / value
    bend = (linear + 4.0 * square) / value - slope**2
    return value, slope, bend


def _bisect(
    above: Callable[[FloatArray], NDArray[np.bool_]], low: FloatArray, high: FloatArray
) -> FloatArray:
    """Return where `above` turns from false to true, each entry in its own bracket."""
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        up = above(middle)
        low, high = np.where(up, low, middle), np.where(up, middle, high)
    return 0.5 * (low + high)
