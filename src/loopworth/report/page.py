"""What the terminal pages share: tables, sections, numbers with intervals, findings."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Literal

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from loopworth.findings import Finding, name_rows
from loopworth.law import Estimate
from loopworth.quantities import format_flops, format_interval

COLOURS = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}
ROWS_OF_BUILTIN = (
    "Rows of built-in tables are those of the one file with all studies in the package, "
    "loopworth/datasets/schwethelm2026_runs.csv, counted from 1 below its header."
)


def make_table(*names: str, left: int = 0) -> Table:
    """Make a table whose first `left` columns hold words, the others numbers.

    A cell that is too wide for 80 columns goes on below at a space: no digit is ever cut.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for place, name in enumerate(names):
        justify: Literal["left", "right"] = "left" if place < left else "right"
        table.add_column(escape(name), justify=justify, overflow="fold")
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


def mnats(nats: float) -> str:
    """Write a difference of losses in thousandths of a nat, with its sign but never as -0.0.

    >>> mnats(-0.01341), mnats(-1e-9)
    ('-13.4', '0.0')
    """
    value = round(1e3 * nats, 1)
    return f"{value:+.1f}" if value else "0.0"


def gain_words(g: float) -> str:
    """Write a gain in five characters: two decimals, fewer where it is large.

    >>> [gain_words(g) for g in (2.456, -0.2, 63.4, 1000.0, 98765.4)]
    ['2.46', '-0.20', '63.4', '1000', '1e5']
    """
    if abs(g) >= 9999.5:
        return format_flops(g, 1)
    return f"{g:.{2 if abs(g) < 9.995 else 1 if abs(g) < 99.95 else 0}f}"


def constant_words(value: float) -> str:
    """Write a constant with three significant digits, in full up to a million.

    >>> [constant_words(value) for value in (28.14, 4083.0, 2.38e9, 0.0498)]
    ['28.1', '4080', '2.38e9', '0.0498']
    """
    if abs(value) >= 1e6 or 0 < abs(value) < 1e-4:
        return format_flops(value)
    return f"{float(f'{value:.3g}'):g}"


def where(finding: Finding) -> str:
    """Write the code of a finding and the rows that it is about."""
    return f"{finding.code}, {name_rows(finding.rows)}" if finding.rows else finding.code


def findings_list(findings: Iterable[Finding], *, builtin: bool = False) -> Group | None:
    """List findings in their order, one paragraph each, or return None where there are none.

    `builtin` tells that rows are those of a built-in table, whose numbers need a word. A remedy
    that neighbours share is said once, after the last of them.
    """
    lines, numbered, listed = [], False, list(findings)
    for finding, after in itertools.zip_longest(listed, listed[1:]):
        text = Text(f"{finding.severity} ", style=COLOURS[finding.severity])
        text.append(f"[{where(finding)}] ", style="dim not bold default")
        text.append(finding.message, style="not bold default")
        if finding.remedy and (after is None or _advice(after) != _advice(finding)):
            text.append(f" {finding.remedy}", style="dim not bold default")
        lines.append(text)
        numbered = numbered or bool(finding.rows)
    if builtin and numbered:
        lines.append(Text(ROWS_OF_BUILTIN, style="dim"))
    return Group(*lines) if lines else None


def _advice(finding: Finding) -> tuple[str, str, str]:
    return finding.severity, finding.code, finding.remedy
