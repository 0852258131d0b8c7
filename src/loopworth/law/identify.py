"""Which constants of a law the runs identify, one by one, and which trade off."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from loopworth.findings import Finding, join_words
from loopworth.law.diagnose import Goodness
from loopworth.law.gain import FloatArray
from loopworth.law.intervals import COVERAGE, Interval
from loopworth.law.joint import GAIN, SCALE_PARAMETERS, Problem
from loopworth.law.profiles import Spread, profile, sandwich
from loopworth.law.solve import polish

TRADE_OFF = 0.9
"""Constants correlated beyond this move together: neither can be read alone."""

TOO_WIDE = 1.0
"""A profile interval wider than this many times its constant's scale says little of the constant.

The scale of alpha, beta and E is their value, that of a constant of g(r) its value or 1, whichever
is larger (phi runs from 0 to 1), and that of A and B one unit of their logarithm.
"""

_NORMAL = NormalDist().inv_cdf(0.5 + COVERAGE / 2)  # its square is the chi-square threshold
_STEPS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0)  # standard errors at which a profile is solved

PHI_WIDE = 0.5
"""An interval of phi wider than this is half of the way from a loop of no worth to fresh blocks."""

NOISY = 0.25
"""Scatter of single runs, as a share of what phi can do to a loss, from which noise hides phi."""

Verdict = Literal["identified", "weak", "open"]
Ends = tuple[float | None, float | None]
_PUBLIC = {"a": "A", "b": "B", "e": "E"}


@dataclass(frozen=True)
class Constant:
    """One constant: its value, profile interval and what it can be read for.

    profile95   where the deviance stays below 3.84; an end is None where it does up to the box
    relative_se   cluster-robust standard error over the value (of ln A, ln B and ln E: as it is)
    trades_with   constants whose estimates are correlated with it beyond 0.9
    verdict       identified; weak: it trades off, or an end of its interval is open; open: refused
    """

    name: str
    value: float | None
    profile95: Ends
    relative_se: float | None
    trades_with: tuple[str, ...]
    verdict: Verdict
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        row = asdict(self)
        return row | {"profile95": list(self.profile95), "trades_with": list(self.trades_with)}


@dataclass(frozen=True)
class Identification:
    """All constants of a law, and the condition number of the problem.

    `condition` is that of the information matrix scaled to a unit diagonal: the square of how much
    longer the best known direction is than the worst.
    """

    condition: float
    constants: tuple[Constant, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        finite = self.condition if math.isfinite(self.condition) else None
        return {"condition": finite, "constants": [x.to_json() for x in self.constants]}


def identify(
    problem: Problem,
    theta: FloatArray,
    cells: NDArray[np.integer],
    open_: tuple[str, ...],
    resampled: Mapping[str, Interval] | None = None,
) -> Identification:
    """Return what these runs say about each constant of theta (p,).

    `open_` are the constants that the design or the Jacobian leaves open (`open_constants`); they
    get no number. A constant with an interval in `resampled`, from the block bootstrap, is as well
    known as the wider of that and its profile.

    >>> from loopworth import load_runs
    >>> from loopworth.law.rivals import make_problem
    >>> from loopworth.law.solve import optimise
    >>> table = load_runs("schwethelm2026")
    >>> problem = make_problem(table)
    >>> found = identify(problem, optimise(problem).theta, table.cells, ())
    >>> [(x.name, x.verdict) for x in found.constants if x.verdict == "identified"]
    [('phi', 'identified')]
    """
    correlation, condition = _correlation(problem, theta)
    spread = sandwich(problem, theta, cells, np.ones(len(problem)))
    names = [_PUBLIC.get(name, name) for name in problem.names]
    constants = []
    for k, name in enumerate(names):
        if name in open_:
            reason = "the runs do not determine it"
            constants.append(Constant(name, None, (None, None), None, (), "open", reason))
            continue
        logarithmic = problem.names[k] in _PUBLIC
        low, high = _ends(problem, theta, k, cells, spread)
        ends = (_raised(low), _raised(high)) if logarithmic else (low, high)
        value = math.exp(theta[k]) if logarithmic else float(theta[k])
        error = float(spread.standard_error[k])
        relative = error if logarithmic else error / max(abs(value), 1e-300)
        trades = tuple(
            names[m]
            for m in range(len(names))
            if m != k and names[m] not in open_ and abs(correlation[k, m]) > TRADE_OFF
        )
        scale = 1.0 if logarithmic else abs(value) if k < GAIN else max(abs(value), 1.0)
        widest = PHI_WIDE if name == "phi" else TOO_WIDE * scale
        verdict, reason = _verdict((low, high), (resampled or {}).get(name), trades, widest)
        constants.append(Constant(name, value, ends, relative, trades, verdict, reason))
    return Identification(condition, tuple(constants))


def _raised(end: float | None) -> float | None:
    return None if end is None else math.exp(end)


def _ends(
    problem: Problem, theta: FloatArray, column: int, cells: NDArray[np.integer], spread: Spread
) -> Ends:
    """Return where the profile of one constant crosses its threshold.

    Constants of the scale start along the ridge of the information matrix, where their profile
    nearly lies, which takes a tenth of the solving; `profile` takes over where that finds no end.
    """
    error = float(spread.standard_error[column])
    name = problem.names[column]
    if column >= GAIN or not 0 < error < math.inf:
        return profile(problem, theta, name, cells).interval
    moves = error * np.array([-x for x in reversed(_STEPS)] + list(_STEPS))
    values = theta[column] + moves
    inside = (values > problem.lower[column]) & (values < problem.upper[column])
    values = values[inside]
    starts = theta + np.outer(values - theta[column], _ridge(problem, theta, column))
    starts[:, column] = values
    weights = np.ones(len(problem))
    least = float(problem.objective(theta[None], weights)[0])
    found = polish(problem, starts, weights, fixed=[column]).objective
    deviance = 2 * np.maximum(found - least, 0.0) * spread.deviance_scale[column]
    below, above = values < theta[column], values > theta[column]
    low = _crossing(float(theta[column]), values[below][::-1], deviance[below][::-1])
    high = _crossing(float(theta[column]), values[above], deviance[above])
    if low is None or high is None:
        return profile(problem, theta, name, cells).interval
    return low, high


def _crossing(estimate: float, values: FloatArray, deviance: FloatArray) -> float | None:
    """Return where a deviance, given outwards from the estimate, first exceeds its threshold."""
    # Its root is nearly straight, so interpolation between points is exact.
    root = np.maximum.accumulate(np.sqrt(np.concatenate([[0.0], deviance])))
    if root[-1] <= _NORMAL:
        return None
    return float(np.interp(_NORMAL, root, np.concatenate([[estimate], values])))


def _ridge(problem: Problem, theta: FloatArray, column: int) -> FloatArray:
    """Return how the others move with one constant along the valley of the objective, (p,)."""
    jacobian = problem.jacobian(theta[None])[0]
    others = np.delete(np.arange(len(theta)), column)
    move = np.zeros(len(theta))
    move[column] = 1.0
    move[others] = -np.linalg.lstsq(jacobian[others].T, jacobian[column], rcond=None)[0]
    return move


def _verdict(
    ends: Ends, resampled: Interval | None, trades: tuple[str, ...], widest: float
) -> tuple[Verdict, str]:
    low, high = ends
    if low is None or high is None:
        return "weak", "its profile stays flat up to the edge of the box"
    if trades:
        return "weak", f"it trades off against {join_words(trades)}"
    if resampled is not None and resampled[1] - resampled[0] > high - low:
        low, high = resampled
    if high - low > widest:
        return "weak", f"its 95 % interval is wide, {low:.2f} to {high:.2f}"
    return "identified", ""


def reach_of_phi(problem: Problem, theta: FloatArray) -> float:
    """Return what phi can do to the loss of a looped run: from 0 to 1, root mean square, in nats.

    `problem` is that of the law `power`; the other constants keep their values.
    """
    looped = problem.levels[problem.level] > 1
    ends = np.tile(theta, (2, 1))
    ends[:, GAIN] = 0.0, 1.0
    least, most = np.exp(problem.log_prediction(ends))[:, looped]
    return float(np.sqrt(((most - least) ** 2).mean())) if looped.any() else 0.0


def phi_findings(
    problem: Problem,
    theta: FloatArray,
    good: Goodness,
    interval: Ends | None,
    whose: str = "These runs",
) -> Iterator[Finding]:
    """Yield that an interval of phi says next to nothing, and whether noise is the reason."""
    if interval is None or "phi" not in problem.names:
        return
    low, high = interval
    if low is not None and high is not None and high - low <= PHI_WIDE:
        return
    reach = reach_of_phi(problem, theta)
    noisy = good.rmse > NOISY * reach
    words = "open" if low is None or high is None else f"{high - low:.2f} wide"
    shown = " to ".join("no end" if x is None else f"{x:.2f}" for x in interval)
    yield Finding(
        "noise_hides_phi" if noisy else "phi_hardly_known",
        "warning",
        f"{whose} hardly say what phi is: its 95 % interval ({shown}) is {words}, and 0 to 1 is "
        f"all the way from a loop of no worth to fresh blocks. The runs miss the law by "
        f"{1e3 * good.rmse:.0f} mnats (R2 {good.r2:.3f}); phi = 1 instead of 0 changes the loss of "
        f"a looped run by {1e3 * reach:.0f} mnats.",
        remedy=_NOISE_REMEDY if noisy else "Do not quote phi; add budgets, widths, recurrences.",
        evidence={"interval": list(interval), "rmse": good.rmse, "reach": reach},
    )


_NOISE_REMEDY = (
    "Do not quote phi. Look for what scatters the losses (a short evaluation, unequal recipes, a "
    "wrong column), or add many runs."
)


def _correlation(problem: Problem, theta: FloatArray) -> tuple[FloatArray, float]:
    """Return the correlation of the estimates (p, p) and the scaled condition number."""
    jacobian = problem.jacobian(theta[None])[0]
    length = np.sqrt((jacobian**2).sum(axis=1))
    scaled = jacobian / np.where(length > 0, length, 1.0)[:, None]
    values, vectors = np.linalg.eigh(scaled @ scaled.T)
    usable = values > 1e-13 * values.max()
    inverse = (vectors[:, usable] / values[usable]) @ vectors[:, usable].T
    root = np.sqrt(np.maximum(np.diag(inverse), 1e-300))
    condition = float(values.max() / values.min()) if usable.all() else math.inf
    return inverse / root[:, None] / root[None, :], condition


def identify_findings(found: Identification) -> Iterator[Finding]:
    """Yield the constants that may not be read alone."""
    scale = {_PUBLIC.get(name, name) for name in SCALE_PARAMETERS}
    weak = [x for x in found.constants if x.verdict == "weak"]
    if weak:
        fine = [x.name for x in found.constants if x.verdict == "identified"]
        kept = f" {join_words(fine)} can be read alone." if fine else ""
        yield Finding(
            "weak_constants",
            "warning" if any(x.name not in scale for x in weak) else "note",
            f"{join_words(x.name for x in weak)} cannot be read alone: "
            + "; ".join(f"{x.name}: {x.reason}" for x in weak[:GAIN])
            + f".{kept}",
            remedy="Compare predictions, not these constants; more budgets separate them.",
        )
