"""A fit as a terminal page: phi in a sentence, then the tables that qualify it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.text import Text

from loopworth.allocate import Equivalent
from loopworth.findings import join_words
from loopworth.law import Estimate, Fit
from loopworth.law.pasted import Against
from loopworth.quantities import format_count, format_flops, format_quantity
from loopworth.report.fit_report import FitReport
from loopworth.report.page import (
    constant_words,
    findings_list,
    gain_words,
    interval,
    make_table,
    mnats,
    section,
)


def fit_page(report: FitReport) -> Group:
    """Return a page for a rich console; it fits 80 columns."""
    parts = (
        headline(report),
        _constants(report.fit),
        _recurrences(report.fit),
        law_table(report.fit),
        _conventions(report.fit),
        optima(report),
        _held_out(report.fit),
        _extrapolation(report),
        _untested(report),
        _against(report.against),
        findings_list(report.findings, builtin=report.fit.runs.citation is not None),
    )
    return Group(*(part for part in parts if part is not None))


def headline(report: FitReport) -> Group:
    """Say what was found, and what it means, before any table."""
    fit = report.fit
    levels = join_words(f"{r:g}" for r in sorted(set(fit.runs.recurrence.tolist())))
    runs = format_count(len(fit.runs))
    text = Text(f"{fit.runs.name}: {runs} runs, r = {levels}\n\n", style="dim")
    refuted = any(x.code == "phi_depends_on_recurrence" for x in report.findings)
    if refuted and "phi" in fit.gain:
        for row in fit.phi_by_recurrence:
            value = interval(Estimate(row.phi, row.ci95))
            text.append(f"  phi({row.recurrence:g}) = {value}\n", style="not dim bold")
        text.append(
            "  (a value for each r describes the runs better than one exponent, which is)\n"
        )
    for name, estimate in fit.gain.items():
        text.append(f"  {name} = {interval(estimate)}", style="not dim bold")
        text.append(f"{_profile(estimate)}\n")
    if not fit.gain:
        text.append(_no_gain(fit), style="not dim bold")
    if "phi" in fit.gain:
        text.append("  0: a repeat of the block adds nothing; 1: it equals a fresh block\n")
    if fit.bootstrap is not None and any(x.ci95 for x in fit.gain.values()):
        resamples = format_count(len(fit.bootstrap.theta))
        cells = len(set(fit.runs.cells.tolist()))
        text.append(f"  95 % intervals from {resamples} resamples of {cells} (budget, r) cells\n")
    if fit.law.recurrences and fit.gain:
        worth = ", ".join(f"g({r:g}) = {gain_words(fit.law.g(r))}" for r in fit.law.recurrences[:5])
        text.append(f"  worth of the loop in fresh blocks: {worth}\n", style="not dim")
    sizes = _equivalents(report.equivalents)
    return Group(text) if sizes is None else Group(text, sizes)


def _profile(estimate: Estimate) -> str:
    if estimate.profile95 is None:
        return ""
    low, high = ("open" if end is None else f"{end:.2f}" for end in estimate.profile95)
    return f"   profile likelihood [{low}, {high}]"


def _equivalents(equivalents: Sequence[Equivalent]) -> Group | None:
    """Translate the gain into model sizes, at one count of unique parameters."""
    if not equivalents:
        return None
    table = make_table("unique parameters", "r", "worth unlooped", "training cost of")
    for x in equivalents:
        sizes = (format_quantity(n) for n in (x.worth, x.cost))
        table.add_row(format_quantity(x.n_unique), f"{x.recurrence:g}", *sizes)
    return section("Equivalents", table, "sizes of the unlooped model of equal loss, equal cost")


def _no_gain(fit: Fit) -> str:
    if fit.options["law"] != fit.law.key:
        return "  phi is not identified by these runs (see the warnings)\n"
    if not fit.law.gain.parameters:
        return f"  g(r) = {fit.law.gain.formula}: this law has no constant in g\n"
    return f"  {join_words(fit.law.gain.parameters)} not identified by these runs\n"


def _constants(fit: Fit) -> Group:
    """Write the law with its constants, and how well it meets the runs."""
    value = {name: "?" if x is None else constant_words(x) for name, x in fit.parameters.items()}
    gain = f"({fit.law.gain.formula})"
    if fit.law.key == "power":
        gain = f"r^{fit.phi.estimate:.3f}" if fit.phi else "r^?"
    good = fit.goodness
    text = Text("The law", style="bold green")
    text.append(
        f"\nL = {value['E']} + {value['A']} N_eff^-{value['alpha']} + {value['B']} "
        f"D^-{value['beta']} nats per token\nN_eff = N_once + {gain} N_rec\n",
        style="not bold default",
    )
    text.append(
        f"R2 {good.r2:.4f}, RMSE {1e3 * good.rmse:.1f} mnats, summed Huber {good.objective:.3e} "
        f"from {fit.seeds_agreeing} of {fit.seeds} starts\n{fit.convention.name}\n",
        style="not bold dim",
    )
    return Group(text)


def _recurrences(fit: Fit) -> Group | None:
    """List each recurrence: its own g, its own Chinchilla law, the joint law's residuals."""
    gains = {row.recurrence: row for row in fit.phi_by_recurrence}
    own = {row.recurrence: row for row in fit.per_recurrence}
    table = make_table("r", "runs", "g(r)", "phi(r)", "alpha", "beta", "E", "mean", "largest")
    for row in fit.residuals:
        gain, law = gains.get(row.recurrence), own.get(row.recurrence)
        phi = "-"
        if gain is not None:
            phi = interval(Estimate(gain.phi, gain.ci95))
        table.add_row(
            f"{row.recurrence:g}",
            str(row.n_runs),
            gain_words(gain.g) if gain else "-",
            phi,
            *(
                constant_words(law.parameters[name]) if law else "-"
                for name in ("alpha", "beta", "E")
            ),
            mnats(row.mean),
            f"{1e3 * row.max_abs:.1f}",
        )
    halves = " and ".join(f"{row.phi:.2f} on the {row.half}er" for row in fit.halves)
    return section(
        "By recurrence",
        table,
        "g free; alpha, beta, E of each r alone; joint residuals, mnats",
        f"phi is {halves} half of the budgets" if halves else "",
    )


