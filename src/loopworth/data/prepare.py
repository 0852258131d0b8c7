"""From a source of text to a prepared folder: read, tokenise, split, shuffle, write, appear.

The documents are tokenised once, in the order in which they are read, into a scratch file; each
leaves a key drawn from its text and the seed. The keys then say which side a document falls on and
where it stands there, and the streams are copied together. So memory grows with the number of
documents (40 bytes each), not with the text, and the result does not depend on the order of
reading. While it works it needs the space of the result twice.
"""

from __future__ import annotations

import importlib.metadata
import platform
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopworth.data.bpe import FileTokenizer, train_bpe
from loopworth.data.hub import PREFIX, HubSource
from loopworth.data.shards import (
    SHARD_TOKENS,
    SIDECAR,
    SPLITS,
    TOKENIZER_FILE,
    Sidecar,
    SplitWriter,
    token_dtype,
)
from loopworth.data.shuffle import KEY, Arrangement, arrange, document_key
from loopworth.data.sources import FileSource, Reading, Source, Tally
from loopworth.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer, characters
from loopworth.data.tokens import TokenData, open_folder
from loopworth.spec import DataSpec

Tell = Callable[[str, int, int], None]
_BATCH_CHARACTERS, _BATCH_DOCUMENTS = 2**21, 1024
_COPY_TOKENS = 2**22


@dataclass(frozen=True, slots=True)
class Prepared:
    """A folder that has been made, and what its sidecar says."""

    folder: Path
    sidecar: Sidecar

    @property
    def digest(self) -> str:
        """Return the sha256 of all tokens and of what they mean."""
        return self.sidecar.digest

    def open(self) -> TokenData:
        """Open the folder."""
        return open_folder(self.folder)


def prepare(
    source: str | Path | Source, out: str | Path, *, tokenizer: str = "bytes",
    validation: float = 0.05, seed: int = 0, text_column: str = "text",
    separator: str | None = None, skip_bad: bool = False, bos: str | None = None,
    hub_config: str | None = None, hub_split: str = "train", shard_tokens: int = SHARD_TOKENS,
    on_progress: Tell | None = None,
) -> Prepared:  # fmt: skip
    """Tokenise a source of text into a new folder.

    source       a file or folder (.txt, .md, .jsonl, .jsonl.gz, .parquet), hub:OWNER/NAME, or
                 docstrings
    tokenizer    bytes, chars, bpe:SIZE (trained on the train documents), or a tokenizer.json
    validation   share of the documents held out; copies of one text stay on one side
    separator    cuts text files into documents; None keeps a file whole
    skip_bad     leave out documents that cannot be read, and count them, instead of an error
    bos          the token of a tokenizer.json that starts a document; None looks for a usual one

    The folder appears whole or not at all. Raises ValueError for a source, an option or a document
    that cannot be used, and where `out` already holds something.
    """
    target = Path(out)
    _refuse_occupied(target)
    settings = DataSpec(tokenizer=tokenizer, validation=validation, seed=seed)  # checks the values
    reading = Reading(text_column, separator)
    if isinstance(source, str | Path):
        source = make_source(source, reading, hub_config=hub_config, hub_split=hub_split)
    return build(
        source, target, settings, bos=bos, skip_bad=skip_bad, shard_tokens=shard_tokens,
        on_progress=on_progress,
    )  # fmt: skip


