"""Tables that can be compared: one convention, shared budgets, cells that are drawn together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopworth.findings import Finding, join_words
from loopworth.law import Fit
from loopworth.law.gain import FloatArray
from loopworth.law.intervals import resample_cells
from loopworth.ledger import Convention
from loopworth.quantities import format_count, format_flops
from loopworth.runs import RunTable, load_runs
from loopworth.table.blocks import group_budgets
from loopworth.table.values import distinct

_SAME_SIZE = 1e-3  # relative: sizes and tokens are one up to rounding

# Fields of an architecture that belong to the recipe around a loop, not to the loop.
_RECIPE_FIELDS = (
    "vocab_size",
    "context",
    "head_dim",
    "n_kv_heads",
    "mlp_ratio",
    "mlp_kind",
    "tied_embeddings",
)


@dataclass(frozen=True)
class Pairing:
    """Tables of one convention on the same budgets; the first is the base.

    names     a short name for each table, all different
    tables    what is left of them
    cells     for each table, the cell of each run: numbered from 0 over all tables together
    budgets   nominal budgets that are left, in FLOPs; `largest` is the largest that all share
    findings  what was left out, and what besides the method differs
    """

    names: tuple[str, ...]
    tables: tuple[RunTable, ...]
    cells: tuple[NDArray[np.int64], ...]
    budgets: tuple[float, ...]
    largest: float
    findings: tuple[Finding, ...]

    @property
    def cell_count(self) -> int:
        """How many cells all tables have together."""
        return int(max(cells.max() for cells in self.cells)) + 1

    def resample(self, resamples: int, seed: int) -> tuple[FloatArray, ...]:
        """Return, for each table, how often each run enters each resample: (resamples, n).

        Cells are drawn once for all tables; a cell that a table lacks contributes nothing there.
        """
        ends = np.cumsum([len(cells) for cells in self.cells])[:-1]
        weights = resample_cells(np.concatenate(self.cells), resamples, seed)
        return tuple(np.split(weights, ends, axis=1))


def pair(
    sources: Sequence[Any],
    *,
    law: str,
    convention: Convention | None = None,
    without: Sequence[float] = (),
    all_budgets: bool = False,
    huber_delta: float | None = None,
) -> Pairing:
    """Load tables and bring them together; the first is the base.

    Raises ValueError where conventions, laws or Huber thresholds differ, where no budget is
    shared, and where a recurrence to be left out is in no table.

    >>> both = pair(["schwethelm2026", "schwethelm2026:hyperconnections"], law="power")
    >>> both.names, [len(table) for table in both.tables], both.cell_count
    (('schwethelm2026', 'hyperconnections'), [80, 83], 16)
    >>> [finding.code for finding in both.findings]
    ['budgets_left_out']
    """
    tables = [_table(source, law, convention) for source in sources]
    if huber_delta is not None:
        tables = [table.with_huber_delta(huber_delta) for table in tables]
    names = _names(tables)
    _one_threshold(names, tables)
    _one_convention(names, tables)
    tables = _without(names, tables, without)
    sizes = np.cumsum([len(table) for table in tables])[:-1]
    pooled, _, _ = group_budgets(np.concatenate([table.budgets for table in tables]))
    groups = np.split(pooled, sizes)
    shared = set.intersection(*(set(group.tolist()) for group in groups))
    if not shared:
        each = "; ".join(
            f"{name}: {join_words(map(format_flops, distinct(table.budgets).tolist()))}"
            for name, table in zip(names, tables, strict=True)
        )
        raise ValueError(
            f"The tables share no budget, so no cells can be paired ({each} FLOPs). "
            "Compare tables that were run at the same budgets."
        )
    findings = []
    if not all_budgets:
        findings += list(_left_out(names, tables, groups, shared))
        keep = [np.isin(group, sorted(shared)) for group in groups]
        tables = [table.select(mask) for table, mask in zip(tables, keep, strict=True)]
        groups = [group[mask] for group, mask in zip(groups, keep, strict=True)]
    budgets = sorted({budget for table in tables for budget in distinct(table.budgets).tolist()})
    return Pairing(
        names,
        tuple(tables),
        _cells(tables, groups),
        tuple(budgets),
        float(tables[0].budgets[groups[0] == max(shared)][0]),
        (*findings, *_differences(names, tables)),
    )


def shared_rows(base: RunTable, method: RunTable) -> NDArray[np.bool_]:
    """Tell which runs of a method's table are runs of the base, by their numbers."""
    known = set(_identities(base))
    return np.array([identity in known for identity in _identities(method)], dtype=bool)


