"""Another method on the grid of a plan: its looped runs changed in one thing, the others shared."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from loopworth.plan import Plan, PlannedRun
from loopworth.spec import ModelSpec
from loopworth.spec.checks import hint

_Change = Callable[[ModelSpec], ModelSpec]


def _two_lanes(model: ModelSpec) -> ModelSpec:
    return replace(model, injection="hyperconnections", n_lanes=2)


def _half_window(model: ModelSpec) -> ModelSpec:
    return replace(model, bptt_window=-(-int(model.recurrence) // 2))


PROBES: Mapping[str, _Change] = {
    "truncated_bptt": _half_window,
    "hyperconnections": _two_lanes,
    "additive": lambda model: replace(model, injection="additive"),
    "diagonal": lambda model: replace(model, injection="diagonal"),
    "passthrough": lambda model: replace(model, injection="passthrough"),
}


def probe(plan: Plan, method: str) -> Plan:
    """Return a plan's cells under another method; runs without a loop stay as they are.

    truncated_bptt: a window of ceil(r / 2). hyperconnections: two lanes (arXiv 2604.21106, its two
    case studies). The others are injections. Controls that are not part of the grid are left out.
    Raises ValueError for another name, and where the plan has nothing that the method would change.

    >>> from loopworth.recipes.laptop import laptop
    >>> from loopworth.spec import DataSpec
    >>> base = laptop(DataSpec())
    >>> runs = [*base.runs, *probe(base, "truncated_bptt").runs]
    >>> len(runs), len({each.run.content_hash() for each in runs})
    (96, 84)
    """
    if method not in PROBES:
        raise ValueError(f"{method!r} is no probe; {hint(method, list(PROBES))}")
    study = plan.runs[0].study
    cells = [run for run in plan.runs if run.study == study and run.role != "untied"]
    changed = [_changed(run, method) for run in cells]
    if all(new.run == old.run for new, old in zip(changed, cells, strict=True)):
        raise ValueError(
            f"{method} changes no run of {plan.name}; name another method, or a plan with r above 1"
        )
    return Plan(f"{plan.name}-{method}", changed, f"Measure what {method} does to phi.")


def _changed(planned: PlannedRun, method: str) -> PlannedRun:
    run = planned.run
    if planned.role != "plain":
        run = run.replace(model=PROBES[method](run.model))
    return PlannedRun(run, method, planned.role)
