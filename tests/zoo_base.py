"""What the zoo is made of: clean tables as columns, ways to corrupt them, and its entries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loopworth.datasets import read_builtin
from loopworth.runs import load_runs

Columns = dict[str, list[Any]]
Rows = set[int]
LN2 = float(np.log(2.0))

_NUMBERS = ("budget_flops", "recurrence", "width_scale", "d_model", "n_prelude", "n_recur",
            "n_coda", "bptt_window", "val_loss")  # fmt: skip


def built(*more: str) -> Columns:
    """The baseline as architectures with a budget; `more` may add tokens, counts or FLOPs."""
    raw = read_builtin("schwethelm2026").columns
    columns = {
        name: [float(x) for x in values] if name in _NUMBERS else list(values)
        for name, values in raw.items()
        if name != "loss_source"
    }
    return columns | {name: getattr(load_runs("schwethelm2026"), name).tolist() for name in more}


def direct(*more: str) -> Columns:
    """The baseline with its parameters and tokens given, and its budgets."""
    names = ("n_once", "n_rec", "recurrence", "tokens", "val_loss", "budget_flops", *more)
    columns = load_runs("schwethelm2026").to_columns()
    return {name: list(columns[name]) for name in names}


def bare() -> Columns:
    """The baseline with nothing but what a law needs."""
    columns = direct()
    del columns["budget_flops"]
    return columns


@dataclass(frozen=True)
class Entry:
    """One corruption: `build` returns the columns and the rows that must be named."""

    name: str
    kind: str
    codes: tuple[str, ...]
    build: Callable[[np.random.Generator], tuple[Columns, Rows]] = field(repr=False)
    also: tuple[str, ...] = ()
    """Codes of other findings that are right as well, such as the hole that a lost row leaves."""

    def make(self, draw: int = 0) -> tuple[Columns, Rows]:
        """Build the columns; other draws put the same corruption at other places."""
        name = int.from_bytes(self.name.encode()) % 2**32
        return self.build(np.random.default_rng([name, draw]))


ENTRIES: list[Entry] = []


def entry(name: str, kind: str, codes: str, *sizes: Any, also: str = "") -> Callable[..., Any]:
    """Register a builder once, or once for each of `sizes`, which it gets as second argument."""

    def register(build: Callable[..., tuple[Columns, Rows]]) -> Callable[..., Any]:
        for size in sizes or (None,):
            label = name if size is None else f"{name} {size}"
            once = build if size is None else _bind(build, size)
            ENTRIES.append(Entry(label, kind, tuple(codes.split()), once, tuple(also.split())))
        return build

    return register


def _bind(build: Callable[..., tuple[Columns, Rows]], size: Any) -> Callable[..., Any]:
    return lambda rng: build(rng, size)


def pick(rng: np.random.Generator, columns: Columns, share: float | int) -> list[int]:
    """Draw places: a number of rows, or a share of them where below 1."""
    n = len(columns["val_loss"])
    count = share if share >= 1 else round(share * n)
    return sorted(rng.choice(n, int(count), replace=False).tolist())


def put(columns: Columns, name: str, places: list[int], change: Callable[[Any], Any]) -> Rows:
    for place in places:
        columns[name][place] = change(columns[name][place])
    return {place + 1 for place in places}


def append(columns: Columns, place: int, **changes: Any) -> int:
    """Append a copy of a row with changes and return its row number."""
    for name, values in columns.items():
        values.append(changes.get(name, values[place]))
    return len(columns["val_loss"])


def drop(columns: Columns, places: set[int]) -> Columns:
    return {
        name: [x for place, x in enumerate(values) if place not in places]
        for name, values in columns.items()
    }


def times(
    names: str, change: Callable[[Any], Any], share: float, base: Callable[[], Columns]
) -> Callable[..., tuple[Columns, Rows]]:
    """Change columns in a share of the rows (1.0 is all of them, 1 is one)."""

    def build(rng: np.random.Generator) -> tuple[Columns, Rows]:
        columns = base()
        n = len(columns["val_loss"])
        places = list(range(n)) if isinstance(share, float) and share == 1.0 else (
            pick(rng, columns, share)
        )  # fmt: skip
        rows: Rows = set()
        for name in names.split():
            rows = put(columns, name, places, change)
        return columns, rows

    return build


def over(factor: float) -> Callable[[Any], Any]:
    return lambda x: x / factor


def law_of(
    columns: Columns,
    rng: np.random.Generator,
    *,
    cell: float = 0.0,
    seed: float = 7e-4,
    law: tuple[float, ...] = (28.4, 0.2, 911.0, 0.368, 1.57, 0.46),
) -> Columns:
    """Replace the losses by those of a law with seed noise and a misfit that each cell shares.

    `cell` is the standard deviation of a cell's level in nats; a slope and a bend of its own come
    with it, in the proportions that the residuals of the built-in table have (6, 5 and 7 mnats).
    """
    a, alpha, b, beta, e, phi = law
    once, rec, r, tokens = (
        np.array(columns[name], dtype=float) for name in ("n_once", "n_rec", "recurrence", "tokens")
    )
    cells = load_runs("schwethelm2026").cells
    log_n = np.log(once + rec)
    x = log_n - np.array([log_n[cells == each].mean() for each in cells])
    spread = float(np.sqrt((x**2).mean())) or 1.0
    level, slope, bend = rng.normal(0, cell, (3, cells.max() + 1))
    loss = e + a * (once + r**phi * rec) ** -alpha + b * tokens**-beta
    loss += level[cells] + 5 / 6 * slope[cells] * x / spread
    loss += 7 / 6 * bend[cells] * (x**2 - spread**2)
    return columns | {"val_loss": (loss + rng.normal(0, seed, len(loss))).tolist()}
