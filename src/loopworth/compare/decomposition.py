"""Where a change of loss comes from: tokens, width, parameters, the loop, or the training.

At one budget C the predicted loss is L = E + A N_eff(d)^-alpha + B (C / F(d))^-beta at width d.
Going from base to method changes five things: F (other FLOPs per token buy other tokens), the width
d (moved along the budget), the parameters at one width, g, and the constants A, alpha, B, beta, E.
Each thing gets the mean of what its change does over all orders of the five (Shapley 1953), so the
parts add up to the whole.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from loopworth.allocate import Family, families
from loopworth.compare.draws import Difference, LawFit, TableFit, difference
from loopworth.isoflop import isoflop_minima
from loopworth.law.gain import FloatArray
from loopworth.law.joint import ALPHA, BETA, GAIN, A, B, E
from loopworth.table.blocks import SAME_BUDGET

View = Literal["matched", "optimum"]
PARTS = ("tokens", "width", "parameters", "loop", "training")
_LOG_WIDTHS = (math.log(8.0), math.log(1e9))
_HALVINGS = 50


@dataclass(frozen=True)
class Point:
    """A model at the budget: width d_model, tokens, loss in nats, FLOPs per token."""

    width: float
    tokens: float
    loss: float
    train_flops_per_token: float
    inference_flops_per_token: float


@dataclass(frozen=True)
class Decomposition:
    """The change of loss from base to method at one budget and recurrence, in nats, and its parts.

    view      `optimum`: each at its own compute-optimal width; `matched`: both at the base's, so
              that budget and width are the same and the part `width` is 0
    change    predicted loss of the method minus that of the base
    parts     tokens: other FLOPs per token; width: moved along the budget; parameters: others at
              the same width; loop: g; training: A, alpha, B, beta, E
    measured  the same change read off iso-FLOP minima, None where one is missing; only `optimum`
    inference_ratio   forward FLOPs per token of the method over those of the base
    """

    view: View
    recurrence: float
    budget_flops: float
    change: Difference
    parts: Mapping[str, Difference]
    base: Point
    method: Point
    inference_ratio: float
    measured: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "view": self.view,
            "recurrence": self.recurrence,
            "budget_flops": self.budget_flops,
            "change": self.change.to_json(),
            "parts": {name: part.to_json() for name, part in self.parts.items()},
            "base": asdict(self.base),
            "method": asdict(self.method),
            "inference_ratio": self.inference_ratio,
            "measured_change": self.measured,
        }


def decompose(base: TableFit, method: TableFit, budget: float) -> tuple[Decomposition, ...]:
    """Split the change of loss at a budget for each recurrence above 1 that both tables have.

    The law is `free` where both tables allow it, since under one phi its misfit is of the size of
    the change. A recurrence is left out where one table has no architecture, or several, at it,
    and where the law has no optimum.
    """
    if base.free is None or method.free is None:
        first, second = base.law, method.law
    else:
        first, second = base.free, method.free
    ours, theirs = _families(base), _families(method)
    found = []
    for r in sorted(set(base.levels) & set(method.levels) & set(ours) & set(theirs)):
        one, two = _Side.of(first, ours[r], r, budget), _Side.of(second, theirs[r], r, budget)
        if not (np.isfinite(one.best[0]) and np.isfinite(two.best[0])):
            continue
        for view in ("optimum", "matched"):
            measured = _measured(base, method, r, budget) if view == "optimum" else None
            found.append(_decomposition(view, first, second, one, two, measured))
    return tuple(found)


def shapley(values: Mapping[frozenset[str], FloatArray]) -> dict[str, FloatArray]:
    """Return each player's mean contribution over all orders, from the value of every coalition.

    Source: Shapley 1953, A value for n-person games.

    >>> two = {frozenset(): 0.0, frozenset("a"): 1.0, frozenset("b"): 2.0, frozenset("ab"): 5.0}
    >>> {name: float(part) for name, part in shapley(two).items()}
    {'a': 2.0, 'b': 3.0}
    """
    players = sorted(frozenset().union(*values))
    orders = math.factorial(len(players))
    parts = {}
    for player in players:
        total: Any = 0.0
        for coalition, value in values.items():
            if player in coalition:
                before = len(coalition) - 1
                weight = math.factorial(before) * math.factorial(len(players) - before - 1)
                total = total + weight * (value - values[coalition - {player}])
        parts[player] = total / orders
    return parts


def _families(fit: TableFit) -> dict[float, Family]:
    """Return the one layout of each recurrence."""
    every = families(fit.runs)
    counts = [family.recurrence for family in every]
    return {x.recurrence: x for x in every if counts.count(x.recurrence) == 1}


@dataclass(frozen=True)
class _Side:
    """One table at a budget and recurrence; arrays are (1 + S,): the estimate, then resamples."""

    family: Family
    recurrence: float
    budget: float
    theta: FloatArray
    gain: FloatArray
    best: FloatArray

    @classmethod
    def of(cls, law: LawFit, family: Family, recurrence: float, budget: float) -> _Side:
        theta = law.all_theta
        gain = law.problem.gain.evaluate(theta[:, GAIN:], np.array([recurrence]))[0][:, 0]
        return cls(family, recurrence, budget, theta, gain, _best(theta, gain, family, budget))

    def point(self, width: float, loss: float) -> Point:
        flops = self.family.train_flops(width)
        inference = self.family.inference_flops(width)
        return Point(width, self.budget / flops, loss, flops, inference)


def _best(theta: FloatArray, gain: FloatArray, family: Family, budget: float) -> FloatArray:
    """Return the compute-optimal width of each law, NaN where it has none.

    The loss rises where beta B D^-beta e_F exceeds alpha A N_eff^-alpha e_N, with e the elasticity
    in the width, and from one width on it does so for good: bisection finds it.
    """
    low, high = (np.full(len(theta), end) for end in _LOG_WIDTHS)
    alpha, beta = theta[:, ALPHA], theta[:, BETA]
    with np.errstate(invalid="ignore", divide="ignore"):
        rise = np.log(beta) + theta[:, B] - beta * math.log(budget)
        fall = np.log(alpha) + theta[:, A]
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            d = np.exp(middle)
            flops, flops_slope = _curve(family.train_flops, d)
            once, once_slope = _curve(family.n_once, d)
            rec, rec_slope = _curve(family.n_rec, d)
            n_eff, n_slope = once + gain * rec, once_slope + gain * rec_slope
            up = rise + beta * np.log(flops) + np.log(flops_slope / flops) > (
                fall - alpha * np.log(n_eff) + np.log(n_slope / n_eff)
            )
            low, high = np.where(up, low, middle), np.where(up, middle, high)
        best = np.exp(0.5 * (low + high))
    inside = (best > 1.01 * math.exp(_LOG_WIDTHS[0])) & (best < 0.99 * math.exp(_LOG_WIDTHS[1]))
    return np.where(inside & np.isfinite(gain), best, np.nan)


def _curve(coefficients: tuple[float, ...], d: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return a quadratic in the width and its derivative, times d."""
    constant, linear, square = coefficients
    return constant + d * (linear + d * square), d * (linear + 2 * d * square)


