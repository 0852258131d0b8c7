"""What all pages share: remedies said once, numbers without a negative zero."""

from __future__ import annotations

import pytest
from rich.console import Console

from loopworth.findings import Finding
from loopworth.report.page import ROWS_OF_BUILTIN, findings_list, mnats


def page(*findings: Finding, builtin: bool = False) -> str:
    console = Console(width=400)
    with console.capture() as written:
        console.print(findings_list(findings, builtin=builtin))
    return written.get()


def test_neighbours_with_one_remedy_say_it_once_after_the_last() -> None:
    both = [Finding("code", "warning", f"{x} is off.", remedy="Mend it.") for x in "AB"]
    text = page(*both)
    assert text.count("Mend it.") == 1
    assert text.index("B is off.") < text.index("Mend it.")


@pytest.mark.parametrize(
    "other",
    [
        Finding("other", "warning", "B is off.", remedy="Mend it."),
        Finding("code", "note", "B is off.", remedy="Mend it."),
        Finding("code", "warning", "B is off.", remedy="Mend B."),
        Finding("code", "warning", "B is off."),
    ],
)
def test_a_remedy_is_dropped_only_beside_its_like(other: Finding) -> None:
    text = page(Finding("code", "warning", "A is off.", remedy="Mend it."), other)
    assert "A is off. Mend it." in text


def test_rows_of_built_in_tables_are_explained_where_rows_are_named() -> None:
    numbered, plain = Finding("code", "note", "A.", (3,)), Finding("code", "note", "A.")
    assert ROWS_OF_BUILTIN in page(numbered, builtin=True)
    assert ROWS_OF_BUILTIN not in page(plain, builtin=True)
    assert ROWS_OF_BUILTIN not in page(numbered)
    assert findings_list([]) is None


@pytest.mark.parametrize(
    ("nats", "text"),
    [(0.0, "0.0"), (-1e-12, "0.0"), (4e-5, "0.0"), (6e-5, "+0.1"), (-0.2, "-200.0")],
)
def test_thousandths_of_a_nat_have_a_sign_only_where_they_are_not_0(nats: float, text: str) -> None:
    assert mnats(nats) == text
