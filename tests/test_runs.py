"""A run table is the same from any source, read-only, and recounts its parameters exactly."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopworth.check import check
from loopworth.ledger import Convention, ledger
from loopworth.runs import RunTable, load_runs
from loopworth.spec import ModelSpec

ONCE = Convention("once")


@pytest.fixture(scope="module")
def table() -> RunTable:
    return load_runs("schwethelm2026")


def direct(table: RunTable, *more: str) -> dict[str, list[Any]]:
    names = ("n_once", "n_rec", "recurrence", "tokens", "val_loss", *more)
    columns = table.to_columns()
    return {name: columns[name] for name in names}


def numbers(table: RunTable) -> set[tuple[float, ...]]:
    arrays = (table.n_once, table.n_rec, table.recurrence, table.tokens, table.val_loss)
    return set(zip(*(array.tolist() for array in arrays), table.budgets.tolist(), strict=True))


ROWS = st.lists(
    st.tuples(
        st.floats(1e6, 1e9),
        st.floats(1e6, 1e9),
        st.sampled_from([1.0, 2.0, 4.0, 2.5]),
        st.floats(1e8, 1e11),
        st.floats(2.0, 2.8),
    ),
    min_size=2,
    max_size=12,
)
FIELDS = ("n_once", "n_rec", "recurrence", "tokens", "val_loss")


@given(rows=ROWS, order=st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_change_the_numbers(rows: list[Any], order: Any) -> None:
    shuffled = list(rows)
    order.shuffle(shuffled)
    one = load_runs([dict(zip(FIELDS, row, strict=True)) for row in rows])
    two = load_runs([dict(zip(FIELDS, row, strict=True)) for row in shuffled])
    assert numbers(one) == numbers(two)
    assert len(set(one.cells.tolist())) == len(set(two.cells.tolist()))


@given(rows=ROWS)
def test_every_format_gives_the_same_table(
    rows: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    folder = tmp_path_factory.mktemp("formats")
    frame = pd.DataFrame(rows, columns=list(FIELDS))
    frame.to_csv(folder / "t.csv", index=False)
    frame.to_csv(folder / "t.tsv", sep="\t")
    frame.to_parquet(folder / "t.parquet")
    records = [dict(zip(FIELDS, row, strict=True)) for row in rows]
    (folder / "t.jsonl").write_text("\n".join(json.dumps(record) for record in records))
    (folder / "t.json").write_text(json.dumps(records))
    expected = load_runs(records)
    sources = [frame, frame.convert_dtypes(), frame.astype(str), *sorted(folder.iterdir())]
    for source in sources:
        got = load_runs(source)
        assert got.digest == expected.digest, source
        assert got.cells.tolist() == expected.cells.tolist()
        assert [each.code for each in got.findings] == [each.code for each in expected.findings]


def test_the_file_is_left_as_it_is(table: RunTable, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    table.to_frame().to_csv(path, index=False)
    before = path.read_bytes(), path.stat().st_mtime_ns
    load_runs(path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_arrays_are_read_only_and_sources_may_be(table: RunTable) -> None:
    for name in ("rows", "recurrence", "tokens", "val_loss", "n_once", "cells", "budgets"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(table, name)[0] = 1
    columns = {name: np.array(values) for name, values in direct(table).items()}
    for values in columns.values():
        values.setflags(write=False)
    assert load_runs(columns).val_loss.tolist() == table.val_loss.tolist()


def test_nullable_columns_of_pandas(table: RunTable) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(direct(table, "budget_flops")).convert_dtypes()
    frame.loc[3, "val_loss"] = pd.NA
    got = load_runs(frame)
    assert [(each.code, each.rows) for each in got.findings] == [("missing_value", (4,))]
    assert len(got) == 115


def test_a_tracker_export(tmp_path: Path) -> None:
    path = tmp_path / "wandb.csv"
    path.write_text(
        '"Name","ID","_step","_runtime","config.n_once","config.n_rec","config.recurrence",'
        '"total_tokens","val/loss"\n'
        '"a","x1","100","2.3","10,000,000","20M","2","1e9",""\n'
        '"a","x1","200","2.3","10,000,000","20M","2","2e9","2.5"\n'
        '"a","x1","300","2.3","10,000,000","20M","2","3e9","2.4"\n'
        '"b","x2","300","2.3","10,000,000","20M","4","3e9","2.3"\n'
    )
    got = load_runs(path)
    assert got.n_once.tolist() == [1e7] * 3
    assert got.tokens.tolist() == [2e9, 3e9, 3e9]
    assert [each.code for each in got.findings][:2] == ["missing_value", "checkpoints_of_one_run"]
    assert got.cells.tolist() == [1, 1, 0]


def test_conventions_follow_from_the_architecture(table: RunTable) -> None:
    assert len(table.conventions()) == 12
    for convention in table.conventions():
        counted = table.under(convention)
        spec = table.specs[4]
        assert spec is not None
        count = ledger(spec).count(convention)
        assert (counted.n_once[4], counted.n_rec[4]) == (count.n_once, count.n_rec)
        assert counted.convention == convention
        assert counted.digest == table.digest
    back = table.under(Convention("excluded")).under(Convention())
    assert back.n_rec.tolist() == table.n_rec.tolist()
    assert load_runs("schwethelm2026", convention=ONCE).n_once.tolist() == (
        table.under(ONCE).n_once.tolist()
    )


def test_the_direct_form_has_the_conventions_whose_parts_it_gives(table: RunTable) -> None:
    bare = load_runs(direct(table))
    assert bare.conventions() == (Convention(),)
    for convention, column in [
        (ONCE, "n_injection"),
        (Convention(embeddings=True), "n_embeddings"),
        (Convention(norms=False), "the architecture"),
    ]:
        with pytest.raises(ValueError, match=f"lacks {column}"):
            bare.under(convention)
    with pytest.raises(ValueError, match="lacks n_injection"):
        load_runs(direct(table), convention=ONCE)
    full = load_runs(direct(table, "n_injection", "n_embeddings"))
    assert len(full.conventions()) == 6
    for convention in full.conventions():
        assert full.under(convention).n_once.tolist() == table.under(convention).n_once.tolist()
        assert full.under(convention).n_rec.tolist() == table.under(convention).n_rec.tolist()


def test_an_injection_larger_than_its_block_is_not_used(table: RunTable) -> None:
    columns = direct(table, "n_injection")
    columns["n_injection"] = [2 * value for value in columns["n_rec"]]
    got = load_runs(columns)
    assert got.findings[0].code == "value_not_used"
    assert got.conventions() == (Convention(),)


def test_columns_and_frame_read_back(table: RunTable) -> None:
    for convention in (Convention(), ONCE):
        for source in (table.under(convention).to_columns(), table.under(convention).to_frame()):
            got = load_runs(source, convention=convention)
            assert got.digest == table.digest
            assert got.cells.tolist() == table.cells.tolist()
            assert got.specs == table.specs
            assert got.findings == ()


def test_an_architecture_at_odds_with_given_counts_is_not_used(table: RunTable) -> None:
    columns = table.to_columns()
    columns["n_rec"] = [1.1 * value for value in columns["n_rec"]]
    got = load_runs(columns)
    assert got.findings[0].code == "counts_disagree"
    assert got.specs == (None,) * 116
    assert got.n_rec.tolist() == columns["n_rec"]


ARCHITECTURE = {
    "d_model": [640, 640, 640], "n_prelude": [2, 2, 2], "n_recur": [4, 4, 4], "n_coda": [2, 2, 2],
    "recurrence": [2, 4, 1], "budget_flops": ["1e18", "1e18", "1e18"], "val_loss": [2.8, 2.7, 2.9],
}  # fmt: skip


def test_an_architecture_gives_counts_flops_and_tokens() -> None:
    got = load_runs(ARCHITECTURE)
    assert got.specs[1] == ModelSpec(640)
    assert got.train_flops_per_token[1] == 1047336960
    assert got.tokens[1] == 954728448
    assert got.specs[2] is not None
    assert got.specs[2].injection == "none"
    assert [(each.code, each.severity) for each in got.findings] == [("assumed_defaults", "note")]
    for name in ("injection linear", "vocab_size 32064", "context 2048"):
        assert name in got.findings[0].message


def test_an_impossible_architecture_is_set_aside_with_its_reason() -> None:
    columns = ARCHITECTURE | {"d_model": [640, 650, 640], "budget_flops": ["1e18", "1e18", "1e3"]}
    got = load_runs(columns)
    aside = [each for each in got.findings if each.code == "invalid_architecture"]
    assert [each.rows for each in aside] == [(2,), (3,)] or [each.rows for each in aside] == [
        (3,),
        (2,),
    ]
    words = " ".join(each.message for each in aside)
    assert "d_model=650 is not a multiple" in words
    assert "less than half a step" in words
    assert len(got) == 1


def test_a_window_as_long_as_the_loop_is_the_full_gradient() -> None:
    got = load_runs(ARCHITECTURE | {"bptt_window": [4, 4, None]})
    assert [spec and spec.bptt_window for spec in got.specs] == [None, None, None]
    assert load_runs(ARCHITECTURE | {"bptt_window": [1, 2, None]}).specs[1] == ModelSpec(
        640, bptt_window=2
    )


def test_budgets_near_one_another_form_a_group_without_rounding(table: RunTable) -> None:
    rng = np.random.default_rng(0)
    columns = direct(table, "budget_flops")
    exact = np.array(columns["budget_flops"])
    columns["budget_flops"] = (exact * rng.uniform(0.97, 1.03, 116)).tolist()
    got = load_runs(columns)
    assert got.cells.tolist() == table.cells.tolist()
    assert got.budget_flops.tolist() == columns["budget_flops"]
    assert {each.code for each in got.findings} == {"budgets_joined"}


def test_budgets_that_differ_by_rounding_are_no_news(table: RunTable) -> None:
    columns = direct(table, "budget_flops")
    columns["budget_flops"] = [
        x * (1 + 1e-5 * (k % 3)) for k, x in enumerate(columns["budget_flops"])
    ]
    got = load_runs(columns)
    assert got.cells.tolist() == table.cells.tolist()
    assert not got.findings


def test_budgets_are_taken_from_flops_or_guessed_with_a_note(table: RunTable) -> None:
    spent = load_runs(direct(table, "train_flops_per_token"))
    assert spent.cells.tolist() == table.cells.tolist()
    assert np.isnan(spent.budget_flops).all()
    assert "budgets_from_6nd" not in [each.code for each in spent.findings]
    assert "budgets_from_6nd" in [each.code for each in load_runs(direct(table)).findings]


def test_a_chain_of_budgets_is_a_warning(table: RunTable) -> None:
    columns = direct(table, "budget_flops")
    columns["budget_flops"] = np.geomspace(1e18, 1e19, 116).tolist()
    got = load_runs(columns)
    assert [each.code for each in got.findings] == ["budgets_chained"]


def test_select_keeps_rows_cells_and_labels_together(table: RunTable) -> None:
    part = table.select(table.recurrence != 2)
    assert len(part) == 87
    assert set(part.cells.tolist()) == set(range(18))
    assert part.rows.tolist() == table.rows[table.recurrence != 2].tolist()
    assert part.digest != table.digest
    assert part.under(ONCE).select(part.recurrence > 1).convention == ONCE
    assert len(part.labels["loss_source"]) == len(part.specs) == len(part.study) == 87
    again = load_runs(part.to_columns())
    assert again.digest == part.digest
    with pytest.raises(ValueError, match="A mask must hold 116 booleans"):
        table.select([True])


def test_digest_sees_every_number_and_the_order(table: RunTable) -> None:
    columns = direct(table)
    digests = {load_runs(columns).digest}
    for name in FIELDS:
        changed = {key: list(values) for key, values in columns.items()}
        changed[name][5] *= 1.5
        digests.add(load_runs(changed).digest)
    digests.add(load_runs({name: values[::-1] for name, values in columns.items()}).digest)
    assert len(digests) == 7
    assert load_runs(columns).digest in digests


def test_a_name_that_is_nothing_names_what_is_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_runs.csv").write_text("r\n")
    with pytest.raises(FileNotFoundError, match=r"Did you mean my_runs.csv\?"):
        load_runs("my_run.csv")
    with pytest.raises(FileNotFoundError, match="closest are schwethelm2026"):
        load_runs("schwethelm206")
    with pytest.raises(FileNotFoundError, match="The built-in tables are schwethelm2026"):
        load_runs("zzz/none.csv")


def test_a_table_passes_through_and_changes_convention(table: RunTable) -> None:
    assert load_runs(table, convention=ONCE).convention == ONCE
    assert repr(table) == "RunTable('schwethelm2026', 116 runs, r = 1, 2, 4, 8, budgets: 6)"


def test_tokens_a_step_are_kept_where_they_are_known(table: RunTable) -> None:
    assert set(table.batch_tokens.tolist()) == {2.0**18}
    assert not table.batch_tokens.flags.writeable
    assert len(table.select(table.recurrence == 1).batch_tokens) == 29
    columns = {
        "n_once": [1e6, 2e6], "n_rec": [3e6, 6e6], "recurrence": [1, 2],
        "tokens": [1e9, 2e9], "val_loss": [3.1, 2.9], "batch_tokens": ["0.5M", None],
    }  # fmt: skip
    read = load_runs(columns)
    np.testing.assert_array_equal(read.batch_tokens, [5e5, np.nan])
    again = load_runs(read.to_columns())
    np.testing.assert_array_equal(again.batch_tokens, read.batch_tokens)
    assert again.digest == read.digest


# What contradicts itself is said, and nothing is guessed


def codes(got: RunTable) -> list[str]:
    return [each.code for each in got.findings]


def test_a_window_beyond_the_loop_is_said() -> None:
    got = load_runs(ARCHITECTURE | {"bptt_window": [4, 4, 1]})
    (finding,) = [each for each in got.findings if each.code == "window_beyond_recurrence"]
    assert finding.rows == (1,)
    assert "window_beyond_recurrence" not in codes(
        load_runs(ARCHITECTURE | {"bptt_window": [2, 3, 1]})
    )


def test_two_widths_that_contradict_each_other_set_the_row_aside() -> None:
    got = load_runs(ARCHITECTURE | {"width_scale": [10, 12, None]})  # s = 10 is d_model 640
    (finding,) = [each for each in got.findings if each.code == "invalid_architecture"]
    assert finding.rows == (2,)
    assert "d_model=640 and width_scale=12 name different widths" in finding.message
    assert got.rows.tolist() == [1, 3]


def test_recurrences_that_only_rounding_tells_apart_are_one(table: RunTable) -> None:
    columns = direct(table, "budget_flops")
    columns["recurrence"] = [r * (1 + 1e-7 * (k % 2)) for k, r in enumerate(columns["recurrence"])]
    got = load_runs(columns)
    assert got.recurrence.tolist() == table.recurrence.tolist()
    assert len(set(got.cells.tolist())) == 24
    columns["recurrence"] = [4.5, 4.5000001, 4.6, *columns["recurrence"][3:]]
    assert load_runs(columns).recurrence[:3].tolist() == [4.5, 4.5, 4.6]


def test_an_injection_beyond_its_block_is_told_what_to_do(table: RunTable) -> None:
    columns = direct(table, "n_injection")
    columns["n_injection"] = [2 * value for value in columns["n_rec"]]
    finding = load_runs(columns).findings[0]
    assert "n_injection is larger than n_rec, which contains it" in finding.message
    assert "add it to n_rec" in finding.remedy


@pytest.mark.parametrize(("factor", "odd"), [(1.0, False), (0.1, True), (1e3, True)])
def test_a_budget_in_the_direct_form_is_held_against_six_n_d(
    table: RunTable, factor: float, odd: bool
) -> None:
    columns = direct(table, "budget_flops")
    columns["budget_flops"] = [
        value * (factor if k in (3, 50) else 1) for k, value in enumerate(columns["budget_flops"])
    ]
    found = [each for each in load_runs(columns).findings if each.code == "budget_disagrees"]
    assert [each.rows for each in found] == ([(4, 51)] if odd else [])
    named = [each.rows for each in check(columns).findings if each.code == "budget_disagrees"]
    assert named == ([(4, 51)] if odd else [])
