"""`loopworth compare` as a user meets it: text, JSON, and what it says to wrong input."""

import json
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from extreme_tables import write_table
from loopworth.cli import main
from loopworth.datasets import builtin_names

STUDIES = tuple(f"schwethelm2026{x}" for x in ("", ":truncated_bptt", ":hyperconnections"))
FAST = ("--bootstrap", "60", "-q")
DIRECT = "n_once,n_rec,recurrence,tokens,val_loss\n"


def run(*arguments):
    return CliRunner().invoke(main, ["compare", *map(str, arguments)])


@pytest.fixture(scope="module")
def page():
    return run(*STUDIES, *FAST).stdout


class TestText:
    def test_says_the_change_of_each_method_first(self, page):
        text = " ".join(page.split())
        first = re.search(r"With truncated_bptt phi changes by -0\.04\d? \[", text).start()
        assert "the sign is not established: P(<0) = 0." in text
        second = text.index("With hyperconnections phi changes by +0.2")
        assert "; the sign is established." in text[second:]
        assert first < second < text.index("Phi 95 % intervals") < text.index("By recurrence")

    def test_says_how_g_changes_where_one_phi_fails(self, page):
        text = " ".join(page.split())
        assert text.count("One phi does not describe these runs; with a g for each r, g") == 2
        assert re.search(r"g changes by \+0\.62\d? \[[^]]*\] at r = 2, \+0\.93", text)

    def test_prints_recurrences_budgets_and_convention_beside_it(self, page):
        assert "r = 1, 2, 4 and 8; 4 budgets, 4.64e17 to 4.64e18 FLOPs" in page
        assert "injection recurrent, norms in, embeddings out" in page

    def test_fits_80_columns_in_plain_characters(self, page):
        assert max(map(len, page.splitlines())) <= 80
        assert "\x1b" not in page
        assert "…" not in page  # nothing is cut

    def test_draws_every_table_on_one_axis(self, page):
        assert page.count("●") == 3
        assert re.search(r"hyperconnections +0\.65 \[0\.\d\d, 0\.\d\d\] +─*●─* +\+0\.22 ", page)

    def test_shows_g_and_the_parts_of_the_loss(self, page):
        assert re.search(r"\n2 +1\.27 +1\.89 +\+0\.62 \[", page)
        assert "mnats at 4.64e18 FLOPs against schwethelm2026" in page
        assert page.count("each at its own optimum") == 2
        assert re.search(r"\n8 +-27\.7 \[.*-38\.4\* .*x1\.24", page)

    def test_explains_the_parts_once_after_the_last_table(self, page):
        assert page.count("The parts add up to the change.") == 1
        assert page.index("The parts add up") > page.rindex("both at the base's width")

    def test_claims_no_certainty_that_resamples_cannot_give(self, page):
        gains = page[page.index("By recurrence") : page.index("Loss of")]
        assert gains.count(">0.99") == gains.count("<0.01") == 3
        assert not re.search(r" (1\.00|0\.00) ", gains)

    def test_says_what_neighbours_advise_alike_once(self, page):
        text = " ".join(page.split())
        assert text.count("leave an r out with --without-recurrence") == 1

    def test_says_what_to_know_before_believing_it(self, page):
        text = " ".join(page.split())
        assert "[budgets_left_out] 36 runs of schwethelm2026" in text
        assert text.count("[phi_depends_on_recurrence]") == 3
        assert text.count("these runs do not say: another A describes them better than") == 2

    @pytest.mark.parametrize("law", ["free", "bounded", "log"])
    def test_other_laws_fit_the_page(self, law):
        text = run(*STUDIES, "--law", law, "--bootstrap", 0, "-q").stdout
        assert max(map(len, text.splitlines())) <= 80
        assert "change" in text
        assert "[" not in text[: text.index("By recurrence")]  # no interval without resamples


@pytest.mark.parametrize("kinds", [("exact", "exact"), ("noise", "exact")])
def test_no_table_is_too_wide_and_no_digit_is_cut(tmp_path, kinds):
    base, method = (
        write_table(tmp_path, kind, phi) for kind, phi in zip(kinds, (0.45, 0.65), strict=True)
    )
    text = run(base, method, *FAST).stdout
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert not re.search(r"\d\.\d{7,}", text)
    if kinds == ("exact", "exact"):
        assert "phi changes by +0.2000 [+0.2000, +0.2000]" in " ".join(text.split())


