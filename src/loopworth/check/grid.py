"""Holes in the grid of budgets and recurrences, and budgets without an unlooped control."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from loopworth.findings import Finding, Severity, join_words, name_rows
from loopworth.quantities import format_flops
from loopworth.runs import RunTable
from loopworth.table.blocks import SAME_BUDGET
from loopworth.table.values import distinct

_MEANT_FULL = 0.6  # share of cells from which on a grid was meant to be full
_FEWEST_A_CELL = 2.0
_SHOWN = 6


def is_grid(table: RunTable) -> bool:
    """Tell whether the runs form iso-FLOP cells with more than one run each.

    Budgets that are only guessed from 6 N D make no grid.
    """
    known = np.isfinite(table.budget_flops) | np.isfinite(table.train_flops_per_token)
    cells = {*zip(table.budgets.tolist(), table.recurrence.tolist(), strict=True)}
    return bool(known.all()) and len(table) >= _FEWEST_A_CELL * len(cells)


def grid_findings(table: RunTable, withheld: Iterable[tuple[float, float]] = ()) -> list[Finding]:
    """Name the cells without a run; a grid with many holes was not meant to be full.

    `withheld` are (budget, recurrence) of runs that the table lacks although they were run.

    >>> from loopworth.runs import load_runs
    >>> runs = load_runs("schwethelm2026")
    >>> holed = runs.select((runs.recurrence != 1) | (runs.budgets > 1e18))
    >>> [finding.code for finding in grid_findings(holed)]
    ['missing_control']
    """
    budgets, levels = distinct(table.budgets).tolist(), distinct(table.recurrence).tolist()
    present = {*zip(table.budgets.tolist(), table.recurrence.tolist(), strict=True)}
    present |= {
        (near, r) for c, r in withheld for near in budgets if max(c / near, near / c) < SAME_BUDGET
    }
    findings = []
    bare = [c for c in budgets if 1.0 in levels and (c, 1.0) not in present]
    if bare:
        rows = tuple(int(row) for row in table.rows[np.isin(table.budgets, bare)])
        message = (
            f"There is no run with r = 1 at {_list(format_flops(c) for c in bare)} FLOPs, so the "
            f"looped runs there ({name_rows(rows)}) have no control."
        )
        remedy = "Run the unlooped model at these budgets."
        evidence = {"budgets": bare}
        findings.append(Finding("missing_control", "warning", message, rows, remedy, evidence))
    missing = [(c, r) for c in budgets for r in levels if r > 1 and (c, r) not in present]
    if missing and len(budgets) > 1 and len(levels) > 1:
        full = len(present) / (len(budgets) * len(levels)) >= _MEANT_FULL
        cells = _list(f"r = {r:g} at {format_flops(c)} FLOPs" for c, r in missing)
        message = f"The grid of budgets and recurrences has no run in {cells}."
        if full:
            message += " phi rests on the law's form there, and intervals on the other cells."
        remedy = "Run them, or say that they were left out and why." if full else ""
        evidence = {"cells": [{"budget_flops": c, "recurrence": r} for c, r in missing]}
        severity: Severity = "warning" if full else "note"
        findings.append(Finding("missing_cells", severity, message, (), remedy, evidence))
    return findings


def _list(words: Iterable[str]) -> str:
    listed = list(words)
    hidden = len(listed) - _SHOWN
    return join_words([*listed[:_SHOWN], *([f"{hidden} more"] if hidden > 0 else [])])
