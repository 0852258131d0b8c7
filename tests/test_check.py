"""Every corruption of the zoo is caught with its rows, and no clean table raises an alarm."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from loopworth.check import KINDS, check
from loopworth.findings import Finding, RefusedTable
from loopworth.ledger import Convention
from loopworth.runs import load_runs
from loopworth.table.reading import read_bytes
from zoo import Entry, bare, built, clean_tables, direct, entries, thinned_tables

# What a random part of a grid may rightly be told: its holes, never a row.
OF_HOLES = {"missing_cells", "missing_control", "isoflop_opens_downwards", "two_recurrences"}


def codes(source: object) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for finding in check(source).findings:
        found.setdefault(finding.code, set()).update(finding.rows)
    return found


# --- the zoo


def test_the_zoo_is_large_and_covers_every_kind() -> None:
    assert len(entries()) >= 200
    assert len({entry.name for entry in entries()}) == len(entries())
    wanted = {code for entry in entries() for code in entry.codes}
    for kind in KINDS:
        if kind.key != "columns":  # tables that cannot be read are tested one by one below
            assert wanted & set(kind.codes), kind.key


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.name)
def test_a_corruption_is_caught_with_its_rows_and_nothing_else_is_blamed(entry: Entry) -> None:
    columns, rows = entry.make()
    report = check(columns)
    hits = [each for each in report.findings if each.code in entry.codes]
    assert hits
    assert {row for each in hits for row in each.rows} == rows
    others = {each.code for each in report.findings if each.severity != "note"}
    assert others <= {*entry.codes, *entry.also}


@pytest.mark.parametrize(("name", "source"), list(clean_tables(18)), ids=lambda x: str(x)[:40])
def test_a_clean_table_raises_no_alarm(name: str, source: object) -> None:
    report = check(source)
    assert [each for each in report.findings if each.severity != "note"] == []
    assert report.clean
    assert report.n_usable == report.n_rows


def test_a_part_of_a_clean_grid_blames_no_row() -> None:
    for name, table in thinned_tables(20):
        found = [each.code for each in check(table).findings if each.severity != "note"]
        assert set(found) <= OF_HOLES, name


# --- what a finding says


def test_every_finding_has_a_known_code_words_and_plain_evidence() -> None:
    known = {code for kind in KINDS for code in kind.codes}
    for entry in entries()[::7]:
        report = check(entry.make()[0])
        for finding in report.findings:
            assert finding.code in known, finding.code
            assert finding.message.endswith((".", "?")), finding.message
            assert finding.severity == "note" or finding.remedy
        json.dumps(report.to_json(), allow_nan=False)


def test_the_unit_of_a_loss_is_named_with_its_evidence() -> None:
    columns = built()
    for place in (3, 40, 77):
        columns["val_loss"][place] /= np.log(2) * 4.4
    (finding,) = [x for x in check(columns).findings if x.code == "loss_mixed_units"]
    assert finding.rows == (4, 41, 78)
    assert finding.severity == "error"
    assert "bits per byte are at 4.4 bytes a token" in finding.message
    predicted = np.array(finding.evidence["predicted_nats"])
    assert np.allclose(predicted, [load_runs("schwethelm2026").val_loss[p] for p in (3, 40, 77)],
                       rtol=0.02)  # fmt: skip


def test_a_unit_of_tokens_is_named_with_its_factor() -> None:
    columns = direct()
    columns["tokens"][10] /= 1e3
    (finding,) = [x for x in check(columns).findings if x.code == "mixed_units"]
    assert (finding.rows, finding.evidence["factor"]) == ((11,), 1e3)
    assert "thousands" in finding.message


def test_a_budget_a_little_off_says_by_how_much_and_stays() -> None:
    columns = built("tokens")
    columns["tokens"][30] *= 0.97
    report = check(columns)
    (finding,) = [x for x in report.findings if x.code == "budget_off_target"]
    assert (finding.severity, finding.rows) == ("note", (31,))
    assert "3 % below" in finding.message
    assert report.clean
    assert report.n_usable == 116


def test_wrong_flops_are_named_by_their_rule() -> None:
    columns = built()
    table = load_runs("schwethelm2026")
    unrolled = table.n_once + table.recurrence * table.n_rec
    columns["tokens"] = (table.budget_flops / (6 * unrolled)).tolist()
    (finding,) = [x for x in check(columns).findings if x.code == "tokens_from_6nd"]
    assert finding.evidence["equals"] == "6 x unrolled parameters x tokens"
    assert finding.severity == "warning"


def test_diverged_rows_do_not_hide_under_tuned_ones() -> None:
    columns = built()
    columns["val_loss"][50] = 9.0
    columns["val_loss"][70] += 0.5
    columns["val_loss"][90] += 0.1
    found = codes(columns)
    assert found["diverged_runs"] == {51, 71}
    assert found["under_tuned"] == {91}


def test_checkpoints_are_not_blamed_for_their_loss_or_their_budget() -> None:
    columns = built("tokens")
    for name, values in columns.items():
        values.append(values[60])
        if name == "tokens":
            values[-1] *= 0.5
        if name == "val_loss":
            values[-1] += 0.2
    report = check(columns)
    assert [x.code for x in report.findings if x.severity != "note"] == ["checkpoints_suspected"]
    assert report.findings[0].rows == (61, 117)


def test_rows_that_a_run_id_tells_apart_are_believed() -> None:
    columns = bare() | {"run_id": [f"r{i}" for i in range(116)], "_step": list(range(1, 117))}
    assert "checkpoints_suspected" not in codes(columns)


# --- order, verdict, what was looked at


def test_units_come_before_identifiability(shared_data: Path) -> None:
    report = check(shared_data / "looped_nanochat_log.csv")
    errors = [x.code for x in report.findings if x.severity == "error"]
    assert errors == ["loss_in_bits", "parameters_ambiguous", "fixed_unique_parameters"]
    assert report.verdict.startswith("Refused: loss_in_bits")
    assert report.findings[0].rows == tuple(range(1, 8))
    report = check(shared_data / "parcae_table5.csv")
    errors = [x.code for x in report.findings if x.severity == "error"]
    assert errors == ["loss_is_perplexity", "parameters_ambiguous",
                      "tokens_proportional_to_parameters"]  # fmt: skip


def test_a_perplexity_that_its_loss_contradicts_names_the_rows(shared_data: Path) -> None:
    text = (shared_data / "parcae_table5.csv").read_text().replace("2.5249283241", "2.6249283241")
    raw = read_bytes(text.encode(), name="t", source="t.csv")
    (finding,) = [x for x in check(raw.columns).findings if x.code == "losses_disagree"]
    assert finding.rows == (6,)
    assert finding.evidence["loss_minus_log_perplexity"] == [0.1]


def test_a_dense_ladder_is_looked_at_and_gives_its_seed_noise(shared_data: Path) -> None:
    report = check(shared_data / "olmo_ladder.csv")
    assert report.seed_noise is not None
    assert 0.0005 <= report.seed_noise.nats <= 0.001
    assert (report.seed_noise.dof, report.seed_noise.labelled) == (5, True)
    found = {x.code: x.severity for x in report.findings}
    assert found["read_as_unlooped"] == found["seed_noise"] == "note"
    assert [code for code, severity in found.items() if severity != "note"] == ["one_recurrence"]
    with pytest.raises(RefusedTable, match="N may be unique"):
        load_runs(shared_data / "olmo_ladder.csv")


def test_what_cannot_be_read_at_all_is_a_report_too(shared_data: Path) -> None:
    report = check(shared_data / "nanochat_counting.csv")
    assert [x.code for x in report.findings] == ["columns_missing"]
    assert report.n_usable == 0
    assert report.passed == ()
    assert {why for _, why in report.not_checked} == {"no row could be read"}


def test_nothing_usable_is_a_report_too() -> None:
    report = check(direct() | {"val_loss": [None] * 116})
    (finding,) = report.findings
    assert (finding.code, finding.rows) == ("no_usable_rows", tuple(range(1, 117)))


def test_seed_noise_of_simulated_reruns_is_found_again() -> None:
    columns = direct() | {"seed": ["0"] * 116}
    rng = np.random.default_rng(3)
    for place in range(40):
        for name, values in columns.items():
            change = {"val_loss": rng.normal(0, 0.002), "seed": "1"}.get(name)
            values.append(values[place] + change if name == "val_loss" else change or values[place])
    noise = check(columns).seed_noise
    assert noise is not None
    assert (noise.dof, noise.groups, noise.labelled) == (40, 40, True)
    assert noise.nats == pytest.approx(0.002 / np.sqrt(2), rel=0.25)


def test_a_run_table_keeps_its_row_numbers_and_its_convention() -> None:
    table = load_runs("schwethelm2026:hyperconnections", convention=Convention("once"))
    report = check(table, convention=Convention("once"))
    assert report.clean
    assert "injection once" in report.convention
    moved = load_runs(built() | {"val_loss": [float("nan"), *built()["val_loss"][1:]]})
    assert codes(moved)["not_finite"] == {1}


def test_the_source_is_not_changed() -> None:
    columns = direct()
    before = {name: list(values) for name, values in columns.items()}
    columns["val_loss"] = np.exp(columns["val_loss"])
    columns["val_loss"].setflags(write=False)
    assert check(columns).verdict.startswith("Refused: loss_is_perplexity")
    assert np.array_equal(columns["val_loss"], np.exp(before["val_loss"]))


def test_few_rows_are_not_judged_by_a_law() -> None:
    columns = {name: values[:8] for name, values in direct().items()}
    report = check(columns)
    assert "tuning" in {kind.key for kind, _ in report.not_checked}
    assert "tuning" not in {kind.key for kind in report.passed}


def test_a_refused_table_carries_its_findings() -> None:
    finding = Finding("loss_is_perplexity", "error", "It is.", (2,), "Take ln.", {"median": 17.0})
    assert RefusedTable(finding).findings == (finding,)
    with pytest.raises(RefusedTable) as refused:
        load_runs(direct() | {"val_loss": [17.0] * 116})
    assert refused.value.findings[0].code == "loss_is_perplexity"
    assert hash(finding) == hash(Finding("loss_is_perplexity", "error", "It is.", (2,), "Take ln."))
