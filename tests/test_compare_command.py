"""`loopworth compare` as a user meets it."""

import json
import re

import pytest
from click.testing import CliRunner

from loopworth.cli import main

BASE, HYPER, TRUNCATED = (
    f"schwethelm2026:{x}" for x in ("baseline", "hyperconnections", "truncated_bptt")
)
FAST = ("--bootstrap", "60", "-q")


def run(*arguments):
    return CliRunner().invoke(main, ["compare", *map(str, arguments)])


@pytest.fixture(scope="module")
def page():
    return run(BASE, TRUNCATED, HYPER, *FAST).stdout


@pytest.fixture(scope="module")
def data():
    return json.loads(run(BASE, TRUNCATED, HYPER, "--json", *FAST).stdout)


def test_says_in_words_what_changes_and_whether_its_sign_is_established(page):
    text = " ".join(page.split())
    assert re.search(r"With hyperconnections phi changes by \+0\.2\d \[", text)
    assert "the sign is established" in text
    assert "the sign is not established: P(<0) = 0." in text


def test_fits_80_columns_in_plain_characters(page):
    assert max(map(len, page.splitlines())) <= 80
    assert "\x1b" not in page


def test_prints_the_set_of_recurrences_beside_delta_phi(page):
    assert "r = 1, 2, 4 and 8; 4 budgets" in page


def test_json_has_what_the_documentation_promises(data):
    assert [method["name"] for method in data["methods"]] == ["truncated_bptt", "hyperconnections"]
    for method in data["methods"]:
        assert {"phi", "delta_phi", "delta_g", "decomposition", "warnings"} <= set(method)
        assert set(method["delta_phi"]) == {"estimate", "ci95", "p_positive"}
        assert [row["recurrence"] for row in method["delta_g"]] == [2, 4, 8]
    assert data["recurrences"] == [1, 2, 4, 8]
    assert data["budgets"] == [4.64e17, 1e18, 2.15e18, 4.64e18]
    assert data["provenance"]["seed"] == 0


def test_a_recurrence_can_be_left_out():
    data = json.loads(
        run(BASE, TRUNCATED, "--without-recurrence", 2, "--json", "--bootstrap", 0, "-q").stdout
    )
    assert data["recurrences"] == [1, 4, 8]
    assert data["methods"][0]["delta_phi"]["estimate"] == pytest.approx(-0.07, abs=0.01)


def test_a_method_is_needed():
    result = run(BASE)
    assert result.exit_code == 2
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("schwethelm2062", HYPER), "schwethelm2026"),
        ((BASE, HYPER, "--law", "none"), "none"),
        ((BASE, HYPER, "--without-recurrence", "3"), "3"),
    ],
)
def test_refusals_are_one_message(arguments, words):
    result = run(*arguments, *FAST)
    assert result.exit_code in (1, 2)
    assert words in result.stderr
    assert "Traceback" not in result.stderr
