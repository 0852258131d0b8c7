"""A check as a terminal page: the verdict, the findings worst first, then what was found clean."""

from __future__ import annotations

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from loopworth.check import CheckReport
from loopworth.findings import Finding
from loopworth.quantities import format_count
from loopworth.report.page import COLOURS, ROWS_OF_BUILTIN, where

_HEADS = {
    "error": "Errors: no law should be fitted before these are mended",
    "warning": "Warnings: a result would be doubtful",
    "note": "Notes: worth knowing, nothing to mend",
}


def check_page(report: CheckReport) -> Group:
    """Return a page for a rich console; it fits 80 columns."""
    worst = next((name for name in _HEADS if report.count(name)), "note")
    colour = "bold green" if report.clean else COLOURS[worst]
    parts: list[Text | Padding] = [
        Text(report.verdict, style=colour),
        Text(f"{_about(report)}\n", style="dim"),
    ]
    for severity, head in _HEADS.items():
        chosen = [each for each in report.findings if each.severity == severity]
        if chosen:
            parts.append(Text(head, style=COLOURS[severity]))
            parts += [Padding(_finding(each), (0, 0, 0, 2)) for each in chosen]
            parts.append(Text())
    if report.citation is not None and any(each.rows for each in report.findings):
        parts.append(Text(f"{ROWS_OF_BUILTIN}\n", style="dim"))
    # What has a note above would contradict it among what is clean.
    noted = {each.code for each in report.findings}
    for head, some in (("Checked and found clean: ", False), ("Checked, see the notes: ", True)):
        kinds = [kind for kind in report.passed if noted.isdisjoint(kind.codes) != some]
        if kinds:
            parts.append(_paragraph(head, f"{'; '.join(kind.title for kind in kinds)}."))
    reasons: dict[str, list[str]] = {}
    for kind, why in report.not_checked:
        reasons.setdefault(why, []).append(kind.title)
    for why, titles_of in reasons.items():
        parts.append(_paragraph("Not checked: ", f"{'; '.join(titles_of)} ({why})."))
    return Group(*parts)


def _about(report: CheckReport) -> str:
    """Name the table, and count its usable rows where the verdict has not done so."""
    usable = f"{format_count(report.n_usable)} of {format_count(report.n_rows)} rows usable"
    return f"Table {report.name}" if usable in report.verdict else f"{report.name}: {usable}"


def _finding(finding: Finding) -> Text:
    text = Text(where(finding), style="bold")
    text.append(f"\n{finding.message}", style="not bold default")
    if finding.remedy:
        text.append(f" {finding.remedy}", style="not bold dim")
    return text


def _paragraph(head: str, body: str) -> Text:
    text = Text(head, style="bold green" if "clean" in head else "bold")
    return text.append(body, style="not bold default")
