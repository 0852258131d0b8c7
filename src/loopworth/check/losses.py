"""Losses in another unit, and rows whose other numbers cannot be right, by the law of the rest.

A unit of loss is a factor or an exponential, so a row in another unit misses the law by an amount
that names it. Where half the rows are in another unit no robust fit can tell which half; then the
groups are first split by what a model of that size is known to reach.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loopworth.check.reference import GROSS, Reference, Rows, robust_law
from loopworth.check.units import expected_loss
from loopworth.findings import Finding, name_rows
from loopworth.table.draft import Draft
from loopworth.table.units import UNITS
from loopworth.table.values import Floats, middle

Places = NDArray[np.int64]

_PERPLEXITY = math.log(2.2)  # a loss so far above what is known is none; dense laws agree to 40 %
_MIXED = math.log(1.6)  # a tenth of the losses below that are nats, not perplexity
_BELOW = -0.75
_TRAINED = (5e6, 5e7)  # parameters and tokens from which the known law is any guide
_USUAL = (-0.6, 0.45)  # log of loss over what is known, for losses in nats
_SPLIT = 0.12
_BITS = -math.log(math.log(2.0))
_PER_BYTE = (-1.80, -0.80)  # nats per byte, bits per byte, nats per character: 2.2 to 6 a token
_CLOSE = 0.03


@dataclass(frozen=True)
class Explained:
    """What was found out about single rows: findings, and the places that they take out."""

    findings: list[Finding]
    places: Places


def whole_column(draft: Draft, places: Places) -> list[Finding]:
    """Find losses that are perplexity, or per byte, in all rows.

    Where they are perplexity the draft's losses are replaced by their logarithm, so that the other
    checks can go on.
    """
    loss = draft.numbers["val_loss"]
    sizes, tokens = _sizes(draft, places)
    trained = (sizes >= _TRAINED[0]) & (tokens >= _TRAINED[1])
    if not trained.any():
        return []
    known = expected_loss(sizes, tokens)[trained]
    observed = loss[places][trained]
    usual = middle(np.log(observed / known))
    rows = draft.name(places)
    evidence = {"median": round(middle(observed), 4), "over_known_law": round(math.exp(usual), 3)}
    lowest = float(np.sort(observed / known)[len(observed) // 10])
    if usual > _PERPLEXITY and math.log(lowest) > _MIXED:
        logs = np.log(observed)
        if _USUAL[0] < middle(np.log(np.maximum(logs, 1e-3) / known)) < _USUAL[1]:
            loss[places] = np.log(np.maximum(loss[places], 1.0 + 1e-9))
            message = (
                f"val_loss looks like perplexity in all rows: its median, {middle(observed):.4g}, "
                f"is {math.exp(usual):.1f} times the nats that models of this size reach."
            )
            remedy = "Take the natural logarithm, so that it is in nats per token."
            return [Finding("loss_is_perplexity", "error", message, rows, remedy, evidence)]
    if usual < _BELOW and middle(observed) >= 1.0:
        message = (
            f"The median loss, {middle(observed):.4g}, is {math.exp(usual):.2f} of the nats per "
            "token that models of this size reach: usual for bits per byte and for byte-level "
            "tokens. phi does not depend on a unit that all rows share; E, A, B do."
        )
        remedy = "If these are bits per byte, multiply by ln 2 and by the bytes per token."
        return [Finding("loss_below_one", "warning", message, rows, remedy, evidence)]
    return []


def explain_rows(draft: Draft, places: Places) -> Explained:
    """Find the rows that the law of the others misses grossly, and what would explain them."""
    rows = Rows(
        *(draft.numbers[name][places] for name in
          ("n_once", "n_rec", "recurrence", "tokens", "val_loss"))
    )  # fmt: skip
    reference = robust_law(rows)
    nothing = Explained([], places[:0])
    if reference is None or (reference.trusted.all() and reference.scale < GROSS / 2):
        return nothing
    groups = _main_group(rows)
    if groups is not None:
        other = robust_law(rows, groups)
        if other is not None and _better(other, reference):
            reference = other
    if reference.scale > GROSS / 2:
        return nothing  # no law describes these rows, so none can judge them
    findings: list[Finding] = []
    taken = np.zeros(len(rows), dtype=bool)
    for test in (_loss_units, _size_units):
        for finding, members in test(draft, places, reference, taken):
            findings.append(finding)
            taken[members] = True
    return Explained(findings, places[taken])


def _better(other: Reference, than: Reference) -> bool:
    """Prefer the law that more rows agree with; a loose one counts only what lies close to it."""
    return bool(
        (np.abs(other.log_residual) < _CLOSE).sum() > (np.abs(than.log_residual) < _CLOSE).sum()
    )


def _main_group(rows: Rows) -> NDArray[np.bool_] | None:
    """Split where the log of loss over what is known has gaps; return the group in nats."""
    ratio = np.log(rows.val_loss / expected_loss(rows.n_once + rows.n_rec, rows.tokens))
    order = np.argsort(ratio, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(ratio[order]) > _SPLIT) + 1)
    if len(groups) == 1:
        return None
    usual = [each for each in groups if _USUAL[0] <= middle(ratio[each]) <= _USUAL[1]]
    main = max(usual or groups, key=len)
    mask = np.zeros(len(rows), dtype=bool)
    mask[main] = True
    return mask


_Found = Iterator[tuple[Finding, NDArray[np.bool_]]]


def _loss_units(
    draft: Draft, places: Places, reference: Reference, taken: NDArray[np.bool_]
) -> _Found:
    """Yield the rows whose loss is a perplexity, in bits, or per byte or character."""
    residual, predicted = reference.log_residual, reference.predicted
    close = max(_CLOSE, 5 * reference.scale)
    off = (np.abs(residual) > GROSS) & ~taken
    loss = reference.rows.val_loss
    with np.errstate(invalid="ignore", divide="ignore"):
        as_log = np.log(np.log(np.maximum(loss, 1.0)) / predicted)
    for mask, unit, how, remedy in (
        (
            off & (residual > 0) & (np.abs(as_log) < close),
            "perplexity",
            "perplexity: its natural logarithm is what the law of the other rows predicts (or the "
            "run diverged to just that)",
            "Take the natural logarithm of these losses.",
        ),
        (
            off & (np.abs(residual - _BITS) < close),
            "bits per token",
            "bits per token: times ln 2 it is what the law of the other rows predicts",
            "Multiply these losses by ln 2 = 0.6931.",
        ),
        (
            off & (_PER_BYTE[0] < residual) & (residual < _PER_BYTE[1]) & ~_few(reference),
            "per byte or character",
            "",
            "Multiply by the bytes or characters per token, bits besides by ln 2.",
        ),
    ):
        if not mask.any():
            continue
        rows = draft.name(places[mask])
        factor = math.exp(-middle(residual[mask]))
        words = how
        if not how:
            words = (
                f"per byte or character: {factor:.2f} times smaller than the law of the other "
                f"rows, as bits per byte are at {factor / math.log(2):.1f} bytes a token and nats "
                f"per character at {factor:.1f} characters a token"
            )
        message = f"The loss of {name_rows(rows)} looks like {words}."
        evidence = {
            "unit": unit,
            "val_loss": [float(x) for x in loss[mask]],
            "predicted_nats": [round(float(x), 4) for x in predicted[mask]],
        }
        yield Finding("loss_mixed_units", "error", message, rows, remedy, evidence), mask


def _few(reference: Reference) -> NDArray[np.bool_]:
    """Rows with so few tokens or parameters that these are in another unit, not their loss."""
    size = reference.rows.n_once + reference.rows.n_rec
    ratio = reference.rows.tokens / size
    usual = middle(ratio[reference.trusted])
    return np.asarray((ratio < usual / 300) | (ratio > usual * 300))


def _size_units(
    draft: Draft, places: Places, reference: Reference, taken: NDArray[np.bool_]
) -> _Found:
    """Yield rows that thousands, millions or billions of tokens or parameters explain."""
    rows = reference.rows
    off = (np.abs(reference.log_residual) > GROSS) & ~taken
    close = max(_CLOSE, 5 * reference.scale)
    trusted = reference.trusted
    sizes = rows.n_once + rows.n_rec
    built = np.array([draft.specs[place] is not None for place in places])
    claimed = np.zeros(len(rows), dtype=bool)
    for factor in UNITS:
        for column, values in (("tokens", rows.tokens), ("n_once + n_rec", sizes)):
            if column == "tokens":
                moved = reference.residual_with(tokens=rows.tokens * factor)
            else:
                moved = reference.residual_with(
                    n_once=rows.n_once * factor, n_rec=rows.n_rec * factor
                )
            inside = (values * factor >= values[trusted].min() / 1.5) & (
                values * factor <= values[trusted].max() * 1.5
            )
            mask = off & ~claimed & (np.abs(moved) < close) & inside
            if column != "tokens":
                mask &= ~built
            if not mask.any():
                continue
            claimed |= mask
            yield _size_unit(draft, places, reference, mask, column, factor), mask


def _size_unit(
    draft: Draft, places: Places, reference: Reference, mask: NDArray[np.bool_], column: str,
    factor: float,
) -> Finding:  # fmt: skip
    rows = draft.name(places[mask])
    derived = column == "tokens" and bool(draft.derived_tokens[places[mask]].all())
    name = "budget_flops" if derived else column
    evidence = {
        "column": name,
        "factor": factor,
        "log_residual": [round(float(x), 4) for x in reference.log_residual[mask]],
    }
    message = (
        f"{name} looks like {UNITS[factor]} in {name_rows(rows)}: times {factor:g} their losses "
        "are what the law of the other rows predicts."
    )
    remedy = "Write all rows in the same unit, single tokens, parameters and FLOPs."
    return Finding("mixed_units", "error", message, rows, remedy, evidence)


def _sizes(draft: Draft, places: Places) -> tuple[Floats, Floats]:
    return (draft.numbers["n_once"] + draft.numbers["n_rec"])[places], draft.numbers["tokens"][
        places
    ]
