"""`loopworth fit` as a user meets it: text, JSON, files, and what it says to broken input."""

import json
import os
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from extreme_tables import write_table
from loopworth.cli import main
from loopworth.cli.options import LAWS
from loopworth.law import GAINS

FAST = ("--bootstrap", "40", "-q")
DIRECT = "n_once,n_rec,recurrence,tokens,val_loss\n"


def run(*arguments, stdin=None):
    return CliRunner().invoke(main, ["fit", *map(str, arguments)], input=stdin)


@pytest.fixture(scope="module")
def page():
    return run(*FAST).stdout


def test_the_choices_are_the_registry():
    assert tuple(LAWS) == GAINS


class TestText:
    def test_says_phi_with_its_interval_first(self, page):
        assert re.search(r"phi = 0\.43 \[0\.(3|4)\d, 0\.(4|5)\d\]", page)
        assert page.index("phi = ") < page.index("Rival laws") < page.index("Phi by convention")

    def test_fits_80_columns_in_plain_characters(self, page):
        assert max(map(len, page.splitlines())) <= 80
        assert "\x1b" not in page

    def test_names_every_law_convention_and_recurrence(self, page):
        for word in (*GAINS, "recurrent", "once", "excluded"):
            assert word in page
        assert "g(2) = 1.35, g(4) = 1.82, g(8) = 2.46" in page

    def test_translates_phi_into_sizes(self, page):
        assert re.search(r"410M +4 +582M +1\.03B", page)

    def test_no_bootstrap_no_interval(self):
        text = run("--bootstrap", 0, "-q").stdout
        assert "phi = 0.434" in text
        assert "95 % intervals" not in text

    def test_a_table_without_phi_says_so_instead_of_a_number(self, tmp_path):
        rows = [f"0,{n}e6,1,{d}e9,{2 + n**-0.3 + d**-0.4}" for n in (5, 9, 30) for d in (1, 3, 9)]
        path = tmp_path / "dense.csv"
        path.write_text(DIRECT + "\n".join(rows))
        result = run(path, *FAST)
        assert result.exit_code == 0
        assert "phi is not identified by these runs" in result.stdout
        assert "one_recurrence" in result.stdout


@pytest.mark.parametrize("kind", ["exact", "noise"])
def test_no_table_is_too_wide_and_no_digit_is_cut(tmp_path, kind):
    text = run(write_table(tmp_path, kind), *FAST).stdout
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert not re.search(r"\d\.\d{7,}", text)
    assert re.search(r"\[[+-]?\d+\.\d{2,}, ", text)
    if kind == "exact":
        assert "phi = 0.4500 [0.4500, 0.4500]" in text
        assert "-0.0 " not in text


class TestJson:
    @pytest.fixture(scope="class")
    @staticmethod
    def data():
        return json.loads(run("--json", *FAST).stdout)

    def test_has_what_the_documentation_promises(self, data):
        assert set(data["phi"]) == {"estimate", "ci95", "profile95"}
        assert set(data["parameters"]) == {"A", "alpha", "B", "beta", "E"}
        assert set(data["laws"]) == set(GAINS)
        assert all({"objective", "r2", "aicc"} <= set(row) for row in data["laws"].values())
        assert [set(row) >= {"injection", "phi", "ci95"} for row in data["conventions"]] == [
            True
        ] * 3
        assert all(set(row) >= {"code", "message", "rows"} for row in data["warnings"])
        assert len(data["isoflop_minima"]) == len(data["frontier"]) == 24
        assert len(data["equivalents"]) == 3
        assert data["n_runs"] == len(data["residuals"]["runs"]) == 116
        for name in ("objective", "r2", "rmse", "seeds_agreeing", "convention", "per_recurrence"):
            assert data[name]

    def test_provenance(self, data):
        assert re.fullmatch(r"[0-9a-f]{64}", data["provenance"]["data_sha256"])
        assert "arXiv:2604.21106" in data["provenance"]["citation"]
        assert data["provenance"]["bootstrap"] == 40
        assert data["provenance"]["seed"] == 0

    def test_stdout_is_nothing_but_json_while_progress_goes_to_stderr(self):
        done = subprocess.run(
            [sys.executable, "-m", "loopworth", "fit", "--json", "--bootstrap", "20"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(done.stdout)["phi"]["estimate"] == pytest.approx(0.4335, abs=0.005)
        assert "... bootstrap" in done.stderr


class TestFolder:
    @pytest.fixture(scope="class")
    @staticmethod
    def folder(tmp_path_factory):
        folder = tmp_path_factory.mktemp("report") / "new"
        assert run("--out", folder, *FAST).exit_code == 0
        return folder

    def test_holds_json_tables_and_figures(self, folder):
        names = {path.name for path in folder.iterdir()}
        assert {"fit.json", "laws.csv", "residuals.csv", "bootstrap.csv", "frontier.csv"} <= names
        assert {f"{figure}.{kind}" for figure in ("isoflop", "residuals", "bootstrap")
                for kind in ("pdf", "svg")} <= names  # fmt: skip
        assert json.loads((folder / "fit.json").read_text())["n_runs"] == 116

    def test_is_never_written_over(self, folder):
        before = {path: path.read_bytes() for path in folder.iterdir()}
        result = run("--out", folder, *FAST)
        assert result.exit_code == 2
        assert "is not empty" in " ".join(result.stderr.split())
        assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("file/new", "is a file, so there can be no folder"),
        ("file/deep/new", "is a file, so there can be no folder"),
        ("dangling", "is a file, so there can be no folder"),
        ("full", "is not empty"),
        ("file", "is a file"),
        ("locked/new", "cannot be written to"),
        ("locked", "cannot be"),
    ],
)
def test_a_folder_that_cannot_be_is_refused_before_the_fit(tmp_path, monkeypatch, place, words):
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "locked").mkdir(mode=0o500)
    if "locked" in place and os.access(tmp_path / "locked", os.W_OK):
        pytest.skip("this user may write everywhere")
    monkeypatch.setattr("loopworth.law.fit", None)  # not reached
    result = run("--out", tmp_path / place, *FAST)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "dangling", "file", "full", "locked"
    ]  # fmt: skip


