"""`loopworth check` as a user meets it: verdict first, 80 columns, JSON, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from loopworth.cli import main
from zoo import built


def run(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, ["check", *map(str, arguments)], input=stdin)


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    lines = [",".join(columns)]
    lines += [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def tampered(tmp_path: Path) -> Path:
    columns = built("tokens")
    columns["val_loss"][4] = "nan"
    columns["val_loss"][20] += 0.2
    columns["tokens"][60] /= 1e9
    return write(tmp_path / "runs.csv", columns)


def test_a_clean_table_ends_with_0_and_says_so_first() -> None:
    result = run()
    assert result.exit_code == 0
    assert result.stdout.startswith("Clean: 116 runs, nothing to mend.")
    assert "Checked and found clean: loss in nats per token" in result.stdout
    assert result.stderr == ""


def test_findings_end_with_1_worst_first_with_rows_and_remedies(tampered: Path) -> None:
    before = tampered.read_bytes()
    result = run(tampered)
    assert result.exit_code == 1
    text = result.stdout
    assert text.startswith("Refused: mixed_units.")
    assert text.index("mixed_units, row 61") < text.index("not_finite, row 5")
    assert text.index("not_finite, row 5") < text.index("under_tuned, row 21")
    assert "Write all rows in the same unit" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert tampered.read_bytes() == before


def test_rows_are_counted_once_above_the_findings(tampered: Path) -> None:
    for lines in (run().stdout.splitlines(), run(tampered).stdout.splitlines()):
        assert " ".join(lines[:3]).count("rows usable") == 1


def test_nothing_is_found_clean_that_a_note_is_about() -> None:
    text = " ".join(run().stdout.split())
    clean, noted = text.split("Checked, see the notes: ")
    assert "mixed_loss_sources" in clean
    assert "one recipe, method, vocabulary and loss source" not in clean
    assert noted == "one recipe, method, vocabulary and loss source."


def test_row_numbers_of_built_in_tables_are_explained() -> None:
    for arguments in ((), ("schwethelm2026:hyperconnections",)):
        text = " ".join(run(*arguments).stdout.split())
        assert text.count("loopworth/datasets/schwethelm2026_runs.csv, counted from 1") == 1


def test_json_is_one_object_with_all_that_the_page_says(tampered: Path) -> None:
    result = run(tampered, "--json")
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    assert data["counts"] == {"error": 1, "warning": 2, "note": len(data["findings"]) - 3}
    assert [x["code"] for x in data["findings"]][:3] == ["mixed_units", "not_finite", "under_tuned"]
    for finding in data["findings"]:
        assert set(finding) == {"code", "severity", "message", "rows", "remedy", "evidence"}
    assert data["findings"][0]["evidence"]["factor"] == 1e9
    assert (data["n_rows"], data["n_usable"], data["clean"]) == (116, 114, False)
    assert {"check", "title"} <= set(data["passed"][0])
    assert len(data["provenance"]["data_sha256"]) == 64


def test_what_fit_refuses_is_a_report_here(tmp_path: Path) -> None:
    path = write(tmp_path / "bpb.csv", {"N": [1e8, 2e8], "D": [1e9, 2e9], "val_bpb": [0.9, 0.8]})
    result = run(path)
    assert result.exit_code == 1
    assert result.stdout.startswith("Refused: loss_in_bits")
    assert "loss_in_bits, rows 1-2" in result.stdout
    path = write(tmp_path / "no.csv", {"a": [1], "b": [2]})
    result = run(path, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["findings"][0]["code"] == "columns_missing"


@pytest.mark.parametrize(
    ("text", "words"), [("", "is empty"), ("\x00\x01", "binary"), ("a,b\n", "no rows")]
)
def test_what_is_no_table_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text)
    result = run(path)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert words in " ".join(result.stderr.split())


def test_exit_codes_are_documented_and_usage_is_2() -> None:
    text = " ".join(run("--help").stdout.split())
    assert "0 clean or only notes, 1 warnings or errors, 2 wrong usage" in text
    assert run("--law", "power").exit_code == 2
    assert run("--injection", "twice").exit_code == 2


def test_standard_input_and_convention() -> None:
    columns = built()
    lines = [",".join(columns)]
    lines += [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    result = run("-", "--json", "--injection", "once", stdin="\n".join(lines))
    assert result.exit_code == 0
    assert "injection once" in json.loads(result.stdout)["provenance"]["convention"]


def test_neither_pandas_nor_scipy_nor_matplotlib_is_imported() -> None:
    program = (
        "import sys; from click.testing import CliRunner; from loopworth.cli import main; "
        "assert CliRunner().invoke(main, ['check']).exit_code == 0; "
        "print(sorted({'pandas', 'scipy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
