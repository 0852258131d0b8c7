"""What a check has to say about a table or a fit, and about which rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]

# A message stays readable on one screen: past this many ranges the rest is counted, not listed.
_RANGES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a reader of the result should know.

    `code` is a stable name in snake case for programs, `message` is a whole sentence for people,
    `rows` are the rows it is about, counted from 1 at the first data line of the source, and
    `remedy` says what to do about it (empty where nothing needs to be done). `evidence` holds the
    numbers that prove it, as plain JSON values.

    >>> Finding("missing_loss", "warning", "Row 3 has no loss.", rows=(3,)).to_json()["rows"]
    [3]
    """

    code: str
    severity: Severity
    message: str
    rows: tuple[int, ...] = ()
    remedy: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def to_json(self) -> dict[str, Any]:
        """Return the finding as a dictionary that `json.dumps` accepts.

        >>> sorted(Finding("one_budget", "note", "There is one budget.").to_json())
        ['code', 'evidence', 'message', 'remedy', 'rows', 'severity']
        """
        return {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "rows": list(self.rows),
            "remedy": self.remedy,
            "evidence": dict(self.evidence),
        }


class RefusedTable(ValueError):
    """A table that no law may be fitted to, with the findings that say why.

    The text of the error is the findings' messages and remedies, in their order.

    >>> unit = Finding("loss_is_perplexity", "error", "The loss is perplexity.", (1,), "Take ln.")
    >>> str(RefusedTable(unit)), RefusedTable(unit).findings[0].rows
    ('The loss is perplexity. Take ln.', (1,))
    """

    def __init__(self, *findings: Finding) -> None:
        self.findings = findings
        super().__init__(
            " ".join(text for each in findings for text in (each.message, each.remedy) if text)
        )


def name_rows(rows: Iterable[int]) -> str:
    """Name rows in words, runs of neighbours as ranges, long lists cut with a count.

    >>> name_rows([3])
    'row 3'
    >>> name_rows([7, 2, 3, 4])
    'rows 2-4 and 7'
    """
    ordered = sorted(set(rows))
    ranges: list[tuple[int, int]] = []
    for row in ordered:
        if ranges and row == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], row)
        else:
            ranges.append((row, row))
    words = [str(low) if low == high else f"{low}-{high}" for low, high in ranges[:_RANGES_SHOWN]]
    hidden = sum(high - low + 1 for low, high in ranges[_RANGES_SHOWN:])
    if hidden:
        words.append(f"{hidden} more")
    return ("row " if len(ordered) == 1 else "rows ") + join_words(words)


def join_words(words: Iterable[str], last: str = "and") -> str:
    """Join words as a sentence does.

    >>> join_words(["n_once", "n_rec", "tokens"])
    'n_once, n_rec and tokens'
    """
    listed = list(words)
    if len(listed) < 2:
        return "".join(listed)
    return f"{', '.join(listed[:-1])} {last} {listed[-1]}"
