"""A gain in the loop or a gain everywhere: base and method under one law, apart by one constant.

All runs share A, alpha, B, beta, E and g(r); the method gets g of its own (what a pass through the
loop is worth changed) or A of its own (it trains better at any r). The criterion says which of the
two describes the runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from loopworth.compare.draws import LawFit, TableFit
from loopworth.compare.pairing import shared_rows
from loopworth.law.diagnose import goodness
from loopworth.law.gain import Derivatives, FloatArray, Gain, make_gain
from loopworth.law.joint import ALPHA, GAIN, Problem
from loopworth.law.rivals import DECISIVE_AICC
from loopworth.law.solve import polish
from loopworth.runs import RunTable

Verdict = Literal["loop", "training", "open"]
_Evaluate = Callable[[FloatArray, FloatArray], Derivatives]

VARIANTS = {
    "same": "the method changes nothing",
    "gain in g": "the method has its own g(r)",
    "gain in A": "the method has its own A",
    "both": "the method has its own g(r) and A",
}
_MULTIPLIER = "ln lambda"
_REACH = 3.0  # box of ln lambda: a method that multiplies parameters by 20 is outside any table


@dataclass(frozen=True)
class Variant:
    """One joint law of base and method.

    constants   of g, and A's ratio method over base where the method has its own A
    delta_aicc  distance to the best variant of the law; None where the runs are too few for it
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
class JointLaws:
    """The variants of one law g(r) on the same runs; `free` goes without `both`."""

    law: str
    rows: tuple[Variant, ...]

    @property
    def training_minus_loop(self) -> float | None:
        """AICc of `gain in A` minus that of `gain in g`."""
        aicc = {row.key: row.aicc for row in self.rows}
        loop, training = aicc["gain in g"], aicc["gain in A"]
        return None if loop is None or training is None else training - loop

    @property
    def verdict(self) -> Verdict:
        """Which of the two describes the runs better by 10 or more."""
        gap = self.training_minus_loop
        if gap is None or abs(gap) < DECISIVE_AICC:
            return "open"
        return "loop" if gap > 0 else "training"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "training_minus_loop": self.training_minus_loop,
            "verdict": self.verdict,
            "variants": {row.key: row.to_json() for row in self.rows},
        }


@dataclass(frozen=True)
class Variants:
    """Loop or training, asked under the law that is compared and under `free`.

    A law whose g(r) has the wrong shape prefers the variant that mends it, so the verdict stands
    only where the laws agree on it.
    """

    n_runs: int
    laws: tuple[JointLaws, ...]

    @property
    def verdict(self) -> Verdict:
        """What all laws agree on, or `open`."""
        said = {joint.verdict for joint in self.laws}
        return said.pop() if len(said) == 1 else "open"

    @property
    def sentence(self) -> str:
        """The verdict in words.

        >>> def law(key, loop, training):
        ...     return JointLaws(key, (Variant("gain in g", {}, 7, 0.0, loop, None),
        ...         Variant("gain in A", {}, 7, 0.0, training, None)))
        >>> Variants(143, (law("power", -100.0, -164.0), law("free", -170.0, -180.5))).sentence
        'The method changes how the model trains at every r: another A describes the runs better
        than another g, by 64 AICc under power, 10 AICc under free.'
        """
        gaps = ", ".join(f"{_gap(joint)} under {joint.law}" for joint in self.laws)
        if self.verdict == "open":
            views = ", ".join(f"{_view(joint)} under the law {joint.law!r}" for joint in self.laws)
            return (
                "Whether a pass through the loop is worth more or less (g), or the model trains "
                f"better or worse at every r (A), these runs do not say: {views}."
            )
        changed, better, worse = (
            ("what a pass through the loop is worth", "g", "A")
            if self.verdict == "loop"
            else ("how the model trains at every r", "A", "g")
        )
        return (
            f"The method changes {changed}: another {better} describes the runs better than "
            f"another {worse}, by {gaps}."
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "n_runs": self.n_runs,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "laws": {joint.law: joint.to_json() for joint in self.laws},
        }