def _identities(table: RunTable) -> list[tuple[float, ...]]:
    columns = (table.recurrence, table.n_once, table.n_rec, table.tokens, table.val_loss)
    return [tuple(row) for row in np.stack(columns, axis=1).tolist()]


def _table(source: Any, law: str, convention: Convention | None) -> RunTable:
    if isinstance(source, Fit):
        fitted = source.options["law"]
        if fitted != law:
            raise ValueError(
                f"{source.runs.name} was fitted with the law {fitted!r}, but the comparison is "
                f"under {law!r}, and constants of different laws are not comparable; "
                f"pass law={fitted!r} or the table instead of the fit"
            )
        source = source.runs
    table = source if isinstance(source, RunTable) else load_runs(source)
    return table if convention is None else table.under(convention)


def _names(tables: Sequence[RunTable]) -> tuple[str, ...]:
    """Return the last part of each table's name, numbered where two would be alike."""
    names: list[str] = []
    for table in tables:
        name = table.name.rpartition(":")[2] or table.name
        taken = sum(each == name or each.startswith(f"{name} (") for each in names)
        names.append(f"{name} ({taken + 1})" if taken else name)
    return tuple(names)


def _one_convention(names: Sequence[str], tables: Sequence[RunTable]) -> None:
    for name, table in zip(names[1:], tables[1:], strict=True):
        if table.convention != tables[0].convention:
            raise ValueError(
                f"{names[0]} counts parameters with {tables[0].convention.name}, {name} with "
                f"{table.convention.name}; a convention moves phi as much as a method does. "
                "Give both the same one: compare(..., convention=...) or table.under(...)."
            )


def _one_threshold(names: Sequence[str], tables: Sequence[RunTable]) -> None:
    for name, table in zip(names[1:], tables[1:], strict=True):
        if table.huber_delta != tables[0].huber_delta:
            raise ValueError(
                f"{names[0]} has the Huber threshold {tables[0].huber_delta:g}, {name} "
                f"{table.huber_delta:g}, and the difference would be partly that of two fits. Give "
                "both the same one: compare(..., huber_delta=...) or table.with_huber_delta(...)."
            )


def _without(
    names: Sequence[str], tables: Sequence[RunTable], without: Sequence[float]
) -> list[RunTable]:
    """Leave recurrences out of all tables."""
    left = list(tables)
    for recurrence in without:
        if not any((table.recurrence == recurrence).any() for table in tables):
            every = sorted({r for table in tables for r in table.recurrence.tolist()})
            raise ValueError(
                f"No table has runs at r = {recurrence:g} to leave out; they have "
                f"r = {join_words(f'{r:g}' for r in every)}"
            )
        left = [table.select(table.recurrence != recurrence) for table in left]
    empty = [name for name, table in zip(names, left, strict=True) if not len(table)]
    if empty:
        raise ValueError(
            f"{join_words(empty)} has no runs left without "
            f"r = {join_words(f'{r:g}' for r in without)}; leave fewer recurrences out"
        )
    return left


def _cells(
    tables: Sequence[RunTable], groups: Sequence[NDArray[np.int64]]
) -> tuple[NDArray[np.int64], ...]:
    """Number the blocks of all tables together: (budget, r), or the run where it is many rows."""
    keys: list[list[tuple[Any, ...]]] = []
    for table, group in zip(tables, groups, strict=True):
        runs = table.labels.get("run_id", (None,) * len(table))
        times = Counter(runs)
        keys.append(
            [
                ("", budget, r) if run is None or times[run] < 2 else (run, 0, r)
                for run, budget, r in zip(
                    runs, group.tolist(), table.recurrence.tolist(), strict=True
                )
            ]
        )
    numbers = {key: k for k, key in enumerate(sorted({key for part in keys for key in part}))}
    return tuple(np.array([numbers[key] for key in part], dtype=np.int64) for part in keys)


def _left_out(
    names: Sequence[str],
    tables: Sequence[RunTable],
    groups: Sequence[NDArray[np.int64]],
    shared: set[int],
) -> Iterator[Finding]:
    for name, table, group in zip(names, tables, groups, strict=True):
        lost = ~np.isin(group, sorted(shared))
        if lost.any():
            budgets = join_words(map(format_flops, distinct(table.budgets[lost]).tolist()))
            yield Finding(
                "budgets_left_out",
                "note",
                f"{format_count(int(lost.sum()))} runs of {name} at {budgets} FLOPs are left out, "
                "since not all tables have these budgets.",
                remedy="Keep them with --all-budgets; phi then rests on different budgets.",
            )


