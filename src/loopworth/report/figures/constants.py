"""The constants of g(r) in words: what the runs know of each, and what that means for a repeat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loopworth.law import Estimate, Fit
from loopworth.law.intervals import Bootstrap
from loopworth.law.joint import GAIN
from loopworth.law.profiles import Profile
from loopworth.quantities import format_count, format_interval

FloatArray = NDArray[np.float64]

_SKEWED = 30.0  # ratio of the tails beyond which a positive constant is drawn on a log axis


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant of g: what is known of it, and the values that have a meaning."""

    name: str
    estimate: Estimate
    draws: FloatArray
    named: tuple[tuple[float, str], ...]

    @property
    def symbol(self) -> str:
        """The name as equations write it."""
        return "φ" if self.name == "phi" else self.name

    @property
    def interval(self) -> str:
        """The estimate and its 95 % interval as text."""
        value, ci = self.estimate.estimate, self.estimate.ci95
        if ci is None:
            return f"{value:.3g}"
        if ci[1] - ci[0] < 1e-4 * max(1.0, abs(value)):  # an exact table: its digits say nothing
            return f"{value:.4g} [{ci[0]:.4g}, {ci[1]:.4g}]"
        return format_interval(value, ci)


def constants_of(fit: Fit) -> list[Constant]:
    """Return the constants that the runs identify; none without a bootstrap."""
    if fit.bootstrap is None:
        return []
    boot, found = fit.bootstrap, []
    for k, name in enumerate(fit.law.gain.parameters):
        values = boot.theta[:, GAIN + k]
        kept = values[boot.converged & np.isfinite(values)]
        if name in fit.gain and len(kept):
            named = _named(fit, name)
            found.append(Constant(name, fit.gain[name], kept, named))
    return found


def _named(fit: Fit, name: str) -> tuple[tuple[float, str], ...]:
    """Return the values of a constant at which a repeat is worth nothing, or a new block."""
    nothing, block = "a repeat adds nothing", "a repeat equals a new block"
    if fit.law.key in ("power", "affine"):
        return (0.0, nothing), (1.0, block)
    if fit.law.key == "free":
        r = fit.law.recurrences[fit.law.gain.parameters.index(name)]
        return (1.0, "adds nothing"), (r, f"{r:g} new blocks")
    return () if name == "k2" else ((0.0, nothing),)


def window(constant: Constant, profile: Profile | None) -> tuple[float, float, bool]:
    """Return the limits of x, around nearly all draws, and whether x is logarithmic."""
    tails = np.quantile(constant.draws, [0.005, 0.025, 0.975, 0.995])
    points = [tails[0], tails[3], constant.estimate.estimate, *(x for x, _ in constant.named)]
    points += [x for x in (profile.interval if profile else ()) if x is not None]
    low, high = float(min(points)), float(max(points))
    if low > 0 and tails[2] > _SKEWED * tails[1]:
        return low / 1.2, high * 1.2, True
    pad = 0.06 * (high - low) or 0.1 * abs(high) or 0.1
    return low - pad, high + pad, False


def _outside(constant: Constant, profile: Profile | None) -> int:
    low, high, _ = window(constant, profile)
    return int(((constant.draws < low) | (constant.draws > high)).sum())


def meaning_of(fit: Fit, constant: Constant) -> str:
    """Say on the axis what the constant does."""
    formula = fit.law.gain.formula.replace("phi", "φ")
    return f"{constant.symbol}, where r passes of the block are worth g(r) = {formula} blocks"


def title_of(fit: Fit, constants: Sequence[Constant]) -> str:
    """Say what was found, and no more than the intervals carry."""
    first = constants[0]
    if fit.law.key == "free":
        r = fit.law.recurrences[-1]
        last = constants[-1]
        if last.name == fit.law.gain.parameters[-1]:
            ci = last.estimate.ci95
            clear = f", not {r:g}" if ci is not None and ci[1] < r else ""
            return f"At r = {r:g} the loop is worth {last.interval} fresh blocks{clear}"
    if first.name == "k1" and first.estimate.ci95 is not None and first.estimate.ci95[0] > 0:
        low, high = first.estimate.ci95
        most = format_interval(1.0 + first.estimate.estimate, (1.0 + low, 1.0 + high))
        return f"However often it runs, the loop is worth at most {most} fresh blocks"
    shown = ", ".join(f"{x.symbol} = {x.interval}" for x in constants[:3])
    single = len(fit.law.gain.parameters) == 1 and fit.law.key != "free"
    verdict = _verdict(fit, first) if single else ""
    return f"{shown}: {verdict}" if verdict else shown


def _verdict(fit: Fit, constant: Constant) -> str:
    """Say what the interval allows; both intervals together, so that neither is contradicted."""
    ends = [x for x in (constant.estimate.ci95, constant.estimate.profile95) if x is not None]
    if not ends:
        return ""
    low = min(-math.inf if x[0] is None else x[0] for x in ends)
    high = max(math.inf if x[1] is None else x[1] for x in ends)
    values = {meaning: value for value, meaning in constant.named}
    block = values.get("a repeat equals a new block", math.inf)
    if low <= 0.0 and high >= block:
        return "these runs cannot tell a useless repeat from a new block"
    if high < 0.0:
        return "repeating the block hurts"
    if low <= 0.0:
        return "these runs do not show that a repeat adds anything"
    if low > block:
        return "a repeat is worth more than a new block"
    if high >= block:
        return "a repeat may be worth as much as a new block"
    # Of one repeat, on average over the repeats, at the upper end of the interval.
    worth = [(fit.law.gain(r, (high,)) - 1.0) / (r - 1.0) for r in fit.law.recurrences]
    if max(worth) < 0.5:
        return "a repeat is worth less than half of a new block"
    return "a repeat is worth a part of a new block"


def note_of(fit: Fit, boot: Bootstrap, constants: Sequence[Constant]) -> str:
    """Say how to read the figure, and what it leaves out."""
    cells = len(set(fit.runs.cells.tolist()))
    words = [f"{format_count(len(boot.theta))} resamples of {cells} (budget, r) cells"]
    lost = int((~boot.converged).sum())
    if lost:
        words[0] += f", {format_count(lost)} of them left out, not converged"
    outside = sum(_outside(x, fit.profile if len(constants) == 1 else None) for x in constants)
    if outside:
        words[0] += f", {format_count(outside)} draws beyond the axis"
    if len(constants) > 1:
        words.append(f"g(r) is {fit.law.gain.formula}")
    if any(x.estimate.ci95 for x in constants):
        words.append("dark: the central 95 %")
    if len(constants) == 1 and fit.profile:
        words.append(
            "below: the profile likelihood, scaled for runs that share a cell; "
            "dots: values solved; line at 3.84: the 95 % limit"
        )
    return "; ".join(words) + "."