class TestJson:
    @pytest.fixture(scope="class")
    @staticmethod
    def data():
        return json.loads(run(*STUDIES, "--json", *FAST).stdout)

    def test_has_what_the_documentation_promises(self, data):
        assert [method["name"] for method in data["methods"]] == [
            "truncated_bptt",
            "hyperconnections",
        ]
        for method in data["methods"]:
            assert {"estimate", "ci95"} <= set(method["phi"])
            assert set(method["delta_phi"]) == {"estimate", "ci95", "p_positive"}
            assert [row["recurrence"] for row in method["delta_g"]] == [2, 4, 8]
            assert {"estimate", "ci95", "p_positive", "base", "method"} <= set(method["delta_g"][0])
            assert len(method["decomposition"]) == 6
            assert set(method["variants"]["laws"]) == {"power", "free"}
            assert all(set(row) >= {"code", "message"} for row in method["warnings"])
        assert data["base"]["phi"]["estimate"] == pytest.approx(0.429, abs=0.005)
        assert data["recurrences"] == [1, 2, 4, 8]
        assert data["budgets"] == [4.64e17, 1e18, 2.15e18, 4.64e18]
        assert data["convention"].startswith("injection recurrent")

    def test_parts_add_up(self, data):
        for method in data["methods"]:
            for row in method["decomposition"]:
                parts = sum(part["estimate"] for part in row["parts"].values())
                assert parts == pytest.approx(row["change"]["estimate"], abs=1e-12)

    def test_provenance(self, data):
        found = data["provenance"]
        assert [len(table["data_sha256"]) for table in found["tables"]] == [64] * 3
        assert (found["bootstrap"], found["seed"], found["law"]) == (60, 0, "power")

    def test_options_reach_the_result(self):
        arguments = ("--json", "--bootstrap", 0, "-q", "--injection", "once", "--all-budgets")
        leave = ("--without-recurrence", 2, "--without-recurrence", 8)
        data = json.loads(run(*STUDIES[::2], *arguments, *leave).stdout)
        assert data["recurrences"] == [1, 4]
        assert data["convention"].startswith("injection once")
        assert len(data["budgets"]) == 6
        assert data["methods"][0]["delta_phi"]["ci95"] is None

    def test_stdout_is_nothing_but_json_while_progress_goes_to_stderr(self):
        command = ("-m", "loopworth", "compare", *STUDIES[::2], "--json", "--bootstrap", "10")
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=True
        )
        assert json.loads(done.stdout)["methods"][0]["name"] == "hyperconnections"
        assert "... resamples of hyperconnections" in done.stderr


class TestBroken:
    @pytest.mark.parametrize("arguments", [(), STUDIES[:1]])
    def test_missing_tables_name_the_built_in_ones(self, arguments):
        result = run(*arguments)
        assert result.exit_code == 2
        assert all(name in result.stderr for name in builtin_names())

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ((*STUDIES[:2], "--without-recurrence", 3), "r = 3"),
            (("schwethelm2062", STUDIES[0]), "schwethelm2026"),
            ((STUDIES[0], "schwethelm2026:nothing"), "no study"),
        ],
    )
    def test_is_refused_in_words(self, arguments, words):
        result = run(*arguments, *FAST)
        assert result.exit_code == 1
        assert result.stdout == ""
        assert result.stderr.startswith("error: ")
        assert words in " ".join(result.stderr.split())

    def test_a_direct_table_cannot_move_its_injection(self, tmp_path):
        path = tmp_path / "runs.csv"
        path.write_text(DIRECT + "1e7,2e7,4,1e9,2.9\n1e7,3e7,1,1e9,2.8\n")
        result = run(STUDIES[0], path, "--injection", "once", *FAST)
        assert result.exit_code == 1
        assert "n_injection" in result.stderr

    @pytest.mark.parametrize(
        "option", [("--law", "none"), ("--bootstrap", "-1"), ("--seed", "x"), ("--without", "a")]
    )
    def test_wrong_usage_is_2(self, option):
        assert run(*STUDIES, *option).exit_code == 2


def test_the_plot_puts_every_estimate_at_its_place(page):
    base, truncated, hyper = [x.index("●") for x in page.splitlines() if "●" in x]
    assert truncated <= base < hyper  # 12 characters tell -0.04 from 0 only sometimes