def _differences(names: Sequence[str], tables: Sequence[RunTable]) -> Iterator[Finding]:
    """Say what besides the method differs between the base and each method."""
    base = tables[0]
    for name, table in zip(names[1:], tables[1:], strict=True):
        ours, theirs = distinct(base.recurrence).tolist(), distinct(table.recurrence).tolist()
        if ours != theirs:
            sets = (join_words(f"{r:g}" for r in each) for each in (ours, theirs))
            first, second = sets
            yield Finding(
                "recurrences_differ",
                "warning",
                f"{names[0]} was run at r = {first}, {name} at r = {second}, and phi depends on "
                "which r were run.",
                remedy="Leave the others out with --without-recurrence.",
            )
        changed = list(_recipe_changes(base, table))
        if changed:
            yield Finding(
                "recipes_differ",
                "warning",
                f"{names[0]} and {name} differ in {join_words(changed)}, so the difference is "
                "that of method and recipe together.",
                remedy="Compare runs of one recipe.",
            )
        yield from _same_runs(names[0], base, name, table)
        yield from _unlooped(names[0], base, name, table)


def _same_runs(base_name: str, base: RunTable, name: str, method: RunTable) -> Iterator[Finding]:
    """Say that both tables hold the same looped runs, counted alike or not."""
    looped = method.recurrence > 1
    if looped.any() and shared_rows(base, method)[looped].all():
        yield Finding(
            "same_runs",
            "warning",
            f"Every looped run of {name} is a run of {base_name}, so there is no other method in "
            "what is compared.",
            remedy="Check that the right tables were named.",
        )
        return

    def outcomes(table: RunTable) -> dict[tuple[float, ...], tuple[float, float]]:
        keys = np.stack([table.recurrence, table.tokens, table.val_loss], axis=1).tolist()
        counts = zip(table.n_once.tolist(), table.n_rec.tolist(), strict=True)
        return dict(zip(map(tuple, keys), counts, strict=True))

    ours, theirs = outcomes(base), outcomes(method)
    other = [key for key in theirs if key in ours and ours[key] != theirs[key]]
    if other:
        yield Finding(
            "counts_differ",
            "warning",
            f"{len(other)} run{'s have' if len(other) > 1 else ' has'} the same recurrence, tokens "
            f"and loss in {base_name} and {name}, but another n_once or n_rec: the tables count "
            "parameters differently, which moves phi as a method does.",
            remedy="Count n_once and n_rec alike in both tables.",
        )


def _unlooped(base_name: str, base: RunTable, name: str, method: RunTable) -> Iterator[Finding]:
    """Say that one unlooped model has two losses: a method of the loop cannot have moved it."""
    ours, theirs = (table.select(table.recurrence == 1) for table in (base, method))
    changes = []
    for k in range(len(theirs)):
        same = np.ones(len(ours), dtype=bool)
        for column in ("n_once", "n_rec", "tokens"):
            same &= np.isclose(getattr(ours, column), getattr(theirs, column)[k], rtol=_SAME_SIZE)
        if same.any():
            change = theirs.val_loss[k] - ours.val_loss[same]
            changes.append(float(change[np.argmin(np.abs(change))]))
    if not changes or not any(changes):
        return
    size = 1e3 * float(np.mean(np.abs(changes)))
    mean = 1e3 * float(np.mean(changes))
    yield Finding(
        "unlooped_runs_differ",
        "note",
        f"At r = 1 {base_name} and {name} have runs of the same parameters and tokens, but their "
        f"losses differ by {size:.1f} mnats ({mean:+.1f} on average over {len(changes)} runs). A "
        "method of the loop changes nothing there, so the base is not shared: seeds, or something "
        "besides the loop, differ, and the change of phi and g holds that too.",
        remedy="Use the same r = 1 runs in both tables where only the loop was changed; another "
        "seed moves a loss by about 1 mnat.",
        evidence={"runs": len(changes), "mean_abs": size / 1e3, "mean": mean / 1e3},
    )


def _recipe_changes(base: RunTable, method: RunTable) -> Iterator[str]:
    for field in _RECIPE_FIELDS:
        ours, theirs = (
            {getattr(spec, field) for spec in table.specs if spec is not None}
            for table in (base, method)
        )
        if ours and theirs and ours != theirs:
            yield f"{field} ({_words(ours)} against {_words(theirs)})"
    ours, theirs = (
        {int(batch) for batch in table.batch_tokens if np.isfinite(batch)}
        for table in (base, method)
    )
    if ours and theirs and ours != theirs:
        yield f"batch_tokens ({_words(ours)} against {_words(theirs)})"
    ours, theirs = (
        {value for value in table.labels.get("recipe", ()) if value is not None}
        for table in (base, method)
    )
    if ours and theirs and ours != theirs:
        yield f"recipe ({_words(ours)} against {_words(theirs)})"


def _words(values: set[Any]) -> str:
    return ", ".join(sorted(map(str, values))[:4])
