"""Tokens, parameters or budgets that some rows, or all, give in thousands, millions or billions.

Tokens per parameter are what is left of a table when its sizes are divided out: 1 to 500 in every
scaling study, a thousand times less or more in another unit. A row is blamed only where three
witnesses agree: its tokens per parameter, the range of the column in the other rows, and its loss.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from loopworth.findings import Finding, name_rows
from loopworth.quantities import format_quantity
from loopworth.table.draft import Draft
from loopworth.table.units import UNITS, mixed_units
from loopworth.table.values import Floats, middle

Places = NDArray[np.int64]

_GAP = math.log(3.0)  # between neighbours in log tokens per parameter
_USUAL_RATIO = (0.3, 1500.0)  # tokens per parameter of runs that anyone would train
_ODD_RATIO = (0.2, 4000.0)  # of a whole column, which has no other rows to be held against
_USUAL_FLOPS = (0.3, 20.0)  # budget over 6 N_unrolled D: attention and the head make it above 1
_LOSS_AGREES = 0.5
_REACH = 4.0  # how far beyond the other rows a corrected value may lie
_TINY_SHARE = 1e-3
_GUESSING = 10.4  # ln of the usual vocabularies: no loss is expected above it


def expected_loss(parameters: Floats, tokens: Floats) -> Floats:
    """Return what a dense model of this size is known to reach, in nats, to about 40 %.

    The law of Hoffmann et al. 2022 (arXiv 2203.15556, eq. 10), capped at guessing. Good for telling
    units apart, for nothing finer.

    >>> expected_loss(np.array([70e9]), np.array([1.4e12])).round(2)
    array([1.94])
    """
    loss = 1.69 + 406.4 * parameters**-0.34 + 410.7 * tokens**-0.28
    return np.minimum(loss, _GUESSING)


def unit_findings(draft: Draft, places: Places) -> list[Finding]:
    """Return what is wrong with the units of sizes; errors name the rows that are off."""
    findings = _mixed_rows(draft, places)
    blamed = {row for finding in findings for row in finding.rows}
    rest = places[~np.isin(draft.rows[places], list(blamed))]
    return findings + _tiny_blocks(draft, rest) + _whole_column(draft, rest)


def _sizes(draft: Draft, places: Places) -> tuple[Floats, Floats]:
    numbers = draft.numbers
    return (numbers["n_once"] + numbers["n_rec"])[places], numbers["tokens"][places]


def _mixed_rows(draft: Draft, places: Places) -> list[Finding]:
    """Split the rows where log tokens per parameter has a gap, and test what explains it."""
    sizes, tokens = _sizes(draft, places)
    ratio = np.log(tokens / sizes)
    order = np.argsort(ratio, kind="stable")
    cuts = np.flatnonzero(np.diff(ratio[order]) > _GAP) + 1
    groups = np.split(order, cuts)
    if len(groups) == 1:
        return []
    low, high = _USUAL_RATIO
    usual = [group for group in groups if low <= math.exp(middle(ratio[group])) <= high]
    if not usual:
        return []
    main = max(usual, key=len)
    blamed: dict[tuple[str, float], list[int]] = {}
    for group in groups:
        if group is not main:
            for place in places[group].tolist():
                verdict = _explain(draft, place, places[main])
                if verdict is not None:
                    blamed.setdefault(verdict, []).append(place)
    findings = []
    for (column, _), members in sorted(blamed.items()):
        values = draft.numbers["n_once"] + draft.numbers["n_rec"]
        if column in draft.numbers:
            values = draft.numbers[column]
        findings.append(mixed_units(draft, column, values, np.array(members), places[main]))
    return findings


def _explain(draft: Draft, place: int, main: Places) -> tuple[str, float] | None:
    """Return the column and the factor that bring one row among the rows of the main group."""
    sizes, tokens = _sizes(draft, main)
    one = np.array([place])
    size, seen = (float(values[0]) for values in _sizes(draft, one))
    loss = draft.numbers["val_loss"]
    ratios = tokens / sizes
    usual = middle(np.log(loss[main] / expected_loss(sizes, tokens)))
    now = abs(math.log(loss[place] / _expected(size, seen)) - usual)
    few = seen / size < middle(ratios)
    if not few and draft.specs[place] is not None:
        return None  # an architecture's parameters are counted, not given
    least, most = _USUAL_RATIO
    if (few and seen / size > least) or (not few and seen / size < most):
        return None
    column = "tokens" if few else "n_once + n_rec"
    if few and draft.derived_tokens[place]:
        column = "budget_flops"
    others = tokens if few else sizes
    for factor in UNITS:
        value = (seen if few else size) * factor
        moved = (size, value) if few else (value, seen)
        then = abs(math.log(loss[place] / _expected(*moved)) - usual)
        fits = ratios.min() / 3 <= moved[1] / moved[0] <= 3 * ratios.max()
        inside = others.min() / _REACH <= value <= _REACH * others.max()
        if fits and inside and then < min(now, _LOSS_AGREES):
            return column, factor
    return None


def _expected(size: float, tokens: float) -> float:
    return float(expected_loss(np.array([size]), np.array([tokens]))[0])


def _tiny_blocks(draft: Draft, places: Places) -> list[Finding]:
    """Find looped rows whose block is next to nothing beside the rest: n_rec in another unit."""
    once, rec = draft.numbers["n_once"][places], draft.numbers["n_rec"][places]
    off = (draft.numbers["recurrence"][places] > 1) & (rec < _TINY_SHARE * once)
    if not off.any():
        return []
    rows = draft.name(places[off])
    share = float(np.max(rec[off] / once[off]))
    message = (
        f"n_rec is less than {_TINY_SHARE:g} of n_once in {name_rows(rows)}, which are looped: a "
        "block that is repeated but holds almost no parameters looks like another unit."
    )
    remedy = "Write n_rec in single parameters, or check that the columns are not swapped."
    evidence = {"column": "n_rec", "largest_n_rec_over_n_once": share}
    return [Finding("mixed_units", "error", message, rows, remedy, evidence)]


def _whole_column(draft: Draft, places: Places) -> list[Finding]:
    """Find a column that is in another unit in all rows, from what it is usually next to."""
    if not len(places):
        return []
    sizes, tokens = _sizes(draft, places)
    budget = draft.numbers["budget_flops"][places]
    recurrence, rec = draft.numbers["recurrence"][places], draft.numbers["n_rec"][places]
    spent = 6 * (sizes + (recurrence - 1) * rec) * tokens
    per_parameter = middle(tokens / sizes)
    known = np.isfinite(budget) & ~draft.derived_tokens[places]
    flops = middle(budget[known] / spent[known]) if known.any() else math.nan
    low, high = _ODD_RATIO
    off_flops = math.isfinite(flops) and not _USUAL_FLOPS[0] <= flops <= _USUAL_FLOPS[1]
    loss_says = _loss_says(draft, places)
    witnesses = {"tokens_per_parameter": per_parameter}
    if math.isfinite(flops):
        witnesses["budget_over_6nd"] = flops
    if per_parameter < low and (off_flops or not math.isfinite(flops)):
        columns = [("tokens", tokens)]
    elif per_parameter > high and ((off_flops and flops > 1) or (math.isnan(flops) and loss_says)):
        columns = [("n_once + n_rec", sizes)]
    elif off_flops and flops > 100:
        columns = [("n_once + n_rec", sizes), ("tokens", tokens)]
    elif off_flops:
        columns = [("budget_flops", budget[known])]
    else:
        return []
    rows = draft.name(places)
    name = " and ".join(column for column, _ in columns)
    ranges = "; ".join(
        f"{format_quantity(float(values.min()))} to {format_quantity(float(values.max()))}"
        for _, values in columns
    )
    facts = f"{per_parameter:.3g} tokens per parameter"
    if math.isfinite(flops):
        facts += f", a budget of {flops:.3g} times 6 N D"
    message = (
        f"{name} ({ranges}) look{'s' if len(columns) == 1 else ''} like thousands, millions or "
        f"billions rather than single ones in all rows: the table says {facts}."
    )
    remedy = "Write it in full or with a suffix, such as 1.3B."
    evidence = {"column": name} | {key: float(f"{value:.4g}") for key, value in witnesses.items()}
    return [Finding("unit_suspected", "warning", message, rows, remedy, evidence)]


def _loss_says(draft: Draft, places: Places) -> bool:
    """Tell whether the losses are far below what so few parameters can reach."""
    sizes, tokens = _sizes(draft, places)
    return middle(draft.numbers["val_loss"][places] / expected_loss(sizes, tokens)) < 0.5
