"""Refuse a wrong value where a spec is made, in words that name field, value and remedy."""

import difflib
import json
import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any


def whole(name: str, value: object, least: int, *, optional: bool = False) -> int:
    """Return a whole number of at least `least`; numpy's integers count, True and 4.0 do not."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        remedy = ""
        if isinstance(value, float) and value.is_integer():
            remedy = f"; use {int(value)}"
        elif optional:
            remedy = " or None"
        kind = type(value).__name__
        raise ValueError(f"{name}={value!r} is of type {kind}; it must be a whole number{remedy}")
    if value < least:
        raise ValueError(f"{name}={value} is too small; it must be {least} or more")
    return int(value)


def as_seed(name: str, value: object) -> int:
    """Return the seed of a random generator: a whole number from 0 to 2^63 - 1, as torch takes."""
    number = whole(name, value, 0)
    if number >= 2**63:
        raise ValueError(f"{name}={number} is too large; it must be below 2^63")
    return number


def real(name: str, value: object, allowed: str, remedy: str) -> float:
    """Return a positive finite number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        kind = type(value).__name__
        raise ValueError(f"{name}={value!r} is of type {kind}; it must be {allowed} ({remedy})")
    number = float(value)
    if not math.isfinite(number) or number <= 0:
        raise ValueError(f"{name}={value} must be {allowed} ({remedy})")
    return number


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse a value that is not one of the allowed words."""
    if not isinstance(value, str) or value not in allowed:
        remedy = hint(value, list(allowed)) if isinstance(value, str) else _allowed(allowed)
        raise ValueError(f"{name}={value!r} is unknown; {remedy}")


def hint(word: str, known: list[str]) -> str:
    """Say which known word was probably meant, and which there are."""
    close = difflib.get_close_matches(str(word), known, n=1)
    return (f"did you mean {close[0]!r}? " if close else "") + _allowed(known)


def _allowed(known: list[str] | tuple[str, ...]) -> str:
    return f"use {listed([*known])}"


def listed(items: list[Any]) -> str:
    """Write `a, b or c`."""
    words = [str(item) for item in items]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def divisors(number: int) -> list[int]:
    """Return every whole number that divides `number`."""
    return [n for n in range(1, number + 1) if number % n == 0]


def json_object(text: str, what: str = "model spec") -> Mapping[str, Any]:
    """Parse JSON text that must hold one object."""
    try:
        value = json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, what))
    except json.JSONDecodeError as problem:
        raise ValueError(f"the {what} is not JSON: {problem}") from problem
    except RecursionError:
        raise ValueError(f"the {what} is nested too deeply to be one") from None
    if not isinstance(value, dict):
        raise ValueError(
            f"the {what} is JSON but a {type(value).__name__}; use one object, "
            'such as {"d_model": 640}'
        )
    return value


def _once(pairs: list[tuple[str, Any]], what: str) -> dict[str, Any]:
    """Refuse a field that is there twice: JSON would take the last and say nothing."""
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"the {what} has {name!r} more than once; keep one")
    return dict(pairs)