def build(
    source: Source, target: Path, settings: DataSpec, *, bos: str | None = None,
    skip_bad: bool = False, shard_tokens: int = SHARD_TOKENS, on_progress: Tell | None = None,
) -> Prepared:  # fmt: skip
    """Make the folder in a scratch folder beside it, and rename that: whole or not at all.

    Several processes may build one target at once. The first to finish wins; the others take its
    folder if it holds the same data, and raise ValueError if it does not.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.parent / f".{target.name}.{secrets.token_hex(6)}.partial"
    scratch.mkdir()
    try:
        work = _Work(source, settings, skip_bad, scratch, shard_tokens, on_progress or _silent)
        sidecar = work.run(bos)
        _appear(scratch, target, sidecar)
    except OSError as problem:
        if problem.errno and not problem.filename:  # a full disk does not say where
            raise OSError(problem.errno, problem.strerror, str(target)) from problem
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Prepared(target, sidecar)


def make_source(
    source: str | Path, reading: Reading, *, hub_config: str | None = None, hub_split: str = "train"
) -> Source:
    """Return the source of a name or a path."""
    if source == "docstrings":
        from loopworth.data.docstrings import DocstringsSource

        return DocstringsSource()
    if str(source).startswith(PREFIX):
        return HubSource(str(source), reading, config=hub_config, split=hub_split)
    if (Path(source) / SIDECAR).is_file():
        raise ValueError(f"{source} is already prepared; train on it, or name its source")
    return FileSource(source, reading)


@dataclass(slots=True)
class _Work:
    """One preparation; `run` is the order of its steps."""

    source: Source
    settings: DataSpec
    skip_bad: bool
    folder: Path
    shard_tokens: int
    tell: Tell
    tally: Tally = field(default_factory=Tally)

    def run(self, bos: str | None) -> Sidecar:
        """Read, tokenise, arrange, write; return the sidecar that was written."""
        tokenizer = self._tokenizer(bos)
        dtype = token_dtype(tokenizer.vocab_size)
        spool = self.folder / "spool"
        keys, sizes, unknown = self._tokenise(tokenizer, spool, dtype)
        order = arrange(keys, self.settings.validation)
        splits = self._write(spool, dtype, sizes, order)
        spool.unlink()
        files = {}
        if isinstance(tokenizer, FileTokenizer):
            (self.folder / TOKENIZER_FILE).write_text(tokenizer.to_str(), encoding="utf-8")
            files[TOKENIZER_FILE] = tokenizer.to_json()["sha256"]
        met = {
            "repeated_documents": order.repeated,
            "empty_documents": self.tally.empty,
            "skipped_documents": self.tally.skipped,
            "skipped_first": self.tally.problems,
            "unknown_tokens": unknown,
        }
        chosen = {
            name: getattr(self.settings, name) for name in ("tokenizer", "validation", "seed")
        }
        sidecar = Sidecar(
            dtype.name, tokenizer.vocab_size, tokenizer.bos, tokenizer.to_json(), splits,
            self.source.to_json() | met, chosen, files, _versions(),
        )  # fmt: skip
        sidecar.write(self.folder)
        return sidecar

    def _tokenizer(self, bos: str | None) -> Tokenizer:
        """Make the tokenizer; a trained one needs readings of its own."""
        name = self.settings.tokenizer
        kind, _, size = name.partition(":")
        if name == "bytes":
            return ByteTokenizer()
        if name == "chars":
            return CharTokenizer(characters(self._batches("reading characters")))
        if kind != "bpe":
            return FileTokenizer.from_file(name, bos)
        if not size.isdecimal():
            raise ValueError(f"tokenizer {name!r} needs a whole number, such as 'bpe:4096'")
        keys = np.concatenate([self._keys(texts) for texts in self._batches("reading text")])
        # What is held out must not shape the tokenizer that it is measured with.
        held_out = np.zeros(len(keys), bool)
        held_out[arrange(keys, self.settings.validation).validation] = True
        return train_bpe(self._train_texts(held_out), int(size))

    def _train_texts(self, held_out: NDArray[np.bool_]) -> Iterator[str]:
        k = 0
        for texts in self._batches("training the tokenizer"):
            for text in texts:
                if not held_out[k]:
                    yield text
                k += 1

    def _keys(self, texts: list[str]) -> NDArray[np.void]:
        seed = self.settings.seed
        return np.frombuffer(b"".join(document_key(t.encode(), seed) for t in texts), KEY)

    def _tokenise(
        self, tokenizer: Tokenizer, spool: Path, dtype: np.dtype[Any]
    ) -> tuple[NDArray[np.void], NDArray[np.int64], int]:
        """Write all documents in the order of reading; return keys, (documents, 3) sizes, unknown.

        Sizes are tokens with BOS, bytes of text, bytes that its tokens stand for.
        """
        keys, sizes, unknown = [], [], 0
        with spool.open("wb") as file:
            for texts in self._batches("tokenising"):
                flat, length_N = tokenizer.encode_batch(texts)
                packed, start_N = pack(flat, length_N, tokenizer.bos, dtype)
                file.write(packed.data)
                text_N = np.fromiter((len(text.encode()) for text in texts), np.int64, len(texts))
                token_N = text_N
                if not tokenizer.exact:
                    token_N = np.add.reduceat(tokenizer.token_bytes[packed], start_N)
                keys.append(self._keys(texts))
                sizes.append(np.stack([length_N + 1, text_N, token_N.astype(np.int64)], axis=1))
                mark = getattr(tokenizer, "unknown", None)
                unknown += 0 if mark is None else int(np.count_nonzero(packed == mark))
        if not keys:
            raise ValueError(f"{self.source.name} has no text: {self._nothing()}")
        return np.concatenate(keys), np.concatenate(sizes), unknown

    def _nothing(self) -> str:
        return f"{self.tally.empty} documents are empty, {self.tally.skipped} were skipped"

    def _write(
        self, spool: Path, dtype: np.dtype[Any], sizes: NDArray[np.int64], order: Arrangement
    ) -> dict[str, dict[str, Any]]:
        """Copy the documents of both splits from the scratch file, in their order."""
        stream = np.asarray(np.memmap(spool, dtype=dtype, mode="r"))
        stop_N = np.cumsum(sizes[:, 0])
        start_N = stop_N - sizes[:, 0]
        done, splits = 0, {}
        for name in SPLITS:
            chosen: NDArray[np.int64] = getattr(order, name)
            with SplitWriter(self.folder, name, dtype, self.shard_tokens) as writer:
                for part in _portions(chosen, sizes[:, 0]):
                    self.tell("shuffling", done, len(stream))
                    pairs = zip(start_N[part].tolist(), stop_N[part].tolist(), strict=True)
                    piece = np.concatenate([stream[start:stop] for start, stop in pairs])
                    writer.write(piece)
                    done += len(piece)
            tokens, text, token_bytes = (int(total) for total in sizes[chosen].sum(axis=0))
            splits[name] = {
                "tokens": tokens,
                "documents": len(chosen),
                "bytes": text,
                "token_bytes": token_bytes,
                "shards": writer.records,
            }
        del stream  # unmap before the file goes
        return splits

    def _batches(self, stage: str) -> Iterator[list[str]]:
        """Yield the documents that have text, some at a time; starts a new count of the others."""
        self.tally = tally = Tally(self.skip_bad)
        texts: list[str] = []
        characters = 0
        self.tell(stage, 0, 1)
        for text in self.source.documents(tally):
            if not text:
                tally.empty += 1
                continue
            texts.append(text)
            characters += len(text)
            if characters >= _BATCH_CHARACTERS or len(texts) >= _BATCH_DOCUMENTS:
                self.tell(stage, tally.done if self.source.size else 0, self.source.size or 1)
                yield texts
                texts, characters = [], 0
        if texts:
            yield texts


def pack(
    flat: NDArray[Any], length_N: NDArray[np.int64], bos: int, dtype: np.dtype[Any]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Put BOS before each document of a flat run of ids; return it and where documents start.

    >>> pack(np.array([7, 8, 9]), np.array([2, 0, 1]), bos=0, dtype=np.dtype("u1"))[0].tolist()
    [0, 7, 8, 0, 0, 9]
    """
    start_N = np.cumsum(length_N + 1) - (length_N + 1)
    packed = np.full(len(flat) + len(length_N), bos, dtype)
    text = np.ones(len(packed), bool)
    text[start_N] = False
    packed[text] = flat
    return packed, start_N


