"""The recurrence gains g(r): what r passes through the shared block are worth.

Every law of this package has the form L = E + A (N_once + g(r) N_rec)^-alpha + B D^-beta and
differs from its rivals only in g. A gain is data (names, box, seeds) and one function that returns
g with its first two derivatives, so one solver serves them all. g(1) = 1 in every law.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from loopworth.table.values import distinct

FloatArray = NDArray[np.float64]
Derivatives = tuple[FloatArray, FloatArray, FloatArray]
"""g of shape (B, U), its gradient (B, U, k) and its Hessian (B, U, k, k)."""

# A gain is a multiplier of parameters: it may dip below 1 (looping hurts), never to 0, where a
# fully looped model would have no parameters at all.
_SMALLEST_GAIN = 1e-3
_SEED_PHIS = (-0.8, 0.0, 0.4, 0.8)  # where each gain starts: the r^phi that it resembles


@dataclass(frozen=True)
class Gain:
    """One family g(r; theta) with the box and the seeds its fit starts from.

    `evaluate(theta, r)` takes theta of shape (B, k) and r of shape (U,), and returns `Derivatives`.
    `once`, where there is one, does the same for a factor of N_once: what multiplies N_once and
    N_rec alike acts as another A, since A (lambda N_eff)^-alpha = (A lambda^-alpha) N_eff^-alpha.
    A gain that tells runs apart by more than r takes codes of its own in the place of r.

    >>> import numpy as np
    >>> g, _, _ = make_gain("power", [1, 2, 4]).evaluate(np.array([[0.5]]), np.array([1.0, 4.0]))
    >>> g.tolist()
    [[1.0, 2.0]]
    """

    key: str
    formula: str
    parameters: tuple[str, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    seeds: tuple[tuple[float, ...], ...]
    evaluate: Callable[[FloatArray, FloatArray], Derivatives] = field(repr=False)
    once: Callable[[FloatArray, FloatArray], Derivatives] | None = field(default=None, repr=False)

    def __call__(self, recurrence: float, theta: Sequence[float]) -> float:
        """Return g at one recurrence count for one parameter vector."""
        values, _, _ = self.evaluate(np.array([theta], dtype=float), np.array([float(recurrence)]))
        return float(values[0, 0])


# Classes instead of closures, so that whatever holds a gain can be pickled.
@dataclass(frozen=True)
class _Constant:
    """g(r) = value(r), without constants."""

    value: Callable[[FloatArray], FloatArray]

    def __call__(self, theta: FloatArray, r: FloatArray) -> Derivatives:
        batch, size = len(theta), len(r)
        g = np.broadcast_to(self.value(r), (batch, size))
        return g, np.zeros((batch, size, 0)), np.zeros((batch, size, 0, 0))


def _power(theta: FloatArray, r: FloatArray) -> Derivatives:
    log_r = np.log(r)
    g = np.exp(theta * log_r)
    return g, (log_r * g)[..., None], (log_r * log_r * g)[..., None, None]


def _bounded(theta: FloatArray, r: FloatArray) -> Derivatives:
    k1, k2 = theta[:, :1], theta[:, 1:]
    x = (r - 1.0) / k2
    decay = np.exp(-x)
    slope = -decay * x / k2  # d(1 - decay) / dk2
    gradient = np.stack([1.0 - decay, k1 * slope], axis=-1)
    hessian = np.zeros((*gradient.shape, 2))
    hessian[..., 0, 1] = hessian[..., 1, 0] = slope
    hessian[..., 1, 1] = k1 * slope * (x - 2.0) / k2
    return 1.0 + k1 * (1.0 - decay), gradient, hessian


@dataclass(frozen=True)
class _Linear:
    """g(r) = 1 + k basis(r)."""

    basis: Callable[[FloatArray], FloatArray]

    def __call__(self, theta: FloatArray, r: FloatArray) -> Derivatives:
        h = np.broadcast_to(self.basis(r), (len(theta), len(r)))
        return 1.0 + theta * h, h[..., None], np.zeros((*h.shape, 1, 1))


@dataclass(frozen=True)
class _Free:
    """g of each of `levels`, a constant of its own."""

    levels: FloatArray

    def __call__(self, theta: FloatArray, r: FloatArray) -> Derivatives:
        levels = self.levels
        unknown = [f"{x:g}" for x in r if x != 1.0 and x not in levels]
        if unknown:
            raise ValueError(
                f"g({', '.join(unknown)}) is unknown to the law 'free', which was fitted at "
                f"r = {', '.join(f'{x:g}' for x in levels)} and says nothing in between; "
                "use law='power' or law='bounded' to predict at another recurrence"
            )
        picks = (r[:, None] == levels[None, :]).astype(float)  # (U, k)
        g = np.where(r == 1.0, 1.0, theta @ picks.T)
        shape = (len(theta), len(r), len(levels))
        return g, np.broadcast_to(picks, shape), np.zeros((*shape, len(levels)))


def _identity(r: FloatArray) -> FloatArray:
    return r


def _beyond_one(r: FloatArray) -> FloatArray:
    return r - 1.0


def _one(values: Sequence[float]) -> tuple[tuple[float, ...], ...]:
    return tuple((v,) for v in values)


def _make_none(_: FloatArray) -> Gain:
    return Gain("none", "1", (), (), (), ((),), _Constant(np.ones_like))


def _make_unrolled(_: FloatArray) -> Gain:
    return Gain("unrolled", "r", (), (), (), ((),), _Constant(_identity))


def _make_power(_: FloatArray) -> Gain:
    return Gain("power", "r^phi", ("phi",), (-3.0,), (3.0,), _one(_SEED_PHIS), _power)


def _make_bounded(levels: FloatArray) -> Gain:
    # At k2 far above r - 1 only k1/k2 matters: the box ends where the two can no longer be told.
    reach = max(float(levels.max(initial=2.0)) - 1.0, 1.0)
    return Gain(
        "bounded",
        "1 + k1 (1 - exp(-(r - 1)/k2))",
        ("k1", "k2"),
        (-1.0 + _SMALLEST_GAIN, 0.05),
        (1e4, 1e2 * reach),
        ((0.5, 1.0), (2.0, 3.0), (10.0, 10.0)),
        _bounded,
    )


def _slope_gain(
    key: str, formula: str, basis: Callable[[FloatArray], FloatArray], levels: FloatArray
) -> Gain:
    reach = float(basis(np.array([max(float(levels.max(initial=2.0)), 1.0 + 1e-9)]))[0])
    lower = (-1.0 + _SMALLEST_GAIN) / reach
    step = float(basis(np.array([2.0]))[0])
    # A seed below the box would turn N_eff negative at the largest recurrence.
    seeds = _one([max((2.0**phi - 1.0) / step, 0.9 * lower) for phi in _SEED_PHIS])
    return Gain(key, formula, ("k",), (lower,), (1e3,), seeds, _Linear(basis))


def _make_log(levels: FloatArray) -> Gain:
    return _slope_gain("log", "1 + k ln r", np.log, levels)


def _make_affine(levels: FloatArray) -> Gain:
    return _slope_gain("affine", "1 + k (r - 1)", _beyond_one, levels)


def _make_free(levels: FloatArray) -> Gain:
    size = len(levels)
    return Gain(
        "free",
        "one value a recurrence",
        tuple(f"g({x:g})" for x in levels),
        (_SMALLEST_GAIN,) * size,
        (1e3,) * size,
        tuple(tuple(float(x) ** phi for x in levels) for phi in _SEED_PHIS),
        _Free(levels),
    )


_MAKERS: dict[str, Callable[[FloatArray], Gain]] = {
    "none": _make_none,
    "unrolled": _make_unrolled,
    "power": _make_power,
    "bounded": _make_bounded,
    "log": _make_log,
    "affine": _make_affine,
    "free": _make_free,
}

GAINS: tuple[str, ...] = tuple(_MAKERS)
"""The keys of the registry, in the order in which reports list them."""


def make_gain(key: str, recurrences: Sequence[float] | FloatArray) -> Gain:
    """Return the gain `key` for a table that holds these recurrence counts.

    `recurrences` may repeat and come in any order; only `free` and the boxes depend on it.
    Sources: `power` arXiv 2604.21106; `unrolled` arXiv 2604.12946; `bounded` arXiv 2609.40316.

    Raises ValueError for an unknown key.

    >>> make_gain("free", [1, 1, 2, 8]).parameters
    ('g(2)', 'g(8)')
    """
    if key not in _MAKERS:
        raise ValueError(f"law {key!r} is unknown; use one of {', '.join(GAINS)}")
    values = distinct(np.asarray(recurrences, dtype=float))
    return _MAKERS[key](values[values > 1.0])
