"""Refuse a wrong argument at a public door, in words that name it, its value and the remedy."""

from __future__ import annotations

from collections.abc import Iterable

from loopworth.spec.checks import one_of, real, whole

MOST_RESAMPLES = 100_000  # their intervals are exact to 0.3 % of their width


def as_resamples(value: object) -> int:
    """Return a number of resamples: 0 for no intervals, up to 100,000.

    >>> as_resamples(2.5)
    Traceback (most recent call last):
    ValueError: bootstrap=2.5 is of type float; it must be a whole number
    """
    number = whole("bootstrap", value, 0)
    if number > MOST_RESAMPLES:
        raise ValueError(
            f"bootstrap={number} is more than {MOST_RESAMPLES}, which no interval needs; "
            "1000 is the usual number"
        )
    return number


def as_key(name: str, value: object, allowed: Iterable[str]) -> str:
    """Return a word that is one of the allowed ones.

    >>> as_key("law", "powr", ("power", "log"))
    Traceback (most recent call last):
    ValueError: law='powr' is unknown; did you mean 'power'? use power or log
    """
    one_of(name, value, tuple(allowed))
    return str(value)


def as_recurrences(name: str, value: object) -> tuple[float, ...]:
    """Return recurrences, of which one may stand alone, as numbers.

    >>> as_recurrences("without_recurrence", 2), as_recurrences("without_recurrence", [2, 4.5])
    ((2.0,), (2.0, 4.5))
    """
    several = isinstance(value, Iterable) and not isinstance(value, str | bytes)
    listed = list(value) if isinstance(value, Iterable) and several else [value]
    return tuple(
        real(name, each, "a recurrence or several", "such as 2 or [2, 4]") for each in listed
    )


def as_huber_delta(value: object) -> float:
    """Return a threshold of the Huber loss, on the log residual: a number above 0.

    >>> as_huber_delta(0)
    Traceback (most recent call last):
    ValueError: huber_delta=0 must be a log residual above 0 (such as 0.001)
    """
    return real("huber_delta", value, "a log residual above 0", "such as 0.001")
