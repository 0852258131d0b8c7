"""A comparison as a terminal page: what each method changes in a sentence, then the tables."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.text import Text

from loopworth.compare import Comparison, Difference, MethodComparison
from loopworth.compare.decomposition import PARTS, Decomposition
from loopworth.findings import join_words
from loopworth.law import Estimate
from loopworth.quantities import format_count, format_flops
from loopworth.report.page import (
    COLOURS,
    findings_list,
    gain_words,
    interval,
    make_table,
    mnats,
    section,
)

_NAME = 16  # characters of a table's name
_PLOT = 12  # characters of the forest
_FOOT = (
    "The parts add up to the change. tokens: other FLOPs per token buy other tokens;\n"
    "width: moved along the budget; params: others at one width; loop: g; train: A,\n"
    "alpha, B, beta and E. seen: the change of the measured iso-FLOP minima. *: the\n"
    "interval leaves out 0. infer.: inference FLOPs per token, method over base."
)
_VIEWS = {"optimum": "each at its own optimum", "matched": "both at the base's width"}


def compare_page(found: Comparison) -> Group:
    """Return a page for a rich console; it fits 80 columns."""
    parts: list[Group | Text | None] = [_headline(found), *_forests(found), _gains(found)]
    tables = [part for part in map(_parts, found.methods) if part is not None]
    if tables:
        parts += [*tables, Text(f"{_FOOT}\n", style="dim")]
    parts.append(_warnings(found))
    return Group(*(part for part in parts if part is not None))


def _headline(found: Comparison) -> Text:
    """Say what was compared, and what each method changes, before any table."""
    levels = join_words(f"{r:g}" for r in found.recurrences)
    budgets = [format_flops(budget) for budget in found.budgets]
    reach = budgets[0] if len(budgets) == 1 else f"{budgets[0]} to {budgets[-1]}"
    text = Text(
        f"{found.base_name}, {format_count(len(found.base))} runs, against "
        f"{join_words(f'{x.name}, {format_count(len(x.runs))} runs' for x in found.methods)}\n"
        f"r = {levels}; {len(budgets)} budget{'s' * (len(budgets) > 1)}, {reach} FLOPs\n"
        f"{found.convention.name}\n\n",
        style="dim",
    )
    for method in found.methods:
        text.append(f"{method.sentence}\n", style="not dim bold")
        text.append(_instead_of_phi(found, method), style="not dim")
        if method.variants is not None:
            text.append(f"{method.variants.sentence}\n", style="not dim")
    return text


def _instead_of_phi(found: Comparison, method: MethodComparison) -> str:
    """Say how g changes where one phi does not describe the tables that it is read from."""
    codes = {each.code for each in (*found.findings, *method.findings)}
    if "phi" not in method.delta or "phi_depends_on_recurrence" not in codes or not method.delta_g:
        return ""
    changes = join_words(f"{row.change.words} at r = {row.recurrence:g}" for row in method.delta_g)
    return f"One phi does not describe these runs; with a g for each r, g changes by {changes}.\n"


def _forests(found: Comparison) -> Iterable[Group]:
    """Draw each constant of g of every table on one axis, its change beside it."""
    resamples = found.options["bootstrap"]
    note = "no intervals without resamples"
    if any(x.ci95 for x in found.base_gain.values()):
        note = (
            f"95 % intervals; {format_count(resamples)} paired resamples of {found.cells} "
            "(budget, r) cells"
        )
    for constant, base in found.base_gain.items():
        rows: list[tuple[str, Estimate, Difference | None]] = [(found.base_name, base, None)]
        rows += [(x.name, x.gain[constant], x.delta[constant])
                 for x in found.methods if constant in x.delta]  # fmt: skip
        ends = [end for _, value, _ in rows for end in (value.estimate, *(value.ci95 or ()))]
        low, high = min(ends), max(ends)
        axis = f"{f'{low:.2f}':<{_PLOT // 2}}{f'{high:.2f}':>{_PLOT - _PLOT // 2}}"
        table = make_table("", constant, axis, "change", "P(>0)", left=1)
        plot = table.columns[2]
        plot.justify, plot.no_wrap = "left", True  # at the right it would lose its trailing blanks
        for name, value, delta in rows:
            table.add_row(
                _short(name),
                interval(value),
                _forest(value, low, high),
                "-" if delta is None else delta.words,
                "-" if delta is None else _likely(delta.p_positive),
            )
        yield section("Phi" if constant == "phi" else constant, table, note)


def _forest(value: Estimate, low: float, high: float) -> str:
    """Draw an interval and its estimate between two ends."""

    def place(x: float) -> int:
        return round((x - low) / (high - low) * (_PLOT - 1)) if high > low else 0

    line = [" "] * _PLOT
    if value.ci95 is not None:
        left, right = map(place, value.ci95)
        line[left : right + 1] = "─" * (right - left + 1)
    line[place(value.estimate)] = "●"
    return "".join(line)


def _likely(share: float | None) -> str:
    """Write a share of resamples; a thousand of them cannot show that it is 0 or 1.

    >>> _likely(0.284), _likely(1.0), _likely(0.002), _likely(None)
    ('0.28', '>0.99', '<0.01', '-')
    """
    if share is None:
        return "-"
    return ">0.99" if share > 0.99 else "<0.01" if share < 0.01 else f"{share:.2f}"


def _gains(found: Comparison) -> Group | None:
    """List g at each recurrence, free, and how each method changes it."""
    groups: list[RenderableType] = []
    for method in found.methods:
        if not method.delta_g:
            continue
        table = make_table("r", "g, base", "g, method", "change of g", "P(>0)", "change of phi(r)")
        for row in method.delta_g:
            table.add_row(
                f"{row.recurrence:g}",
                gain_words(row.base),
                gain_words(row.method),
                row.change.words,
                _likely(row.change.p_positive),
                row.phi_change.words,
            )
        groups += [Text(method.name, style="dim"), table]
    if not groups:
        return None
    note = f"g with a value of its own at each r, against {found.base_name}"
    return section("By recurrence", Group(*groups), note)


def _parts(method: MethodComparison) -> Group | None:
    """Show where the change of loss comes from, in mnats, and the cost of inference."""
    if not method.decomposition:
        return None
    budget = format_flops(method.decomposition[0].budget_flops)
    groups: list[RenderableType] = []
    for view, words in _VIEWS.items():
        rows = [row for row in method.decomposition if row.view == view]
        names = ("tokens", "width", "params", "loop", "train")
        table = make_table("r", "change", "seen", *names, "infer.")
        for row in rows:
            table.add_row(
                f"{row.recurrence:g}",
                _mnats(row.change),
                "-" if row.measured is None else f"{round(1e3 * row.measured) + 0:+d}",
                *(_part(row, name) for name in PARTS),
                f"x{row.inference_ratio:.2f}",
            )
        groups += [Text(words, style="dim"), table]
    note = f"mnats at {budget} FLOPs against {method.base_name}"
    return section(f"Loss of {_short(method.name)}", Group(*groups), note)


def _mnats(change: Difference) -> str:
    """Write a change of loss; an end beside 0 keeps a decimal, since its sign is what is asked.

    >>> _mnats(Difference(-0.0053, (-0.0141, -0.0003), 0.02))
    '-5.3 [-14.1, -0.3]'
    """
    if change.ci95 is None:
        return mnats(change.estimate)
    ends = [1e3 * end for end in change.ci95]
    digits = 1 if any(abs(end) < 0.5 for end in ends) else 0
    low, high = (f"{round(end, digits) + 0.0:+.{digits}f}" for end in ends)
    return f"{mnats(change.estimate)} [{low}, {high}]"


def _part(row: Decomposition, name: str) -> str:
    part = row.parts[name]
    value = round(1e3 * part.estimate, 1) + 0.0
    return f"{value:+.1f}{'*' if part.established and value else ' '}" if value else "0.0 "


def _short(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"


def _warnings(found: Comparison) -> Group | None:
    findings = (*found.findings, *(each for method in found.methods for each in method.findings))
    tables = (found.base, *(method.runs for method in found.methods))
    severities, codes = list(COLOURS), [each.code for each in findings]
    return findings_list(
        # One kind after another, each where it first comes up.
        sorted(findings, key=lambda x: (severities.index(x.severity), codes.index(x.code))),
        builtin=any(table.citation is not None for table in tables),
    )
