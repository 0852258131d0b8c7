"""Read a table that lacks what a fit needs, as far as it can be read, so that it can be judged.

`load_runs` refuses such a table: a bare N may be one of several counts, a perplexity is no loss.
Here every assumption is a finding, and what a fit must not guess is an error that comes first.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np

from loopworth.findings import Finding, RefusedTable
from loopworth.table.columns import plain_name, registry_name
from loopworth.table.reading import RawTable
from loopworth.table.values import Floats, read_numbers

_PERPLEXITY = re.compile(r"(^|_)(ppl|perplexity)($|_)")
_BITS = re.compile(r"(^|_)(bpb|bpc|bits_per_(byte|char|character))($|_)")
_LOSS = re.compile(r"loss|nll|cross_entropy")
_BARE_COUNTS = ("n", "n_unique", "n_params", "num_params", "n_parameters", "params", "parameters",
                "model_size", "size")  # fmt: skip
_METHODS = ("model", "method", "architecture", "variant")
_SAME_LOSS = 2e-3


def read_bare(raw: RawTable, refusal: RefusedTable) -> tuple[RawTable, list[Finding]]:
    """Return the table with the missing columns filled in, and what was assumed or is wrong.

    Raises `refusal` where even that is not possible.
    """
    columns = dict(raw.columns)
    roles: dict[str, str] = {}
    for found in raw.columns:
        roles.setdefault(registry_name(found) or f"?{plain_name(found)}", found)
    findings = _loss(raw, columns, roles, refusal)
    findings += _counts(raw, columns, roles, refusal)
    if "tokens" not in roles:
        raise refusal
    for label, names in (("seed", ("rerun",)), ("study", _METHODS)):
        there = [roles[f"?{name}"] for name in names if f"?{name}" in roles]
        if there and label not in roles:
            values = columns[there[0]]
            columns[label] = values if label == "study" else _reruns(values)
    return replace(raw, columns=columns), findings


def _reruns(values: list[Any]) -> list[str]:
    """Turn a column that says whether a row is a rerun into what tells the runs apart."""
    names = dict.fromkeys(("false", "0", "0.0", "no", "none", "nan", ""), "first run")
    names |= dict.fromkeys(("true", "yes"), "rerun")
    return [names.get(str(value).strip().lower(), f"rerun {value}") for value in values]


def _loss(
    raw: RawTable, columns: dict[str, list[Any]], roles: dict[str, str], refusal: RefusedTable
) -> list[Finding]:
    """Find the loss; a perplexity or a count of bits is an error that is looked through."""
    known = roles.get("val_loss")
    others = [found for name, found in roles.items() if name.startswith("?")]
    perplexity = [found for found in others if _PERPLEXITY.search(plain_name(found))]
    bits = [found for found in others if _BITS.search(plain_name(found))]
    if perplexity:
        found = perplexity[0]
        values = _numbers(raw, found)
        with np.errstate(invalid="ignore", divide="ignore"):
            logs = np.log(values)
        if known is None:
            columns["val_loss"] = logs.tolist()
        return [_perplexity(raw, found, logs, known)]
    if known is not None:
        return []
    if bits:
        columns["val_loss"] = columns[bits[0]]
        message = (
            f"{bits[0]} is in bits per byte or character, not in nats per token, in all rows. "
            "It was looked at as it is."
        )
        remedy = "Multiply by ln 2 = 0.6931 and by the bytes per token, and name it val_loss."
        evidence = {"column": bits[0]}
        return [Finding("loss_in_bits", "error", message, raw.rows, remedy, evidence)]
    losses = [
        found
        for found in others
        if _LOSS.search(plain_name(found)) and "train" not in plain_name(found)
    ]
    if len(losses) != 1:
        raise refusal
    columns["val_loss"] = columns[losses[0]]
    message = f"{losses[0]} was taken for the validation loss in nats per token."
    return [Finding("column_assumed", "note", message, remedy="Name it val_loss if it is.")]


def _perplexity(raw: RawTable, found: str, logs: Floats, known: str | None) -> Finding:
    """Say that the losses are perplexities, and whether a loss beside them agrees."""
    remedy = "Take its natural logarithm and name it val_loss."
    evidence: dict[str, Any] = {"column": found}
    if known is None:
        message = f"{found} is perplexity, not nats per token, in all rows."
        return Finding("loss_is_perplexity", "error", message, raw.rows, remedy, evidence)
    difference = _numbers(raw, known) - logs
    with np.errstate(invalid="ignore"):
        off = np.flatnonzero(np.abs(difference) > _SAME_LOSS)
    if len(off):
        rows = tuple(raw.rows[place] for place in off)
        message = f"{known} is not the natural logarithm of {found} in every row."
        evidence |= {"loss_minus_log_perplexity": [round(float(x), 4) for x in difference[off]]}
        return Finding("losses_disagree", "error", message, rows, "Keep one of them.", evidence)
    message = (
        f"The losses were reported as perplexity ({found}); {known} is its natural logarithm in "
        "all rows, so they are as coarse as the rounding of the perplexities."
    )
    remedy = f"Drop {found} and name {known} val_loss, so that no unit is left to guess."
    return Finding("loss_is_perplexity", "error", message, raw.rows, remedy, evidence)


def _counts(
    raw: RawTable, columns: dict[str, list[Any]], roles: dict[str, str], refusal: RefusedTable
) -> list[Finding]:
    """Read a bare count of parameters: as it is without a loop, as fully looped with one."""
    findings: list[Finding] = []
    if "recurrence" not in roles:
        columns["recurrence"] = [1] * len(raw)
    looped = _numbers(RawTable("", "", columns, raw.rows), roles.get("recurrence", "recurrence"))
    if {"n_once", "n_rec"} <= set(roles) or {"n_prelude", "n_recur", "n_coda"} <= set(roles):
        return findings
    found = next((roles[f"?{name}"] for name in _BARE_COUNTS if f"?{name}" in roles), None)
    if found is None:
        raise refusal
    zero, values = [0] * len(raw), columns[found]
    with np.errstate(invalid="ignore"):
        where = np.flatnonzero(looped > 1)
    evidence = {"column": found}
    if len(where):
        columns["n_once"], columns["n_rec"] = zero, values
        rows = tuple(raw.rows[place] for place in where)
        message = (
            f"{found} does not say how many parameters are used once and how many recur. They were "
            "looked at as if all of them recurred."
        )
        remedy = "Give n_once and n_rec, or the architecture."
        findings.append(Finding("parameters_ambiguous", "error", message, rows, remedy, evidence))
    else:
        columns["n_once"], columns["n_rec"] = values, zero
        message = f"The table has no recurrence above 1; {found} was read as n_once, with r = 1."
        remedy = "A fit asks for n_once, n_rec and recurrence."
        findings.append(Finding("read_as_unlooped", "note", message, (), remedy, evidence))
    return findings


def _numbers(raw: RawTable, found: str) -> Floats:
    return read_numbers(found, raw.columns[found], counts=True, separator=raw.separator).values
