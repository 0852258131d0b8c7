"""What a design cannot identify is said by name; a sound design has no finding."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loopworth.datasets import builtin_names
from loopworth.runs import load_runs
from loopworth.table.design import design_findings


def codes(columns: dict[str, Any]) -> list[str]:
    return [each.code for each in design_findings(load_runs(columns))]


def design(**changes: Any) -> dict[str, Any]:
    """Two sizes, two token counts, three recurrences: sound."""
    grid = [(n, t, r) for n in (1e7, 4e7) for t in (1e9, 4e9) for r in (1, 2, 4)]
    size, tokens, recurrence = (np.array(column) for column in zip(*grid, strict=True))
    columns = {"n_once": size, "n_rec": size, "recurrence": recurrence, "tokens": tokens,
               "val_loss": 2 + 1e7 / size / recurrence + 1e9 / tokens}  # fmt: skip
    return {name: change(columns) for name, change in changes.items()} | {
        name: values for name, values in columns.items() if name not in changes
    }


def test_a_sound_design_has_no_finding() -> None:
    assert codes(design()) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"recurrence": lambda c: 0 * c["tokens"] + 1}, ["one_recurrence"]),
        ({"recurrence": lambda c: 0 * c["tokens"] + 4}, ["one_recurrence"]),
        ({"recurrence": lambda c: np.minimum(c["recurrence"], 2)}, ["two_recurrences"]),
        ({"recurrence": lambda c: c["recurrence"] + 1}, ["no_unlooped_runs"]),
        ({"budget_flops": lambda c: 0 * c["tokens"] + 1e18}, ["single_budget"]),
        ({"tokens": lambda c: 0 * c["tokens"] + 1e9}, ["one_token_count"]),
        ({"tokens": lambda c: 40 * c["n_rec"]}, ["tokens_proportional_to_parameters"]),
    ],
)
def test_a_design_that_leaves_something_open(changes: Any, expected: list[str]) -> None:
    assert codes(design(**changes)) == expected


def test_fixed_unique_parameters() -> None:
    fixed = {name: (lambda c: 0 * c["tokens"] + 1e7) for name in ("n_once", "n_rec")}
    assert codes(design(**fixed)) == ["fixed_unique_parameters"]
    columns = design(budget_flops=lambda c: c["n_once"] * 1e10)
    assert "fixed_unique_parameters" in codes(columns)


def test_fewer_rows_than_parameters() -> None:
    columns = {name: values[[0, 2, 4, 7, 9]] for name, values in design().items()}
    assert codes(columns) == ["fewer_rows_than_parameters"]


def test_the_shared_examples_of_bad_designs(shared_data: Path) -> None:
    pd = pytest.importorskip("pandas")
    log = pd.read_csv(shared_data / "looped_nanochat_log.csv")
    columns = {"n_once": log.N / 2, "n_rec": log.N / 2, "recurrence": log.r, "tokens": log.D,
               "val_loss": log.val_bpb, "budget_flops": log.C}  # fmt: skip
    assert codes(columns) == ["fixed_unique_parameters"]
    parcae = pd.read_csv(shared_data / "parcae_table5.csv")
    columns = {"n_once": parcae.N / 2, "n_rec": parcae.N / 2, "recurrence": parcae.r,
               "tokens": parcae.D, "val_loss": parcae.loss}  # fmt: skip
    assert set(codes(columns)) == {"two_recurrences", "tokens_proportional_to_parameters"}
    with pytest.raises(ValueError, match="looks like perplexity"):
        load_runs(columns | {"val_loss": parcae.val_ppl})
    ladder = pd.read_csv(shared_data / "olmo_ladder.csv")
    columns = {"n_once": 0 * ladder.N, "n_rec": ladder.N, "recurrence": 0 * ladder.N + 1,
               "tokens": ladder.D, "val_loss": ladder.loss_c4}  # fmt: skip
    got = load_runs(columns)
    assert len(got) == 30
    assert [each.code for each in got.findings if each.severity == "warning"] == [
        "same_configuration"
    ]
    assert codes(columns) == ["one_recurrence"]


@pytest.mark.parametrize("name", builtin_names())
def test_the_built_in_studies_are_sound_designs(name: str) -> None:
    assert design_findings(load_runs(name)) == ()