def _decomposition(
    view: View,
    first: LawFit,
    second: LawFit,
    base: _Side,
    method: _Side,
    measured: float | None,
) -> Decomposition:
    theirs = method.best if view == "optimum" else base.best
    values = _coalitions(base, method, base.best, theirs)
    parts = shapley(values)
    before, after = values[frozenset()], values[frozenset(PARTS)]
    one = base.point(float(base.best[0]), float(before[0]))
    two = method.point(float(theirs[0]), float(after[0]))
    return Decomposition(
        view,
        base.recurrence,
        base.budget,
        difference(first, second, after - before),
        {name: difference(first, second, parts[name]) for name in PARTS},
        one,
        two,
        two.inference_flops_per_token / one.inference_flops_per_token,
        measured,
    )


def _coalitions(
    base: _Side, method: _Side, ours: FloatArray, theirs: FloatArray
) -> dict[frozenset[str], FloatArray]:
    """Return the loss (1 + S,) with every choice of what is the method's and what the base's."""
    values = {}
    for size in range(len(PARTS) + 1):
        for taken in itertools.combinations(PARTS, size):
            flops, counts, loop, training = (
                method if name in taken else base
                for name in ("tokens", "parameters", "loop", "training")
            )
            d = theirs if "width" in taken else ours
            once, rec = (_curve(x, d)[0] for x in (counts.family.n_once, counts.family.n_rec))
            log_n = np.log(once + loop.gain * rec)
            log_d = math.log(base.budget) - np.log(_curve(flops.family.train_flops, d)[0])
            a, alpha, b, beta, e = (training.theta[:, k] for k in (A, ALPHA, B, BETA, E))
            loss = np.exp(e) + np.exp(a - alpha * log_n) + np.exp(b - beta * log_d)
            values[frozenset(taken)] = loss
    return values


def _measured(base: TableFit, method: TableFit, r: float, budget: float) -> float | None:
    """Return the change between the two measured iso-FLOP minima, where both exist."""
    losses = []
    for fit in (base, method):
        runs = fit.runs.select(fit.runs.recurrence == r)
        near = [
            x.loss_star
            for x in isoflop_minima(runs)
            if x.loss_star is not None and 1 / SAME_BUDGET < x.budget_flops / budget < SAME_BUDGET
        ]
        if len(near) != 1:
            return None
        losses.append(near[0])
    return float(losses[1] - losses[0])
