"""Where text comes from: files and folders of text, JSON lines and Parquet, one document at a time.

A source can be read more than once and gives the same documents in the same order each time.
Nothing is lost silently: what cannot be read is an error that names its place, or, if the user says
so, skipped and counted.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from loopworth.spec.checks import listed

_BLOCK = 2**24  # bytes read at a time from a text file with a separator


@dataclass(slots=True)
class Tally:
    """What one reading of a source met.

    done      bytes of the files that have been read, of `Source.size`
    empty     documents without a character: left out
    skipped   documents that could not be read: left out if `skip_bad`, otherwise an error
    problems  the first of them, in words
    """

    skip_bad: bool = False
    done: int = 0
    empty: int = 0
    skipped: int = 0
    problems: list[str] = field(default_factory=list)

    def bad(self, where: str, problem: str, remedy: str) -> None:
        """Count a document that cannot be read, or raise ValueError."""
        if not self.skip_bad:
            raise ValueError(
                f"{where}: {problem}; {remedy}, or leave such documents out (--skip-bad)"
            )
        self.skipped += 1
        if len(self.problems) < 5:
            self.problems.append(f"{where}: {problem}")


class Source(Protocol):
    """The interface of every source: a name, a size in bytes (0 unknown), documents, a record."""

    name: str
    size: int

    def documents(self, tally: Tally) -> Iterator[str]:
        """Yield the text of each document, in a fixed order."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return what a sidecar records of the source."""
        ...


@dataclass(frozen=True, slots=True)
class Reading:
    """How files are read: the column or key of the text, and where a text file is cut."""

    text_column: str = "text"
    separator: str | None = None


class FileSource:
    """One file, or all files of a folder that hold text, in the order of their paths.

    Raises ValueError where there is no such file, or none that can be read.
    """

    def __init__(self, path: str | Path, reading: Reading) -> None:
        self.path, self.reading, self.name = Path(path), reading, str(path)
        self.ignored: list[str] = []
        if reading.separator == "":
            raise ValueError("the separator is empty; leave it out to keep each file one document")
        if self.path.is_dir():
            self.files = self._listed()
        elif self.path.is_file():
            self.files = [self.path]
            if _reader(self.path) is None:
                raise ValueError(f"{path} has no suffix that is known; use {_SUFFIXES}")
        else:
            raise ValueError(
                f"{path} does not exist; give a file, a folder, 'docstrings', or hub:OWNER/NAME "
                "for a data set of the Hugging Face hub"
            )
        self.size = sum(file.stat().st_size for file in self.files)

    def _listed(self) -> list[Path]:
        """Return the files of the folder in the order of their names; hidden ones do not count."""
        found: list[Path] = []
        for file in self.path.rglob("*"):
            inside = file.relative_to(self.path)
            if any(part.startswith(".") for part in inside.parts) or not file.is_file():
                continue
            if _reader(file) is None:
                self.ignored.append(inside.as_posix())
            else:
                found.append(file)
        self.ignored.sort()
        if not found:
            kinds = sorted({Path(name).suffix or "no suffix" for name in self.ignored})
            has = f"has only {listed(kinds)}" if kinds else "is empty"
            raise ValueError(f"{self.path} holds no text: it {has}; use {_SUFFIXES}")
        return sorted(found, key=lambda file: file.relative_to(self.path).as_posix())

    def documents(self, tally: Tally) -> Iterator[str]:
        """Yield the documents of each file."""
        for file in self.files:
            before, read = tally.done, _reader(file)
            assert read is not None
            yield from read(file, self.reading, tally)
            tally.done = before + file.stat().st_size

    def to_json(self) -> dict[str, Any]:
        """Return name, number of files, what was ignored, and how they were read."""
        return {
            "name": self.path.name,
            "kind": "files",
            "files": len(self.files),
            "file_bytes": self.size,
            "ignored_files": len(self.ignored),
            "text_column": self.reading.text_column,
            "separator": self.reading.separator,
        }


def _read_text(file: Path, reading: Reading, tally: Tally) -> Iterator[str]:
    """A text file is one document, or several with a separator between them."""
    if reading.separator is None:
        text = _decoded(file.read_bytes(), str(file), 0, tally)
        if text is not None:
            yield text.removeprefix("\ufeff")
        return
    mark, rest, offset = reading.separator.encode(), b"", 0
    with file.open("rb") as handle:
        while block := handle.read(_BLOCK):
            tally.done += len(block)
            *whole, rest = (rest + block).split(mark)
            for part in whole:
                text = _decoded(part, str(file), offset, tally)
                offset += len(part) + len(mark)
                if text is not None:
                    yield text
    text = _decoded(rest, str(file), offset, tally)
    if text is not None:
        yield text