def test_a_law_that_cannot_be_read_is_refused_before_the_fit(tmp_path, monkeypatch):
    path = tmp_path / "law.json"
    path.write_text('{"A": 1}')
    monkeypatch.setattr("loopworth.law.fit", None)  # not reached
    result = run("--against", path, *FAST)
    assert result.exit_code == 1
    assert "law.json" in result.stderr


class TestBroken:
    """One clear line on stderr, exit code 1, nothing on stdout, and the file as it was."""

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "is empty"),
            ("a,b\n1,2\n", "lacks the columns n_once, n_rec, recurrence, tokens and val_loss"),
            (DIRECT, "no rows"),
            (DIRECT + "1e7,2e7,4,1e9,nan\n", "Row 1"),
            (DIRECT + "1e7,2e7,4,1e9,2.9\n", "1 run cannot fit"),
            (DIRECT + "1e7,2e7,0,1e9,2.9\n", "recurrence"),
            ("\x00\x01\x02", "binary"),
        ],
    )
    def test_is_refused_in_words(self, tmp_path, text, words):
        path = tmp_path / "runs.csv"
        path.write_text(text)
        result = run(path, *FAST)
        assert result.exit_code == 1
        assert result.stdout == ""
        assert result.stderr.startswith("error: ")
        assert words in " ".join(result.stderr.split())
        assert "Traceback" not in result.stderr
        assert path.read_text() == text

    def test_missing_file_names_the_nearest(self):
        result = run("schwethelm2062", *FAST)
        assert result.exit_code == 1
        assert "schwethelm2026" in result.stderr

    def test_a_direct_table_cannot_move_its_injection(self, tmp_path):
        path = tmp_path / "runs.csv"
        path.write_text(DIRECT + "1e7,2e7,4,1e9,2.9\n" * 8)
        result = run(path, "--injection", "once", *FAST)
        assert result.exit_code == 1
        assert "n_injection" in result.stderr

    @pytest.mark.parametrize(
        "arguments",
        [
            ("--law", "cubic"),
            ("--bootstrap", "-1"),
            ("--seed", "x"),
            ("--injection", "twice"),
            ("--no",),
        ],
    )
    def test_wrong_usage_is_2(self, arguments):
        assert run(*arguments).exit_code == 2

    def test_set_aside_rows_are_named_and_the_rest_is_fitted(self, root, tmp_path):
        source = root / "src/loopworth/datasets/schwethelm2026_runs.csv"
        lines = [
            line for line in source.read_text().splitlines() if not line.startswith(("tr", "hy"))
        ]
        loss = lines[0].split(",").index("val_loss")

        def put(row, value):
            cells = lines[row].split(",")
            cells[loss] = value
            lines[row] = ",".join(cells)

        put(3, "nan")
        put(8, "11.0")
        path = tmp_path / "runs.csv"
        path.write_text("\n".join(lines))
        data = json.loads(run(path, "--json", *FAST).stdout)
        assert data["n_runs"] == 114
        named = {row for finding in data["warnings"] for row in finding["rows"]}
        assert {3, 8} <= named
        assert data["phi"]["estimate"] == pytest.approx(0.4335, abs=0.01)
        assert path.read_text() == "\n".join(lines)


def test_standard_input():
    rows = [
        f"1e7,{n}e6,{r},{d}e9,{1.7 + 9 * (10 + r**0.5 * n) ** -0.5 + d**-0.4}"
        for n in (5, 9, 30)
        for d in (1, 3, 9)
        for r in (1, 2, 4)
    ]
    data = json.loads(run("-", "--json", *FAST, stdin=DIRECT + "\n".join(rows)).stdout)
    assert data["phi"]["estimate"] == pytest.approx(0.5, abs=1e-4)
