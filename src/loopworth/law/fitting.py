"""`fit(runs)`: the recurrence-equivalence law of a run table, with what phi alone would hide."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from loopworth.arguments import as_key, as_resamples
from loopworth.findings import Finding
from loopworth.law.diagnose import (
    anchored,
    fit_findings,
    goodness,
    open_constants,
    refuse_equal_losses,
    residual_rows,
)
from loopworth.law.fitted import FittedLaw
from loopworth.law.gain import GAINS
from loopworth.law.identify import identify, identify_findings, phi_findings
from loopworth.law.intervals import (
    Bootstrap,
    resample_cells,
)
from loopworth.law.joint import GAIN, Problem
from loopworth.law.leaveout import (
    fit_without,
    held_out,
    influence,
    leaveout_findings,
    outlier_findings,
    outlying_rows,
)
from loopworth.law.profiles import Profile, profile
from loopworth.law.result import Estimate, Fit
from loopworth.law.rivals import (
    ConventionRow,
    GainRow,
    LawRow,
    convention_rows,
    gain_rows,
    half_rows,
    law_rows,
    make_problem,
    recurrence_rows,
    rival_findings,
    without_free,
)
from loopworth.law.solve import Optimum, optimise
from loopworth.law.untested import (
    UntestedRow,
    rival_draws,
    untested_findings,
    untested_rows,
)
from loopworth.law.valley import (
    LOOKS,
    elsewhere,
    resample_findings,
    same_interval,
    valley_bootstrap,
    valley_findings,
)
from loopworth.ledger import Convention
from loopworth.quantities import format_interval
from loopworth.runs import RunTable, load_runs
from loopworth.spec.checks import as_seed
from loopworth.table.design import design_findings

Progress = Callable[[str, int, int], None]
"""Told what is being worked on, and how many of how many are done."""

_SPARE_RUNS = 3  # runs beyond the constants, below which there are no intervals


def fit(
    runs: Any,
    law: str = "power",
    *,
    convention: Convention | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
    huber_delta: float | None = None,
    on_progress: Progress | None = None,
) -> Fit:
    """Fit a law to runs: the global optimum, intervals, rivals, conventions, residuals.

    `runs` is a RunTable or anything `load_runs` takes; `law` a key of the gain registry;
    `bootstrap` the number of block resamples (0 leaves the intervals out); `convention` where
    parameters are counted, by default the table's own; `huber_delta` the log residual from which
    the loss is linear, by default the table's (`RunTable.with_huber_delta`).
    Protocol: arXiv 2604.21106, with a block bootstrap over (budget, recurrence) cells.

    Raises ValueError where the runs are fewer than the constants, or an argument is not allowed.

    >>> result = fit("schwethelm2026", bootstrap=0)
    >>> round(result.phi.estimate, 3), result.seeds_agreeing == result.seeds
    (0.434, True)
    """
    law, bootstrap, seed = as_key("law", law, GAINS), as_resamples(bootstrap), as_seed("seed", seed)
    table = _table(runs, convention, huber_delta)
    tell = on_progress or (lambda _stage, _done, _total: None)
    design = design_findings(table)
    # With one recurrence there is no gain to fit: the law that is left is Chinchilla's.
    alone = any(finding.code == "one_recurrence" for finding in design)
    problem = make_problem(table, "none" if alone and law != "unrolled" else law)
    if len(table) < len(problem.names):
        count = "1 run" if len(table) == 1 else f"{len(table)} runs"
        raise ValueError(
            f"{count} cannot fit the {len(problem.names)} constants of the law {law!r}; add runs, "
            "at two or more budgets, widths and recurrences"
        )
    refuse_equal_losses(table)
    tell("point fit", 0, 1)
    optimum = optimise(problem)
    open_ = open_constants(problem, optimum.theta, table, design)
    boot, lowest = _bootstrap(problem, optimum, table, bootstrap, seed, tell)
    curve = _profile(problem, optimum, table, open_)
    tell("rival laws", 0, 1)
    laws, judged = _rivals(table, problem, optimum)
    conventions: tuple[ConventionRow, ...] = ()
    gains: tuple[GainRow, ...] = ()
    draws: dict[str, Bootstrap] = {}
    untested: tuple[UntestedRow, ...] = ()
    gain = _estimates(problem, optimum, open_, boot, curve)
    best = next((row.optimum for row in laws if row.key == "power"), None)
    if best is not None and not alone and "phi" not in open_:
        tell("conventions", 0, 1)
        # Only the law `power` has the draws that these tables start from.
        power = boot
        if boot is not None and problem.gain.key != "power":
            power, _ = valley_bootstrap(make_problem(table), best.theta, boot.weights)
        conventions = convention_rows(table, best, power)
        tell("phi by recurrence", 0, 1)
        gains = gain_rows(table, laws, power)
        tell("recurrences beyond the grid", 0, 1)
        draws = rival_draws(table, laws, power)
        untested = untested_rows(laws, draws)
    tell("each recurrence", 0, 1)
    per_recurrence, halves = recurrence_rows(table), () if alone else half_rows(table)
    tell("what is left out", 0, 1)
    good = goodness(problem, optimum.theta)
    resampled = {name: x.ci95 for name, x in gain.items() if x.ci95 is not None}
    identification = identify(problem, optimum.theta, table.cells, open_, resampled)
    moved = None if "phi" in open_ else influence(table, problem, optimum.theta, _error(gain))
    without = fit_without(
        table, problem, optimum.theta, outlying_rows(table, problem, optimum.theta)
    )
    known = {row.key: row.optimum.theta for row in laws}
    held = held_out(table, (problem.gain.key,) if alone else GAINS, known)
    residual = table.val_loss - np.exp(problem.log_prediction(optimum.theta[None])[0])
    fitted = FittedLaw.from_theta(problem.gain, table.recurrence, optimum.theta)
    return Fit(
        law=fitted,
        convention=table.convention,
        goodness=good,
        seeds=optimum.seeds,
        seeds_agreeing=optimum.seeds_agreeing,
        phi=gain.get("phi"),
        gain=gain,
        parameters={
            name: None if name in open_ else getattr(fitted, name)
            for name in ("A", "alpha", "B", "beta", "E")
        },
        laws=laws,
        conventions=conventions,
        phi_by_recurrence=gains,
        per_recurrence=per_recurrence,
        halves=halves,
        residuals=residual_rows(table.recurrence, residual),
        residual=residual,
        identification=identification,
        influence=moved,
        without_outliers=without,
        held_out=held,
        untested=untested,
        findings=(
            *table.findings,
            *design,
            *fit_findings(problem, optimum, open_, table),
            *resample_findings([("", boot)], len(set(table.cells.tolist()))),
            *_another_valley(problem, gain, boot, lowest),
            *_saturation_findings(problem),
            *judged,
            *untested_findings(laws, untested),
            *phi_findings(problem, optimum.theta, good, _widest(gain.get("phi"))),
            *identify_findings(identification),
            *leaveout_findings(moved, held, problem.gain.key),
            *outlier_findings(without, fitted),
        ),
        options={
            "law": law,
            "convention": table.convention.name,
            "bootstrap": bootstrap,
            "seed": seed,
            "huber_delta": table.huber_delta,
        },
        runs=table,
        bootstrap=boot,
        profile=curve,
        draws=draws,
    )


def _table(runs: Any, convention: Convention | None, huber_delta: float | None) -> RunTable:
    table = runs if isinstance(runs, RunTable) else load_runs(runs)
    if convention is not None:
        table = table.under(convention)
    return table if huber_delta is None else table.with_huber_delta(huber_delta)


def _rivals(
    table: RunTable, problem: Problem, optimum: Optimum
) -> tuple[tuple[LawRow, ...], tuple[Finding, ...]]:
    """Fit the rival laws; without runs at r = 1 `free` is a judge, but has no g to show."""
    laws = law_rows(table, {problem.gain.key: optimum})
    judged = rival_findings(laws, anchored(table))
    return (laws if anchored(table) else without_free(laws)), judged


def _widest(phi: Estimate | None) -> tuple[float | None, float | None] | None:
    """Return the wider interval of phi: of resamples, or the profile, which may have no end."""
    known = [ends for ends in (phi.ci95, phi.profile95) if ends] if phi else []

    def width(ends: tuple[float | None, float | None]) -> float:
        low, high = ends
        return math.inf if low is None or high is None else high - low

    return max(known, key=width, default=None)


def _error(gain: dict[str, Estimate]) -> float | None:
    """Return the standard error of phi that its bootstrap interval implies."""
    phi = gain.get("phi")
    return None if phi is None or phi.ci95 is None else (phi.ci95[1] - phi.ci95[0]) / 3.92


def _bootstrap(
    problem: Problem, optimum: Optimum, table: RunTable, resamples: int, seed: int, tell: Progress
) -> tuple[Bootstrap | None, Bootstrap | None]:
    """Return the resamples in the valley of the optimum, and each at its lowest point."""
    # A law that passes through its runs has no residuals, and so nothing to resample.
    if not resamples or len(table) < len(problem.names) + _SPARE_RUNS:
        return None, None
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        tell("bootstrap", done, LOOKS * resamples)

    weights = resample_cells(table.cells, resamples, seed)
    return valley_bootstrap(problem, optimum.theta, weights, count)


def _profile(
    problem: Problem, optimum: Optimum, table: RunTable, open_: tuple[str, ...]
) -> Profile | None:
    """Profile the gain's constant where it has one that the runs identify."""
    names = [name for name in problem.gain.parameters if name not in open_]
    if len(names) != 1 or len(table) < len(problem.names) + _SPARE_RUNS:
        return None
    return profile(problem, optimum.theta, names[0], table.cells)


