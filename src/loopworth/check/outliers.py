"""Runs and cells that lie clearly off the law of the others: diverged, under-tuned, too good."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loopworth.check.reference import Reference, Rows, free_law, local_residuals, robust_law
from loopworth.findings import Finding, join_words, name_rows
from loopworth.quantities import format_flops
from loopworth.runs import RunTable
from loopworth.table.values import Floats, distinct, middle

Mask = NDArray[np.bool_]

DIVERGED = 0.15
"""Log residual above which a run is called diverged: 0.4 nats at a loss of 2.8."""

# Thresholds in log loss, each with a floor for tables with next to no noise. On the four built-in
# studies the largest local residual is 3.9 scales and 0.0064, that of a cell 6.3 scales and 0.007.
_LOCAL_SCALES, _LOCAL_FLOOR = 7.0, 0.012
_WELL_KNOWN = 80  # rows below which the floor rises: a thin table misses its own law by more
_RISE = 0.75
_MISFIT_SCALES = 3.5  # of the law's own residuals: where cells bend much, so do their edges
_SHARE = 0.75  # of the threshold that the law itself must be missed by
_RAW_SCALES, _RAW_FLOOR = 7.0, 0.02
_CELL_SCALES, _CELL_FLOOR = 7.0, 0.015
_SMALLEST_CELL = 3
_FEWEST_CELLS = 6


def judge(table: RunTable) -> tuple[Reference, Floats, Reference] | None:
    """Return the law of the runs, their local log residuals, and the law of one phi.

    None where there are too few runs.

    The runs should be of one method: see `by_method`.
    """
    rows = Rows(table.n_once, table.n_rec, table.recurrence, table.tokens, table.val_loss)
    power = robust_law(rows)
    if power is None:
        return None
    reference = free_law(power)
    local, _ = local_residuals(reference, method_cells(table), table.budgets)
    return reference, local, power


def by_method(table: RunTable, methods: Sequence[str | None]) -> list[Mask]:
    """Split the looped runs by method; the unlooped ones are shared by all of them."""
    looped = table.recurrence > 1
    names = {methods[i] for i in np.flatnonzero(looped).tolist()}
    if len(names) < 2:
        return [np.ones(len(table), dtype=bool)]
    return [~looped | np.array([each == name for each in methods]) for name in names]


def method_cells(table: RunTable) -> NDArray[np.int64]:
    """Number the cells, apart by study: methods share a law here, but no offset."""
    keys = list(zip(table.study, table.cells.tolist(), strict=True))
    numbers = {key: number for number, key in enumerate(sorted(set(keys)))}
    return np.array([numbers[key] for key in keys], dtype=np.int64)


def outlier_findings(table: RunTable, reference: Reference, explained: Mask) -> list[Finding]:
    """Name the rows, then the cells, that lie off the law; `explained` rows are known already."""
    cells = method_cells(table)
    local, scale = local_residuals(reference, cells, table.budgets)
    raw = reference.log_residual - middle(reference.log_residual)
    floor = _LOCAL_FLOOR * max(1.0, _WELL_KNOWN / len(table)) ** _RISE
    near = max(_LOCAL_SCALES * scale, _MISFIT_SCALES * reference.scale, floor)
    far = max(_RAW_SCALES * reference.scale, _RAW_FLOOR, 1.25 * floor)
    # A cell that lies off as a whole is one finding, not one for each of its rows.
    moved = _moved_cells(cells, raw, explained | (raw > DIVERGED))
    whole = np.isin(cells, list(moved))
    for cell in moved:
        members = cells == cell
        local[members] = raw[members] - _median(raw[members])
    above = ((local > near) & (raw > _SHARE * near)) | ((raw > far) & ~whole)
    below = ((local < -near) & (raw < -_SHARE * near)) | ((raw < -far) & ~whole)
    diverged = above & (raw > DIVERGED)
    findings = [
        *_rows(table, reference, diverged & ~explained, "diverged_runs", near),
        *_rows(table, reference, above & ~diverged & ~explained, "under_tuned", near),
        *_rows(table, reference, below & ~explained, "below_the_law", near),
    ]
    return findings + _cells(table, cells, moved)


_WORDS = {
    "diverged_runs": (
        "far above the law of the other runs, like a run that diverged",
        "Rerun them; if the losses are right, give their kind a table of its own.",
    ),
    "under_tuned": (
        "clearly above the law and the iso-FLOP valley of the other runs: under-tuned, not trained "
        "to the end, or of another recipe",
        "Rerun or leave them out; say which, since leaving them out changes what is estimated.",
    ),
    "below_the_law": (
        "clearly below the law and the iso-FLOP valley of the other runs: another validation set "
        "or tokenizer, more training than is written, or a wrong entry",
        "Look up what was run and how its loss was measured.",
    ),
}


def _rows(
    table: RunTable, reference: Reference, mask: Mask, code: str, limit: float
) -> list[Finding]:
    if not mask.any():
        return []
    rows = tuple(int(row) for row in table.rows[mask])
    predicted = reference.predicted[mask]
    nats = table.val_loss[mask] - predicted
    shown = [f"{x:+.3f}" for x in nats[:5]]
    listed = join_words([*shown, *([f"{len(nats) - 5} more"] if len(nats) > 5 else [])])
    what, remedy = _WORDS[code]
    verb = "lies" if len(rows) == 1 else "lie"
    message = f"{_upper(name_rows(rows))} {verb} {what} ({listed} nats)."
    evidence = {
        "above_law_nats": [round(float(x), 4) for x in nats],
        "predicted_nats": [round(float(x), 4) for x in predicted],
        "threshold_log": round(limit, 4),
    }
    return [Finding(code, "warning", message, rows, remedy, evidence)]


def _moved_cells(cells: NDArray[np.int64], raw: Floats, explained: Mask) -> dict[int, float]:
    """Return the cells of which every run lies off the law, with their median log residual."""
    medians: dict[int, float] = {}
    nearest: dict[int, float] = {}
    for cell in distinct(cells).tolist():
        members = (cells == cell) & ~explained
        if members.sum() >= _SMALLEST_CELL:
            medians[cell] = _median(raw[members])
            nearest[cell] = float((np.sign(medians[cell]) * raw[members]).min())
    if len(medians) < _FEWEST_CELLS:
        return {}
    values = np.array(list(medians.values()))
    centre = _median(values)
    limit = max(_CELL_SCALES * 1.4826 * middle(np.abs(values - centre)), _CELL_FLOOR)
    return {
        cell: value - centre
        for cell, value in medians.items()
        if abs(value - centre) > limit and nearest[cell] > max(limit, abs(value)) / 3
    }


def _cells(table: RunTable, cells: NDArray[np.int64], moved: dict[int, float]) -> list[Finding]:
    findings = []
    for code, sign, words in (
        ("cell_above_the_law", 1, "above"),
        ("cell_below_the_law", -1, "below"),
    ):
        chosen = {cell: value for cell, value in moved.items() if sign * value > 0}
        if not chosen:
            continue
        mask = np.isin(cells, list(chosen))
        places = [int(np.flatnonzero(cells == cell)[0]) for cell in chosen]
        nats = [float(table.val_loss[p] * x) for p, x in zip(places, chosen.values(), strict=True)]
        named = join_words(
            f"r = {table.recurrence[p]:g} at {format_flops(float(table.budgets[p]))} FLOPs "
            f"({x:+.3f} nats)"
            for p, x in zip(places, nats, strict=True)
        )
        message = (
            f"All runs of a cell lie {words} the law of the others: {named}. Noise of single runs "
            "does not do that; another recipe, budget or loss does."
        )
        rows = tuple(int(row) for row in table.rows[mask])
        remedy = "Look for what these runs share: learning rate, tokens, validation set."
        evidence = {"median_nats": [round(x, 4) for x in nats]}
        findings.append(Finding(code, "warning", message, rows, remedy, evidence))
    return findings


def _median(values: Floats) -> float:
    ordered = np.sort(values)
    half = len(values) // 2
    return float((ordered[half] + ordered[~half]) / 2)


def _upper(words: str) -> str:
    return words[0].upper() + words[1:]