def _read_lines(file: Path, reading: Reading, tally: Tally) -> Iterator[str]:
    """JSON lines: one object a line, its text under `text_column`; blank lines are no documents."""
    key, offset = reading.text_column, 0
    remedy = "mend the line"
    zipped = file.suffix == ".gz"
    with gzip.open(file, "rb") if zipped else file.open("rb") as handle:
        for number, line in enumerate(_lines(handle, file), start=1):
            where = f"{file}, line {number}"
            text, offset = _decoded(line, where, offset, tally), offset + len(line)
            tally.done += 0 if zipped else len(line)
            if text is None or not text.strip():
                continue
            try:
                value = json.loads(text.removeprefix("\ufeff"))
            except ValueError as problem:
                tally.bad(where, f"not JSON ({problem})", remedy)
                continue
            if not isinstance(value, dict):
                tally.bad(where, f"a JSON {type(value).__name__}, not an object", remedy)
            elif key not in value:
                keys = listed([*value]) if value else "nothing"
                tally.bad(where, f"no key {key!r}; it has {keys}", "name it with --text-column")
            elif not isinstance(value[key], str):
                kind = type(value[key]).__name__
                tally.bad(where, f"{key!r} is of type {kind}, not a string", remedy)
            elif _encodes(value[key]):
                yield value[key]
            else:
                tally.bad(where, f"{key!r} has half a surrogate pair, which is no text", remedy)


def _lines(handle: Iterable[bytes], file: Path) -> Iterator[bytes]:
    """Yield lines; a gzip file that ends early is an error that names it."""
    try:
        yield from handle
    except (EOFError, gzip.BadGzipFile, zlib.error) as problem:
        raise ValueError(
            f"{file} is truncated or no gzip file ({problem}); copy it again"
        ) from None


def _read_parquet(file: Path, reading: Reading, tally: Tally) -> Iterator[str]:
    """Parquet: one document a row."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ValueError(
            f"{file}: reading Parquet needs pyarrow; install it with "
            "pip install 'loopworth[frames]'"
        ) from None
    key = reading.text_column
    try:
        table = pq.ParquetFile(file)
    except (pa.ArrowInvalid, OSError) as problem:
        raise ValueError(f"{file} is no Parquet file or is damaged ({problem})") from problem
    with table:
        if key not in table.schema_arrow.names:
            raise ValueError(
                f"{file} has no column {key!r}; it has {listed(table.schema_arrow.names)}; name "
                "the one with the text with --text-column"
            )
        row, size = 0, file.stat().st_size
        before = tally.done
        try:
            for batch in table.iter_batches(batch_size=1024, columns=[key]):
                for value in batch.column(0):
                    row += 1
                    yield from _cell(value, key, f"{file}, row {row}", tally)
                tally.done = before + size * row // max(1, table.metadata.num_rows)
        except (pa.ArrowInvalid, OSError) as problem:
            raise ValueError(f"{file} is damaged after row {row} ({problem})") from problem


def _cell(value: Any, key: str, where: str, tally: Tally) -> Iterator[str]:
    """Yield the text of one cell, if it has one."""
    try:
        text = value.as_py()
    except UnicodeDecodeError as problem:
        tally.bad(where, f"byte {problem.start} of {key!r} is not UTF-8", "mend the row")
        return
    if isinstance(text, str):
        yield text
    else:
        kind = "empty (null)" if text is None else f"of type {type(text).__name__}, not a string"
        tally.bad(where, f"{key!r} is {kind}", "name another column with --text-column")


def _decoded(data: bytes, where: str, offset: int, tally: Tally) -> str | None:
    """Return bytes as text; `offset` is where they start in the file."""
    try:
        return data.decode()
    except UnicodeDecodeError as problem:
        at, byte = offset + problem.start, data[problem.start]
        tally.bad(
            where, f"byte {byte:#04x} at offset {at} is not UTF-8", "convert the file to UTF-8"
        )
        return None


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


Reader = Callable[[Path, Reading, Tally], Iterator[str]]
_READERS: dict[str, Reader] = {
    ".txt": _read_text,
    ".md": _read_text,
    ".jsonl": _read_lines,
    ".jsonl.gz": _read_lines,
    ".parquet": _read_parquet,
}
_SUFFIXES = listed([*_READERS])


def _reader(file: Path) -> Reader | None:
    name = file.name.lower()
    return next((read for suffix, read in _READERS.items() if name.endswith(suffix)), None)
