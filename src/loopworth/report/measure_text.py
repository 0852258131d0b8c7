"""What a sweep measured, as a terminal page: phi, its losses, and what they do not say."""

from __future__ import annotations

from collections import defaultdict

from rich.console import Group, RenderableType
from rich.text import Text

from loopworth.findings import join_words
from loopworth.law import Fit
from loopworth.measure import Measured
from loopworth.quantities import format_count, format_flops, format_quantity
from loopworth.report.compare_text import compare_page
from loopworth.report.fit_report import FitReport
from loopworth.report.fit_text import headline, law_table, optima
from loopworth.report.page import findings_list, make_table, section

_SMALL_BUDGET = 1e15  # FLOPs below which a sweep shows the method, not a fact about large models
_CONSTANTS = ("weak_constants", "law_misses_minima", "constants_at_edge")


def measure_page(found: Measured) -> Group:
    """Return a page for a rich console; it fits 80 columns."""
    parts: list[RenderableType | None] = []
    if found.fit is not None:
        report = FitReport.of(found.fit)
        parts += [headline(report), _losses(found.fit), law_table(found.fit), optima(report)]
    if found.comparison is not None:
        parts.append(compare_page(found.comparison))
    if found.refused:
        parts.append(Text(f"refused: {found.refused}\n", "bold red"))
    if found.fit is not None and found.comparison is None:
        shown = [x for x in report.findings if x.severity != "note" and x.code not in _CONSTANTS]
        parts.append(findings_list(shown))
    parts.append(_checked(found))
    parts.append(_meaning(found))
    return Group(*(part for part in parts if part is not None))


def _losses(fit: Fit) -> Group | None:
    """List the losses at the largest budget: a line a width, a column a recurrence."""
    runs = fit.runs
    top = float(runs.budgets.max())
    cells: dict[tuple[int, float], list[float]] = defaultdict(list)
    for spec, budget, r, loss in zip(
        runs.specs, runs.budgets.tolist(), runs.recurrence.tolist(), runs.val_loss.tolist(),
        strict=True,
    ):  # fmt: skip
        if spec is not None and budget == top:
            cells[spec.d_model, r].append(loss)
    if not cells:
        return None
    levels = sorted({r for _, r in cells})
    table = make_table("d_model", *(f"r = {r:g}" for r in levels))
    for width in sorted({width for width, _ in cells}):
        found = (cells.get((width, r)) for r in levels)
        table.add_row(f"{width}", *(f"{sum(x) / len(x):.4f}" if x else "-" for x in found))
    return section(
        "Losses", table, f"nats per token at {format_flops(top)} FLOPs, effective depth fixed"
    )


def _checked(found: Measured) -> Text:
    """Say in a line whether the table is clean."""
    more = "" if found.checked.clean else f" See `loopworth check {found.tables[found.base]}`."
    return Text(f"Check: {found.checked.verdict}{more}", "dim" if found.checked.clean else "yellow")


def _meaning(found: Measured) -> Text | None:
    """Say what the numbers are about, and what they are not."""
    fit = found.fit
    if fit is None:
        return None
    runs = fit.runs
    unique = runs.n_once + runs.n_rec
    sizes = " to ".join(format_quantity(float(n)) for n in (unique.min(), unique.max()))
    budgets = len(set(runs.budgets.tolist()))
    about = (
        f"Models of {sizes} parameters, {budgets} budgets up to "
        f"{format_flops(float(runs.budgets.max()))} FLOPs; Huber threshold "
        f"{fit.options['huber_delta']:g}, from the scatter of these runs."
    )
    if runs.budgets.max() < _SMALL_BUDGET:
        about += (
            " This shows the method at work: phi depends on size and data, and is not that of "
            "large models (0.46 in arXiv 2604.21106). A, alpha, B, beta and E are not identified "
            "at this size and are not shown."
        )
    return Text(f"{about}\n")


def next_steps(found: Measured) -> str:
    """Name the table, and the commands that say more; no line is broken, so they can be copied."""
    total = len(found.collected.rows) + len(found.collected.missing)
    lines = [
        f"{format_count(len(found.collected.rows))} of {format_count(total)} runs in "
        f"{found.collected.path}"
    ]
    if found.collected.missing:
        names = [run.cell.name for run in found.collected.missing[:3]]
        more = len(found.collected.missing) - len(names)
        lines.append(f"missing  {join_words([*names, f'{more} more'] if more else names)}")
    delta = "" if found.huber_delta is None else f" --huber-delta {found.huber_delta:g}"
    base, *others = found.tables.values()
    lines.append(f"more     loopworth fit {base}{delta}")
    if others:
        tables = " ".join(map(str, (base, *others)))
        lines.append(f"         loopworth compare {tables}{delta}")
    return "\n".join(lines)
