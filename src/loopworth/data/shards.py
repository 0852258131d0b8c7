"""Token shards: flat files of little-endian ids, and the sidecar that says what they are.

A prepared folder holds

    data.json                    the sidecar: what is here, where it came from, a sha256 per file
    train-00000.bin, ...         ids of the train documents, BOS before each, no header, no padding
    validation-00000.bin, ...    the same for the documents held out
    tokenizer.json               where the tokenizer is not bytes or chars

The ids are uint8, uint16 or uint32, the smallest that holds the vocabulary, so a file can be
memory-mapped as it is. A document may go on in the next shard.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

FORMAT = "loopworth token shards"
VERSION = 1
SIDECAR = "data.json"
TOKENIZER_FILE = "tokenizer.json"
SPLITS = ("train", "validation")
SHARD_TOKENS = 2**27
_REMEDY = "delete the folder and prepare it again with `loopworth data prepare`"


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the smallest unsigned type that holds every id below `vocab_size`.

    >>> token_dtype(256), token_dtype(257), token_dtype(70_000)
    (dtype('uint8'), dtype('uint16'), dtype('uint32'))
    """
    for kind in ("u1", "<u2", "<u4"):
        if vocab_size <= 2 ** (8 * np.dtype(kind).itemsize):
            return np.dtype(kind)
    raise ValueError(f"vocab_size={vocab_size} does not fit into 32 bits")


class SplitWriter:
    """Writes one split, in files of `shard_tokens` tokens, and hashes what it writes.

    Used as a context manager; `records` then lists name, tokens and sha256 of each file.
    """

    def __init__(
        self, folder: Path, split: str, dtype: np.dtype[Any], shard_tokens: int = SHARD_TOKENS
    ) -> None:
        self.folder, self.split, self.dtype, self.shard_tokens = folder, split, dtype, shard_tokens
        self.records: list[dict[str, Any]] = []
        self._file: IO[bytes] | None = None
        self._hash = hashlib.sha256()

    def write(self, ids: NDArray[Any]) -> None:
        """Append ids, opening the next file when one is full."""
        ids = ids.astype(self.dtype, copy=False)
        while len(ids):
            if self._file is None:
                self._open()
            part = ids[: self.shard_tokens - self.records[-1]["tokens"]]
            data = part.tobytes()
            assert self._file is not None
            self._file.write(data)
            self._hash.update(data)
            self.records[-1]["tokens"] += len(part)
            if self.records[-1]["tokens"] == self.shard_tokens:
                self._close()
            ids = ids[len(part) :]

    def _open(self) -> None:
        name = f"{self.split}-{len(self.records):05d}.bin"
        self.records.append({"file": name, "tokens": 0, "sha256": ""})
        self._file, self._hash = (self.folder / name).open("wb"), hashlib.sha256()

    def _close(self) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())  # the folder appears only with all its bytes on disk
            self._file.close()
            self._file = None
            self.records[-1]["sha256"] = self._hash.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and self._file is not None:
            self._file.close()  # what was written is thrown away with the folder
            return
        self._close()


@dataclass(frozen=True, slots=True)
class Sidecar:
    """The content of data.json.

    dtype, vocab_size, bos   of the ids
    tokenizer   its name and what makes it again
    splits      per split: tokens (BOS included), documents, bytes (UTF-8, of the text), token_bytes
                (the sum of the tokenizer's bytes per id; equal to bytes where it is exact), shards
    source      name, kind, columns, counts of what was skipped, versions of packages
    settings    seed, validation share
    files       sha256 of other files of the folder
    versions    of loopworth, python and the libraries that made it
    """

    dtype: str
    vocab_size: int
    bos: int
    tokenizer: Mapping[str, Any]
    splits: Mapping[str, Mapping[str, Any]]
    source: Mapping[str, Any]
    settings: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Return the sha256 of all tokens and of what they mean, whoever prepared them, and when.

        Source and versions are left out: equal text, split and tokenizer give equal digests.
        """
        shards = {
            split: [(shard["tokens"], shard["sha256"]) for shard in self.splits[split]["shards"]]
            for split in SPLITS
        }
        meaning = [VERSION, self.dtype, self.vocab_size, self.bos, dict(self.tokenizer), shards]
        return hashlib.sha256(_canonical(meaning)).hexdigest()

    def write(self, folder: Path) -> None:
        """Write data.json into a folder."""
        body = {name: getattr(self, name) for name in self.__slots__}
        head = {"format": FORMAT, "version": VERSION, "digest": self.digest}
        text = json.dumps(head | body, indent=1, ensure_ascii=False) + "\n"
        with (folder / SIDECAR).open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def read(cls, folder: Path) -> Sidecar:
        """Read data.json; raises ValueError where it is missing, of another kind or changed."""
        place = folder / SIDECAR
        try:
            body = json.loads(place.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(
                f"{folder} is not a prepared folder: it has no {SIDECAR}. Make one with "
                f"`loopworth data prepare SOURCE --out DIR`"
            ) from None
        except ValueError as problem:
            raise ValueError(f"{place} is not JSON ({problem}); {_REMEDY}") from problem
        if not isinstance(body, dict) or body.get("format") != FORMAT:
            raise ValueError(f"{place} does not describe {FORMAT}; name another folder")
        if body.get("version") != VERSION:
            raise ValueError(
                f"{place} has format version {body.get('version')!r}; this loopworth reads "
                f"version {VERSION}. Prepare the data again"
            )
        try:
            sidecar = cls(**{name: body[name] for name in cls.__slots__})
            digest = sidecar.digest
        except (KeyError, TypeError) as problem:
            raise ValueError(f"{place} is incomplete ({problem}); {_REMEDY}") from problem
        if digest != body.get("digest"):
            raise ValueError(f"{place} was changed: its digest does not fit it; {_REMEDY}")
        return sidecar


def open_shard(folder: Path, record: Mapping[str, Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Memory-map one shard, after a look at its size; nothing is read.

    Raises ValueError for a file that is missing or has another size than the sidecar says.
    """
    place = folder / record["file"]
    wanted = record["tokens"] * dtype.itemsize
    try:
        found = place.stat().st_size
    except FileNotFoundError:
        raise ValueError(f"{place} is missing; {_REMEDY}, or copy it again") from None
    if found != wanted:
        what = "truncated" if found < wanted else "too long"
        raise ValueError(
            f"{place} is {what}: it has {found} bytes, {SIDECAR} says {wanted}; {_REMEDY}, or copy "
            "it again"
        )
    return np.memmap(place, dtype=dtype, mode="r", shape=(record["tokens"],))


def verify_file(folder: Path, name: str, sha256: str) -> None:
    """Read a whole file and compare its sha256; raises ValueError if it differs."""
    place = folder / name
    try:
        with place.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise ValueError(f"{place} is missing; {_REMEDY}, or copy it again") from None
    if found != sha256:
        raise ValueError(
            f"{place} is corrupt: its sha256 is {found[:12]}..., {SIDECAR} says "
            f"{sha256[:12]}...; {_REMEDY}, or copy it again"
        )


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