def _gap(joint: JointLaws) -> str:
    return f"{abs(joint.training_minus_loop or 0.0):.0f} AICc"


def _view(joint: JointLaws) -> str:
    if joint.training_minus_loop is None:
        return "the runs are too few"
    if joint.verdict == "open":
        return "neither describes them better"
    better, worse = ("A", "g") if joint.verdict == "training" else ("g", "A")
    return f"another {better} describes them better than another {worse} by {_gap(joint)}"


def fit_variants(base: TableFit, method: TableFit) -> Variants | None:
    """Fit the joint laws to the runs of both tables, under the law compared and under `free`.

    Runs are those at recurrences that both tables have, each once: what the method's table shares
    with the base (same numbers) counts as the base's. None where that leaves the method nothing.
    """
    pairs = [(base.law, method.law)]
    if base.free is not None and method.free is not None and base.free is not base.law:
        pairs.append((base.free, method.free))
    laws = []
    runs = 0
    for one, two in pairs:
        rows = []
        for name in VARIANTS:
            if name == "both" and one.problem.gain.key == "free":
                continue  # without runs at r = 1 a free g of its own takes up any A
            problem = joint_problem(base.runs, method.runs, one.problem.gain.key, name)
            if problem is None:
                return None
            runs = len(problem)
            rows.append(_variant(name, problem, one, two))
        best = min((row.aicc for row in rows if row.aicc is not None), default=0.0)
        laws.append(
            JointLaws(
                one.problem.gain.key,
                tuple(
                    replace(row, delta_aicc=None if row.aicc is None else row.aicc - best)
                    for row in rows
                ),
            )
        )
    return Variants(runs, tuple(laws))


def _variant(name: str, problem: Problem, one: LawFit, two: LawFit) -> Variant:
    """Fit one variant from where the two tables ended, which is near where their runs end."""
    ours, theirs = (dict(zip(x.problem.names, x.optimum.theta, strict=True)) for x in (one, two))

    def start(constant: str) -> float:
        bare = constant.removesuffix(" (base)").removesuffix(" (method)")
        values = float(ours.get(bare, 0.0)), float(theirs.get(bare, 0.0))  # 0 for ln lambda
        return sum(values) / 2 if constant == bare else values[constant.endswith("(method)")]

    gain = [start(constant) for constant in problem.gain.parameters]
    starts = [[*x.optimum.theta[:GAIN], *gain] for x in (one, two)]
    found = polish(problem, np.array(starts))
    theta = found.theta[int(np.argmin(found.objective))]
    constants = dict(zip(problem.gain.parameters, map(float, theta[GAIN:]), strict=True))
    if _MULTIPLIER in constants:
        constants["A ratio"] = math.exp(-theta[ALPHA] * constants.pop(_MULTIPLIER))
    good = goodness(problem, theta)
    return Variant(name, constants, len(theta), good.objective, good.aicc, None)


def joint_problem(base: RunTable, method: RunTable, law: str, variant: str) -> Problem | None:
    """Return the problem of one variant of a law, None where the method has no run of its own."""
    levels = set(base.recurrence.tolist()) & set(method.recurrence.tolist())
    ours = np.isin(base.recurrence, sorted(levels))
    theirs = np.isin(method.recurrence, sorted(levels)) & ~shared_rows(base, method)
    if not (theirs & (method.recurrence > 1)).any():
        return None

    def column(name: str) -> FloatArray:
        return np.concatenate([getattr(base, name)[ours], getattr(method, name)[theirs]])

    group = np.repeat([0.0, 1.0], [int(ours.sum()), int(theirs.sum())])
    pairs, code = np.unique(
        np.stack([column("recurrence"), group], axis=1), axis=0, return_inverse=True
    )
    return Problem.of(
        joint_gain(make_gain(law, pairs[:, 0]), pairs, variant),
        n_once=column("n_once"),
        n_rec=column("n_rec"),
        recurrence=code.reshape(-1).astype(float),
        tokens=column("tokens"),
        val_loss=column("val_loss"),
        delta=base.huber_delta,
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
