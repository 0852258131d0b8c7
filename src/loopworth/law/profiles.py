"""The profile of one constant, and the cluster-robust spread that gives its deviance a scale.

The Huber objective is no likelihood: most residuals of a table lie beyond its threshold of 1e-3, so
that twice a rise of the objective is far from a chi-square. What makes it one is the ratio of the
slope of the score psi to its variance (Heritier and Ronchetti 1994, JASA 89, 897), here with the
variance by cell. On simulated sweeps with 1 to 100 mnats of noise in each run the intervals then
cover 92 to 97 % (benchmarks/README.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loopworth.law.gain import FloatArray
from loopworth.law.intervals import COVERAGE, NORMAL, better
from loopworth.law.joint import Problem
from loopworth.law.solve import polish
from loopworth.law.student import t_quantile
from loopworth.table.values import distinct

_POINTS = 25
_REACH = 5.0  # standard errors on either side
_BANDWIDTH = 2.34  # of the kernel, in standard deviations times n^-1/5 (Silverman 1986, table 3.1)
_NORMAL_MAD = 1.4826
_EXACT = 1e-3  # of delta: residuals below are those of an exact table


@dataclass(frozen=True)
class Profile:
    """The objective with one parameter held: its values, and the deviance that they cost.

    `deviance` is 2 (O(value) - O(optimum)), scaled so that its curvature matches the
    cluster-robust variance; `interval` is where it stays below 3.84. An end is None where it
    stays so up to the box.
    """

    parameter: str
    values: FloatArray
    deviance: FloatArray
    interval: tuple[float | None, float | None]


@dataclass(frozen=True)
class Spread:
    """Cluster-robust standard errors at an optimum (p,), and how much the objective overstates."""

    standard_error: FloatArray
    deviance_scale: FloatArray


def sandwich(
    problem: Problem, theta: FloatArray, cells: NDArray[np.integer], weights: FloatArray
) -> Spread:
    """Return the cluster-robust spread of each parameter, infinite where it is not identified.

    With J the Jacobian of log loss and psi the Huber score, the variance is K^-1 M K^-1, where K is
    J^T J times the mean of psi' and M sums the outer products of the cells' scores (White's
    estimator by cluster), times G / (G - 1) (n - 1) / (n - p) for G cells, n runs and p constants.
    `deviance_scale` is K^-1 over the variance on the diagonal: it adjusts a working likelihood for
    dependence (Chandler and Bate 2007, Biometrika 94, 167); it holds (1.96 / t(0.975, G - 1))^2
    besides, so that 3.84 is the threshold for few cells as well.
    """
    jacobian = problem.jacobian(theta[None])[0]  # (p, n)
    residual = problem.log_prediction(theta[None])[0] - problem.log_loss
    psi = weights * np.clip(residual, -problem.delta, problem.delta)
    curvature = _mean_slope(np.abs(residual), weights, problem.delta, len(theta))
    scale = np.sqrt((weights * jacobian**2).sum(axis=1))
    scale = np.where(scale > 0, scale, 1.0)
    scaled = jacobian / scale[:, None]
    values, vectors = np.linalg.eigh((scaled * weights) @ scaled.T)
    usable = values > 1e-13 * values.max()
    inverse = (vectors[:, usable] / values[usable]) @ vectors[:, usable].T / curvature
    scores = np.zeros((len(scale), int(cells.max()) + 1))
    np.add.at(scores.T, cells, (scaled * psi).T)
    blocks, runs = len(np.unique(cells[weights > 0])), float(weights.sum())
    few = blocks / max(blocks - 1, 1) * (runs - 1) / max(runs - len(theta), 1.0)
    variance = few * np.einsum("ij,jk,ik->i", inverse, scores @ scores.T, inverse)
    hidden = (vectors[:, ~usable] ** 2).sum(axis=1) > 1e-6
    error = np.where(hidden, np.inf, np.sqrt(variance) / scale)
    ratio = np.diag(inverse) / np.maximum(variance, 1e-300)
    ratio *= (NORMAL / t_quantile(0.5 + COVERAGE / 2, max(blocks - 1, 1))) ** 2
    return Spread(error, np.where(hidden | (variance <= 0), 1.0, ratio))


def _mean_slope(size: FloatArray, weights: FloatArray, delta: float, constants: int) -> float:
    """Return the mean of psi', which is the share of errors within delta, from residual sizes (n,).

    Counting residuals will not do: few lie within a narrow delta, and those are mostly the ones
    that the optimum passes through, one for each constant. So the smallest are left out, and the
    density of the others around 0 is smoothed by a kernel as wide as their spread asks.
    """
    order = np.argsort(size, kind="stable")
    size, weights = size[order], weights[order]
    left = np.cumsum(weights) - min(float(constants), 0.9 * float(weights.sum()))
    kept = np.clip(left, 0.0, weights)
    total = float(kept.sum())
    middle = float(size[np.searchsorted(np.cumsum(kept), 0.5 * total)])
    width = _BANDWIDTH * max(_NORMAL_MAD * middle, _EXACT * delta) * total**-0.2

    def below(x: FloatArray) -> FloatArray:
        """Return the share of a kernel (Epanechnikov) that lies below x."""
        u = np.clip(x / width, -1.0, 1.0)
        return np.asarray(0.5 + 0.75 * u - 0.25 * u**3)

    within = below(delta - size) - below(-delta - size)
    # Never nothing: a table may have a hole at 0 and still be described.
    return max(float(kept @ within) / total, 1e-3 * delta / (delta + middle))


def profile(
    problem: Problem,
    theta: FloatArray,
    parameter: str,
    cells: NDArray[np.integer],
    weights: FloatArray | None = None,
) -> Profile:
    """Return the profile of one parameter around the optimum `theta` (p,).

    All values are solved as one batch, then again from their neighbours' solutions, so that the
    curve is a lower envelope.
    """
    column = problem.names.index(parameter)
    ones = np.ones(len(problem)) if weights is None else weights
    spread = sandwich(problem, theta, cells, ones)
    low, high = float(problem.lower[column]), float(problem.upper[column])
    reach = _REACH * min(float(spread.standard_error[column]), (high - low) / 10)
    near = theta[column] + reach * np.linspace(-1, 1, _POINTS)
    far = np.linspace(low, high, _POINTS)
    values = distinct(np.clip(np.concatenate([near, far]), low, high))
    starts = np.tile(theta, (len(values), 1))
    starts[:, column] = values
    best = polish(problem, starts, ones, fixed=[column])
    for shift in (1, -1):
        again = np.roll(best.theta, shift, axis=0)
        again[:, column] = values
        best, _ = better(best, polish(problem, again, ones, fixed=[column]))
    least = float(problem.objective(theta[None], ones)[0])
    deviance = 2 * np.maximum(best.objective - least, 0.0) * spread.deviance_scale[column]
    interval = _crossings(values, deviance, float(theta[column]))
    return Profile(parameter, values, deviance, interval)


def _crossings(
    values: FloatArray, deviance: FloatArray, estimate: float
) -> tuple[float | None, float | None]:
    """Return where the deviance first exceeds its threshold below and above the estimate."""

    def first(side: NDArray[np.bool_], order: int) -> float | None:
        # The root of the deviance is nearly straight, so interpolation between points is exact.
        x = np.concatenate([[estimate], values[side][::order]])
        root = np.concatenate([[0.0], np.sqrt(deviance[side][::order])])
        above = np.flatnonzero(root > NORMAL)
        if not len(above):
            return None
        k = above[0]
        share = (NORMAL - root[k - 1]) / (root[k] - root[k - 1])
        return float(x[k - 1] + share * (x[k] - x[k - 1]))

    return first(values < estimate, -1), first(values > estimate, 1)
