"""Is a borrowed learning rate the right one? The runs that tell, and how to read them.

No tensors: a sweep is a handful of run specs, its reading a parabola in the logarithm of the rate.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from loopworth.findings import Finding
from loopworth.isoflop import NEAR_OPTIMAL_NATS
from loopworth.law.leaveout import t_quantile
from loopworth.quantities import format_estimate
from loopworth.spec import RunSpec
from loopworth.spec.checks import one_of, real

Status = Literal["minimum", "edge", "opens downwards", "flat", "too few rates"]

RATES = ("matrix_lr", "embedding_lr", "head_lr", "norm_lr", "injection_lr")
MULTIPLES = (0.5, 2**-0.5, 1.0, 2**0.5, 2.0)
VALLEY_NATS = 0.1
"""Losses farther than this above the lowest are where training fails, not part of the valley."""

_FLAT_NATS = 1e-6
_COVERAGE = 0.95


def lr_sweep(
    run: RunSpec,
    *,
    multiples: Sequence[float] | None = None,
    rates: Sequence[float] | None = None,
    which: Sequence[str] = ("matrix_lr",),
) -> tuple[RunSpec, ...]:
    """Return the runs of a sweep over learning rates, all else equal, in rising order.

    multiples   of the run's own rates; by default five, a factor sqrt(2) apart
    rates       instead of them, the values of the one rate in `which`
    which       the rates that change together, fields of `OptimSpec`

    Raises ValueError for a rate that is unknown, not positive or given twice, and for both kinds.

    >>> from loopworth.spec import ModelSpec
    >>> runs = lr_sweep(RunSpec(ModelSpec(640), steps=10), rates=[0.02, 0.01])
    >>> [run.optim.matrix_lr for run in runs]
    [0.01, 0.02]
    """
    for name in which:
        one_of("which", name, RATES)
    if rates is not None and (multiples is not None or len(which) != 1):
        raise ValueError(
            f"rates={list(rates)} are values of one rate, and which={list(which)}; give multiples "
            "to change several together, and not both"
        )
    own = [getattr(run.optim, name) for name in which]
    chosen = MULTIPLES if multiples is None else multiples
    points = list(rates) if rates is not None else list(chosen)
    for point in points:
        real("a rate of the sweep", point, "a positive number", "0.7 and 1.4 times one's own")
    if len(set(points)) < len(points):
        raise ValueError(f"the sweep {points} has a rate twice; another seed is another run")
    changes = [
        dict.fromkeys(which, float(point))
        if rates is not None
        else {name: value * point for name, value in zip(which, own, strict=True)}
        for point in sorted(points)
    ]
    return tuple(run.replace(optim=replace(run.optim, **change)) for change in changes)


@dataclass(frozen=True, slots=True)
class SweepReading:
    """The valley of a sweep: loss = level + slope u + curvature u^2 with u = ln(rate / center).

    status      minimum; edge (it turns outside the rates that were run); opens downwards; flat;
                too few rates (below 3). Only `minimum` has a best rate
    best_rate   where the parabola turns; loss there, in nats
    interval    95 % of it by Fieller's theorem, which holds for flat valleys as well; None where
                three runs leave nothing to judge the noise by, or where it has no end
    near        rates within 0.001 nats of the best: what a recipe may use
    rmse        of the parabola in nats
    n_used      runs in the valley, of all that were given
    """

    status: Status
    n_used: int
    center: float | None = None
    coefficients: tuple[float, float, float] | None = None
    best_rate: float | None = None
    loss: float | None = None
    interval: tuple[float, float] | None = None
    near: tuple[float, float] | None = None
    rmse: float | None = None
    findings: tuple[Finding, ...] = ()

    def cost(self, rate: float) -> float:
        """Return the nats that a rate costs against the best one.

        Raises ValueError where the sweep found no minimum.

        >>> read_sweep([1, 2, 4], [3.1, 3.0, 3.1]).cost(4)
        0.1
        """
        if self.coefficients is None or self.center is None or self.loss is None:
            raise ValueError(
                f"the sweep has no minimum ({self.status}), so no rate has a known cost; run more "
                "rates where the loss is lowest"
            )
        return _at(self.coefficients, math.log(rate / self.center)) - self.loss

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self) | {"findings": [each.to_json() for each in self.findings]}


def read_sweep(
    rates: Sequence[float],
    losses: Sequence[float],
    *,
    borrowed: float | None = None,
    noise: float | None = None,
) -> SweepReading:
    """Return the optimum of a sweep, with its interval and what is wrong with it.

    rates, losses   one for each run; validation losses in nats, not finite where a run diverged
    borrowed        the rate of the recipe in use: a finding says what it costs, where it does
    noise           standard deviation of a loss over seeds, in nats; None takes the residuals'

    Raises ValueError for lists of unequal length and rates that are not positive.

    >>> reading = read_sweep([0.01, 0.02, 0.04], [3.1, 3.0, 3.1], borrowed=0.01)
    >>> round(reading.best_rate, 4), reading.findings[0].code
    (0.02, 'borrowed_rate')
    """
    if len(rates) != len(losses):
        raise ValueError(f"{len(rates)} rates and {len(losses)} losses; give one loss for each")
    for rate in rates:
        real("a rate of the sweep", rate, "a positive number", "the rate that was trained with")
    x, y = np.log(np.asarray(rates, float)), np.asarray(losses, float)
    lowest = float(np.min(y[np.isfinite(y)], initial=math.inf))
    used = np.isfinite(y) & (y <= lowest + VALLEY_NATS)
    left_out = _left_out(np.asarray(rates, float)[~used])
    x, y = x[used], y[used]
    if len(np.unique(x)) < 3:
        few = Finding(
            "sweep_too_small", "warning",
            f"Only {len(np.unique(x))} rates lie within {VALLEY_NATS} nats of the lowest loss; a "
            "valley needs three.", remedy="Run rates closer to the best one.",
        )  # fmt: skip
        return SweepReading("too few rates", len(y), findings=(few, *left_out))
    reading = _valley(x, y, noise)
    return replace(reading, findings=(*_findings(reading, x, borrowed), *left_out))


def _valley(x: NDArray[np.float64], y: NDArray[np.float64], noise: float | None) -> SweepReading:
    """Fit the parabola and say where it turns, if it does."""
    center = float(x.mean())
    u = x - center
    design = np.stack([np.ones_like(u), u, u * u], axis=1)
    # Of losses near 3 nats only the differences matter, and they are small.
    floor = float(y.min())
    fitted = np.linalg.lstsq(design, y - floor, rcond=None)[0]
    residual = y - floor - design @ fitted
    level, slope, bend = (float(each) for each in fitted)
    level += floor
    base = SweepReading("flat", len(y), math.exp(center), rmse=float(np.sqrt(np.mean(residual**2))))
    half = float(u.max() - u.min()) / 2
    if abs(bend) * half**2 < _FLAT_NATS:
        return base
    if bend < 0:
        return replace(base, status="opens downwards")
    turn = -slope / (2 * bend)
    if not u.min() <= turn <= u.max():
        return replace(base, status="edge")
    reach = math.sqrt(NEAR_OPTIMAL_NATS / bend)
    coefficients = (level, slope, bend)
    interval = _fieller(design, residual, slope, bend, noise)
    return replace(
        base,
        status="minimum",
        coefficients=coefficients,
        best_rate=math.exp(center + turn),
        loss=_at(coefficients, turn),
        near=(math.exp(center + turn - reach), math.exp(center + turn + reach)),
        interval=None if interval is None else _exp(center, interval),
    )


def _fieller(
    design: NDArray[np.float64],
    residual: NDArray[np.float64],
    slope: float,
    bend: float,
    noise: float | None,
) -> tuple[float, float] | None:
    """Return the u at which the slope, slope + 2 bend u, is not told from zero."""
    spare = len(residual) - 3
    if noise is None and spare < 1:
        return None
    probability = 0.5 + _COVERAGE / 2
    if noise is None:
        variance, t2 = float(residual @ residual) / spare, t_quantile(probability, spare) ** 2
    else:
        variance, t2 = noise**2, NormalDist().inv_cdf(probability) ** 2
    covariance = np.linalg.inv(design.T @ design) * variance
    a = 4 * (bend**2 - t2 * covariance[2, 2])
    b = 4 * (slope * bend - t2 * covariance[1, 2])
    c = slope**2 - t2 * covariance[1, 1]
    if a <= 0:
        return None
    root = math.sqrt(max(b * b - 4 * a * c, 0.0))
    return float((-b - root) / (2 * a)), float((-b + root) / (2 * a))


def _exp(center: float, interval: tuple[float, float]) -> tuple[float, float] | None:
    low, high = (center + each for each in interval)
    return None if high - low > math.log(1e6) else (math.exp(low), math.exp(high))


def _at(coefficients: tuple[float, float, float], u: float) -> float:
    level, slope, bend = coefficients
    return level + slope * u + bend * u * u


def _left_out(rates: NDArray[np.float64]) -> tuple[Finding, ...]:
    if not len(rates):
        return ()
    shown = ", ".join(f"{rate:.4g}" for rate in sorted(rates))
    return (
        Finding(
            "sweep_beyond_valley", "note",
            f"Runs at {shown} diverged or lie more than {VALLEY_NATS} nats above the lowest loss, "
            "where no parabola holds; they are left out.",
            evidence={"rates": sorted(float(rate) for rate in rates)},
        ),
    )  # fmt: skip


def _findings(
    reading: SweepReading, x: NDArray[np.float64], borrowed: float | None
) -> tuple[Finding, ...]:
    """Say why there is no optimum, or what the borrowed rate costs against it."""
    low, high = math.exp(x.min()), math.exp(x.max())
    if reading.status != "minimum" or reading.best_rate is None:
        words = {
            "edge": "is lowest at an end of the sweep", "flat": "does not depend on the rate",
            "opens downwards": "is highest inside the sweep",
        }  # fmt: skip
        return (
            Finding(
                "sweep_without_minimum", "warning",
                f"The loss {words[reading.status]}, between {low:.4g} and {high:.4g}: no optimum.",
                remedy="Run rates beyond the end with the lowest loss.",
                evidence={"status": reading.status, "low": low, "high": high},
            ),
        )  # fmt: skip
    if borrowed is None:
        return ()
    cost = reading.cost(borrowed)
    if cost <= NEAR_OPTIMAL_NATS or (
        reading.interval is not None and reading.interval[0] <= borrowed <= reading.interval[1]
    ):
        return ()
    inside = x.min() - 1e-9 <= math.log(borrowed) <= x.max() + 1e-9
    beyond = "" if inside else ", by the parabola beyond the rates that were run"
    costs = format_estimate(cost, max(reading.rmse or 0.0, NEAR_OPTIMAL_NATS / 10))
    return (
        Finding(
            "borrowed_rate", "warning",
            f"The borrowed rate {borrowed:.4g} costs {costs} nats against {reading.best_rate:.4g}, "
            f"the best of this model{beyond}.",
            remedy="Train at the best rate, or compare only models whose rates were both swept.",
            evidence={"borrowed": borrowed, "best_rate": reading.best_rate, "cost_nats": cost},
        ),
    )  # fmt: skip
