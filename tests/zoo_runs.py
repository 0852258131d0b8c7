"""Zoo: wrong FLOPs and budgets, diverged and under-tuned runs, valleys and holes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from loopworth.runs import load_runs
from zoo_base import Columns, Rows, bare, built, direct, drop, entry, pick, put, times

# --- 4. FLOPs and budgets


def _parameters(columns: Columns, unrolled: bool) -> list[float]:
    table = load_runs("schwethelm2026")
    passes = table.recurrence if unrolled else np.ones(len(table))
    return (table.n_once + passes * table.n_rec).tolist()


def _six(base: Callable[[], Columns], unrolled: bool) -> Callable[..., tuple[Columns, Rows]]:
    def build(rng: np.random.Generator) -> tuple[Columns, Rows]:
        columns = base()
        counts = _parameters(columns, unrolled)
        budgets = columns["budget_flops"]
        columns["tokens"] = [c / (6 * n) for c, n in zip(budgets, counts, strict=True)]
        return columns, set(range(1, 117))

    return build


def _flops(base: Callable[[], Columns], rule: str) -> Callable[..., tuple[Columns, Rows]]:
    def build(rng: np.random.Generator) -> tuple[Columns, Rows]:
        columns = base()
        exact = load_runs("schwethelm2026").train_flops_per_token.tolist()
        counts = _parameters(columns, "unrolled" in rule)
        columns["train_flops_per_token"] = [
            f / 3 if rule == "forward only" else 6 * n for f, n in zip(exact, counts, strict=True)
        ]
        return columns, set(range(1, 117))

    return build


for _base in (direct, built):
    for _unrolled in (False, True):
        _words = "unrolled" if _unrolled else "unique"
        entry(f"tokens from 6 N {_words}, {_base.__name__}", "FLOPs", "tokens_from_6nd",
               also="budget_disagrees under_tuned below_the_law fixed")(
            _six(_base, _unrolled))  # fmt: skip
        entry(f"FLOPs as 6 N {_words}, {_base.__name__}", "FLOPs", "flops_are_6n flops_disagree",
               also="budget_disagrees")(_flops(_base, _words))  # fmt: skip
entry("FLOPs of the forward pass, built", "FLOPs", "flops_disagree")(
    _flops(built, "forward only"))  # fmt: skip


@entry("FLOPs of some rows wrong", "FLOPs", "flops_disagree", 1.1, 4.0)
def _(rng: np.random.Generator, factor: float) -> tuple[Columns, Rows]:
    columns = built("train_flops_per_token")
    places = pick(rng, columns, 4)
    return columns, put(columns, "train_flops_per_token", places, lambda x: x * factor)


@entry("counts that the architecture does not have", "FLOPs", "counts_disagree", 1.05, 2.0,
        also="budget_disagrees under_tuned")  # fmt: skip
def _(rng: np.random.Generator, factor: float) -> tuple[Columns, Rows]:
    columns = built("n_once", "n_rec", "tokens")
    places = pick(rng, columns, 3)
    return columns, put(columns, "n_rec", places, lambda x: x * factor)


@entry("budgets far off target, architecture", "budgets", "budget_disagrees", 1.3, 0.5, 10,
        also="missing_cells missing_control")  # fmt: skip
def _(rng: np.random.Generator, factor: float) -> tuple[Columns, Rows]:
    columns = built("tokens")
    return columns, put(columns, "budget_flops", pick(rng, columns, 3), lambda x: x * factor)


@entry("budgets far off target, direct", "budgets", "budget_disagrees", 1.5, 10,
        also="missing_cells missing_control")  # fmt: skip
def _(rng: np.random.Generator, factor: float) -> tuple[Columns, Rows]:
    columns = direct()
    return columns, put(columns, "budget_flops", pick(rng, columns, 3), lambda x: x * factor)


@entry("tokens a little off target", "budgets", "budget_off_target", 0.97, 1.02)
def _(rng: np.random.Generator, factor: float) -> tuple[Columns, Rows]:
    columns = built("tokens")
    return columns, put(columns, "tokens", pick(rng, columns, 5), lambda x: x * factor)


# --- 5. diverged and under-tuned


def _raised(
    count: int, nats: float, base: Callable[[], Columns]
) -> Callable[..., tuple[Columns, Rows]]:
    return times("val_loss", lambda x: x + nats, count, base)


for _count in (1, 5):
    for _base in (built, bare):
        # ln 11 = 2.398 is also what some of these runs should reach: perplexity is as good a guess.
        entry(f"{_count} diverged to 11, {_base.__name__}", "diverged",
               "diverged_runs loss_mixed_units")(
            times("val_loss", lambda _: 11.0, _count, _base))  # fmt: skip
        for _nats in (0.6, 2.0, 4.5):
            entry(f"{_count} diverged by {_nats}, {_base.__name__}", "diverged", "diverged_runs")(
                _raised(_count, _nats, _base))  # fmt: skip
        for _nats in (0.05, 0.08, 0.15, 0.3):
            entry(f"{_count} under-tuned by {_nats}, {_base.__name__}", "under-tuned",
                   "under_tuned", also="cell_above_the_law")(
                _raised(_count, _nats, _base))  # fmt: skip
        for _nats in (-0.08, -0.15):
            entry(f"{_count} too good by {-_nats}, {_base.__name__}", "under-tuned",
                   "below_the_law", also="cell_below_the_law")(
                _raised(_count, _nats, _base))  # fmt: skip


@entry("a whole cell under-tuned", "under-tuned", "cell_above_the_law", 0.07, 0.12)
def _(rng: np.random.Generator, nats: float) -> tuple[Columns, Rows]:
    columns = built()
    cells = load_runs("schwethelm2026").cells
    places = np.flatnonzero(cells == rng.integers(cells.max() + 1)).tolist()
    return columns, put(columns, "val_loss", places, lambda x: x + nats)


@entry("losses of two rows swapped", "under-tuned", "under_tuned below_the_law diverged_runs")
def _(rng: np.random.Generator) -> tuple[Columns, Rows]:
    columns = built()
    loss = columns["val_loss"]
    low, high = 100, 12
    loss[low], loss[high] = loss[high], loss[low]
    return columns, {low + 1, high + 1}


# --- 6. parabolas and holes


@entry("a valley turned over", "valleys",
        "isoflop_opens_downwards under_tuned below_the_law", 5, 17,
        also="cell_above_the_law")  # fmt: skip
def _(rng: np.random.Generator, cell: int) -> tuple[Columns, Rows]:
    columns = built()
    places = np.flatnonzero(load_runs("schwethelm2026").cells == cell).tolist()
    top = max(columns["val_loss"][place] for place in places)
    low = min(columns["val_loss"][place] for place in places)
    return columns, put(columns, "val_loss", places, lambda x: top + low - x)


def _without(cells: list[tuple[float, float]]) -> tuple[Columns, set[int]]:
    columns = built()
    pairs = list(zip(columns["budget_flops"], columns["recurrence"], strict=True))
    return drop(columns, {i for i, pair in enumerate(pairs) if pair in cells}), set()


@entry("cells not run", "grid", "missing_cells", 1, 3)
def _(rng: np.random.Generator, count: int) -> tuple[Columns, Rows]:
    columns = built()
    looped = sorted({
        (c, r) for c, r in zip(columns["budget_flops"], columns["recurrence"], strict=True) if r > 1
    })  # fmt: skip
    return _without([looped[i] for i in rng.choice(len(looped), count, replace=False)])


@entry("controls not run", "grid", "missing_control", 1, 2)
def _(rng: np.random.Generator, count: int) -> tuple[Columns, Rows]:
    budgets = sorted(set(built()["budget_flops"]))
    chosen = [budgets[i] for i in rng.choice(len(budgets), count, replace=False)]
    columns, _ = _without([(c, 1.0) for c in chosen])
    return columns, {i + 1 for i, c in enumerate(columns["budget_flops"]) if c in chosen}
