"""Comparing tables: what is drawn together, and what is said about how tables differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loopworth.compare import compare
from loopworth.compare.pairing import Pairing, pair, shared_rows
from loopworth.law import fit
from loopworth.runs import load_runs

NAMES = ("baseline_lower", "truncated_bptt", "hyperconnections")
BASE, TRUNCATED, HYPER = (load_runs(f"schwethelm2026:{name}") for name in NAMES)


def codes(found: Any) -> list[str]:
    return [finding.code for finding in found]


class TestPairing:
    PAIRED: Pairing = pair([BASE, TRUNCATED, HYPER], law="power")

    def test_cells_of_one_budget_and_recurrence_are_drawn_together(self) -> None:
        weights = self.PAIRED.resample(20, seed=1)
        drawn: dict[tuple[float, float], np.ndarray] = {}
        for table, part in zip(self.PAIRED.tables, weights, strict=True):
            assert part.shape == (20, len(table))
            for k, key in enumerate(zip(table.budgets, table.recurrence, strict=True)):
                np.testing.assert_array_equal(part[:, k], drawn.setdefault(key, part[:, k]))
        assert len(drawn) == self.PAIRED.cell_count == 16
        np.testing.assert_array_equal(sum(drawn.values()), 16.0)

    def test_shared_rows_share_weights(self) -> None:
        weights = self.PAIRED.resample(20, seed=1)
        for k, method in ((1, TRUNCATED), (2, HYPER)):
            shared = shared_rows(BASE, method)
            np.testing.assert_array_equal(shared, method.recurrence == 1)
            for row in method.rows[shared]:
                ours, theirs = BASE.rows == row, method.rows == row
                np.testing.assert_array_equal(weights[0][:, ours], weights[k][:, theirs])

    def test_equal_cells_give_the_interval_of_fit(self) -> None:
        # One table with the cells of all: its resamples are those of `fit` at the same seed.
        alone = fit(BASE, bootstrap=60, seed=3)
        found = compare(BASE, HYPER, bootstrap=60, seed=3)
        assert alone.phi is not None
        np.testing.assert_allclose(found.base_gain["phi"].ci95, alone.phi.ci95, rtol=1e-6)

    def test_a_cell_that_one_table_lacks_counts_among_all(self) -> None:
        lacking = HYPER.select(~((HYPER.recurrence == 8) & (HYPER.budgets > 4e18)))
        paired = pair([BASE, lacking], law="power")
        assert paired.cell_count == 16
        assert len(set(paired.cells[1].tolist())) == 15
        # Drawing the lacking cell leaves that resample one block short.
        first = [int(np.flatnonzero(paired.cells[1] == c)[0]) for c in set(paired.cells[1])]
        sums = paired.resample(200, 0)[1][:, first].sum(axis=1)
        assert sums.max() == 16
        assert sums.min() < 15

    def test_only_shared_budgets_are_kept_unless_asked(self) -> None:
        whole = load_runs("schwethelm2026")
        paired = pair([whole, HYPER], law="power")
        np.testing.assert_array_equal(paired.tables[0].rows, BASE.rows)
        assert codes(paired.findings) == ["budgets_left_out"]
        assert "36 runs of schwethelm2026 at 1e19 and 2.15e19" in paired.findings[0].message
        every = pair([whole, HYPER], law="power", all_budgets=True)
        assert len(every.tables[0]) == 116
        assert every.largest == paired.largest == 4.64e18

    def test_budgets_a_little_off_are_the_same_budget(self) -> None:
        columns = HYPER.to_columns()
        columns["budget_flops"] = [1.02 * x for x in columns["budget_flops"]]
        paired = pair([BASE, load_runs(columns)], law="power")
        assert paired.cell_count == 16
        assert paired.findings == ()

    def test_checkpoints_of_a_run_are_one_cell(self) -> None:
        columns = BASE.to_columns()
        columns["run_id"] = ["a" if k < 3 else f"run {k}" for k in range(len(BASE))]
        paired = pair([load_runs(columns), HYPER], law="power")
        assert paired.cell_count == 17
        assert len(set(paired.cells[0][:3].tolist())) == 1

    def test_equal_names_are_told_apart(self) -> None:
        assert pair([BASE, BASE, BASE], law="power").names == (
            "baseline_lower",
            "baseline_lower (2)",
            "baseline_lower (3)",
        )


class TestFindings:
    def test_other_recurrences_are_named_on_both_sides(self) -> None:
        fewer = HYPER.select(HYPER.recurrence != 2)
        found = compare(BASE, fewer, bootstrap=0)
        (finding,) = (x for x in found.findings if x.code == "recurrences_differ")
        assert "r = 1, 2, 4 and 8" in finding.message
        assert "r = 1, 4 and 8" in finding.message
        assert [row.recurrence for row in found.methods[0].delta_g] == [4.0, 8.0]

    @pytest.mark.parametrize(
        ("column", "value", "words"),
        [("vocab_size", 65536, "32064 against 65536"), ("recipe", "muon", "adamw against muon")],
    )
    def test_other_recipes_warn(self, column: str, value: Any, words: str) -> None:
        tables = []
        for runs, label in ((BASE, "adamw"), (HYPER, value)):
            columns = runs.to_columns()
            if column == "recipe" or runs is HYPER:
                columns[column] = [label] * len(runs)
            tables.append(load_runs(columns))
        (finding,) = (x for x in pair(tables, law="power").findings if x.severity == "warning")
        assert finding.code == "recipes_differ"
        assert words in finding.message

    def test_few_cells_warn(self) -> None:
        small = [runs.select(runs.budgets < 2e18) for runs in (BASE, HYPER)]
        found = compare(*small, bootstrap=40, without_recurrence=[4])
        assert found.cells == 6
        assert "few_cells" in codes(found.findings)


def test_another_batch_is_another_recipe() -> None:
    """Tokens a step differ; what one side does not tell is not held against the other."""
    for batch, said in ((2**19, True), (2**18, False), (None, False)):
        columns = HYPER.to_columns() | {"batch_tokens": [batch] * len(HYPER)}
        found = pair([BASE, load_runs(columns)], law="power").findings
        differing = [x for x in found if x.code == "recipes_differ"]
        assert bool(differing) == said
        if said:
            assert "batch_tokens (262144 against 524288)" in differing[0].message
