"""From matched columns to rows of numbers, and why a row cannot be used.

A row that gives an architecture gets its counts from the ledger (`architecture.py`). A row that
gives its parameters directly is taken at its word; they are read as the default convention has
them: injection in n_rec, norms in, embeddings out.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from loopworth.findings import Finding
from loopworth.table.architecture import apply_architectures
from loopworth.table.columns import BY_NAME
from loopworth.table.draft import Draft
from loopworth.table.values import Floats, Numbers, read_numbers, read_texts

_NEEDED = ("val_loss", "recurrence", "tokens", "n_once", "n_rec")
_SAME_RECURRENCE = 1e-6
_HUGE = 1e30  # nothing that is counted or measured here comes near; beyond, products overflow
# The least value of a column, where it need not be above 0.
_FLOOR = {"recurrence": 1.0} | dict.fromkeys(
    ("n_once", "n_rec", "n_injection", "n_embeddings", "n_prelude", "n_coda", "step"), 0.0
)


def derive(
    columns: Mapping[str, list[Any]], rows: tuple[int, ...], separator: str | None = None
) -> Draft:
    """Read every column and derive what the architecture gives.

    `columns` are by registry name. Raises ValueError for a decimal comma.

    >>> draft = derive({"n_once": [1e6], "n_rec": [2e6], "recurrence": [0], "tokens": ["2B"],
    ...                 "val_loss": [2.9]}, (1,))
    >>> draft.troubles[0].kind, draft.numbers["tokens"]
    ('recurrence_below_one', array([2.e+09]))
    """
    read = {
        name: read_numbers(name, values, counts=BY_NAME[name].kind == "count", separator=separator)
        for name, values in columns.items()
        if BY_NAME[name].kind != "text"
    }
    texts = {
        name: read_texts(values) for name, values in columns.items() if BY_NAME[name].kind == "text"
    }
    none = np.zeros(len(rows), dtype=bool)
    draft = Draft(np.array(rows, dtype=np.int64), {}, texts, [None] * len(rows), none)
    unknown = np.full(len(rows), np.nan)
    for name, column in BY_NAME.items():
        if column.kind != "text":
            draft.numbers[name] = read[name].values.copy() if name in read else unknown.copy()
    _check_numbers(draft, read)
    draft.numbers["recurrence"] = _joined(draft.numbers["recurrence"])
    if "d_model" in read or "width_scale" in read:
        apply_architectures(draft, read)
    _check_required(draft)
    return draft


def _check_numbers(draft: Draft, read: Mapping[str, Numbers]) -> None:
    """Set a row aside for a bad value that a fit needs; any other bad value counts as not given."""
    for name in (*_NEEDED, *(name for name in read if name not in _NEEDED)):
        if name not in read:
            continue
        values, reasons = draft.numbers[name], read[name].reasons
        with np.errstate(invalid="ignore"):
            outside = values < _FLOOR.get(name, 1 / _HUGE)
            outside |= values > _HUGE
        wrong = {place: why for place, why in reasons.items() if why != "missing"}
        wrong |= {int(place): f"{values[place]:g}" for place in np.flatnonzero(outside)}
        if name in _NEEDED:
            for place, why in wrong.items():
                draft.spoil(place, _kind(name, values[place], why), name, why)
        elif wrong:
            draft.findings.append(_not_used(draft, name, wrong))
        values[list(wrong)] = np.nan


def _joined(recurrence: Floats) -> Floats:
    """Give recurrences that only rounding tells apart one value, a whole one where there is one.

    >>> _joined(np.array([1.0, 1.0 + 1e-7, 4.5, np.nan, 4.5000001])).tolist()
    [1.0, 1.0, 4.5, nan, 4.5]
    """
    joined = recurrence.copy()
    with np.errstate(invalid="ignore"):
        whole = np.abs(joined - np.round(joined)) <= _SAME_RECURRENCE * joined
    joined[whole] = np.round(joined[whole])
    order = np.argsort(joined, kind="stable")
    for before, place in pairwise(order):
        if joined[place] - joined[before] <= _SAME_RECURRENCE * joined[place]:
            joined[place] = joined[before]
    return joined


def _kind(name: str, value: float, why: str) -> str:
    if why in ("nan", "inf", "-inf"):
        return "not_finite"
    if not np.isfinite(value):
        return "not_a_number"
    if value > _HUGE:
        return "too_large"
    if name == "recurrence":
        return "recurrence_below_one"
    return "negative" if name in _FLOOR else "not_positive"


def _not_used(draft: Draft, name: str, wrong: Mapping[int, str]) -> Finding:
    example = next(iter(wrong.values()))
    return Finding(
        "value_not_used",
        "warning",
        f"{name} cannot be used where it is {example}; it counts as not given there.",
        draft.name(wrong),
        f"Give {name} as a number: {BY_NAME[name].meaning}.",
    )


def _check_required(draft: Draft) -> None:
    """Set aside the rows that still lack what a fit needs."""
    for name in _NEEDED:
        for place in np.flatnonzero(~np.isfinite(draft.numbers[name])):
            draft.spoil(int(place), "missing_value", name, "missing")
    total = draft.numbers["n_once"] + draft.numbers["n_rec"]
    for place in np.flatnonzero(total <= 0):
        draft.spoil(int(place), "not_positive", "n_once + n_rec", "0")
    contained = draft.numbers["n_injection"] > draft.numbers["n_rec"]
    if contained.any():
        places = np.flatnonzero(contained)
        draft.numbers["n_injection"][places] = np.nan
        draft.findings.append(
            Finding(
                "value_not_used",
                "warning",
                "n_injection is larger than n_rec, which contains it; n_injection counts as not "
                "given there, so that no other convention can be derived.",
                draft.name(places),
                "If n_rec leaves the injection out, add it to n_rec; else correct n_injection.",
            )
        )
