"""Zoo: checkpoints, mixtures of recipes and methods, and designs that identify nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from loopworth.datasets import read_builtin
from loopworth.runs import load_runs
from zoo_base import Columns, Rows, append, bare, built, direct, drop, entry, law_of, pick, put

# --- 7. checkpoints


@entry("checkpoints with a run_id", "checkpoints", "checkpoints_of_one_run", 1, 4,
        also="budget_disagrees")  # fmt: skip
def _(rng: np.random.Generator, count: int) -> tuple[Columns, Rows]:
    columns = built("tokens") | {"run_id": [f"run{i}" for i in range(116)]}
    return columns, _checkpoints(columns, pick(rng, columns, count), (0.5, 0.75))


@entry("checkpoints at one budget", "checkpoints", "checkpoints_suspected", 1, 4)
def _(rng: np.random.Generator, count: int) -> tuple[Columns, Rows]:
    columns = built("tokens")
    return columns, _checkpoints(columns, pick(rng, columns, count), (0.25, 0.5, 0.9))


@entry("checkpoints at one budget, direct", "checkpoints", "checkpoints_suspected", 3)
def _(rng: np.random.Generator, count: int) -> tuple[Columns, Rows]:
    columns = direct()
    return columns, _checkpoints(columns, pick(rng, columns, count), (0.5,))


@entry("checkpoints by a step column", "checkpoints", "checkpoints_suspected")
def _(rng: np.random.Generator) -> tuple[Columns, Rows]:
    columns = bare()
    columns["_step"] = [round(x / 2**18) for x in columns["tokens"]]
    (place,) = pick(rng, columns, 1)
    return columns, _checkpoints(columns, [place], (0.25, 0.5, 0.75))


def _checkpoints(columns: Columns, places: list[int], shares: tuple[float, ...]) -> Rows:
    """Append earlier points of runs, above their final loss as points inside a schedule are."""
    rows = {place + 1 for place in places}
    for place in places:
        for share in shares:
            changes = {
                "tokens": columns["tokens"][place] * share,
                "val_loss": columns["val_loss"][place] + 0.35 * (1 - share),
            }
            if "_step" in columns:
                changes["_step"] = columns["_step"][place] * share
            rows.add(append(columns, place, **changes))
    return rows


# --- 8. mixtures


def _labels(rng: np.random.Generator, columns: Columns, usual: str, other: str) -> tuple[Any, Rows]:
    places = set(pick(rng, columns, 20))
    labels = [other if i in places else usual for i in range(len(columns["val_loss"]))]
    return labels, {place + 1 for place in places}


@entry("two recipes", "mixtures", "mixed_recipes", "muon", "adamw")
def _(rng: np.random.Generator, other: str) -> tuple[Columns, Rows]:
    columns = built()
    labels, rows = _labels(rng, columns, "ours", other)
    return columns | {"recipe": labels}, rows


@entry("two vocabularies", "mixtures", "mixed_vocabularies", "50304",
        also="under_tuned below_the_law")  # fmt: skip
def _(rng: np.random.Generator, other: str) -> tuple[Columns, Rows]:
    columns = built("tokens")
    del columns["budget_flops"]
    labels, rows = _labels(rng, columns, "32064", other)
    return columns | {"vocab_size": [float(x) for x in labels]}, rows


@entry("two injections", "mixtures", "mixed_methods", "additive")
def _(rng: np.random.Generator, other: str) -> tuple[Columns, Rows]:
    columns = built("tokens")
    looped = [i for i, r in enumerate(columns["recurrence"]) if r > 1]
    places = rng.choice(looped, 15, replace=False).tolist()
    del columns["budget_flops"]
    return columns, put(columns, "injection", places, lambda _: other)


@entry("three studies in one file", "mixtures", "mixed_methods")
def _(rng: np.random.Generator) -> tuple[Columns, Rows]:
    tables = [read_builtin(f"schwethelm2026:{study}") for study in ("baseline", "hyperconnections")]
    columns: Columns = {name: [] for name in tables[0].columns}
    for number, table in enumerate(tables):
        for i in range(len(table)):
            if number == 0 or table.columns["study"][i] != "baseline":
                for name in columns:
                    columns[name].append(table.columns[name][i])
    return columns, set(range(117, 180))


@entry("seeds of some rows differ", "mixtures", "several_seeds", 2)
def _(rng: np.random.Generator, seed: int) -> tuple[Columns, Rows]:
    columns = built()
    labels, rows = _labels(rng, columns, "1", str(seed))
    return columns | {"seed": labels}, rows


@entry("two loss sources", "mixtures", "mixed_loss_sources", "log")
@entry("another validation set", "mixtures", "label_shift", 0.015, 0.03,
        also="under_tuned below_the_law isoflop_opens_downwards")  # fmt: skip
def _(rng: np.random.Generator, how: Any) -> tuple[Columns, Rows]:
    columns = built()
    labels, rows = _labels(rng, columns, "final", "log")
    if isinstance(how, float):
        put(columns, "val_loss", sorted(row - 1 for row in rows), lambda x: x - how)
    return columns | {"loss_source": labels}, rows


# --- 9. designs that identify nothing, which concern no single row


def _only(chosen: Callable[[Any], Any]) -> Columns:
    table = load_runs("schwethelm2026")
    kept = table.select(chosen(table)).to_columns()
    return {name: list(kept[name]) for name in direct()}


def _jittered(rng: np.random.Generator, columns: Columns, name: str) -> Columns:
    """Keep configurations apart that an overwritten column would make the same."""
    return columns | {name: [x * float(np.exp(rng.normal(0, 0.2))) for x in columns[name]]}


@entry("unlooped runs only", "design", "one_recurrence")
def _(rng: np.random.Generator) -> tuple[Columns, Rows]:
    return _only(lambda t: t.recurrence == 1), set()


@entry("two recurrences", "design", "two_recurrences")
def _(rng: np.random.Generator) -> tuple[Columns, Rows]:
    return _only(lambda t: t.recurrence <= 2), set()


@entry("one budget", "design", "single_budget")
def _(rng: np.random.Generator) -> tuple[Columns, Rows]:
    return _only(lambda t: t.budgets == t.budgets[40]), set()


@entry("one token count", "design", "one_token_count", also="budgets_chained near_duplicates")
def _(rng: np.random.Generator) -> tuple[Columns, Rows]:
    columns = law_of(_jittered(rng, bare(), "n_rec") | {"tokens": [4e9] * 116}, rng)
    return columns, set()


@entry("tokens proportional to parameters", "design", "tokens_proportional_to_parameters",
        also="budgets_chained near_duplicates")  # fmt: skip
def _(rng: np.random.Generator) -> tuple[Columns, Rows]:
    columns = _jittered(rng, bare(), "n_rec")
    columns["tokens"] = [20 * (a + b) for a, b in zip(columns["n_once"], columns["n_rec"],
                                                      strict=True)]  # fmt: skip
    return law_of(columns, rng), set()


@entry("one size", "design", "fixed_unique_parameters", also="budgets_chained near_duplicates")
def _(rng: np.random.Generator) -> tuple[Columns, Rows]:
    columns = _jittered(rng, bare(), "tokens") | {"n_once": [2e7] * 116, "n_rec": [6e7] * 116}
    return law_of(columns, rng), set()


# --- 10. losses that no law can be read from


@entry("one loss", "scatter", "losses_all_equal", 2.7, 3.0)
def _(rng: np.random.Generator, loss: float) -> tuple[Columns, Rows]:
    return direct("budget_flops") | {"val_loss": [loss] * 116}, set(range(1, 117))


@entry("noise of nats", "scatter", "noise_hides_phi law_explains_little", 0.1, 0.2)
def _(rng: np.random.Generator, nats: float) -> tuple[Columns, Rows]:
    return law_of(direct("budget_flops"), rng, seed=nats), set()


@entry("losses of other rows", "scatter", "law_explains_little", also="isoflop_opens_downwards")
def _(rng: np.random.Generator) -> tuple[Columns, Rows]:
    columns = direct("budget_flops")
    return columns | {"val_loss": rng.permutation(columns["val_loss"]).tolist()}, set()


@entry("four rows", "design", "fewer_rows_than_parameters", also="one_recurrence single_budget")
def _(rng: np.random.Generator) -> tuple[Columns, Rows]:
    return drop(bare(), set(range(4, 116))), set()