def law_table(fit: Fit) -> Group | None:
    """List the rival gains, the best by AICc marked."""
    if not fit.laws:
        return None
    levels = fit.law.recurrences[-4:]
    names = [f"g({r:g})" for r in levels]
    table = make_table("law", "g(r)", "R2", "RMSE", "dAICc", *names, left=2)
    for row in fit.laws:
        delta = "-" if row.delta_aicc is None else _digits(row.delta_aicc)
        gains = [gain_words(row.law.g(r)) for r in levels]
        style = "bold" if row.key == fit.law.key else ""
        table.add_row(
            row.key,
            row.formula,
            f"{row.goodness.r2:.4f}",
            _digits(1e3 * row.goodness.rmse),
            delta,
            *gains,
            style=style,
        )
    return section("Rival laws", table, "RMSE in mnats; dAICc 0 is the best of the table")


def _conventions(fit: Fit) -> Group | None:
    """Show how far the count of the injection moves phi."""
    if not fit.conventions:
        return None
    table = make_table("injection counted", "phi", "objective", left=1)
    for row in fit.conventions:
        mark = "bold" if row.injection == fit.convention.injection else ""
        phi = interval(Estimate(row.phi, row.ci95))
        table.add_row(row.injection, phi, f"{row.objective:.3e}", style=mark)
    note = "compare phi only within one convention"
    if len(fit.conventions) == 1:
        note = "the others need n_injection, or the architecture"
    return section("Phi by convention", table, note)


