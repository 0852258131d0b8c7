"""What to know before believing a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loopworth.compare.decomposition import Decomposition
from loopworth.compare.draws import TableFit, change_of, estimate_interval
from loopworth.compare.variants import Variants
from loopworth.findings import Finding, join_words
from loopworth.law.identify import phi_findings
from loopworth.law.joint import GAIN
from loopworth.law.rivals import DECISIVE_AICC
from loopworth.law.valley import same_interval, valley_findings


def table_findings(fit: TableFit) -> Iterator[Finding]:
    """Yield what one table says about the law that it is compared under."""
    yield from (each for each in fit.runs.findings if each.severity != "note")
    main = fit.law
    if main.bootstrap is not None and "phi" in main.problem.names:
        ends = estimate_interval(main, main.problem.names.index("phi"))
        whose = f"The runs of {fit.name}"
        yield from phi_findings(main.problem, main.optimum.theta, main.goodness, ends, whose)
    free = fit.free
    if free is None:
        yield Finding(
            "gain_not_free",
            "note",
            f"{fit.name} has too few runs to give g a value of its own at each r.",
        )
        return
    ours, theirs = fit.law.goodness.aicc, free.goodness.aicc
    if ours is not None and theirs is not None and ours - theirs > DECISIVE_AICC:
        key = fit.law.problem.gain.key
        single = "One phi" if key == "power" else f"The law {key!r}"
        better = f"{single} does not describe {fit.name}: a free g(r) is {ours - theirs:.0f} AICc "
        if not fit.anchored:
            yield Finding(
                "phi_depends_on_recurrence",
                "warning",
                f"{better}better. Its difference depends on which r were run.",
                remedy="Add runs at r = 1, which make g a number at each r.",
            )
            return
        values = ", ".join(
            f"g({r:g}) = {g:.2f}"
            for r, g in zip(fit.levels, free.optimum.theta[GAIN:].tolist(), strict=True)
        )
        yield Finding(
            "phi_depends_on_recurrence",
            "warning",
            f"{better}better, with {values}. Its difference depends on which r were run.",
            remedy="Read the change of g at each r; leave an r out with --without-recurrence.",
        )


def method_findings(
    base: TableFit,
    method: TableFit,
    parts: Sequence[Decomposition],
    variants: Variants | None,
) -> Iterator[Finding]:
    """Yield where a change of phi is not what it seems, and where the loss is not decomposed."""
    yield from _another_valley(base, method)
    unanchored = [fit.name for fit in (base, method) if not fit.anchored]
    if unanchored:
        key = base.law.problem.gain.key
        yield Finding(
            "no_unlooped_runs",
            "warning",
            f"{join_words(unanchored)} {'has' if len(unanchored) == 1 else 'have'} no runs at "
            f"r = 1, so the change to {method.name} rests on the form of the law {key!r} alone. "
            "Not identified, and not given: g at each r, whether the loop or the training "
            "changed, and the parts of the change of loss.",
            remedy="Keep the runs at r = 1; where a method shares them with the base, put them in "
            "both tables.",
        )
        return
    if variants is not None and variants.verdict == "training":
        joint = variants.laws[0]
        ratio = next(row for row in joint.rows if row.key == "gain in A").constants["A ratio"]
        gap = joint.training_minus_loop or 0.0
        yield Finding(
            "training_side_gain",
            "warning",
            f"The runs of {method.name} are described better by another A ({ratio:.2f} times that "
            f"of {base.name}) than by another g(r), by {-gap:.0f} AICc: what the method changes "
            "does not grow with r as a change of g would.",
            remedy="Run the method at r = 1 as well: only there is a gain in training seen alone.",
        )
    split = {row.recurrence for row in parts}
    lost = [r for r in sorted(set(base.levels) & set(method.levels)) if r not in split]
    if lost:
        yield Finding(
            "no_decomposition",
            "note",
            f"The change of loss to {method.name} is not decomposed at "
            f"r = {join_words(f'{r:g}' for r in lost)}: both tables need one architecture there, "
            "and a law that has an optimum.",
            remedy="Add d_model, n_prelude, n_recur and n_coda.",
        )


def _another_valley(base: TableFit, method: TableFit) -> Iterator[Finding]:
    away = base.law.elsewhere | method.law.elsewhere
    name = base.law.problem.gain.parameters[0]
    change = change_of(name, base.law.anywhere(), method.law.anywhere())
    if same_interval(change.ci95, change_of(name, base.law, method.law).ci95):
        return
    yield from valley_findings(
        away,
        f"paired resamples of {method.name}",
        f"the change of {name} is {change.words}",
        {name: change.to_json()},
        "Read the change of g at each r: the law does not describe all resamples.",
    )
