"""A fitted law as a value: its constants, its predictions, its JSON form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from loopworth.law.gain import FloatArray, Gain, make_gain
from loopworth.law.joint import GAIN
from loopworth.spec.checks import real
from loopworth.table.values import distinct


@dataclass(frozen=True)
class FittedLaw:
    """L = E + A (N_once + g(r) N_rec)^-alpha + B D^-beta with numbers in it.

    `key` names g in the registry, `recurrences` are those of the runs (above 1), and
    `gain_parameters` its constants. E is in nats per token; A and B are in nats times a power of
    parameters and of tokens, and mean little alone: they move with alpha, beta and E.

    >>> law = FittedLaw("power", (2.0, 4.0), 28.0, 0.2, 911.0, 0.368, 1.57, (0.46,))
    >>> round(law.g(4), 3), round(law.phi(4), 3)
    (1.892, 0.46)
    >>> law == FittedLaw.from_json(law.to_json())
    True
    """

    key: str
    recurrences: tuple[float, ...]
    A: float
    alpha: float
    B: float
    beta: float
    E: float
    gain_parameters: tuple[float, ...]

    @classmethod
    def from_theta(cls, gain: Gain, recurrences: FloatArray, theta: FloatArray) -> FittedLaw:
        """Return the law at one point theta = (a, alpha, b, beta, e, *gain) of the solver."""
        a, alpha, b, beta, e = (float(x) for x in theta[:GAIN])
        levels = tuple(float(r) for r in distinct(recurrences) if r > 1.0)
        gains = tuple(float(x) for x in theta[GAIN:])
        return cls(gain.key, levels, math.exp(a), alpha, math.exp(b), beta, math.exp(e), gains)

    @cached_property
    def gain(self) -> Gain:
        """The gain g(r) that the constants belong to."""
        return make_gain(self.key, self.recurrences)

    def knows(self, recurrence: float) -> bool:
        """Tell whether the law says anything about a recurrence: `free` only of those it saw."""
        return self.key != "free" or recurrence == 1.0 or recurrence in self.recurrences

    def g(self, recurrence: float) -> float:
        """Return how many fresh copies of the block `recurrence` passes are worth.

        Raises ValueError where the law says nothing about that recurrence (`free`), or where its
        line has fallen to zero (`log`, `affine` beyond the recurrences that were run).
        """
        recurrence = real("recurrence", recurrence, "a positive, finite number", "such as 4")
        return float(self._gains(np.array([recurrence]))[0])

    def _gains(self, levels: FloatArray) -> FloatArray:
        """Return g at each of these recurrences, all positive."""
        values, _, _ = self.gain.evaluate(np.array([self.gain_parameters], dtype=float), levels)
        gone = values[0] <= 0
        if gone.any():
            raise ValueError(
                f"the law {self.key!r} gives g({levels[gone][0]:g}) = {values[0][gone][0]:.3g}, "
                "and a block cannot be worth less than nothing; it was fitted at r = "
                f"{', '.join(f'{r:g}' for r in self.recurrences)} and holds no further; "
                "use law='power' or law='bounded' to predict there"
            )
        return np.asarray(values[0])

    def phi(self, recurrence: float) -> float:
        """Return ln g(r) / ln r, the equivalence exponent at one recurrence above 1."""
        if not real("recurrence", recurrence, "a positive, finite number", "such as 4") > 1.0:
            raise ValueError(f"phi is undefined at recurrence {recurrence:g}; use r above 1")
        return math.log(self.g(recurrence)) / math.log(recurrence)

    def n_eff(self, n_once: ArrayLike, n_rec: ArrayLike, recurrence: ArrayLike) -> FloatArray:
        """Return N_once + g(r) N_rec in parameters; arguments broadcast."""
        r = np.asarray(recurrence, dtype=float)
        levels = distinct(r.ravel())
        gains = self._gains(levels)[np.searchsorted(levels, r)]
        return np.asarray(np.asarray(n_once, dtype=float) + gains * np.asarray(n_rec, dtype=float))

    def predict(
        self, n_once: ArrayLike, n_rec: ArrayLike, recurrence: ArrayLike, tokens: ArrayLike
    ) -> FloatArray:
        """Return the predicted validation loss in nats per token; arguments broadcast.

        Raises ValueError for what no run can have: counts that are negative or not finite, no
        parameters, no tokens, a recurrence below 1.

        >>> law = FittedLaw("none", (), 400.0, 0.34, 410.0, 0.28, 1.69, ())
        >>> [round(float(x), 3) for x in law.predict(0, [1e9, 70e9], 1, [20e9, 1.4e12])]
        [2.574, 1.935]
        """
        _check_place(n_once, n_rec, recurrence, tokens)
        capacity = self.A * self.n_eff(n_once, n_rec, recurrence) ** -self.alpha
        data = self.B * np.asarray(tokens, dtype=float) ** -self.beta
        return np.asarray(self.E + capacity + data)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; floats keep every bit in a round trip."""
        return {
            "law": self.key,
            "recurrences": list(self.recurrences),
            "A": self.A,
            "alpha": self.alpha,
            "B": self.B,
            "beta": self.beta,
            "E": self.E,
            "gain": dict(zip(self.gain.parameters, self.gain_parameters, strict=True)),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FittedLaw:
        """Return the law that `to_json` wrote; the order of the keys does not matter."""
        recurrences = tuple(data["recurrences"])
        names = make_gain(data["law"], recurrences).parameters
        return cls(
            data["law"],
            recurrences,
            data["A"],
            data["alpha"],
            data["B"],
            data["beta"],
            data["E"],
            tuple(data["gain"][name] for name in names),
        )


def _check_place(
    n_once: ArrayLike, n_rec: ArrayLike, recurrence: ArrayLike, tokens: ArrayLike
) -> None:
    """Refuse a place where a power of a negative number would turn a prediction into NaN."""
    once, rec, r, d = (np.asarray(x, dtype=float) for x in (n_once, n_rec, recurrence, tokens))
    for name, values, bad, allowed in (
        ("n_once", once, ~(np.isfinite(once) & (once >= 0)), "0 or more parameters"),
        ("n_rec", rec, ~(np.isfinite(rec) & (rec >= 0)), "0 or more parameters"),
        ("n_once + n_rec", once + rec, ~(once + rec > 0), "above 0 parameters"),
        ("recurrence", r, ~(np.isfinite(r) & (r >= 1)), "1 or more"),
        ("tokens", d, ~(np.isfinite(d) & (d > 0)), "above 0"),
    ):
        if np.any(bad):
            raise ValueError(f"{name} is {values[bad].flat[0]:g}, and must be {allowed}")
