"""Any tokenizer.json, and a byte-level BPE trained on the text itself (library `tokenizers`)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loopworth.data.shards import TOKENIZER_FILE
from loopworth.data.tokenizers import Ids, checked
from loopworth.spec.checks import listed

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

BOS_TOKEN = "<|bos|>"
_BOS_NAMES = (
    *(BOS_TOKEN, "<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>"),
    *("[BOS]", "[CLS]"),
)
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # the name that byte fallback gives to a single byte


class FileTokenizer:
    """A tokenizer of the `tokenizers` library, used so that text stays text.

    backend    the library's tokenizer; truncation and padding are switched off
    bos_token  the token that starts a document; None looks for a usual name

    Specials are never put in by the library's template, and never read out of a text: a document
    that says "<s>" is encoded as those three characters.
    Raises ValueError where no BOS can be found.
    """

    exact = False  # not known before the text is: `prepare` compares

    def __init__(self, backend: Backend, name: str, bos_token: str | None = None) -> None:
        self.name, self._backend = name, backend
        backend.no_truncation()
        backend.no_padding()
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.bos_token = bos_token or next((t for t in _BOS_NAMES if t in vocabulary), None) or ""
        if self.bos_token not in vocabulary:
            named = f"has no token {bos_token!r}" if bos_token else "has no token to start a text"
            raise ValueError(
                f"the tokenizer {name} {named}; name one of its tokens with --bos, such as "
                f"{listed(_special_tokens(backend) or ['<s>'])}"
            )
        backend.add_special_tokens([self.bos_token])  # an ordinary token could occur in a text
        backend.encode_special_tokens = True
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.bos = vocabulary[self.bos_token]
        self.vocab_size = max(vocabulary.values()) + 1
        self.token_bytes = _token_bytes(backend, vocabulary, self.vocab_size)
        self.unknown = _unknown(backend, vocabulary)

    def encode_batch(self, texts: Sequence[str]) -> tuple[Ids, NDArray[np.int64]]:
        """Return the ids of all texts end to end, and the length of each."""
        encoded = self._backend.encode_batch_fast([*texts], add_special_tokens=False)
        parts = [np.array(each.ids, np.uint32) for each in encoded]
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        return np.concatenate([*parts, np.empty(0, np.uint32)]), lengths

    def encode(self, text: str) -> Ids:
        """Return the ids of one text."""
        return self.encode_batch([text])[0]

    def decode(self, ids: ArrayLike) -> str:
        """Return the text of ids, without specials."""
        known = checked(ids, self.vocab_size).tolist()
        text: str = self._backend.decode(known, skip_special_tokens=True)
        return text

    def to_str(self) -> str:
        """Return the content of tokenizer.json."""
        text: str = self._backend.to_str(pretty=False)
        return text

    def to_json(self) -> dict[str, Any]:
        """Return name, BOS and the sha256 of tokenizer.json."""
        sha256 = hashlib.sha256(self.to_str().encode()).hexdigest()
        return {"name": self.name, "bos_token": self.bos_token, "sha256": sha256}

    @classmethod
    def read(cls, folder: Path, record: Mapping[str, Any]) -> FileTokenizer:
        """Read the tokenizer of a prepared folder."""
        return cls(_load(folder / TOKENIZER_FILE), record["name"], record["bos_token"])

    @classmethod
    def from_file(cls, path: str | Path, bos_token: str | None = None) -> FileTokenizer:
        """Read a tokenizer.json; raises ValueError for a file that is none."""
        return cls(_load(Path(path)), TOKENIZER_FILE, bos_token)


def train_bpe(texts: Iterable[str], size: int) -> FileTokenizer:
    """Train a byte-level BPE of `size` ids: BOS, 256 bytes, merges by falling count.

    Every byte has an id, so that any text can be encoded and no byte is lost. The order of the
    texts does not matter. With little text, there can be fewer merges than asked for.
    """
    if size < 257:
        raise ValueError(f"tokenizer 'bpe:{size}' is too small; BOS and 256 bytes need 257 or more")
    library = _library()
    backend: Backend = library.Tokenizer(library.models.BPE())
    backend.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[BOS_TOKEN],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return FileTokenizer(backend, f"bpe:{size}", BOS_TOKEN)


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise ValueError(
            "this tokenizer needs the library `tokenizers`; install it with "
            "pip install 'loopworth[train]', or use tokenizer 'bytes'"
        ) from None
    return tokenizers


def _load(path: Path) -> Backend:
    library = _library()
    if not path.is_file():
        raise ValueError(f"{path} does not exist; use bytes, chars, bpe:SIZE or a tokenizer.json")
    try:
        backend: Backend = library.Tokenizer.from_file(str(path))
    except Exception as problem:  # the library raises plain Exception
        raise ValueError(f"{path} is no tokenizer.json ({problem})") from problem
    return backend


def _special_tokens(backend: Backend) -> list[str]:
    added = backend.get_added_tokens_decoder().values()
    return [token.content for token in added if token.special][:8]


def _token_bytes(
    backend: Backend, vocabulary: Mapping[str, int], vocab_size: int
) -> NDArray[np.float64]:
    """Return the UTF-8 bytes that each id stands for, from the way its model writes tokens.

    Exact for byte-level models. With another model they are right where it neither normalises nor
    adds text; `prepare` compares with the text itself.
    """
    parts = json.loads(backend.to_str())
    byte_level = _mentions(parts["pre_tokenizer"], "ByteLevel")
    prefix = parts["model"].get("continuing_subword_prefix") or ""
    sizes = np.zeros(vocab_size)
    for token, index in vocabulary.items():
        if byte_level:  # each character of the token is one byte
            sizes[index] = len(token)
        elif _BYTE.fullmatch(token):
            sizes[index] = 1
        else:  # U+2581 is the space of SentencePiece
            sizes[index] = len(token.removeprefix(prefix).replace("\u2581", " ").encode())
    for index, added in backend.get_added_tokens_decoder().items():
        sizes[index] = 0 if added.special else len(added.content.encode())
    return sizes


def _mentions(part: Any, kind: str) -> bool:
    """Say whether a part of a tokenizer.json, or a part of it, is of a kind."""
    if isinstance(part, dict):
        return part.get("type") == kind or any(_mentions(each, kind) for each in part.values())
    return isinstance(part, list) and any(_mentions(each, kind) for each in part)


def _unknown(backend: Backend, vocabulary: Mapping[str, int]) -> int | None:
    """Return the id that stands for text the tokenizer does not know; None if there is none."""
    token = getattr(backend.model, "unk_token", None)
    return vocabulary.get(token) if isinstance(token, str) else None
