"""The joint law of loss and its robust objective, with exact first and second derivatives.

L(N_once, N_rec, r, D) = E + A (N_once + g(r) N_rec)^-alpha + B D^-beta, in nats per token.
The parameters travel as theta = (a, alpha, b, beta, e, *gain) with A = exp(a), B = exp(b),
E = exp(e): the form in which arXiv 2604.21106 (appendix on fitting) states its box and its starts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from loopworth.law.gain import FloatArray, Gain
from loopworth.runs import HUBER_DELTA
from loopworth.table.values import distinct

SCALE_PARAMETERS = ("a", "alpha", "b", "beta", "e")
_LOWER = (-5.0, 0.0, -5.0, 0.0, -3.0)
_UPPER = (35.0, 2.5, 35.0, 2.5, 2.0)
A, ALPHA, B, BETA, E, GAIN = range(6)
"""Columns of theta; the gain's parameters start at column GAIN."""


@dataclass(frozen=True)
class Evaluation:
    """The objective of a batch: values (B,), gradients (B, p) and two curvatures (B, p, p).

    `hessian` is exact, but blind to runs outside the Huber threshold, which add no curvature there.
    `majorant` is that of iteratively reweighted least squares, which replaces every run by a
    parabola that touches the objective and lies above it.
    """

    objective: FloatArray
    gradient: FloatArray
    hessian: FloatArray
    majorant: FloatArray


@dataclass(frozen=True)
class Problem:
    """One law and the runs it is fitted to: all that the solver needs, and nothing else.

    Arrays have one entry a run: parameters, recurrences (1 or more), tokens and loss in nats.

    >>> import numpy as np
    >>> from loopworth.law.gain import make_gain
    >>> problem = Problem.of(make_gain("power", [1, 4]), n_once=np.array([0.0, 2e7]),
    ...     n_rec=np.array([1e8, 3e7]), recurrence=np.array([1.0, 4.0]),
    ...     tokens=np.array([1e9, 1e9]), val_loss=np.array([2.8, 2.9]))
    >>> problem.names
    ('a', 'alpha', 'b', 'beta', 'e', 'phi')
    """

    gain: Gain
    n_once: FloatArray
    n_rec: FloatArray
    levels: FloatArray
    level: np.ndarray[tuple[int], np.dtype[np.intp]] = field(repr=False)
    log_tokens: FloatArray
    log_loss: FloatArray
    delta: float = HUBER_DELTA

    @classmethod
    def of(
        cls,
        gain: Gain,
        *,
        n_once: FloatArray,
        n_rec: FloatArray,
        recurrence: FloatArray,
        tokens: FloatArray,
        val_loss: FloatArray,
        delta: float = HUBER_DELTA,
    ) -> Problem:
        """Return the problem for these runs (positive, finite values; checked by the run table).

        `recurrence` is what the gain tells runs apart by: r, or the codes of a gain that has codes.
        """
        levels = distinct(recurrence)
        level = np.searchsorted(levels, recurrence)
        return cls(gain, n_once, n_rec, levels, level, np.log(tokens), np.log(val_loss), delta)

    def __len__(self) -> int:
        return len(self.log_loss)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns of theta."""
        return SCALE_PARAMETERS + self.gain.parameters

    @property
    def lower(self) -> FloatArray:
        """The lower corner of the box, shape (p,)."""
        return np.array(_LOWER + self.gain.lower)

    @property
    def upper(self) -> FloatArray:
        """The upper corner of the box, shape (p,)."""
        return np.array(_UPPER + self.gain.upper)

    def log_prediction(self, theta: FloatArray) -> FloatArray:
        """Return the predicted log loss, shape (B, n), for theta of shape (B, p)."""
        g, _, _ = self.gain.evaluate(theta[:, GAIN:], self.levels)
        n_once = self.n_once
        if self.gain.once is not None:
            n_once = self.gain.once(theta[:, GAIN:], self.levels)[0][:, self.level] * n_once
        log_n_eff = np.log(n_once + g[:, self.level] * self.n_rec)
        a, alpha, b, beta, e = (theta[:, k, None] for k in range(GAIN))
        total: FloatArray = (
            np.exp(a - alpha * log_n_eff) + np.exp(b - beta * self.log_tokens) + np.exp(e)
        )
        return np.log(total)

    def jacobian(self, theta: FloatArray) -> FloatArray:
        """Return d log L / d theta, shape (B, p, n)."""
        return _Terms(self, theta).jacobian()

    def objective(self, theta: FloatArray, weights: FloatArray) -> FloatArray:
        """Return the summed Huber loss of each row of theta, shape (B,)."""
        residual = np.abs(self.log_prediction(theta) - self.log_loss)
        return _dot(np.broadcast_to(weights, residual.shape), _huber(residual, self.delta))

    def evaluate(self, theta: FloatArray, weights: FloatArray) -> Evaluation:
        """Return the objective with its exact gradient and its curvatures.

        `theta` is (B, p); `weights` (B, n) counts how often each run enters. The model is a
        log-sum-exp of three terms z_k, so with shares p_k = exp(z_k)/L the Hessian of log L is
        sum p_k (z_k' z_k'^T + z_k'') - L' L'^T; the Huber loss adds its own curvature where the
        residual is inside delta.
        """
        terms = _Terms(self, theta)
        residual = np.log(terms.total) - self.log_loss
        size = np.abs(residual)
        score = np.clip(residual, -self.delta, self.delta)
        psi = weights * score
        jacobian = terms.jacobian()
        transposed = jacobian.transpose(0, 2, 1)
        bend = np.where(size <= self.delta, weights - psi, -psi)
        hessian = np.matmul(jacobian * bend[:, None], transposed)
        terms.add_curvature(hessian, psi)
        reweighted = weights * (self.delta / np.maximum(size, self.delta))
        return Evaluation(
            _dot(weights, _huber(size, self.delta)),
            np.matmul(jacobian, psi[:, :, None])[:, :, 0],
            hessian,
            np.matmul(jacobian * reweighted[:, None], transposed),
        )


def _huber(size: FloatArray, delta: float) -> FloatArray:
    capped = np.minimum(size, delta)
    return capped * (size - 0.5 * capped)


def _dot(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the sums over runs of x * y, both (B, n)."""
    total: FloatArray = np.einsum("bn,bn->b", x, y)
    return total


