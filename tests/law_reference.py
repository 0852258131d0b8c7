"""The joint law once more, written plainly with scipy, as the yardstick of the tests.

Nothing here is shared with the package: the loss is a log-sum-exp over runs, the gradient is
written out term by term, and the optimum is sought as arXiv 2604.21106 does, with L-BFGS-B from
random starts in its box. Slow and simple on purpose.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# L-BFGS-B hands its tiny matrices to BLAS, whose threads then wait for each other for longer than
# they work: ten times slower on a busy machine. BLAS reads this when scipy loads it.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

from scipy.optimize import minimize

Array = NDArray[np.float64]

# The box of the paper: a, alpha, b, beta, e, and phi of the law `power`.
SCALE_BOX = ((-5.0, 35.0), (0.0, 2.5), (-5.0, 35.0), (0.0, 2.5), (-3.0, 2.0))
PHI_BOX = (-3.0, 3.0)
DELTA = 1e-3

# L-BFGS-B compares decreases with max(|f|, 1): at f = 3e-4 its default tolerance stops far too
# early, so the reference runs until it cannot improve.
OPTIONS = {"maxiter": 20_000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-10}


def run_columns(runs: Any, rows: Any = slice(None)) -> dict[str, Array]:
    """Return what a law needs of a run table, by the names of its arguments."""
    names = ("n_once", "n_rec", "recurrence", "tokens", "val_loss")
    return {name: getattr(runs, name)[rows] for name in names}


def gain(
    key: str, recurrence: Array, theta: Sequence[float], levels: Sequence[float]
) -> tuple[Array, list[Array]]:
    """Return g at each run and its derivative with respect to each of its parameters."""
    r = np.asarray(recurrence, dtype=float)
    if key == "none":
        return np.ones(len(r)), []
    if key == "unrolled":
        return r.copy(), []
    if key == "power":
        return r ** theta[0], [np.log(r) * r ** theta[0]]
    if key == "bounded":
        k1, k2 = theta
        decay = np.exp(-(r - 1) / k2)
        return 1 + k1 * (1 - decay), [1 - decay, -k1 * decay * (r - 1) / k2**2]
    if key == "log":
        return 1 + theta[0] * np.log(r), [np.log(r)]
    if key == "affine":
        return 1 + theta[0] * (r - 1), [r - 1]
    if key == "free":
        table = dict(zip(levels, theta, strict=True)) | {1.0: 1.0}
        g = np.array([table[x] for x in r])
        return g, [np.array([float(x == level) for x in r]) for level in levels]
    raise AssertionError(key)


@dataclass(frozen=True)
class Reference:
    """Runs and a law: its objective, its gradient, its best value over random starts."""

    key: str
    n_once: Array
    n_rec: Array
    recurrence: Array
    tokens: Array
    val_loss: Array
    weights: Array | None = None
    gain_box: tuple[tuple[float, float], ...] = (PHI_BOX,)

    @property
    def levels(self) -> list[float]:
        return sorted({float(r) for r in self.recurrence if r > 1})

    @property
    def box(self) -> tuple[tuple[float, float], ...]:
        return SCALE_BOX + self.gain_box

    def _log_loss(self, theta: Array) -> tuple[Array, Array]:
        """Return the predicted log loss (n,) and its gradient (n, p)."""
        a, alpha, b, beta, e = theta[:5]
        g, slopes = gain(self.key, self.recurrence, list(theta[5:]), self.levels)
        n_eff = self.n_once + g * self.n_rec
        exponents = np.stack(
            [a - alpha * np.log(n_eff), b - beta * np.log(self.tokens), np.full(len(n_eff), e)]
        )
        top = exponents.max(axis=0)
        terms = np.exp(exponents - top)
        log_loss = top + np.log(terms.sum(axis=0))
        capacity, data, floor = terms / terms.sum(axis=0)
        columns = [
            capacity,
            -capacity * np.log(n_eff),
            data,
            -data * np.log(self.tokens),
            floor,
            *(-capacity * alpha * slope * self.n_rec / n_eff for slope in slopes),
        ]
        return log_loss, np.stack(columns, axis=1)

    def predict(self, theta: Array) -> Array:
        """Return the predicted loss of every run."""
        return np.exp(self._log_loss(theta)[0])

    def objective(self, theta: Array) -> float:
        return self.objective_and_gradient(theta)[0]

    def objective_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Return the weighted sum of the Huber losses of the log residuals, and its gradient."""
        log_loss, gradient = self._log_loss(theta)
        residual = log_loss - np.log(self.val_loss)
        weights = np.ones(len(residual)) if self.weights is None else self.weights
        inside = np.abs(residual) <= DELTA
        huber = np.where(inside, residual**2 / 2, DELTA * (np.abs(residual) - DELTA / 2))
        score = np.where(inside, residual, DELTA * np.sign(residual))
        return float((weights * huber).sum()), (weights * score) @ gradient

    def descend(self, starts: Array, held: dict[int, float] | None = None) -> Multistart:
        """Minimise from each start; `held` keeps columns of theta at a value."""
        starts = np.array(starts, dtype=float)
        free = np.array([k for k in range(starts.shape[1]) if k not in (held or {})])
        theta = starts.copy()
        for column, value in (held or {}).items():
            theta[:, column] = value
        objective = np.empty(len(theta))
        for row in theta:
            # The chain of closures ends here: scipy sees the free columns only.
            def fun(x: Array, row: Array = row) -> tuple[float, Array]:
                row[free] = x
                value, gradient = self.objective_and_gradient(row)
                return value, gradient[free]

            found = minimize(
                fun,
                row[free].copy(),
                jac=True,
                method="L-BFGS-B",
                bounds=[self.box[k] for k in free],
                options=OPTIONS,
            )
            row[free] = found.x
        objective = np.array([self.objective(row) for row in theta])
        return Multistart(theta, objective)

    def random_starts(self, count: int, seed: int) -> Array:
        """Return uniform draws from the box, shape (count, p)."""
        low, high = np.array(self.box).T
        return np.random.default_rng(seed).uniform(low, high, (count, len(low)))

    def best_of_random_starts(self, count: int, seed: int) -> Multistart:
        """Return what the protocol of the paper finds: `count` L-BFGS-B descents from the box."""
        return self.descend(self.random_starts(count, seed))


@dataclass(frozen=True)
class Multistart:
    """Where every start ended: theta (S, p) and objective (S,)."""

    theta: Array
    objective: Array

    @property
    def best(self) -> int:
        return int(np.argmin(self.objective))

    def share_reaching(self, optimum: float, relative: float = 1e-4) -> float:
        """Return the share of starts that end within `relative` of an optimum."""
        return float((self.objective <= optimum * (1 + relative)).mean())
