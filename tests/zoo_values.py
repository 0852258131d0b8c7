"""Zoo: values that cannot be, rows written twice, and numbers in other units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from zoo_base import LN2, Columns, Rows, append, bare, built, direct, entry, over, pick, put, times

# --- 1. values that cannot be


def _value(name: str, value: Any) -> Callable[..., tuple[Columns, Rows]]:
    def build(rng: np.random.Generator) -> tuple[Columns, Rows]:
        columns = direct()
        return columns, put(columns, name, pick(rng, columns, 2), lambda _: value)

    return build


for _name, _value_, _code in (
    ("val_loss", float("nan"), "not_finite"),
    ("val_loss", "inf", "not_finite"),
    ("val_loss", None, "missing_value"),
    ("val_loss", -2.7, "not_positive"),
    ("val_loss", "crashed", "not_a_number"),
    ("recurrence", 0, "recurrence_below_one"),
    ("tokens", -1e9, "not_positive"),
    ("n_rec", 1e40, "too_large"),
):
    entry(f"{_name} {_value_}", "non-finite", _code)(_value(_name, _value_))


# --- 2. duplicates and conflicts


@entry("rows written twice", "duplicates", "exact_duplicates", 1, 6)
def _(rng: np.random.Generator, count: int) -> tuple[Columns, Rows]:
    columns = built()
    return columns, {append(columns, place) for place in pick(rng, columns, count)}


@entry("a row written twice, rounded", "duplicates", "near_duplicates", also="budget_off_target")
def _(rng: np.random.Generator) -> tuple[Columns, Rows]:
    columns = direct()
    (place,) = pick(rng, columns, 1)
    tokens, loss = columns["tokens"][place], columns["val_loss"][place]
    row = append(columns, place, tokens=tokens * 1.002, val_loss=round(loss, 2))
    return columns, {place + 1, row}


@entry("one configuration, two losses", "duplicates", "same_configuration replicates_disagree",
        0.003, 0.1, also="seed_noise under_tuned")  # fmt: skip
def _(rng: np.random.Generator, nats: float) -> tuple[Columns, Rows]:
    columns = direct()
    (place,) = pick(rng, columns, 1)
    row = append(columns, place, val_loss=columns["val_loss"][place] + nats)
    return columns, {place + 1, row}


# --- 3. units


def _with_tokens() -> Columns:
    return built("tokens")


for _factor in (1e3, 1e6, 1e9):
    for _share in (1, 0.33, 0.5, 0.66):
        for _base in (direct, bare, _with_tokens):
            entry(f"tokens of {_share} rows / {_factor:g}, {_base.__name__}", "units",
                   "mixed_units")(times("tokens", over(_factor), _share, _base))  # fmt: skip
    for _share in (1, 0.5):
        for _base in (direct, bare):
            entry(f"parameters of {_share} rows / {_factor:g}, {_base.__name__}", "units",
                   "mixed_units")(
                times("n_once n_rec", over(_factor), _share, _base))  # fmt: skip
    for _base in (direct, bare, _with_tokens):
        entry(f"all tokens / {_factor:g}, {_base.__name__}", "units",
               "unit_suspected")(times("tokens", over(_factor), 1.0, _base))  # fmt: skip
    for _base in (direct, bare):
        entry(f"all parameters / {_factor:g}, {_base.__name__}", "units",
               "unit_suspected")(times("n_once n_rec", over(_factor), 1.0, _base))  # fmt: skip
    # A millionth of a budget pays for no step of training, so its tokens cannot be derived.
    entry(f"some budgets / {_factor:g}, architecture", "units", "mixed_units invalid_architecture")(
        times("budget_flops", over(_factor), 0.3, built))  # fmt: skip
    entry(f"all budgets / {_factor:g}, direct", "units", "unit_suspected")(
        times("budget_flops", over(_factor), 1.0, direct))  # fmt: skip
entry("all sizes / 1000, direct", "units", "unit_suspected")(
    times("n_once n_rec tokens", over(1e3), 1.0, direct))  # fmt: skip


@entry("n_rec of looped rows / 1000", "units", "mixed_units", 1, 6)
def _(rng: np.random.Generator, count: int) -> tuple[Columns, Rows]:
    columns = direct()
    looped = [i for i, r in enumerate(columns["recurrence"]) if r > 1]
    places = sorted(rng.choice(looped, count, replace=False).tolist())
    return columns, put(columns, "n_rec", places, lambda x: x / 1e4)


for _base in (built, direct, bare):
    for _share in (1, 6, 0.33, 0.5, 1.0):
        _many = "all" if _share == 1.0 and isinstance(_share, float) else str(_share)
        _where = f"{_many} losses, {_base.__name__}"
        entry(f"perplexity in {_where}", "loss units", "loss_mixed_units loss_is_perplexity")(
            times("val_loss", lambda x: float(np.exp(x)), _share, _base))  # fmt: skip
        entry(f"bits per byte in {_where}", "loss units", "loss_mixed_units loss_below_one")(
            times("val_loss", over(LN2 * 4.4), _share, _base))  # fmt: skip
        entry(f"nats per character in {_where}", "loss units",
               "loss_mixed_units loss_below_one")(
            times("val_loss", over(4.8), _share, _base))  # fmt: skip
        if _many != "all":  # where all rows share it no check can tell, and phi does not change
            entry(f"bits per token in {_where}", "loss units", "loss_mixed_units")(
                times("val_loss", over(LN2), _share, _base))  # fmt: skip


@entry("stated in bits", "loss units", "loss_unit_not_nats")
def _(rng: np.random.Generator) -> tuple[Columns, Rows]:
    columns = direct()
    return columns | {"loss_unit": ["bits"] * 116}, set(range(1, 117))