def _portions(chosen: NDArray[np.int64], length_N: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
    """Cut a list of documents where about _COPY_TOKENS tokens have come together."""
    if len(chosen):
        reached = np.cumsum(length_N[chosen]) // _COPY_TOKENS
        yield from np.split(chosen, np.flatnonzero(np.diff(reached)) + 1)


def _refuse_occupied(target: Path) -> None:
    """Refuse a folder that holds something."""
    if target.is_file():
        raise ValueError(f"{target} is a file; name a new folder")
    if target.is_dir() and any(target.iterdir()):
        what = "already holds a prepared set" if (target / SIDECAR).is_file() else "is not empty"
        raise ValueError(f"{target} {what}; name a new folder, or delete this one")


def _appear(scratch: Path, target: Path, sidecar: Sidecar) -> None:
    """Rename the finished folder; another process may have finished the same one first."""
    try:
        scratch.rename(target)
    except OSError:
        if not (target / SIDECAR).is_file():
            raise
        if Sidecar.read(target).digest != sidecar.digest:
            raise ValueError(
                f"another process has meanwhile prepared other data in {target}; name a new folder"
            ) from None


def _versions() -> dict[str, str]:
    """Return the versions of what made the folder."""
    found = {"python": platform.python_version()}
    for name in ("loopworth", "numpy", "tokenizers", "pyarrow", "datasets"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _silent(_stage: str, _done: int, _total: int) -> None:
    return
