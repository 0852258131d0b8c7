"""What the terminal pages share: tables, sections, numbers with intervals, findings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from loopworth.findings import Finding, name_rows
from loopworth.law import Estimate
from loopworth.quantities import format_interval

COLOURS = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}
ROWS_OF_BUILTIN = (
    "Rows of built-in tables are those of the one file with all studies in the package, "
    "loopworth/datasets/schwethelm2026_runs.csv, counted from 1 below its header."
)


def make_table(*names: str, left: int = 0) -> Table:
    """Make a table whose first `left` columns hold words, the others numbers."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for place, name in enumerate(names):
        justify: Literal["left", "right"] = "left" if place < left else "right"
        table.add_column(escape(name), justify=justify, no_wrap=True)
    return table


def section(title: str, body: RenderableType, note: str, foot: str = "") -> Group:
    """Put a title with a note above a body, and a foot below it."""
    head = Text(title, style="bold green")
    head.append(f"  {note}", style="dim not bold default")
    return Group(head, body, Text(f"{foot}\n" if foot else "", style="dim"))


def interval(value: Estimate) -> str:
    """Write an estimate with its 95 % interval, or with three decimals where it has none."""
    if value.ci95 is None:
        return f"{value.estimate:.3f}"
    return format_interval(value.estimate, value.ci95)


def where(finding: Finding) -> str:
    """Write the code of a finding and the rows that it is about."""
    return f"{finding.code}, {name_rows(finding.rows)}" if finding.rows else finding.code


def findings_list(findings: Iterable[Finding], *, builtin: bool = False) -> Group | None:
    """List findings in their order, one paragraph each, or return None where there are none.

    `builtin` tells that rows are those of a built-in table, whose numbers need a word.
    """
    lines, numbered = [], False
    for finding in findings:
        text = Text(f"{finding.severity} ", style=COLOURS[finding.severity])
        text.append(f"[{where(finding)}] ", style="dim not bold default")
        text.append(finding.message, style="not bold default")
        if finding.remedy:
            text.append(f" {finding.remedy}", style="dim not bold default")
        lines.append(text)
        numbered = numbered or bool(finding.rows)
    if builtin and numbered:
        lines.append(Text(ROWS_OF_BUILTIN, style="dim"))
    return Group(*lines) if lines else None
