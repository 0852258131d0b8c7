"""An open prepared folder: streams of tokens, and the rows that are cut from them.

A stream is one long sequence: BOS, document, BOS, document, ... in shuffled order. A row of T + 1
tokens starts every T tokens, so that every token is once a target, but the last ones of the stream
that do not fill a row. Rows are cut when asked for: one folder serves every context T.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from loopworth.data.shards import SPLITS, Sidecar, open_shard, verify_file
from loopworth.data.tokenizers import Ids, Tokenizer, from_json

VERIFY_BELOW = 2**26  # bytes; a smaller set is hashed whenever it is opened (about 0.1 s)


class TokenSplit:
    """The stream of one split, memory-mapped.

    name         train or validation
    n_tokens     BOS included; n_documents; n_bytes of UTF-8 text
    bos          the id that starts a document
    """

    def __init__(
        self, name: str, shards: list[Ids], *, n_documents: int, n_bytes: int, bos: int
    ) -> None:
        self.name, self.n_documents, self.n_bytes, self.bos = name, n_documents, n_bytes, bos
        self._shards = shards
        self._starts = np.cumsum([0, *(len(shard) for shard in shards)])
        self.n_tokens = int(self._starts[-1])

    def n_rows(self, context: int) -> int:
        """Return how many rows of `context` + 1 tokens the stream gives."""
        if context < 1:
            raise ValueError(f"context={context} must be 1 token or more")
        return max(0, self.n_tokens - 1) // context

    def rows(self, indices: ArrayLike, context: int) -> NDArray[np.int64]:
        """Return rows as int64 (n, context + 1): row i is stream[i * context :][: context + 1].

        The first `context` tokens are the input, the last `context` the targets. Raises ValueError
        for an index that has no row.
        """
        index_N = np.asarray(indices, dtype=np.int64).reshape(-1)
        n_rows = self.n_rows(context)
        if index_N.size and not 0 <= index_N.min() <= index_N.max() < n_rows:
            raise ValueError(
                f"row {index_N.min()} to {index_N.max()} of {self.name} asked for; it has {n_rows} "
                f"rows of context {context}, counted from 0"
            )
        start_N = index_N * context
        shard_N = np.searchsorted(self._starts, start_N, side="right") - 1
        last_N = np.searchsorted(self._starts, start_N + context, side="right") - 1
        rows_NT = np.empty((len(index_N), context + 1), np.int64)
        for shard in np.unique(shard_N):
            inside = (shard_N == shard) & (last_N == shard)
            if inside.any():  # one copy a row, no loop
                windows = sliding_window_view(self._shards[shard], context + 1)
                rows_NT[inside] = windows[start_N[inside] - self._starts[shard]]
        for k in np.flatnonzero(shard_N != last_N):  # a row on a seam of two shards: rare
            rows_NT[k] = self.tokens(int(start_N[k]), int(start_N[k]) + context + 1)
        return rows_NT

    def tokens(self, start: int = 0, stop: int | None = None) -> Ids:
        """Return a piece of the stream as stored; a view where it lies in one shard."""
        stop = self.n_tokens if stop is None else min(stop, self.n_tokens)
        parts = [
            shard[max(0, start - first) : max(0, stop - first)]
            for shard, first in zip(self._shards, self._starts.tolist(), strict=False)
            if first < stop and start < first + len(shard)
        ]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else self._shards[0][:0]

    def documents(self) -> Iterator[Ids]:
        """Yield the ids of each document in stored order, without BOS."""
        block, rest = 2**22, None
        for first in range(0, self.n_tokens, block):
            piece = np.asarray(self.tokens(first, first + block))
            piece = piece if rest is None else np.concatenate([rest, piece])
            marks = np.flatnonzero(piece == self.bos)
            for start, stop in zip(marks[:-1].tolist(), marks[1:].tolist(), strict=True):
                yield piece[start + 1 : stop]
            rest = piece[marks[-1] :] if len(marks) else piece
        if rest is not None:
            yield rest[1:]


@dataclass(frozen=True)
class TokenData:
    """A prepared folder: two streams, a tokenizer and the digest of it all."""

    folder: Path
    sidecar: Sidecar
    tokenizer: Tokenizer
    train: TokenSplit
    validation: TokenSplit

    @property
    def vocab_size(self) -> int:
        """Return the number of ids that can occur, BOS included."""
        return self.sidecar.vocab_size

    def padded_vocab(self, multiple: int = 64) -> int:
        """Return the vocabulary rounded up, the number of columns a model has."""
        return -(-self.vocab_size // multiple) * multiple

    @property
    def bos(self) -> int:
        """Return the id that starts a document."""
        return self.sidecar.bos

    @property
    def digest(self) -> str:
        """Return the sha256 of the tokens and of what they mean."""
        return self.sidecar.digest

    @property
    def exact_bytes(self) -> bool:
        """Say whether `token_bytes` adds up to the text of every document, byte for byte."""
        return all(part["bytes"] == part["token_bytes"] for part in self.sidecar.splits.values())

    @cached_property
    def token_bytes(self) -> NDArray[np.float64]:
        """Return the bytes of text of each id: bits per byte = nats / ln 2 / sum over the targets.

        A tokenizer that normalises text does not keep its bytes; its numbers are then scaled so
        that they add up to the bytes of the whole text, and `exact_bytes` is False.
        """
        if self.exact_bytes:
            return self.tokenizer.token_bytes
        parts = self.sidecar.splits.values()
        nominal = sum(part["token_bytes"] for part in parts)
        scale: float = sum(part["bytes"] for part in parts) / nominal
        return self.tokenizer.token_bytes * scale

    def verify(self) -> None:
        """Read every file and compare its sha256; raises ValueError that names a bad one."""
        for part in self.sidecar.splits.values():
            for shard in part["shards"]:
                verify_file(self.folder, shard["file"], shard["sha256"])
        for name, sha256 in self.sidecar.files.items():
            verify_file(self.folder, name, sha256)


def open_folder(folder: str | Path, *, verify: bool | None = None) -> TokenData:
    """Open a prepared folder; sizes are always checked.

    verify   also read all files and compare their sha256; None does so where that takes no time

    Raises ValueError that names the file and the remedy.
    """
    place = Path(folder)
    sidecar = Sidecar.read(place)
    for name, sha256 in sidecar.files.items():
        verify_file(place, name, sha256)
    dtype = np.dtype(sidecar.dtype)
    opened = {name: _open_split(place, sidecar, name, dtype) for name in SPLITS}
    tokenizer = from_json(sidecar.tokenizer)
    if tokenizer is None:
        from loopworth.data.bpe import FileTokenizer

        tokenizer = FileTokenizer.read(place, sidecar.tokenizer)
    data = TokenData(place, sidecar, tokenizer, opened["train"], opened["validation"])
    size = dtype.itemsize * (data.train.n_tokens + data.validation.n_tokens)
    if verify or (verify is None and size < VERIFY_BELOW):
        data.verify()
    return data


def _open_split(folder: Path, sidecar: Sidecar, name: str, dtype: np.dtype[Any]) -> TokenSplit:
    part = sidecar.splits[name]
    shards = [open_shard(folder, record, dtype) for record in part["shards"]]
    return TokenSplit(
        name, shards, n_documents=part["documents"], n_bytes=part["bytes"], bos=sidecar.bos
    )
