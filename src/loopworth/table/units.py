"""Recognise numbers in another unit where that is certain, before anything is fitted to them.

A law fitted to tokens half of which are in billions converges without a complaint. Refused here is
only what cannot be anything else; what is odd but possible is a warning. Finer forensics, by the
tokens per parameter and the residuals of a law, are those of `loopworth.check`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from loopworth.findings import Finding, RefusedTable, name_rows
from loopworth.quantities import format_quantity
from loopworth.table.draft import Draft
from loopworth.table.values import Floats, middle

# One table never spans so much without a run in between, but billions against units do.
_PLAUSIBLE = (0.25, 30.0)  # budget over 6 N D
_GAP = 1e4
# The loss of a uniform guess over the largest vocabularies in use, ln(270,000).
_LARGEST_LOSS = 12.5
# No run that has learnt anything ends above this many nats; it is e^1.8, so perplexities do.
_HIGH_LOSS = 6.0
UNITS = {1e3: "thousands", 1e6: "millions", 1e9: "billions"}
_NATS = {"nats", "nat", "nats/token", "nats per token", "nats_per_token"}
_OTHER_LOSSES = {
    "perplexity": "take its natural logarithm",
    "ppl": "take its natural logarithm",
    "bits": "multiply by ln 2 = 0.6931",
    "bits/token": "multiply by ln 2 = 0.6931",
    "bits_per_byte": "multiply by ln 2 and by the bytes per token of the tokenizer",
    "bpb": "multiply by ln 2 and by the bytes per token of the tokenizer",
}


def check_units(draft: Draft, places: NDArray[np.int64]) -> list[Finding]:
    """Refuse a mixture of units and return warnings for what looks like another unit.

    `places` are the usable rows. Raises RefusedTable that names the rows and what to do.
    """
    _check_loss_unit(draft, places)
    findings = _check_loss(draft, places)
    sizes = draft.numbers["n_once"] + draft.numbers["n_rec"]
    for name, values, least in (
        ("tokens", draft.numbers["tokens"], 1e5),
        ("n_once + n_rec", sizes, 1e4),
        ("budget_flops", draft.numbers["budget_flops"], 1e9),
        ("train_flops_per_token", draft.numbers["train_flops_per_token"], 1e4),
    ):
        known = places[np.isfinite(values[places])]
        if len(known):
            findings += _check_scale(draft, known, name, values, least)
    if any(finding.code == "unit_suspected" for finding in findings):
        return findings  # a column in another unit makes every budget miss
    return findings + _check_budgets(draft, places)


def _check_loss_unit(draft: Draft, places: NDArray[np.int64]) -> None:
    units = draft.texts.get("loss_unit", [None] * len(draft))
    other = [place for place in places if (units[place] or "nats").lower() not in _NATS]
    if other:
        unit = units[other[0]] or ""
        remedy = _OTHER_LOSSES.get(unit.lower(), "convert it")
        message = (
            f"loss_unit is {unit!r} in {name_rows(draft.name(other))}, but val_loss must be in "
            "nats per token."
        )
        remedy = f"{remedy[0].upper()}{remedy[1:]}, and write nats."
        evidence = {"loss_unit": unit}
        rows = draft.name(other)
        raise RefusedTable(Finding("loss_unit_not_nats", "error", message, rows, remedy, evidence))


def _check_loss(draft: Draft, places: NDArray[np.int64]) -> list[Finding]:
    loss = draft.numbers["val_loss"][places]
    usual = middle(loss)
    high = places[loss > _LARGEST_LOSS]
    if 2 * len(high) >= len(places):
        message = (
            f"val_loss looks like perplexity: {name_rows(draft.name(high))} lie above "
            f"{_LARGEST_LOSS}, more nats than guessing costs with any vocabulary."
        )
        remedy = "Take the natural logarithm, so that it is in nats per token."
        rows = draft.name(places[loss > _HIGH_LOSS])
        evidence = {"median": usual, "largest_possible": _LARGEST_LOSS}
        raise RefusedTable(Finding("loss_is_perplexity", "error", message, rows, remedy, evidence))
    if usual < 1.0:
        message = (
            f"The median loss is {usual:.4g}, below 1 nat per token: usual for bits per byte and "
            "for byte-level tokens. phi does not depend on a unit that all rows share; E, A, B do."
        )
        remedy = "If these are bits per byte, multiply by ln 2 and by the bytes per token."
        rows = draft.name(places)
        return [Finding("loss_below_one", "warning", message, rows, remedy, {"median": usual})]
    return []


def _check_scale(
    draft: Draft, places: NDArray[np.int64], name: str, values: Floats, least: float
) -> list[Finding]:
    order = places[np.argsort(values[places], kind="stable")]
    ratios = values[order][1:] / values[order][:-1]
    if len(ratios) and ratios.max() > _GAP:
        cut = int(np.argmax(ratios)) + 1
        low, high = order[:cut], order[cut:]
        raise RefusedTable(mixed_units(draft, name, values, low, high))
    if values[places].max() < least:
        message = (
            f"{name} is at most {format_quantity(float(values[places].max()))}, so it looks like "
            "thousands, millions or billions rather than single ones."
        )
        remedy = "Write it in full or with a suffix, such as 1.3B."
        evidence = {"column": name, "largest": float(values[places].max())}
        rows = draft.name(places)
        return [Finding("unit_suspected", "warning", message, rows, remedy, evidence)]
    return []


def mixed_units(
    draft: Draft, name: str, values: Floats, low: NDArray[np.int64], high: NDArray[np.int64]
) -> Finding:
    """Say that the places `low` of a column are in a larger unit than the places `high`."""
    ratio = middle(values[high]) / middle(values[low])
    factor = min(UNITS, key=lambda unit: abs(math.log(ratio / unit)))
    message = (
        f"{name} is in mixed units: {name_rows(draft.name(low))} ({_range(values[low])}) look like "
        f"{UNITS[factor]} against {_range(values[high])} in the other rows."
    )
    remedy = "Write all rows in the same unit, single tokens, parameters and FLOPs."
    evidence = {"column": name, "factor": factor, "ratio_of_medians": ratio}
    return Finding("mixed_units", "error", message, draft.name(low), remedy, evidence)


def _range(values: Floats) -> str:
    low, high = (format_quantity(float(value)) for value in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"


def _check_budgets(draft: Draft, places: NDArray[np.int64]) -> list[Finding]:
    """Hold a given budget against FLOPs per token times tokens, where both were given."""
    spent = draft.numbers["train_flops_per_token"] * draft.numbers["tokens"]
    ratio = draft.numbers["budget_flops"][places] / spent[places]
    # Tokens that come from the budget miss it by up to half a step, which is no disagreement.
    given = ~draft.derived_tokens[places]
    with np.errstate(invalid="ignore"):
        off = places[given & (np.abs(np.log(ratio)) > math.log(1.1))]
    if not len(off):
        return implausible_budgets(draft, places)
    message = (
        f"budget_flops differs by more than 10 % from FLOPs per token times tokens in "
        f"{name_rows(draft.name(off))}. The budget only groups the rows."
    )
    remedy = "Check how the budget was counted; 6 N D leaves out attention and the head."
    known = ratio[np.isin(places, off)]
    evidence = {"budget_over_spent": [round(float(each), 4) for each in known]}
    return [
        Finding("budget_disagrees", "warning", message, draft.name(off), remedy, evidence),
        *implausible_budgets(draft, places),
    ]


def implausible_budgets(draft: Draft, places: NDArray[np.int64]) -> list[Finding]:
    """Hold a budget against 6 N D, N unrolled, where nothing gives FLOPs per token.

    6 N D is not what training costs, so only what no head, attention or gradient window explains
    is named: below a quarter of it, or above thirty times.
    """
    numbers = draft.numbers
    bare = places[np.isnan(numbers["train_flops_per_token"][places])]
    unrolled = numbers["n_once"][bare] + numbers["recurrence"][bare] * numbers["n_rec"][bare]
    with np.errstate(invalid="ignore"):
        ratio = numbers["budget_flops"][bare] / (6 * unrolled * numbers["tokens"][bare])
        off = (ratio < _PLAUSIBLE[0]) | (ratio > _PLAUSIBLE[1])
    if not off.any():
        return []
    rows = draft.name(bare[off])
    message = (
        f"budget_flops is {middle(ratio[off]):.3g} times 6 N D (N with every pass counted) in "
        f"{name_rows(rows)}, which no head or attention explains. The budget only groups the rows."
    )
    remedy = "Check the units of budget_flops, parameters and tokens."
    evidence = {"budget_over_6nd": [round(float(x), 6) for x in ratio[off]]}
    return [Finding("budget_disagrees", "warning", message, rows, remedy, evidence)]
