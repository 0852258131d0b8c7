"""Read the values of a column: numbers as people and programs write them, and nothing by guess.

Accepted in every numeric column: 2.88, 4.64e18, numpy and pandas scalars. Accepted in a column of
counts besides: 1,000,000 with whole groups of three, 1_000_000, 1 000 000, and suffixes (1.3B).
A decimal comma is refused, since 2,883 would otherwise become a loss of 2883.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopworth.quantities import parse_quantity

Floats = NDArray[np.float64]

_MISSING = {"", "-", "--", "na", "n/a", "#n/a", "none", "null", "<na>", "nat", "?"}
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_SPACED = re.compile(r"[+-]?[1-9]\d{0,2}(?:[ \u00a0\u202f'’]\d{3})+(?:\.\d+)?")
_POINTED = re.compile(r"[+-]?[1-9]\d{0,2}(?:\.\d{3}){2,}(?:,\d+)?")
_COMMA = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?\s*[kKmMbBtT]?")


@dataclass(frozen=True, slots=True)
class Numbers:
    """A numeric column: `values` with NaN where there is none, `reasons` why, by place from 0."""

    values: Floats
    reasons: dict[int, str]


def read_numbers(
    name: str, values: Sequence[Any], *, counts: bool = False, separator: str | None = None
) -> Numbers:
    """Read a column of numbers.

    `counts` allows grouping and suffixes; `separator` is the field separator of the CSV it comes
    from, since a comma between three digits is read as grouping only where the file does not
    separate by semicolon. Raises ValueError where a value has a decimal comma.

    >>> read_numbers("tokens", ["1.3B", "2,000,000", "", "many"], counts=True)
    Numbers(values=array([1.3e+09, 2.0e+06, nan, nan]), reasons={2: 'missing', 3: "'many'"})
    """
    out = np.full(len(values), np.nan)
    reasons: dict[int, str] = {}
    for place, value in enumerate(values):
        number = _read_one(value, f"{name} of row {place + 1} is", counts, separator)
        if isinstance(number, str):
            reasons[place] = number
        else:
            out[place] = number
            if not math.isfinite(number):
                reasons[place] = str(number)
    return Numbers(out, reasons)


def read_texts(values: Sequence[Any]) -> list[str | None]:
    """Read a column of labels; empty and missing values become None, whole floats lose their .0.

    >>> read_texts([" a ", "", None, 3.0])
    ['a', None, None, '3']
    """
    return [_read_text(value) for value in values]


def is_missing(value: Any) -> bool:
    """Tell whether a value stands for nothing: None, NaN, pandas' NA and NaT, empty text."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, str):
        return value.strip().lower() in _MISSING
    return isinstance(value, float) and math.isnan(value)


def middle(values: Floats) -> float:
    """Return the upper median. numpy's own imports numpy.ma, which costs 50 ms at start-up.

    >>> middle(np.array([3.0, 1.0, 2.0]))
    2.0
    """
    return float(np.sort(values)[len(values) // 2])


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Return the different values in order. np.unique imports numpy.ma, like np.median.

    NaN is equal to nothing, itself included, so each one stays.

    >>> distinct(np.array([4.0, 1.0, 4.0])).tolist()
    [1.0, 4.0]
    """
    ordered = np.sort(values)
    first = np.ones(len(ordered), dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    kept: NDArray[Any] = ordered[first]
    return kept


def _read_one(value: Any, what: str, counts: bool, separator: str | None) -> float | str:
    """Return the number, or the reason why there is none."""
    if isinstance(value, bool | np.bool_):
        return str(value)
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    if is_missing(value):
        return "missing"
    if not isinstance(value, str):
        return f"a {type(value).__name__}"
    text = value.strip()
    if "," in text or _POINTED.fullmatch(text):
        return _read_comma(text, what, counts, separator)
    if counts:
        if _SPACED.fullmatch(text):
            return float(re.sub(r"[^\d.+-]", "", text))
        try:
            return parse_quantity(text)
        except ValueError:
            pass
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _read_comma(text: str, what: str, counts: bool, separator: str | None) -> float | str:
    groups = text.count(",")
    if counts and _GROUPED.fullmatch(text) and (groups > 1 or separator != ";"):
        return float(text.replace(",", ""))
    if _COMMA.fullmatch(text) or _POINTED.fullmatch(text):
        raise ValueError(
            f"{what} {text!r}, with a decimal comma or points between thousands. Write numbers "
            "with a decimal point and no separators, such as 2.8836 and 1000000."
        )
    return repr(text)


def _read_text(value: Any) -> str | None:
    if is_missing(value):
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # a seed column with gaps comes back from pandas as floats
    return str(value).strip()
