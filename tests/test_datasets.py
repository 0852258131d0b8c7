"""The built-in table is the shared one, whole, clean and counted as published."""

import json
from pathlib import Path

import numpy as np
import pytest

from loopworth.datasets import CITATION, builtin_names, published, read_builtin
from loopworth.ledger import Convention
from loopworth.runs import load_runs

FOLDER = Path(__file__).resolve().parents[1] / "src" / "loopworth" / "datasets"


@pytest.mark.parametrize("name", ["schwethelm2026_runs.csv", "schwethelm2026_published.json"])
def test_files_are_copies_of_the_shared_ones(shared_data: Path, name: str) -> None:
    assert (FOLDER / name).read_bytes() == (shared_data / name).read_bytes()


@pytest.mark.parametrize(
    ("name", "runs", "cells"),
    [
        ("schwethelm2026", 116, 24),
        ("schwethelm2026:baseline", 116, 24),
        ("schwethelm2026:baseline_lower", 80, 16),
        ("schwethelm2026:truncated_bptt", 83, 16),
        ("schwethelm2026:hyperconnections", 83, 16),
    ],
)
def test_every_study_loads_without_a_finding(name: str, runs: int, cells: int) -> None:
    table = load_runs(name)
    assert (len(table), len(set(table.cells.tolist()))) == (runs, cells)
    assert table.findings == ()
    assert table.citation == CITATION
    assert table.name == name


def test_every_builtin_name_is_listed_and_loads() -> None:
    assert [len(read_builtin(name)) for name in builtin_names()] == [116, 116, 80, 83, 83]


@pytest.mark.parametrize("study", ["truncated_bptt", "hyperconnections"])
def test_a_study_shares_the_unlooped_runs_of_the_lower_baseline(study: str) -> None:
    table = load_runs(f"schwethelm2026:{study}")
    lower = load_runs("schwethelm2026:baseline_lower")
    shared = table.rows[table.recurrence == 1]
    assert shared.tolist() == lower.rows[lower.recurrence == 1].tolist()
    assert len(shared) == 20
    assert {table.study[place] for place in np.flatnonzero(table.recurrence > 1)} == {study}
    assert table.budgets.max() == 4.64e18


def test_budgets_stay_as_published() -> None:
    budgets = np.unique(load_runs("schwethelm2026").budgets)
    assert budgets.tolist() == [4.64e17, 1e18, 2.15e18, 4.64e18, 1e19, 2.15e19]


@pytest.mark.parametrize("injection", ["recurrent", "once"])
def test_unique_parameters_and_flops_are_the_published_ones(injection: str) -> None:
    table = load_runs("schwethelm2026").under(Convention(injection))  # type: ignore[arg-type]
    expected = {(cell["s"] * 64, cell["r"]): cell for cell in published()["architectures"]}
    for place, spec in enumerate(table.specs):
        assert spec is not None
        cell = expected[spec.d_model, table.recurrence[place]]
        assert table.n_once[place] + table.n_rec[place] == cell["unique_params"]
        assert table.train_flops_per_token[place] == pytest.approx(
            cell["train_flops_per_token"], rel=5e-5
        )


def test_tokens_are_whole_steps_of_the_budget() -> None:
    table = load_runs("schwethelm2026")
    steps = table.tokens / 2**18
    assert np.array_equal(steps, np.round(steps))
    spent = table.tokens * table.train_flops_per_token
    assert np.abs(spent / table.budget_flops - 1).max() < 0.001


def test_an_unknown_study_is_refused_with_the_names() -> None:
    with pytest.raises(ValueError, match=r"no study 'hyper'.*baseline_lower.*hyperconnections"):
        load_runs("schwethelm2026:hyper")


def test_published_numbers_are_a_fresh_copy() -> None:
    published()["joint"]["phi"] = 0
    assert published()["joint"]["phi"] == 0.459
    assert json.dumps(published())
