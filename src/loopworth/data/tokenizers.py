"""What turns text into token ids and back, and how many bytes of text a token stands for.

Two tokenizers need nothing but numpy: bytes, and the characters of the text itself. Everything else
is a `tokenizer.json` (`loopworth.data.bpe`). All put one BOS before a document and nothing after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ids = NDArray[Any]
MAX_CHARACTERS = 65_535


class Tokenizer(Protocol):
    """The interface of every tokenizer.

    name         bytes, chars, bpe:4096, or the name of a tokenizer.json
    vocab_size   number of ids, BOS included; ids are below it
    bos          the id that starts a document; no text contains it
    token_bytes  (vocab_size,) UTF-8 bytes of the text of each id; 0 for BOS and other specials.
    exact        token_bytes of a text's ids always add up to its bytes
    """

    name: str
    vocab_size: int
    bos: int
    token_bytes: NDArray[np.float64]
    exact: bool

    def encode_batch(self, texts: Sequence[str]) -> tuple[Ids, NDArray[np.int64]]:
        """Return the ids of all texts end to end, without BOS, and the length of each."""
        ...

    def encode(self, text: str) -> Ids:
        """Return the ids of one text, without BOS."""
        ...

    def decode(self, ids: ArrayLike) -> str:
        """Return the text of ids; BOS and other specials stand for nothing."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return what a sidecar records, enough to make the tokenizer again."""
        ...


class ByteTokenizer:
    """256 bytes and BOS = 256: any text, no training, exact.

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer.encode("é").tolist(), tokenizer.decode([256, 195, 169])
    ([195, 169], 'é')
    """

    name = "bytes"
    vocab_size = 257
    bos = 256
    exact = True

    def __init__(self) -> None:
        self.token_bytes = np.ones(257)
        self.token_bytes[self.bos] = 0

    def encode_batch(self, texts: Sequence[str]) -> tuple[Ids, NDArray[np.int64]]:
        """Return the UTF-8 bytes of all texts end to end, and the length of each."""
        parts = [text.encode() for text in texts]
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        return np.frombuffer(b"".join(parts), np.uint8), lengths

    def encode(self, text: str) -> Ids:
        """Return the UTF-8 bytes of a text."""
        return np.frombuffer(text.encode(), np.uint8)

    def decode(self, ids: ArrayLike) -> str:
        """Return the text of bytes; a cut character becomes U+FFFD."""
        known = checked(ids, self.vocab_size)
        data: bytes = known[known != self.bos].astype(np.uint8).tobytes()
        return data.decode(errors="replace")

    def to_json(self) -> dict[str, Any]:
        """Return the name; there is nothing else to know."""
        return {"name": self.name}


class CharTokenizer:
    """One id for each character of a text, in code point order, then BOS: the smallest vocabulary.

    A character that was not in the text cannot be encoded.

    >>> tokenizer = CharTokenizer("cab")
    >>> tokenizer.encode("abc").tolist(), tokenizer.bos, tokenizer.decode([3, 2, 0])
    ([0, 1, 2], 3, 'ca')
    """

    name = "chars"
    exact = True

    def __init__(self, characters: str) -> None:
        self.characters = "".join(sorted(set(characters)))
        if not 0 < len(self.characters) <= MAX_CHARACTERS:
            raise ValueError(
                f"the text has {len(self.characters)} different characters; tokenizer 'chars' "
                f"needs 1 to {MAX_CHARACTERS}; use 'bytes' or 'bpe:SIZE'"
            )
        self._points = _code_points(self.characters)
        self.bos = len(self.characters)
        self.vocab_size = self.bos + 1
        sizes = [len(character.encode()) for character in self.characters]
        self.token_bytes = np.array([*sizes, 0], np.float64)
        # Code point -> id; vocab_size marks a character without one.
        self._ids = np.full(int(self._points[-1]) + 2, self.vocab_size, np.uint16)
        self._ids[self._points] = np.arange(self.bos, dtype=np.uint16)

    def encode_batch(self, texts: Sequence[str]) -> tuple[Ids, NDArray[np.int64]]:
        """Return the ids of all texts end to end, and the length of each in characters."""
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        return self.encode("".join(texts)), lengths

    def encode(self, text: str) -> Ids:
        """Return one id a character; raises ValueError for one that has none."""
        points = _code_points(text)
        ids = self._ids[np.minimum(points, len(self._ids) - 1)]
        if ids.size and int(ids.max()) == self.vocab_size:
            unknown = text[int(np.argmax(ids))]
            raise ValueError(
                f"the character {unknown!r} (U+{ord(unknown):04X}) is not one of the "
                f"{self.bos} that this tokenizer knows; prepare the data again with this text in "
                "it, or use tokenizer 'bytes'"
            )
        return ids

    def decode(self, ids: ArrayLike) -> str:
        """Return the characters of ids."""
        known = checked(ids, self.vocab_size)
        data: bytes = self._points[known[known != self.bos]].tobytes()
        return data.decode("utf-32-le")

    def to_json(self) -> dict[str, Any]:
        """Return the name and the characters."""
        return {"name": self.name, "characters": self.characters}


def from_json(record: Mapping[str, Any]) -> Tokenizer | None:
    """Make the tokenizer of a sidecar; None if it lies in a tokenizer.json beside it.

    >>> from_json({"name": "bytes"}).vocab_size
    257
    """
    if record["name"] == "bytes":
        return ByteTokenizer()
    return CharTokenizer(record["characters"]) if record["name"] == "chars" else None


def checked(ids: ArrayLike, vocab_size: int) -> NDArray[np.int64]:
    """Return ids as int64, or refuse those that are no token, such as padding columns."""
    known = np.asarray(ids, dtype=np.int64).ravel()
    outside = (known < 0) | (known >= vocab_size)
    if outside.any():
        raise ValueError(
            f"{int(known[outside][0])} is not a token: ids are 0 to {vocab_size - 1}; leave out "
            "the columns that pad the vocabulary"
        )
    return known


def characters(batches: Iterable[Sequence[str]]) -> str:
    """Return the characters that occur in texts, each once, in code point order.

    >>> characters([["banana", "bé"]])
    'abné'
    """
    seen = np.zeros(0x110000, bool)
    for texts in batches:
        seen[_code_points("".join(texts))] = True
    return "".join(map(chr, np.flatnonzero(seen).tolist()))


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), np.dtype("<u4"))
