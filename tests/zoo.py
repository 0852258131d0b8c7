"""A zoo of corrupted run tables: what was done to a clean one, and what a check has to say.

Each entry changes the built-in table in one way, in a size and at places drawn from a seed, and
names the codes that count as caught and the rows that they must name, no more and no fewer. Every
kind of fault that breaks a fit is there. `clean_tables` holds what must raise no alarm.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import zoo_labels
import zoo_runs
import zoo_values
from loopworth.datasets import builtin_names
from loopworth.runs import load_runs
from zoo_base import ENTRIES, Entry, bare, built, direct, law_of

PARTS = (zoo_values, zoo_runs, zoo_labels)  # each registers its entries when it is imported


def _smaller(columns: dict[str, list[Any]], number: int) -> dict[str, list[Any]]:
    """Cut every third sweep to three widths a cell, every third to a grid of 36 runs."""
    table = load_runs("schwethelm2026")
    rank = np.zeros(len(table), dtype=int)
    for cell in set(table.cells.tolist()):
        members = np.flatnonzero(table.cells == cell)
        rank[members] = np.argsort(np.argsort(table.n_once[members] + table.n_rec[members]))
    keep = np.ones(len(table), dtype=bool)
    if number % 3 > 0:
        keep &= (rank > 0) & (rank < 4) if number % 2 else rank < 3
    if number % 3 == 2:
        keep &= (table.budgets < 5e18) & (table.recurrence < 8)
    return {
        name: [x for x, kept in zip(values, keep, strict=True) if kept]
        for name, values in columns.items()
    }


def clean_tables(
    sweeps: int = 20, seed: int = 7, misfits: tuple[float, ...] = (0.006, 0.0, 0.003)
) -> Iterator[tuple[str, Any]]:
    """Yield tables that must raise no alarm: built-in, rewritten, and simulated with noise."""
    for name in builtin_names():
        yield name, name
    yield "direct form", direct()
    yield "without budgets", bare()
    yield "with all columns", load_runs("schwethelm2026").to_columns()
    yield "architecture with tokens", built("tokens")
    rng = np.random.default_rng(seed)
    order = rng.permutation(116)
    yield (
        "rows in another order",
        {name: [values[i] for i in order] for name, values in built().items()},
    )
    yield "read-only arrays", {
        name: np.array(values) for name, values in direct().items()
    }  # fmt: skip
    yield "with labels", direct() | {
        "run_id": [f"r{i}" for i in range(116)], "seed": ["0"] * 116, "recipe": ["a"] * 116,
        "_step": [round(x / 2**18) for x in direct()["tokens"]],
    }  # fmt: skip
    laws = ((28.4, 0.2, 911.0, 0.368, 1.57, 0.46), (400.0, 0.34, 410.0, 0.28, 1.69, 0.8),
            (60.0, 0.25, 150.0, 0.27, 1.56, 0.1))  # fmt: skip
    for number in range(sweeps):
        noise, cell = (0.0, 7e-4, 2e-3)[number % 3], misfits[number // 3 % len(misfits)]
        columns = direct() if number % 2 else bare()
        simulated = law_of(columns, rng, cell=cell, seed=noise, law=laws[number // 9 % 3])
        size = number // 27
        yield f"simulated {number}: seed {noise}, cell {cell}", _smaller(simulated, size)


def thinned_tables(count: int, seed: int = 5) -> Iterator[tuple[str, Any]]:
    """Yield random parts of the built-in studies: clean, but with holes of every size."""
    rng = np.random.default_rng(seed)
    names = builtin_names()[1:]
    for number in range(count):
        table = load_runs(names[number % len(names)])
        share = (0.3, 0.45, 0.6, 0.75, 0.9)[number // len(names) % 5]
        yield f"{share} of {table.name}", table.select(rng.random(len(table)) < share)


def entries() -> list[Entry]:
    """Return the zoo."""
    return list(ENTRIES)