class _Terms:
    """The three terms of the law at theta, their shares of the loss and their derivatives."""

    def __init__(self, problem: Problem, theta: FloatArray) -> None:
        g, g1, g2 = problem.gain.evaluate(theta[:, GAIN:], problem.levels)
        level, n_rec = problem.level, problem.n_rec
        self.count = theta.shape[1]
        n_eff = g[:, level] * n_rec
        if problem.gain.once is None:
            n_eff += problem.n_once
        else:
            h, h1, h2 = problem.gain.once(theta[:, GAIN:], problem.levels)
            n_eff += h[:, level] * problem.n_once
        self.log_n, self.log_d = np.log(n_eff), problem.log_tokens
        a, self.alpha, b, beta, e = (theta[:, k, None] for k in range(GAIN))
        capacity = np.exp(a - self.alpha * self.log_n)
        data = np.exp(b - beta * self.log_d)
        floor = np.exp(e)
        self.total = capacity + data + floor
        self.capacity, self.data, self.floor = (
            capacity / self.total,
            data / self.total,
            floor / self.total,
        )
        # d ln N_eff / d theta_k, and N_eff'' over N_eff, of which its second derivative is made.
        share = n_rec / n_eff
        gains = range(self.count - GAIN)
        self.slope = [g1[:, level, k] * share for k in gains]
        self.bend = [[g2[:, level, k, m] * share for m in range(k + 1)] for k in gains]
        if problem.gain.once is not None:
            share = problem.n_once / n_eff
            for k in gains:
                self.slope[k] += h1[:, level, k] * share
                for m in range(k + 1):
                    self.bend[k][m] += h2[:, level, k, m] * share

    def jacobian(self) -> FloatArray:
        """Return d log L / d theta, shape (B, p, n)."""
        out = np.empty((len(self.total), self.count, self.total.shape[1]))
        out[:, A] = self.capacity
        np.multiply(self.capacity, -self.log_n, out=out[:, ALPHA])
        out[:, B] = self.data
        np.multiply(self.data, -self.log_d, out=out[:, BETA])
        out[:, E] = self.floor
        for k, slope in enumerate(self.slope):
            np.multiply(self.capacity, -self.alpha * slope, out=out[:, GAIN + k])
        return out

    def add_curvature(self, hessian: FloatArray, psi: FloatArray) -> None:
        """Add sum psi p_k (z_k' z_k'^T + z_k'') to the Hessian, block by block."""

        def put(i: int, j: int, total: FloatArray) -> None:
            hessian[:, i, j] += total
            if i != j:
                hessian[:, j, i] += total

        capacity, data, alpha = psi * self.capacity, psi * self.data, self.alpha[:, 0]
        capacity_log = capacity * self.log_n
        put(A, A, capacity.sum(axis=1))
        put(A, ALPHA, -capacity_log.sum(axis=1))
        put(ALPHA, ALPHA, _dot(capacity_log, self.log_n))
        put(B, B, data.sum(axis=1))
        put(B, BETA, -(data @ self.log_d))
        put(BETA, BETA, data @ self.log_d**2)
        put(E, E, _dot(psi, self.floor))
        for k, slope in enumerate(self.slope):
            moved = capacity * slope
            put(A, GAIN + k, -alpha * moved.sum(axis=1))
            put(ALPHA, GAIN + k, alpha * _dot(capacity_log, slope) - moved.sum(axis=1))
            for m in range(k + 1):
                second = (alpha + 1) * _dot(moved, self.slope[m])
                put(GAIN + m, GAIN + k, alpha * (second - _dot(capacity, self.bend[k][m])))
