"""A gain in the loop or a gain everywhere: base and method under one law, apart by one constant.

All runs share A, alpha, B, beta, E and g(r); the method gets g of its own (what a pass through the
loop is worth changed) or A of its own (it trains better at any r). The criterion says which of the
two describes the runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from loopworth.compare.draws import TableFit
from loopworth.compare.pairing import shared_rows
from loopworth.law.diagnose import goodness
from loopworth.law.gain import Derivatives, FloatArray, Gain, make_gain
from loopworth.law.joint import ALPHA, GAIN, Problem
from loopworth.law.rivals import DECISIVE_AICC
from loopworth.law.solve import polish, seed_grid

_Evaluate = Callable[[FloatArray, FloatArray], Derivatives]

VARIANTS = {
    "same": "the method changes nothing",
    "gain in g": "the method has its own g(r)",
    "gain in A": "the method has its own A",
    "both": "the method has its own g(r) and A",
}
_MULTIPLIER = "ln lambda"
_REACH = 3.0  # box of ln lambda: a method that multiplies parameters by 20 is outside any table
_EVERY = 8  # the seeds of the grid that join the starts from both tables


@dataclass(frozen=True)
class Variant:
    """One joint law of base and method.

    constants   of g, and A's ratio method over base where the method has its own A
    delta_aicc  distance to the best of the four; None where the runs are too few for the criterion
    """

    key: str
    constants: dict[str, float]
    n_constants: int
    objective: float
    aicc: float | None
    delta_aicc: float | None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self) | {"meaning": VARIANTS[self.key]}


@dataclass(frozen=True)
class Variants:
    """The four joint laws of a base and a method on the same runs.

    training_minus_loop   AICc of `gain in A` minus that of `gain in g`: above 10 the method changes
                          the loop, below -10 the training, None where it cannot be said
    """

    rows: tuple[Variant, ...]
    n_runs: int
    training_minus_loop: float | None

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        gap = self.training_minus_loop
        if gap is None:
            return "The runs are too few to tell a gain in the loop from a gain in training."
        if abs(gap) < DECISIVE_AICC:
            return (
                "A gain in the loop and a gain in training describe it alike "
                f"(AICc differs by {abs(gap):.0f})."
            )
        better, worse = ("the loop (own g)", "training (own A)")
        if gap < 0:
            better, worse = worse, better
        return (
            f"A gain in {better} describes it better than one in {worse}, by {abs(gap):.0f} AICc."
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "n_runs": self.n_runs,
            "training_minus_loop": self.training_minus_loop,
            "sentence": self.sentence,
            "laws": {row.key: row.to_json() for row in self.rows},
        }


def fit_variants(base: TableFit, method: TableFit) -> Variants | None:
    """Fit the four joint laws to the runs of both tables, each run once.

    The runs that the method's table shares with the base (same numbers) count as the base's. None
    where all of them are shared.
    """
    own = ~shared_rows(base.runs, method.runs)
    key = base.law.problem.gain.key
    if not own.any():
        return None
    starts = np.stack([base.law.optimum.theta[:GAIN], method.law.optimum.theta[:GAIN]])
    ours, theirs = base.law.optimum.theta[GAIN:], method.law.optimum.theta[GAIN:]
    if len(ours) != len(theirs):  # `free` at other sets of r
        ours, theirs = ours[:0], theirs[:0]
    rows: list[Variant] = []
    for name in VARIANTS:
        problem = joint_problem(base, method, key, name)
        tail = problem.gain.parameters
        gains = [seed_gain(name, one, two, tail) for one, two in ((ours, theirs), (theirs, ours))]
        first = np.array(
            [[*scale, *gain] for scale in starts for gain in gains if len(gain) == len(tail)]
        ).reshape(-1, GAIN + len(tail))
        found = polish(problem, np.concatenate([first, seed_grid(problem)[::_EVERY]]))
        theta = found.theta[int(np.argmin(found.objective))]
        good = goodness(problem, theta)
        constants = dict(zip(tail, map(float, theta[GAIN:]), strict=True))
        if _MULTIPLIER in constants:
            constants["A ratio"] = math.exp(-theta[ALPHA] * constants.pop(_MULTIPLIER))
        rows.append(Variant(name, constants, len(theta), good.objective, good.aicc, None))
    return _compared(rows, len(base.runs) + int(own.sum()))


def _compared(rows: list[Variant], count: int) -> Variants:
    known = [row.aicc for row in rows if row.aicc is not None]
    best = min(known, default=0.0)
    by_key = {
        row.key: Variant(
            row.key, row.constants, row.n_constants, row.objective, row.aicc,
            None if row.aicc is None else row.aicc - best,
        )
        for row in rows
    }  # fmt: skip
    loop, training = by_key["gain in g"].aicc, by_key["gain in A"].aicc
    gap = None if loop is None or training is None else training - loop
    return Variants(tuple(by_key.values()), count, gap)


def seed_gain(
    name: str, one: FloatArray, two: FloatArray, parameters: tuple[str, ...]
) -> list[float]:
    """Return a start for the constants of a joint gain from those of the two tables."""
    own = name in ("gain in g", "both")
    start = [*one, *two] if own else list(0.5 * (one + two))
    return [*start, 0.0] if _MULTIPLIER in parameters else start


def joint_problem(base: TableFit, method: TableFit, key: str, variant: str) -> Problem:
    """Return the problem of one variant: the runs of both tables, each once."""
    own = ~shared_rows(base.runs, method.runs)
    group = np.repeat([0.0, 1.0], [len(base.runs), int(own.sum())])

    def column(name: str) -> FloatArray:
        return np.concatenate([getattr(base.runs, name), getattr(method.runs, name)[own]])

    pairs, code = np.unique(
        np.stack([column("recurrence"), group], axis=1), axis=0, return_inverse=True
    )
    return Problem.of(
        joint_gain(make_gain(key, pairs[:, 0]), pairs, variant),
        n_once=column("n_once"),
        n_rec=column("n_rec"),
        recurrence=code.reshape(-1).astype(float),
        tokens=column("tokens"),
        val_loss=column("val_loss"),
    )


def joint_gain(gain: Gain, pairs: FloatArray, variant: str) -> Gain:
    """Return a gain whose levels are codes: the places of (r, group) in `pairs` (U, 2).

    Group 0 is the base, 1 the method. With `gain in A` and `both` the method's parameters count
    lambda-fold in and out of the loop, which is another A: A lambda^-alpha.

    >>> pairs = np.array([[1.0, 0.0], [4.0, 0.0], [4.0, 1.0]])
    >>> own = joint_gain(make_gain("power", [1, 4]), pairs, "gain in g")
    >>> own.parameters, own.evaluate(np.array([[0.5, 1.0]]), np.arange(3.0))[0].tolist()
    (('phi (base)', 'phi (method)'), [[1.0, 2.0, 4.0]])
    """
    own, scaled = variant in ("gain in g", "both"), variant in ("gain in A", "both")
    shared = _own(gain, pairs) if own else _shared(gain, pairs)
    names, repeats = gain.parameters, 1
    if own:
        repeats = 2
        names = tuple(f"{name} ({who})" for who in ("base", "method") for name in names)
    lower, upper = gain.lower * repeats, gain.upper * repeats
    seeds = tuple(seed * repeats for seed in gain.seeds)
    if not scaled:
        return Gain(variant, gain.formula, names, lower, upper, seeds, shared)
    return Gain(
        variant,
        f"lambda ({gain.formula})",
        (*names, _MULTIPLIER),
        (*lower, -_REACH),
        (*upper, _REACH),
        tuple((*seed, 0.0) for seed in seeds),
        _multiplied(shared, pairs),
        _multiplied(_one, pairs),
    )


def _one(theta: FloatArray, codes: FloatArray) -> Derivatives:
    shape = (len(theta), len(codes), theta.shape[1])
    return np.ones(shape[:2]), np.zeros(shape), np.zeros((*shape, shape[2]))


def _shared(gain: Gain, pairs: FloatArray) -> _Evaluate:
    def evaluate(theta: FloatArray, codes: FloatArray) -> Derivatives:
        return gain.evaluate(theta, pairs[codes.astype(int), 0])

    return evaluate


def _own(gain: Gain, pairs: FloatArray) -> _Evaluate:
    size = len(gain.parameters)

    def evaluate(theta: FloatArray, codes: FloatArray) -> Derivatives:
        r, group = pairs[codes.astype(int)].T
        shape = (len(theta), len(codes), 2 * size)
        g, g1, g2 = np.empty(shape[:2]), np.zeros(shape), np.zeros((*shape, 2 * size))
        for which in (0, 1):
            part, mine = slice(which * size, (which + 1) * size), group == which
            h, h1, h2 = gain.evaluate(theta[:, part], r[mine])
            g[:, mine], g1[:, mine, part], g2[:, mine, part, part] = h, h1, h2
        return g, g1, g2

    return evaluate


def _multiplied(inner: _Evaluate, pairs: FloatArray) -> _Evaluate:
    """Multiply by lambda = exp(last constant) where the group is the method's."""

    def evaluate(theta: FloatArray, codes: FloatArray) -> Derivatives:
        h, h1, h2 = inner(theta[:, :-1], codes)
        group = pairs[codes.astype(int), 1]
        factor = np.exp(theta[:, -1:] * group)
        size = theta.shape[1]
        g1, g2 = np.empty((*h.shape, size)), np.empty((*h.shape, size, size))
        g1[..., :-1], g1[..., -1] = h1, group * h
        g2[..., :-1, :-1], g2[..., -1, -1] = h2, group * h
        g2[..., :-1, -1] = g2[..., -1, :-1] = group[:, None] * h1
        return factor * h, factor[..., None] * g1, factor[..., None, None] * g2

    return evaluate
