"""A prepared folder as a terminal page: its splits, what was left out, and pieces of its text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from loopworth.data import TokenData, TokenSplit
from loopworth.quantities import format_bytes, format_count, format_share

_SAMPLE_TOKENS = 400
_SAMPLE_CHARACTERS = 320


def data_json(data: TokenData, pieces: Sequence[str] = ()) -> dict[str, Any]:
    """Return what the sidecar says, the numbers that follow from it, and pieces of text."""
    body = {name: getattr(data.sidecar, name) for name in data.sidecar.__slots__}
    body["splits"] = {
        split.name: {"bytes_per_token": _bytes_per_token(split), **data.sidecar.splits[split.name]}
        for split in (data.train, data.validation)
    }
    head = {"folder": str(data.folder), "digest": data.digest, "exact_bytes": data.exact_bytes}
    return head | body | ({"samples": [*pieces]} if pieces else {})


def samples(data: TokenData, n: int) -> list[str]:
    """Return the beginnings of `n` train documents, evenly spread over the stream."""
    split = data.train
    found: list[str] = []
    for k in range(n):
        start = k * split.n_tokens // n
        piece = np.asarray(split.tokens(start, start + 64 * _SAMPLE_TOKENS))
        marks = np.flatnonzero(piece == data.bos)
        first = int(marks[0]) + 1 if len(marks) else 0  # in the middle of a very long document
        stop = int(marks[1]) if len(marks) > 1 else len(piece)
        text = data.tokenizer.decode(piece[first : min(stop, first + _SAMPLE_TOKENS)])
        cut = len(text) > _SAMPLE_CHARACTERS or stop - first > _SAMPLE_TOKENS
        found.append(text[:_SAMPLE_CHARACTERS] + " ..." * cut)
    return found


def data_page(data: TokenData, pieces: Sequence[str] = ()) -> Group:
    """Return a page for a rich console; it fits 80 columns."""
    sidecar = data.sidecar
    documents = data.train.n_documents + data.validation.n_documents
    text = data.train.n_bytes + data.validation.n_bytes
    title = Text(f"{sidecar.source['name']}: ", style="bold")
    title.append(f"{format_count(documents)} documents, {format_bytes(text)} of text\n")
    title.append(
        f"tokenizer {data.tokenizer.name}, {format_count(data.vocab_size)} ids stored as "
        f"{sidecar.dtype}, seed {sidecar.settings['seed']}\n",
        style="not bold dim",
    )
    parts: list[Text | Table] = [title, _splits(data), Text(f"\ndigest {data.digest}", style="dim")]
    notes = _notes(data)
    if notes:
        parts.append(Text("\n" + "\n".join(notes)))
    for number, piece in enumerate(pieces, start=1):
        parts.append(Text(f"\nSample {number}", style="bold green"))
        parts.append(Text(piece))
    return Group(*parts)


def _splits(data: TokenData) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("split")
    for head in ("documents", "share", "tokens", "bytes of text", "bytes a token"):
        table.add_column(head, justify="right", no_wrap=True)
    documents = data.train.n_documents + data.validation.n_documents
    for split in (data.train, data.validation):
        table.add_row(
            split.name,
            format_count(split.n_documents),
            format_share(split.n_documents / documents),
            format_count(split.n_tokens),
            format_count(split.n_bytes),
            f"{_bytes_per_token(split):.3f}",
        )
    return table


def _bytes_per_token(split: TokenSplit) -> float:
    """Return the bytes of text a token stands for on average, BOS counted as a token."""
    return split.n_bytes / split.n_tokens


def _notes(data: TokenData) -> list[str]:
    """Say what was left out, repeated or not kept; nothing where there is nothing to say."""
    source = data.sidecar.source
    counts = {
        "empty_documents": "empty documents, left out",
        "skipped_documents": "documents that could not be read, left out",
        "repeated_documents": "documents that repeat another, on its side of the split",
        "unknown_tokens": "tokens for text that the tokenizer does not know, which is lost",
        "ignored_files": "files of another kind in the folder, ignored",
    }
    notes: list[str] = []
    for key, words in counts.items():
        if source.get(key):
            notes.append(f"{words}: {format_count(source[key])}")
            if key == "skipped_documents":
                notes += [f"  {problem}" for problem in source["skipped_first"]]
    if source.get("missing"):
        notes.append(f"not installed, so without their text: {', '.join(source['missing'])}")
    if not data.exact_bytes:
        notes.append(
            "the tokenizer does not keep every byte of the text; bits per byte are scaled to the "
            "bytes of the whole text"
        )
    return notes
