"""Turn any source of a run table into named columns of raw values, without reading numbers yet.

A source is a path, `-` for standard input, a frame (pandas, polars, pyarrow), a mapping of columns
or a list of mappings. Files are told apart by their first bytes, not by their suffix: Parquet, JSON
(a list of objects, an object of columns), JSON lines, and CSV separated by comma, semicolon, tab or
bar, with or without a byte order mark. The file itself is only ever opened for reading.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopworth.files import read_file, read_stdin
from loopworth.findings import join_words

_SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
_FOREIGN = {
    b"\x1f\x8b": "gzip data: decompress it first (gunzip FILE)",
    b"PK\x03\x04": "a zip archive or an Excel workbook: save the sheet as CSV first",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook: save the sheet as CSV first",
    b"BZh": "bzip2 data: decompress it first",
    b"\xfd7zXZ": "xz data: decompress it first",
    b"\x28\xb5\x2f\xfd": "zstd data: decompress it first",
    b"SQLite format 3": "an SQLite database: export the table as CSV first",
}


@dataclass(frozen=True, slots=True)
class RawTable:
    """Columns as they were found: names, raw values, and the number of each row.

    `rows` count from 1 at the first data line; blank lines are not counted. `separator` is the
    character between fields of a CSV source and None for any other source.
    """

    name: str
    source: str
    columns: dict[str, list[Any]]
    rows: tuple[int, ...]
    separator: str | None = None
    citation: str | None = None

    def __len__(self) -> int:
        return len(self.rows)


def read_path(path: str | Path) -> RawTable:
    """Read a file, or standard input for `-`, into columns.

    Raises OSError where the file cannot be opened and ValueError where it is no table; both say
    what was found instead and what to do.

    >>> read_path("no_such_file.csv")
    Traceback (most recent call last):
    FileNotFoundError: no_such_file.csv does not exist.
    """
    if str(path) == "-":
        return read_bytes(read_stdin(), name="stdin", source="standard input")
    place = Path(path)
    if str(path) and place.is_dir():
        raise IsADirectoryError(f"{path} is a directory; give the path of one table in it.")
    try:
        content = read_file(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist.") from None
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror or error}.") from error
    return read_bytes(content, name=place.stem, source=str(path))


def read_bytes(content: bytes, *, name: str, source: str) -> RawTable:
    """Read the bytes of a CSV, JSON, JSON lines or Parquet table into columns.

    >>> table = read_bytes(b"r;loss\\n1;2.9\\n2;2.8\\n", name="t", source="t.csv")
    >>> table.columns, table.rows
    ({'r': ['1', '2'], 'loss': ['2.9', '2.8']}, (1, 2))
    """
    if content.startswith(b"PAR1"):
        return read_mapping(_parquet_columns(content, source), name=name, source=source)
    text = _decode(content, source)
    stripped = text.lstrip()
    if not stripped:
        raise ValueError(f"{source} is empty; a table needs a header line and one line a run.")
    if stripped[0] in "[{":
        return _read_json(text, name=name, source=source)
    return _read_csv(text, name=name, source=source)


def read_mapping(columns: Mapping[Any, Any], *, name: str, source: str) -> RawTable:
    """Take a mapping from column names to values of equal length; single values are repeated.

    >>> read_mapping({"r": [1, 2], "study": "mine"}, name="m", source="mapping").columns["study"]
    ['mine', 'mine']
    """
    listed = {str(key).strip(): _listed(value) for key, value in columns.items()}
    if len(listed) < len(columns):
        _refuse_duplicates([str(key).strip() for key in columns], source)
    lengths = {key: len(value) for key, value in listed.items() if value is not None}
    if len(set(lengths.values())) > 1:
        sizes = join_words(f"{key} has {size}" for key, size in lengths.items())
        raise ValueError(f"The columns of {source} differ in length: {sizes} values.")
    size = next(iter(lengths.values()), 1 if listed else 0)
    if size == 0:
        raise ValueError(f"{source} holds no rows; a table needs one row a run.")
    filled = {
        key: [columns_value] * size if value is None else value
        for (key, value), columns_value in zip(listed.items(), columns.values(), strict=True)
    }
    return RawTable(name, source, filled, tuple(range(1, size + 1)))


def read_records(records: Sequence[Any], *, name: str, source: str) -> RawTable:
    """Take one mapping a row; nested mappings become dotted names, absent keys become None.

    >>> read_records([{"config": {"r": 2}}, {}], name="m", source="list").columns
    {'config.r': [2, None]}
    """
    flat: list[dict[str, Any]] = []
    for number, record in enumerate(records, start=1):
        if not isinstance(record, Mapping):
            kind = type(record).__name__
            raise ValueError(f"Row {number} of {source} is {kind}, not an object of columns.")
        flat.append(dict(_flatten(record)))
    names = list(dict.fromkeys(key for record in flat for key in record))
    columns = {key: [record.get(key) for record in flat] for key in names}
    if not columns:
        raise ValueError(f"{source} holds no rows with columns; a table needs one row a run.")
    return RawTable(name, source, columns, tuple(range(1, len(flat) + 1)))


def read_object(source: Any) -> RawTable:
    """Read a frame, a mapping of columns or a list of mappings that is already in memory.

    A pandas or polars frame is known by its `columns`, a pyarrow table by `to_pydict`, so none of
    them is imported here.
    """
    if isinstance(source, Mapping):
        return read_mapping(source, name="mapping", source="a mapping of columns")
    if hasattr(source, "to_pydict"):
        return read_mapping(source.to_pydict(), name="table", source="a pyarrow table")
    if hasattr(source, "columns") and hasattr(source, "__getitem__"):
        names = list(source.columns)
        _refuse_duplicates([str(name).strip() for name in names], "the frame")
        columns = {name: list(source[name]) for name in names}
        return read_mapping(columns, name="frame", source="a frame")
    if isinstance(source, Iterable) and not isinstance(source, str | bytes):
        return read_records(list(source), name="records", source="a list of rows")
    raise ValueError(
        f"{type(source).__name__} is no table of runs; give a path, '-', a built-in name, "
        "a frame, a mapping of columns or a list of mappings."
    )


def _decode(content: bytes, source: str) -> str:
    for magic, meaning in _FOREIGN.items():
        if content.startswith(magic):
            raise ValueError(f"{source} is {meaning}.")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"  # what spreadsheets write as "Unicode text"
    elif b"\x00" in content:
        raise ValueError(f"{source} is a binary file, not CSV, JSON, JSON lines or Parquet.")
    else:
        encoding = "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{source} is not UTF-8 text (byte {error.start + 1}); save it again as UTF-8."
        ) from None


def _parquet_columns(content: bytes, source: str) -> dict[str, list[Any]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ValueError(
            f"{source} is Parquet, which needs pyarrow: pip install 'loopworth[frames]', "
            "or give the table as CSV."
        ) from None
    try:
        table = pq.read_table(io.BytesIO(content))
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{source} is a damaged Parquet file: {error}.") from None
    _refuse_duplicates(table.column_names, source)
    columns: dict[str, list[Any]] = table.to_pydict()
    return columns


def _read_csv(text: str, *, name: str, source: str) -> RawTable:
    declared = re.match(r"sep=(.)\r?\n", text)  # the line that tells Excel the separator
    if declared:
        text = text[declared.end() :]
    separator = declared[1] if declared else _guess_separator(text)
    try:
        lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True))
    except csv.Error as error:
        raise ValueError(f"{source} is no well-formed CSV: {error}.") from None
    filled = [line for line in lines if any(field.strip() for field in line)]
    if not filled:
        raise ValueError(f"{source} is empty; a table needs a header line and one line a run.")
    header = [field.strip() for field in filled[0]]
    if all(_is_number(field) for field in header if field):
        raise ValueError(f"{source} has no header: its first line holds only numbers.")
    _refuse_duplicates([field for field in header if field], source)
    body = filled[1:]
    if not body:
        raise ValueError(f"{source} has a header but no rows; a table needs one line a run.")
    for number, line in enumerate(body, start=1):
        if any(field.strip() for field in line[len(header) :]):
            raise ValueError(
                f"Row {number} of {source} has {len(line)} fields where the header names "
                f"{len(header)}. A number with a decimal comma or an unquoted thousands separator "
                "splits in two: write 2.88 and 1000000, or put it in quotes."
            )
    columns: dict[str, list[Any]] = {
        key: [line[place] if place < len(line) else None for line in body]
        for place, key in enumerate(header)
        if key  # a frame saved with its index leaves one column without a name
    }
    return RawTable(name, source, columns, tuple(range(1, len(body) + 1)), separator)


def _guess_separator(text: str) -> str:
    """Choose the separator that occurs most in the header, where only names are expected."""
    header = next(line for line in text.splitlines() if line.strip())
    return max(_SEPARATORS, key=header.count)


def _read_json(text: str, *, name: str, source: str) -> RawTable:
    try:
        whole = json.loads(text, object_pairs_hook=_unique_keys)
    except RecursionError:
        raise ValueError(f"{source} is nested too deep for a table.") from None
    except json.JSONDecodeError as error:
        if text.lstrip()[0] == "[":
            raise ValueError(f"{source} is no valid JSON: {error}.") from None
        whole = _json_lines(text, source)
    if isinstance(whole, list):
        return read_records(whole, name=name, source=source)
    values = list(whole.values())
    if values and all(isinstance(value, list) for value in values):
        return read_mapping(whole, name=name, source=source)
    if values and all(_is_indexed(value) for value in values):
        # {"tokens": {"0": ..., "1": ...}}: how pandas writes a frame by default
        columns = {key: list(value.values()) for key, value in whole.items()}
        return read_mapping(columns, name=name, source=source)
    return read_records([whole], name=name, source=source)


def _json_lines(text: str, source: str) -> list[Any]:
    records = []
    for line in text.splitlines():
        if line.strip():
            try:
                records.append(json.loads(line, object_pairs_hook=_unique_keys))
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"Row {len(records) + 1} of {source} is no valid JSON: {error.msg} "
                    f"at character {error.pos + 1}."
                ) from None
    return records


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _refuse_duplicates([key for key, _ in pairs], "a JSON object")
    return dict(pairs)


def _is_indexed(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(key.isdigit() for key in value)


def _flatten(record: Mapping[Any, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{str(key).strip()}", value


def _listed(value: Any) -> list[Any] | None:
    """Return a column as a list, or None for a single value that stands for every row."""
    if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
        return None
    return list(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _refuse_duplicates(names: Sequence[str], source: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"{source} names {join_words(twice)} more than once; rename or drop the extra column."
        )