def _estimates(
    problem: Problem,
    optimum: Optimum,
    open_: tuple[str, ...],
    boot: Bootstrap | None,
    curve: Profile | None,
) -> dict[str, Estimate]:
    found = {}
    for column, name in enumerate(problem.gain.parameters, start=GAIN):
        if name not in open_:
            value = float(optimum.theta[column])
            ends = boot.interval(boot.theta[:, column], value) if boot else None
            found[name] = Estimate(value, ends, curve.interval if curve else None)
    return found


def _another_valley(
    problem: Problem,
    gain: dict[str, Estimate],
    boot: Bootstrap | None,
    lowest: Bootstrap | None,
) -> Iterator[Finding]:
    """Yield what the interval of the gain's first constant would be with the lowest points."""
    if boot is None or lowest is None or not gain:
        return
    name = next(iter(gain))
    ends = lowest.interval(lowest.theta[:, problem.names.index(name)], gain[name].estimate)
    if ends is not None and not same_interval(ends, gain[name].ci95):
        yield from valley_findings(
            elsewhere(boot, lowest),
            "resamples",
            f"the interval of {name} is {format_interval(gain[name].estimate, ends)}",
            {name: {"ci95": list(ends)}},
            "Read phi(r) at each r: one law does not describe all resamples.",
        )


def _saturation_findings(problem: Problem) -> Iterator[Finding]:
    """Yield that there is no interval where the runs hardly outnumber the constants."""
    if len(problem) < len(problem.names) + _SPARE_RUNS:
        yield Finding(
            "saturated",
            "warning",
            f"{len(problem)} runs determine {len(problem.names)} constants almost exactly, so "
            "nothing tells how wrong they are and no interval is given.",
            remedy="Add runs.",
        )
