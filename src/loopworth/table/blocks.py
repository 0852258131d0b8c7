"""Group runs into the blocks that a bootstrap resamples: budgets, and cells within them.

Runs of one budget and one recurrence share a learning-rate recipe, a data order and a position on
the frontier, so their residuals go together: an interval from single runs is 1.6 times too narrow
on the built-in table. Checkpoints of one run go together even more, so they form their own cell.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loopworth.findings import Finding, join_words
from loopworth.quantities import format_flops
from loopworth.table.values import Floats

# Budgets that miss their target are a few per cent off it; deliberate budgets lie further apart.
SAME_BUDGET = 1.10
_WIDE_GROUP = 1.5


def nominal_budgets(numbers: dict[str, Floats]) -> tuple[Floats, list[Finding]]:
    """Return a budget for each row, from the best that it gives, and a note where that is a guess.

    In this order: budget_flops; train_flops_per_token * tokens; 6 (n_once + r n_rec) tokens, which
    leaves out attention and the head and serves to group rows only.

    >>> one = lambda value: np.array([value])
    >>> budgets, notes = nominal_budgets({"budget_flops": one(np.nan), "tokens": one(1e9),
    ...     "train_flops_per_token": one(np.nan), "n_once": one(1e7), "n_rec": one(1e7),
    ...     "recurrence": one(4.0)})
    >>> budgets, notes[0].code
    (array([3.e+17]), 'budgets_from_6nd')
    """
    tokens = numbers["tokens"]
    budgets = numbers["budget_flops"].copy()
    exact = numbers["train_flops_per_token"] * tokens
    budgets = np.where(np.isfinite(budgets), budgets, exact)
    guessed = ~np.isfinite(budgets)
    rough = 6 * (numbers["n_once"] + numbers["recurrence"] * numbers["n_rec"]) * tokens
    budgets[guessed] = rough[guessed]
    if not guessed.any():
        return budgets, []
    message = (
        "The table has neither budget_flops nor train_flops_per_token for some rows; to group them "
        "for the bootstrap their budget is taken as 6 (n_once + r n_rec) tokens."
    )
    note = Finding("budgets_from_6nd", "note", message, remedy="Add budget_flops or the FLOPs.")
    return budgets, [note]


def group_budgets(budgets: Floats) -> tuple[NDArray[np.int64], Floats, list[Finding]]:
    """Join budgets that lie less than 10 % apart, link by link; nothing is rounded or dropped.

    Returns the group of each row, ascending, the group's nominal budget of each row (its most
    common value, the lowest of equals), and notes about groups that hold several values.

    >>> groups, nominal, _ = group_budgets(np.array([1e18, 4.64e17, 1.02e18]))
    >>> groups, nominal
    (array([1, 0, 1]), array([1.00e+18, 4.64e+17, 1.00e+18]))
    """
    order = np.argsort(budgets, kind="stable")
    steps = np.diff(np.log(budgets[order])) >= math.log(SAME_BUDGET) * (1 - 1e-12)
    groups = np.empty(len(budgets), dtype=np.int64)
    groups[order] = np.concatenate([[0], np.cumsum(steps)])
    nominal = np.empty(len(budgets))
    several: list[Floats] = []
    wide: list[Floats] = []
    for group in range(int(groups.max()) + 1):
        members = budgets[groups == group]
        counts = Counter(members.tolist())
        nominal[groups == group] = min(counts, key=lambda value: (-counts[value], value))
        # Values that differ by rounding are written alike, and are no news.
        if format_flops(float(members.min())) != format_flops(float(members.max())):
            (wide if members.max() / members.min() > _WIDE_GROUP else several).append(members)
    findings = []
    if several:
        message = f"Budgets within 10 % of one another form one group: {_ranges(several)} FLOPs."
        findings.append(Finding("budgets_joined", "note", message))
    if wide:
        message = (
            f"Budgets within 10 % of the next one form wide groups: {_ranges(wide)} FLOPs. "
            "The cells that the bootstrap resamples are as wide."
        )
        remedy = "Give the nominal budget_flops of each run."
        findings.append(Finding("budgets_chained", "warning", message, remedy=remedy))
    return groups, nominal, findings


def make_cells(
    groups: NDArray[np.int64], recurrence: Floats, run_ids: Sequence[str | None]
) -> NDArray[np.int64]:
    """Number the blocks from 0: (budget group, recurrence), or the run where its id repeats.

    >>> make_cells(np.array([0, 0, 1, 1]), np.array([1., 2., 1., 1.]), [None, None, "a", "a"])
    array([0, 1, 2, 2])
    """
    repeated = {run for run, count in Counter(run_ids).items() if run is not None and count > 1}
    keys: list[tuple[int, float, float, str]] = [
        (1, 0.0, 0.0, run) if run is not None and run in repeated else (0, float(group), r, "")
        for group, r, run in zip(groups.tolist(), recurrence.tolist(), run_ids, strict=True)
    ]
    numbers = {key: number for number, key in enumerate(sorted(set(keys)))}
    return np.array([numbers[key] for key in keys], dtype=np.int64)


def _ranges(groups: list[Floats]) -> str:
    words = [
        f"{format_flops(float(members.min()))} to {format_flops(float(members.max()))}"
        for members in groups[:4]
    ]
    return join_words([*words, *([f"{len(groups) - 4} more"] if len(groups) > 4 else [])])
