"""Every source becomes the same columns; what is no table is refused in words."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loopworth.table.columns import COLUMNS, describe_columns, match_columns
from loopworth.table.reading import RawTable, read_bytes, read_object, read_path
from loopworth.table.values import read_numbers, read_texts

CSV = "r,loss\n1,2.9\n2,2.8\n"
COLUMNS_READ = {"r": ["1", "2"], "loss": ["2.9", "2.8"]}


def read(text: str | bytes) -> RawTable:
    content = text if isinstance(text, bytes) else text.encode()
    return read_bytes(content, name="t", source="t.csv")


@pytest.mark.parametrize(
    "content",
    [
        CSV,
        CSV.replace(",", ";"),
        CSV.replace(",", "\t"),
        CSV.replace(",", "|"),
        "sep=;\n" + CSV.replace(",", ";"),
        CSV.replace("\n", "\r\n"),
        CSV.replace("\n", "\n\n"),
        CSV + ",\n , \n",
        "\n\n" + CSV,
        " r ,loss \n1,2.9\n2,2.8",
        '"r","loss"\n"1","2.9"\n"2","2.8"\n',
        "r,loss,\n1,2.9,\n2,2.8,\n",
        ",r,loss\n0,1,2.9\n1,2,2.8\n",
        CSV.encode("utf-8-sig"),
        CSV.encode("utf-16"),
    ],
)
def test_the_same_table_in_any_csv(content: str | bytes) -> None:
    table = read(content)
    assert table.columns == COLUMNS_READ
    assert table.rows == (1, 2)


@pytest.mark.parametrize(
    "content",
    [
        '{"r": 1, "loss": 2.9}\n\n{"r": 2, "loss": 2.8}\n',
        '[{"r": 1, "loss": 2.9}, {"r": 2, "loss": 2.8}]',
        '{"r": [1, 2], "loss": [2.9, 2.8]}',
        '{"r": {"0": 1, "1": 2}, "loss": {"0": 2.9, "1": 2.8}}',
    ],
)
def test_the_same_table_in_any_json(content: str) -> None:
    assert read(content).columns == {"r": [1, 2], "loss": [2.9, 2.8]}


def test_nested_records_become_dotted_names_and_absent_values_none() -> None:
    table = read('{"config": {"r": 1}, "loss": 2.9}\n{"config": {"r": 2, "seed": 3}}\n')
    assert table.columns == {"config.r": [1, 2], "loss": [2.9, None], "config.seed": [None, 3]}


def test_frames_mappings_records_and_parquet(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    pa = pytest.importorskip("pyarrow")
    data = {"r": [1, 2], "loss": [2.9, 2.8]}
    frame = pd.DataFrame(data)
    path = tmp_path / "t.parquet"
    frame.to_parquet(path)
    records = [{"r": 1, "loss": 2.9}, {"r": 2, "loss": 2.8}]
    sources: list[Any] = [data, frame, pa.table(data), records]
    for source in sources:
        assert read_object(source).columns == data
    assert read_path(path).columns == data


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pipe:
        buffer = io.BytesIO(CSV.encode())

    monkeypatch.setattr(sys, "stdin", Pipe())
    assert read_path("-").columns == COLUMNS_READ


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "t.csv is empty"),
        (" \n\t\n", "is empty"),
        (",,\n,\n", "is empty"),
        ("r,loss\n", "a header but no rows"),
        ("1,2.9\n2,2.8\n", "no header"),
        ("r,loss,r\n1,2,3\n", "names r more than once"),
        ('{"r": 1, "r": 2}', "names r more than once"),
        ("r,loss\n1,2,9\n", "Row 1 .* 3 fields where the header names 2.*decimal comma"),
        ('r,loss\n1,"2.9\n', "no well-formed CSV"),
        ("r,loss\n1,2.9\x00\n", "binary file"),
        (b"\x1f\x8b\x08\x00", "gzip data: decompress"),
        (b"PK\x03\x04abc", "Excel workbook: save the sheet as CSV"),
        (b"PAR1 not really", "damaged Parquet"),
        (CSV.encode() + b"\xe9", "not UTF-8 text .byte 20."),
        ('{"r": 1}\n{"r": \n', "Row 2 of t.csv is no valid JSON"),
        ("[1, 2", "no valid JSON"),
        ("[1, 2]", "Row 1 of t.csv is int"),
        ("[]", "no rows"),
        ("{}", "no rows"),
        ('{"r": [1], "loss": [1, 2]}', "differ in length: r has 1 and loss has 2"),
        ("[" * 100_000, "nested too deep|no valid JSON"),
    ],
)
def test_what_is_no_table_is_refused(content: str | bytes, message: str) -> None:
    if isinstance(content, bytes) and content.startswith(b"PAR1"):
        pytest.importorskip("pyarrow")
    with pytest.raises(ValueError, match=message):
        read(content)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="is a directory; give the path"):
        read_path(tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_path(tmp_path / "none.csv")


@pytest.mark.parametrize("source", [3, None, b"r,loss", [], {}, [3]])
def test_objects_that_are_no_table(source: object) -> None:
    with pytest.raises(ValueError, match=r"no table|no rows|not an object"):
        read_object(source)


def test_a_frame_with_two_columns_of_one_name() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame([[1, 2]], columns=["r", "r"])
    with pytest.raises(ValueError, match="names r more than once"):
        read_object(frame)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1,000,000", 1e6),
        ("1,234.5", 1234.5),
        ("1_000_000", 1e6),
        ("1 000 000", 1e6),
        ("1.3B", 1.3e9),
        ("410M", 4.1e8),
        (" 4.64e17 ", 4.64e17),
        (7, 7.0),
        (np.float32(0.5), 0.5),
    ],
)
def test_counts_as_people_write_them(text: object, number: float) -> None:
    read_back = read_numbers("tokens", [text], counts=True, separator=",")
    assert (read_back.values[0], read_back.reasons) == (number, {})


@pytest.mark.parametrize("text", ["2,8836", "2,883", "0,5", "1,5B", "1.000.000", "1.000.000,5"])
def test_a_decimal_comma_is_refused_not_read_as_thousands(text: str) -> None:
    with pytest.raises(ValueError, match=r"val_loss of row 1 is .* decimal comma"):
        read_numbers("val_loss", [text])
    if text != "2,883":
        with pytest.raises(ValueError, match="decimal comma"):
            read_numbers("tokens", [text], counts=True, separator=",")


def test_one_group_of_thousands_is_doubtful_where_semicolons_separate() -> None:
    assert read_numbers("tokens", ["2,883"], counts=True, separator=",").values[0] == 2883
    with pytest.raises(ValueError, match="decimal comma"):
        read_numbers("tokens", ["2,883"], counts=True, separator=";")


def test_no_number_says_why() -> None:
    values = [None, "", "n/a", "nan", float("inf"), "oops", True, [1], "1,2,3"]
    column = read_numbers("val_loss", values)
    assert np.isnan(np.delete(column.values, 4)).all()
    assert column.reasons == {
        0: "missing", 1: "missing", 2: "missing", 3: "nan", 4: "inf", 5: "'oops'", 6: "True",
        7: "a list", 8: "'1,2,3'",
    }  # fmt: skip


def test_nullable_pandas_values() -> None:
    pd = pytest.importorskip("pandas")
    column = pd.array([1, None], dtype="Int64")
    assert read_numbers("tokens", list(column)).reasons == {1: "missing"}
    assert read_texts([pd.NA, "a", pd.NaT]) == [None, "a", None]


def match(*names: str) -> dict[str, str]:
    _, chosen, _ = match_columns(RawTable("t", "t.csv", {name: [1] for name in names}, (1,)))
    return chosen


def test_aliases_case_and_tracker_prefixes() -> None:
    chosen = match("N_Once", "config.n-rec", "config/R", "D", "summary.val/loss", "d", "_runtime")
    assert chosen == {
        "n_once": "N_Once", "n_rec": "config.n-rec", "recurrence": "config/R", "tokens": "D",
        "val_loss": "summary.val/loss",
    }  # fmt: skip


def test_a_name_wins_over_its_alias_and_the_note_names_aliases() -> None:
    names = ("n_once", "n_rec", "recurrence", "tokens", "loss", "val_loss", "C")
    raw = RawTable("t", "t.csv", {name: [1] for name in names}, (1,))
    _, chosen, findings = match_columns(raw)
    assert chosen["val_loss"] == "val_loss"
    assert [finding.message for finding in findings] == [
        "Columns were read by alias: C as budget_flops."
    ]


def test_two_aliases_are_refused_unless_they_agree() -> None:
    columns = {name: [1] for name in ("n_once", "n_rec", "r", "D", "loss")}
    raw = RawTable("t", "t.csv", columns | {"eval_loss": [2]}, (1,))
    with pytest.raises(ValueError, match="loss and eval_loss, and each could be val_loss"):
        match_columns(raw)
    assert match(*columns, "eval_loss")["val_loss"] == "loss"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("n_once", "recurrence"), "lacks the columns n_rec, tokens and val_loss"),
        (("n_onec", "n_rec", "r", "D", "loss"), "Is n_onec meant to be n_once"),
        (("N", "r", "D", "loss"), "N may be unique, effective or total parameters"),
        (("n_once", "n_rec", "r", "D", "val_ppl"), "val_ppl is perplexity"),
        (("n_once", "n_rec", "r", "D", "val_bpb"), "val_bpb is in bits per byte"),
        (("n_once", "n_rec", "r", "d", "loss"), "d may be tokens or a size"),
        (
            ("width_scale", "n_prelude", "n_recur", "recurrence", "val_loss"),
            r"lacks the columns n_coda and tokens \(or budget_flops\)",
        ),
    ],
)
def test_missing_columns_are_all_named_with_a_remedy(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        match(*names)
    assert "A row needs n_once, n_rec" in str(error.value)
    assert all(name in str(error.value) for name in names)


def test_a_misspelt_optional_column_is_pointed_out() -> None:
    names = ("n_once", "n_rec", "recurrence", "tokens", "val_loss", "n_injecton")
    _, _, findings = match_columns(RawTable("t", "t", {name: [1] for name in names}, (1,)))
    assert [finding.code for finding in findings] == ["unknown_column"]


def test_the_registry_is_consistent() -> None:
    every = [name.lower() for column in COLUMNS for name in (column.name, *column.aliases)]
    assert len(every) == len(set(every))
    assert len(describe_columns().splitlines()) == len(COLUMNS)
    assert json.dumps(every)
