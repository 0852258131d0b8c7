"""FLOPs and budgets held against the architecture: 6 N D is not what training costs.

Wrong FLOPs move phi unseen (D = C / (6 N) gives -0.46 or +0.54 instead of 0.43 on the built-in
runs, the second with a better R2), so exact matches with 6 N are looked for by name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopworth.findings import Finding, name_rows
from loopworth.table.draft import Draft
from loopworth.table.units import implausible_budgets
from loopworth.table.values import Floats, middle

Places = NDArray[np.int64]
Mask = NDArray[np.bool_]

_EXACT = 2e-3  # tokens are rounded to steps, so 6 N D meets a budget to this
_AGREES = 0.01
_ON_TARGET = 5e-3
_FAR = 0.10
_STEP = 2**18
_FEW = 3
_TREND = 0.15
_WIDE = (0.25, 30.0)


def flops_findings(draft: Draft, places: Places, given: Floats) -> list[Finding]:
    """Compare the FLOPs per token that were given, NaN where none, with what they should be."""
    if not len(places):
        return []
    flops = given[places]
    exact = draft.numbers["train_flops_per_token"][places]
    built = np.array([draft.specs[place] is not None for place in places]) & np.isfinite(flops)
    findings = []
    with np.errstate(invalid="ignore"):
        off = built & (np.abs(np.log(flops / exact)) > _AGREES)
    counts = _counts(draft, places)
    if off.any():
        ratio = flops / exact
        findings.append(_disagree(draft, places, off, ratio, _named(flops, counts, off)))
    direct = ~built & np.isfinite(flops)
    looped = draft.numbers["recurrence"][places] > 1
    for words, count in counts.items():
        match = direct & (np.abs(flops / (6 * count) - 1) < 1e-3)
        if match.sum() >= _FEW and (match & looped).any():
            message = (
                f"train_flops_per_token is exactly 6 times the {words} parameters in "
                f"{name_rows(draft.name(places[match]))}: attention, the head and the gradient "
                "window are left out, and tokens or optima that follow from it move phi."
            )
            remedy = "Give the architecture, from which exact FLOPs follow."
            rows = draft.name(places[match])
            evidence = {"equals": f"6 x {words} parameters"}
            findings.append(Finding("flops_are_6n", "warning", message, rows, remedy, evidence))
            direct &= ~match
    wide = 6 * counts["unrolled"]
    with np.errstate(invalid="ignore"):
        off = direct & ((flops < _WIDE[0] * wide) | (flops > _WIDE[1] * wide))
        off |= direct & (np.abs(flops / (wide / 3) - 1) < _AGREES)
    if off.any():
        ratio = flops / wide
        why = "6 N, as the forward pass alone would be" if middle(ratio[off]) > 0.3 else "6 N"
        findings.append(_disagree(draft, places, off, ratio, "", why))
    return findings


def _disagree(
    draft: Draft, places: Places, off: Mask, ratio: Floats, named: str, base: str = ""
) -> Finding:
    rows = draft.name(places[off])
    what = base or "what the architecture gives"
    usual = middle(ratio[off])
    message = (
        f"train_flops_per_token is {usual:.4g} times {what} in {name_rows(rows)}"
        f"{f'; it is {named}' if named else ''}."
    )
    remedy = "Drop the column, so that FLOPs follow from the architecture, or correct it."
    evidence: dict[str, Any] = {"given_over_derived": [round(float(x), 6) for x in ratio[off]]}
    if named:
        evidence["equals"] = named
    return Finding("flops_disagree", "warning", message, rows, remedy, evidence)


def _counts(draft: Draft, places: Places) -> dict[str, Floats]:
    numbers = draft.numbers
    once, rec = numbers["n_once"][places], numbers["n_rec"][places]
    unrolled = once + numbers["recurrence"][places] * rec
    embeddings = numbers["n_embeddings"][places]
    return {
        "unrolled": unrolled,
        "unique": once + rec,
        "unrolled and embedding": unrolled + embeddings,
        "unique and embedding": once + rec + embeddings,
    }


def _named(flops: Floats, counts: dict[str, Floats], off: Mask) -> str:
    """Name the rule of thumb that all the given FLOPs follow, empty where there is none."""
    for words, count in counts.items():
        for times, rule in ((6, "6 x {} parameters"), (2, "2 x {} parameters, the forward pass")):
            ratio = flops[off] / (times * count[off])
            if np.all(np.abs(ratio - 1) < _AGREES):
                return rule.format(words)
    return ""


def budget_findings(draft: Draft, places: Places, explained: Collection[int]) -> list[Finding]:
    """Hold budgets against the FLOPs that were spent, where tokens were given; `explained` rows
    are left out.
    """
    here = places[~np.isin(draft.rows[places], list(explained)) & ~draft.derived_tokens[places]]
    here = here[np.isfinite(draft.numbers["budget_flops"][here])]
    if not len(here):
        return []
    six = list(_six_n_d(draft, here))
    named = {row for finding in six for row in finding.rows}
    rest = here[~np.isin(draft.rows[here], list(named))]
    known = np.isfinite(draft.numbers["train_flops_per_token"][rest])
    bare = rest[~known]
    odd = implausible_budgets(draft, bare)
    left = bare[~np.isin(draft.rows[bare], [row for finding in odd for row in finding.rows])]
    return [*six, *_off_target(draft, rest[known]), *odd, *_off_trend(draft, left)]


def _six_n_d(draft: Draft, here: Places) -> Iterator[Finding]:
    """Yield rows whose budget is exactly 6 N D although true FLOPs are not."""
    numbers = draft.numbers
    budget, tokens = numbers["budget_flops"][here], numbers["tokens"][here]
    with np.errstate(invalid="ignore"):
        spent = numbers["train_flops_per_token"][here] * tokens
        honest = np.abs(np.log(budget / spent)) < 5 * _AGREES
    looped = numbers["recurrence"][here] > 1
    taken = honest
    for words, count in _counts(draft, here).items():
        with np.errstate(invalid="ignore"):
            slack = np.maximum(_EXACT, 0.6 * _STEP / tokens)
            match = ~taken & (np.abs(budget / (6 * count * tokens) - 1) < slack)
        if match.sum() < max(_FEW, 0.05 * len(here)) or not (match & looped).any():
            continue
        taken = taken | match
        rows = draft.name(here[match])
        repeated = len(set(budget[match].tolist())) <= match.sum() / 2
        evidence = {"equals": f"6 x {words} parameters x tokens"}
        if repeated:
            message = (
                f"Tokens are the budget divided by 6 times the {words} parameters in "
                f"{name_rows(rows)}. Attention, the head and the gradient window are left out, so "
                "runs of one budget did not spend the same, and phi moves with the rule."
            )
            remedy = "Use the architecture's FLOPs per token; check what the runs were trained on."
            yield Finding("tokens_from_6nd", "warning", message, rows, remedy, evidence)
        else:
            message = (
                f"budget_flops is 6 times the {words} parameters times tokens in "
                f"{name_rows(rows)}; it only groups the rows."
            )
            yield Finding("tokens_from_6nd", "note", message, rows, "", evidence)


def _off_target(draft: Draft, here: Places) -> list[Finding]:
    """Say by how much FLOPs per token times tokens miss a budget."""
    if not len(here):
        return []
    numbers = draft.numbers
    tokens = numbers["tokens"][here]
    miss = numbers["train_flops_per_token"][here] * tokens / numbers["budget_flops"][here] - 1
    size = np.abs(np.log1p(miss))
    far = size > np.log1p(_FAR)
    near = (size > np.maximum(_ON_TARGET, 0.6 * _STEP / tokens)) & ~far
    findings = []
    if far.any():
        rows = draft.name(here[far])
        message = (
            f"FLOPs per token times tokens are {_by(miss[far])} the budget in {name_rows(rows)}. "
            "The budget only groups the rows."
        )
        remedy = "Check tokens, FLOPs and how the budget was counted; 6 N D leaves parts out."
        evidence = {"spent_over_budget": [round(float(1 + x), 4) for x in miss[far]]}
        findings.append(Finding("budget_disagrees", "warning", message, rows, remedy, evidence))
    if near.any():
        rows = draft.name(here[near])
        message = (
            f"Runs are a little off their budget: {_by(miss[near])} it in {name_rows(rows)}. "
            "Nothing was rounded, merged or dropped; their own tokens are used."
        )
        evidence = {"spent_over_budget": [round(float(1 + x), 4) for x in miss[near]]}
        findings.append(Finding("budget_off_target", "note", message, rows, "", evidence))
    return findings


def _off_trend(draft: Draft, here: Places) -> list[Finding]:
    """Without FLOPs per token, hold budget over 6 N D against its trend in N and recurrence."""
    if len(here) < 4 * _FEW:
        return []
    numbers = draft.numbers
    counts = _counts(draft, here)
    ratio = np.log(
        numbers["budget_flops"][here] / (6 * counts["unrolled"] * numbers["tokens"][here])
    )
    log_n, log_r = np.log(counts["unique"]), np.log(numbers["recurrence"][here])
    log_n = log_n - log_n.mean()
    design = np.stack([np.ones(len(here)), log_n, log_n**2, log_r, log_r**2, log_n * log_r], 1)
    weights = np.ones(len(here))
    residual = ratio
    for _ in range(12):
        root = np.sqrt(weights)
        solved = np.linalg.lstsq(design * root[:, None], ratio * root, rcond=None)[0]
        residual = ratio - design @ solved
        weights = 1 / np.maximum(np.abs(residual) / 0.02, 1.0) ** 2
    scale = 1.4826 * middle(np.abs(residual))
    off = np.abs(residual) > max(_TREND, 8 * scale)
    if not off.any():
        return []
    rows = draft.name(here[off])
    message = (
        f"budget_flops does not go with parameters and tokens in {name_rows(rows)}: it is "
        f"{_by(np.expm1(residual[off]))} what the other rows let expect."
    )
    remedy = "Look up the budget and the tokens of these rows."
    evidence = {"budget_over_expected": [round(float(np.exp(x)), 4) for x in residual[off]]}
    return [Finding("budget_disagrees", "warning", message, rows, remedy, evidence)]


def _by(miss: Floats) -> str:
    """Say in words by how much something misses, as a range.

    >>> _by(np.array([-0.02, 0.015]))
    '2 % below to 1.5 % above'
    """
    words = []
    for value in sorted({float(miss.min()), float(miss.max())}):
        side = "above" if value > 0 else "below"
        far = value > 1
        words.append(f"{1 + value:.3g} times" if far else f"{100 * abs(value):.2g} % {side}")
    return " to ".join(dict.fromkeys(words))
