"""What the design of a table lets a law tell apart, and what it does not.

These findings look at the columns only, never at the losses: they say which parameters the runs
cannot identify, whatever comes out. The law decides what it refuses because of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from loopworth.findings import Finding
from loopworth.quantities import format_quantity
from loopworth.table.values import Floats, distinct, middle

if TYPE_CHECKING:
    from loopworth.runs import RunTable

LAW_PARAMETERS = 6  # A, alpha, B, beta, E and phi of the headline law
_SAME = math.log(1.01)  # values within 1 % are one value
_PROPORTIONAL = math.log(1.25)
_VARIED = math.log(1.5)


def design_findings(table: RunTable) -> tuple[Finding, ...]:
    """Return what the design of a table leaves unidentified, an empty tuple for a sound one.

    Codes: one_recurrence, two_recurrences, no_unlooped_runs, single_budget, one_token_count,
    tokens_proportional_to_parameters, fixed_unique_parameters, fewer_rows_than_parameters.

    >>> from loopworth.runs import load_runs
    >>> table = load_runs("schwethelm2026")
    >>> design_findings(table)
    ()
    >>> [each.code for each in design_findings(table.select(table.recurrence == 1))]
    ['one_recurrence']
    """
    return (
        *_recurrences(table),
        *_budgets(table),
        *_sizes(table),
        *_proportions(table),
        *_rows(table),
    )


def _warning(code: str, message: str, remedy: str) -> Finding:
    return Finding(code, "warning", message, remedy=remedy)


def _recurrences(table: RunTable) -> Iterator[Finding]:
    counts = distinct(table.recurrence)
    if len(counts) == 1:
        which = f"{counts[0]:g}"
        message = f"All runs have recurrence {which}, so the gain of a recurrence, phi with it, "
        message += "is not defined." if which == "1" else "cannot be told from A."
        yield _warning("one_recurrence", message, "Add runs at other recurrences, 1 among them.")
        return
    if len(counts) == 2:
        yield _warning(
            "two_recurrences",
            f"The runs have two recurrences, {counts[0]:g} and {counts[1]:g}: one value of the "
            "gain is identified, its shape is not, so laws with one free gain parameter fit alike.",
            "Add runs at a third recurrence to tell the laws apart.",
        )
    if counts[0] > 1:
        yield Finding(
            "no_unlooped_runs",
            "note",
            "No run has recurrence 1, so nothing measures a loop against no loop: phi rests on the "
            f"form r^phi between {counts[0]:g} and {counts[-1]:g} recurrences, and a value of g "
            "for each r is not identified.",
            remedy="Add runs without a loop, at the same budgets.",
        )


def _budgets(table: RunTable) -> Iterator[Finding]:
    budgets = distinct(table.budgets)
    if len(budgets) == 1 and len(table) > 1:
        yield _warning(
            "single_budget",
            f"All runs share one budget ({format_quantity(float(budgets[0]))} FLOPs): tokens fall "
            "as parameters rise, so E, alpha and beta move together.",
            "Add runs at other budgets.",
        )
    if len(table) > 1 and _spread(table.tokens) < _SAME:
        yield _warning(
            "one_token_count",
            f"All runs have about {format_quantity(middle(table.tokens))} tokens: E and "
            "B D^-beta are one constant and cannot be separated.",
            "Add runs with other token counts.",
        )


def _sizes(table: RunTable) -> Iterator[Finding]:
    """Find unique parameters that are fixed wherever recurrence varies."""
    unique = table.n_once + table.n_rec
    if len(table) < 2:
        return
    groups = [table.budgets == budget for budget in distinct(table.budgets)]
    looped = [group for group in groups if len(distinct(table.recurrence[group])) > 1]
    if _spread(unique) < _SAME:
        where = f"All runs have about {format_quantity(middle(unique))} unique parameters"
    elif looped and all(_spread(unique[group]) < _SAME for group in groups):
        where = "Within each budget all runs have the same unique parameters"
    else:
        return
    yield _warning(
        "fixed_unique_parameters",
        f"{where}, so what a larger model brings is never seen beside what a recurrence brings: "
        "alpha, beta and phi cannot be separated.",
        "Add runs of other sizes at the same budgets.",
    )


def _proportions(table: RunTable) -> Iterator[Finding]:
    unique = table.n_once + table.n_rec
    unrolled = table.n_once + table.recurrence * table.n_rec
    for count, words in ((unique, "unique"), (unrolled, "unrolled")):
        ratio = table.tokens / count
        if _spread(ratio) < _PROPORTIONAL and _spread(count) > _VARIED:
            yield _warning(
                "tokens_proportional_to_parameters",
                f"Tokens are {format_quantity(middle(ratio))} times the {words} parameters "
                "in every run: A, alpha, B, beta and E cannot be separated.",
                "Add runs of the same size with other token counts.",
            )
            return


def _rows(table: RunTable) -> Iterator[Finding]:
    if len(table) < LAW_PARAMETERS:
        yield _warning(
            "fewer_rows_than_parameters",
            f"{len(table)} run{'' if len(table) == 1 else 's'} cannot determine the "
            f"{LAW_PARAMETERS} parameters A, alpha, B, beta, E and phi.",
            "Add runs; about 20 over 4 budgets and 3 recurrences are a start.",
        )


def _spread(values: Floats) -> float:
    return float(np.log(values.max() / values.min()))
