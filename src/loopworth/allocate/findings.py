"""What a frontier has to say about itself, and where the measured optima contradict it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from loopworth.allocate.family import Family, families
from loopworth.allocate.optimum import FrontierPoint
from loopworth.findings import Finding, join_words
from loopworth.isoflop import IsoflopMinimum
from loopworth.quantities import format_flops, format_quantity
from loopworth.runs import RunTable


def frontier_findings(
    points: Sequence[FrontierPoint], source: RunTable | Iterable[Family]
) -> tuple[Finding, ...]:
    """Say which points of a frontier no run supports, and which families have no optimum."""
    chosen = families(source) if isinstance(source, RunTable) else tuple(source)
    findings = []
    outside = [p for p in points if p.inside is False and p.extrapolated is False]
    if outside:
        places = join_words(
            f"r = {p.recurrence:g} at {format_flops(p.budget_flops)} FLOPs "
            f"(N* = {format_quantity(p.n_star)})"
            for p in outside
        )
        message = f"The law's optimum lies outside the measured widths: {places}."
        remedy = "Run wider or narrower models there."
        findings.append(Finding("frontier_outside_widths", "note", message, (), remedy))
    beyond = sorted({p.budget_flops for p in points if p.extrapolated})
    if beyond:
        budgets = join_words(format_flops(budget) for budget in beyond)
        message = f"The frontier is extrapolated to {budgets} FLOPs, beyond the measured budgets."
        findings.append(Finding("frontier_extrapolated", "note", message))
    optimal = {(p.study, p.recurrence) for p in points}
    lost = [f for f in chosen if (f.study, f.recurrence) not in optimal and f.budgets]
    if lost:
        names = join_words(f"r = {f.recurrence:g}" for f in lost)
        message = (
            f"The law has no optimum at {names}: one of its two terms does not fall, so it does "
            "not trade width for tokens."
        )
        findings.append(Finding("frontier_no_optimum", "warning", message))
    return tuple(findings)


def minima_findings(
    points: Sequence[FrontierPoint], minima: Sequence[IsoflopMinimum]
) -> tuple[Finding, ...]:
    """Say where a law's N* lies outside the measured range that is as good as the minimum.

    Compared are the points and minima of the same study, recurrence and budget. The measured range
    is that of the parabola, n_low to n_high; the worst miss is the one whose N costs most on it, in
    nats. One finding at most, `law_misses_minima`, about the rows of the minima that are missed.

    >>> from loopworth.allocate import Family, frontier
    >>> from loopworth.isoflop import isoflop_minima
    >>> from loopworth.law.fitted import FittedLaw
    >>> from loopworth.runs import load_runs
    >>> runs = load_runs("schwethelm2026")
    >>> law = FittedLaw("power", (2.0, 4.0, 8.0), 28.4, 0.2, 911.0, 0.368, 1.57, (0.458,))
    >>> (finding,) = minima_findings(frontier(law, runs), isoflop_minima(runs))
    >>> finding.code, finding.severity, "in 21 of 24 groups of runs" in finding.message
    ('law_misses_minima', 'note', True)
    """
    optima = {(p.study, p.recurrence, p.budget_flops): p.n_star for p in points}
    compared = [
        (optima[x.study, x.recurrence, x.budget_flops], x)
        for x in minima
        if x.status == "minimum" and (x.study, x.recurrence, x.budget_flops) in optima
    ]
    missed = [(n, x) for n, x in compared if not (x.n_low or 0.0) <= n <= (x.n_high or math.inf)]
    if not missed:
        return ()
    n_star, worst = max(missed, key=lambda pair: _cost(*pair))
    measured, low, high = (
        format_quantity(n or math.nan) for n in (worst.n_star, worst.n_low, worst.n_high)
    )
    larger = sum(n > (x.n_star or math.nan) for n, x in missed)
    sides = {len(missed): "all too large", 0: "all too small"}
    side = sides.get(larger, f"{larger} too large, {len(missed) - larger} too small")
    message = (
        f"The law's N* lies outside the measured near-optimal range in {len(missed)} of "
        f"{len(compared)} groups of runs, {side}. "
        f"The worst is {worst.name}: the law says {format_quantity(n_star)}, the runs {measured} "
        f"({low} to {high} are as good), which costs {_cost(n_star, worst):.4f} nats on their "
        "parabola. "
        "Valleys are flat, so a law can fit the losses well and still miss where they are least."
    )
    rows = tuple(sorted({row for _, x in missed for row in x.rows}))
    remedy = "Read N* off the measured minima; take the law for losses, not for sizes."
    return (Finding("law_misses_minima", "note", message, rows, remedy),)


def _cost(n_star: float, minimum: IsoflopMinimum) -> float:
    """Return the parabola's loss at N above its least, in nats."""
    return minimum.loss_at(n_star) - (minimum.loss_star or 0.0)
