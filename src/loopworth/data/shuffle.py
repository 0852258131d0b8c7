"""Seeded orders: of rows by their number, of documents by their text.

Neither depends on a random generator, the order in which files are listed, or what came before.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = 3  # of two mixes each
_LEAST_BITS = 8  # with fewer, the network has too few different orders

KEY = np.dtype([("group", "<u8"), ("order", "<u8")])  # the key of a document's text


def permute(index: NDArray[np.int64], n: int, seed: int, epoch: int = 0) -> NDArray[np.int64]:
    """Map indices below n one to one onto indices below n, in an order drawn by seed and epoch.

    A Feistel network on the bits of the index, repeated until the result is below n. It needs no
    table, however large n is.
    Source: Black and Rogaway, Ciphers with arbitrary finite domains (2002), section 5.

    >>> sorted(permute(np.arange(7), 7, seed=0).tolist())
    [0, 1, 2, 3, 4, 5, 6]
    """
    bits = max(_LEAST_BITS, (n - 1).bit_length())
    low = np.uint64(bits // 2)  # bits of the right half; the left one has as many, or one more
    left_mask, right_mask = np.uint64(2 ** (bits - bits // 2) - 1), np.uint64(2 ** (bits // 2) - 1)
    start = _mix(_mix(np.array([seed % 2**64], np.uint64)) + np.array([epoch], np.uint64))
    round_keys = _mix(start + np.arange(2 * _ROUNDS, dtype=np.uint64) * _GOLDEN)
    result = index.astype(np.uint64)
    left_out = np.arange(len(index)) if n > 1 else np.arange(0)
    while left_out.size:
        value = result[left_out]
        left, right = value >> low, value & right_mask
        for one, two in round_keys.reshape(_ROUNDS, 2):
            left = left ^ (_mix(right ^ one) & left_mask)
            right = right ^ (_mix(left ^ two) & right_mask)
        result[left_out] = value = (left << low) | right
        left_out = left_out[value >= np.uint64(n)]
    return result.astype(np.int64)


def document_key(text: bytes, seed: int) -> bytes:
    """Return 16 bytes drawn by the seed and the text alone, so that equal texts have equal keys."""
    return hashlib.blake2b(text, digest_size=16, key=seed.to_bytes(8, "little")).digest()


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Which documents go where, and in which order.

    train, validation   indices of documents in the order they are written
    repeated            documents whose text has occurred before
    """

    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    repeated: int


def arrange(keys: NDArray[np.void], share: float) -> Arrangement:
    """Split documents by their keys and shuffle both sides.

    keys    (documents,) of dtype KEY, from `document_key`
    share   of the documents that validation gets, to the nearest; at least one on each side

    Documents of one text all fall on one side (so the share is off by up to half the copies of
    one text), and their copies are spread over it. Raises ValueError where all documents are equal.

    >>> keys = np.array([(5, 1), (2, 7), (5, 1), (9, 4)], KEY)
    >>> arrange(keys, 0.25).validation.tolist(), arrange(keys, 0.25).repeated
    ([1], 1)
    """
    group: NDArray[np.uint64] = keys["group"]
    order: NDArray[np.uint64] = keys["order"]
    by_text = np.lexsort((np.arange(len(keys)), order, group))
    same = np.zeros(len(keys), bool)
    same[1:] = (group[by_text][1:] == group[by_text][:-1]) & (
        order[by_text][1:] == order[by_text][:-1]
    )
    ends = np.flatnonzero(~same[1:]) + 1  # where one text ends and the next begins
    if not len(ends):
        raise ValueError(
            f"there is only one document{' (repeated)' * (len(keys) > 1)}, which cannot be both in "
            "train and in validation; give more documents, or split the file into documents at a "
            "separator (--separator)"
        )
    cut = int(ends[np.argmin(np.abs(ends - share * len(keys)))])
    # The k-th copy of a text gets an own place, so that copies do not stand side by side.
    first = np.maximum.accumulate(np.where(same, 0, np.arange(len(keys))))
    copy = (np.arange(len(keys)) - first).astype(np.uint64)
    place = _mix(order[by_text] + copy * _GOLDEN)

    def shuffled(side: slice) -> NDArray[np.int64]:
        chosen = by_text[side]
        return chosen[np.lexsort((group[chosen], place[side]))]

    return Arrangement(shuffled(slice(cut, None)), shuffled(slice(cut)), int(same.sum()))


def _mix(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scatter the bits of 64-bit words; the finaliser of SplitMix64 (Steele et al. 2014)."""
    word = word + _GOLDEN
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))
