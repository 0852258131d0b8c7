"""The draws that intervals are made of: every resample in the valley of the estimate.

A resample may have its lowest point in another valley than the table: where a law does not describe
the runs, or where a resample drew no run at r = 1, so that phi and a much lower phi fit alike. An
interval that mixes valleys is as wide as they lie apart, and the difference of two tables that fall
into different ones is no difference of methods. So `fit` and `compare` both follow the valley of
the table's own optimum, and say how many resamples have a lower point elsewhere and what the
interval would be with those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopworth.findings import Finding
from loopworth.law.gain import FloatArray
from loopworth.law.intervals import FEWEST_RESAMPLES, Bootstrap, Interval, block_bootstrap
from loopworth.law.joint import GAIN, Problem
from loopworth.law.solve import polish

LOOKS = 4
"""Starts of each resample, for whoever counts progress."""

MUCH_LOST = 0.01
"""Share of resamples that may fail, or lie elsewhere, unsaid."""

FEW_CELLS = 8
"""Below this many cells no simulated sweep says what the interval of a bootstrap covers."""

_SEEN = 1e-3

# Robust standard deviations of a constant of g beyond which a resample sits in another valley.
_ANOTHER_VALLEY = 5.0


def valley_bootstrap(
    problem: Problem,
    theta: FloatArray,
    weights: FloatArray,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[Bootstrap, Bootstrap]:
    """Solve every resample twice: in the valley of the optimum `theta` (p,), and at its lowest.

    `weights` is (S, n). Where the lowest point is in the same valley both are that point.
    """
    starts = np.broadcast_to(theta, (len(weights), len(theta)))
    near = polish(problem, starts, weights, on_progress=on_progress)
    lowest = block_bootstrap(problem, weights, near.theta, on_progress=on_progress)
    gains = near.theta[:, GAIN:]
    low, high = np.quantile(gains, [0.159, 0.841], axis=0)
    # A resample that only came further down in its own valley moved little.
    moved = np.abs(lowest.theta[:, GAIN:] - gains)
    away = (moved > _ANOTHER_VALLEY * 0.5 * (high - low)).any(axis=1)
    if not away.any():
        return lowest, lowest
    theta = np.where(away[:, None], near.theta, lowest.theta)
    objective = np.where(away, near.objective, lowest.objective)
    converged = np.where(away, near.converged, lowest.converged)
    return Bootstrap(theta, objective, converged, weights, lowest.agreeing), lowest


def nearby_bootstrap(problem: Problem, weights: FloatArray, starts: FloatArray) -> Bootstrap:
    """Solve every resample from its own start (S, p) alone, in the valley that the start lies in.

    For another law or convention, whose starts are the draws of `valley_bootstrap` carried over.
    """
    found = polish(problem, starts, weights)
    return Bootstrap(found.theta, found.objective, found.converged, weights, 1.0)


def elsewhere(near: Bootstrap | None, lowest: Bootstrap | None) -> NDArray[np.bool_]:
    """Tell which resamples have their lowest point in another valley: (S,)."""
    if near is None or lowest is None:
        return np.zeros(0, dtype=bool)
    return np.asarray((lowest.theta != near.theta).any(axis=1))


def valley_findings(
    away: NDArray[np.bool_], resamples: str, then: str, evidence: Mapping[str, Any], remedy: str
) -> Iterator[Finding]:
    """Yield that resamples have a lower point elsewhere; `then` is what they would change."""
    if not len(away) or away.mean() <= MUCH_LOST:
        return
    yield Finding(
        "another_valley",
        "warning",
        f"{away.mean():.1%} of the {resamples} have a lower point in another valley of the law, "
        f"far from the estimate. The intervals follow the valley of the estimate; with those "
        f"points {then}.",
        remedy=remedy,
        evidence={"share": float(away.mean()), **evidence},
    )


def same_interval(one: Interval | None, two: Interval | None) -> bool:
    """Tell whether two intervals are one in all digits that are shown; neither is none at all."""
    if one is None or two is None:
        return one is two
    reach = max(1.0, *map(abs, one))
    return all(abs(a - b) < _SEEN * reach for a, b in zip(one, two, strict=True))


def resample_findings(
    boots: Sequence[tuple[str, Bootstrap | None]], cells: int
) -> Iterator[Finding]:
    """Yield doubts about resamples of `cells` cells, each bootstrap with the name of its table.

    An unnamed one stands for the only table.
    """
    known = [(name, boot) for name, boot in boots if boot is not None]
    if not known:
        return
    kept = min(int(boot.converged.sum()) for _, boot in known)
    if kept < FEWEST_RESAMPLES:
        yield Finding(
            "few_resamples",
            "warning",
            f"{kept} resamples have no 2.5 % in their tails, so there is no interval; "
            f"{FEWEST_RESAMPLES} are the least.",
            remedy="Take 1000 resamples, the default.",
        )
    for name, boot in known:
        lost = 1.0 - float(boot.converged.mean())
        if lost > MUCH_LOST:
            yield Finding(
                "bootstrap_not_converged",
                "warning",
                f"{lost:.1%} of the resamples {f'of {name} ' if name else ''}did not converge and "
                "are left out of the intervals.",
                remedy="Add budgets or recurrences: more cells steady the bootstrap. "
                "`loopworth fit` gives a profile interval beside it, which resamples nothing.",
            )
    if kept >= FEWEST_RESAMPLES and cells < FEW_CELLS:
        yield Finding(
            "few_cells",
            "warning",
            f"The bootstrap resamples {cells} (budget, recurrence) cells; with fewer than "
            f"{FEW_CELLS} nothing has measured what its intervals cover.",
            remedy="Add budgets or recurrences; do not read the interval as 95 %.",
        )