def optima(report: FitReport) -> Group | None:
    """Show the measured optima by recurrence: growth, and what looping costs in loss."""
    if not report.exponents:
        return None
    budgets = sorted({gap.budget_flops for gap in report.gaps})
    shown = budgets if len(budgets) <= 6 else [*budgets[:3], *budgets[-3:]]
    gaps = {(gap.recurrence, gap.budget_flops): 1e3 * gap.nats for gap in report.gaps}
    table = make_table("r", "N* ~ C^", "D* ~ C^", *(format_flops(budget) for budget in shown))
    for row in report.exponents:
        lost = [gaps.get((row.recurrence, budget)) for budget in shown]
        table.add_row(
            f"{row.recurrence:g}",
            _power(row.n_exponent, row.n_se),
            _power(row.d_exponent, row.d_se),
            *("-" if nats is None else f"{round(nats):+d}" for nats in lost),
        )
    note = "iso-FLOP minima" + ("; L* above that of r = 1 in mnats, by budget" if shown else "")
    return section("Measured optima", table, note)


def _held_out(fit: Fit) -> Group | None:
    """Show how far the law misses what it was not fitted to."""
    rows = [row for row in fit.held_out if row.law == fit.law.key]
    if not rows:
        return None
    table = make_table(
        "left out", "from", "fitted", "runs", "bias", "RMSE", "E of that fit", left=2
    )
    for row in rows:
        what = {
            "rolling": (f"{format_flops(row.left_out)} FLOPs", "smaller budgets"),
            "budget": (f"{format_flops(row.left_out)} FLOPs", "all other budgets"),
            "recurrence": (f"r = {row.left_out:g}", "all other r"),
        }[row.kind]
        miss = (mnats(row.bias), f"{1e3 * row.rmse:.1f}", f"{row.E:.2f}")
        table.add_row(*what, str(row.n_fitted), str(row.n_runs), *miss)
    return section("Held out", table, "observed minus predicted, mnats")


def _extrapolation(report: FitReport) -> Group | None:
    """Show the law at measured runs beyond the grid, with what it has missed before."""
    if not report.extrapolation:
        return None
    table = make_table("run", "tokens", "measured", "predicted", "bootstrap", "widened", left=1)
    for x in report.extrapolation:
        ends = (f"[{e[0]:.2f}, {e[1]:.2f}]" if e else "-" for e in (x.ci95, x.wide95))
        losses = (f"{x.observed:.3f}", f"{x.predicted:.3f}")
        table.add_row(x.name, format_quantity(x.tokens), *losses, *ends)
    return section(
        "Beyond the grid", table, "95 %; widened by the held-out error of each budget step"
    )


def _untested(report: FitReport) -> Group | None:
    """Show g beyond the recurrences that were run, under two laws, and the run that decides."""
    if not report.fit.untested:
        return None
    table = make_table("r", "g, power", "g, bounded", "difference")
    for row in report.fit.untested:
        table.add_row(
            f"{row.recurrence:g}",
            interval(Estimate(row.power, row.power_ci95)),
            interval(Estimate(row.bounded, row.bounded_ci95)),
            interval(Estimate(row.difference, row.difference_ci95)),
        )
    foot = report.deciding.sentence if report.deciding else ""
    note = "95 % if the law holds there; paired resamples"
    return section("Recurrences not run", table, note, foot)


def _against(other: Against | None) -> Group | None:
    """Show where the runs disagree with a law from elsewhere."""
    if other is None:
        return None
    table = make_table("r", "runs", "bias", "RMSE")
    for row in other.misses:
        miss = (mnats(row["bias"]), f"{1e3 * row['rmse']:.1f}")
        table.add_row(f"{row['recurrence']:g}", f"{row['n_runs']:g}", *miss)
    note = f"observed minus predicted, mnats; {other.convention.injection} injection"
    return section(f"Against {other.source}", table, note)


def _digits(value: float) -> str:
    """Write one decimal, none where there are four digits before it."""
    return f"{value:.1f}" if abs(value) < 999.95 else f"{value:.0f}"


def _power(exponent: float | None, error: float | None) -> str:
    if exponent is None:
        return "-"
    return f"{exponent:.2f}" if error is None else f"{exponent:.2f} ± {error:.2f}"
