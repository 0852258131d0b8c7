"""The laptop sweeps: what the grids hold, that they fit the built-in text, and that they stack."""

from itertools import pairwise
from pathlib import Path

import pytest

from loopworth.plan import Plan
from loopworth.plan.stacking import stacks
from loopworth.recipes import load_plan
from loopworth.recipes.laptop import GRIDS
from loopworth.recipes.probes import PROBES, probe
from loopworth.spec import DataSpec
from loopworth.train.transfer import peak_rates
from train_runs import make_data

TRAIN_TOKENS = 4_000_000  # the built-in text has more; which packages are installed decides


@pytest.mark.parametrize(
    ("name", "runs"), [("laptop-preview", 36), ("laptop", 48), ("laptop-thorough", 64)]
)
def test_every_budget_and_width_has_all_recurrences(name: str, runs: int) -> None:
    plan = load_plan(name)
    assert len(plan.runs) == runs
    cells: dict[tuple[float, int], list[float]] = {}
    for planned in plan.runs:
        model = planned.run.model
        assert model.effective_layers == 10
        assert planned.horizon.tokens < TRAIN_TOKENS, "one epoch"
        key = (float(planned.run.budget_flops or 0), model.d_model)
        cells.setdefault(key, []).append(model.recurrence)
    assert set(map(tuple, cells.values())) == {(1, 2, 4, 8)}


def test_grids_contain_each_other_and_share_their_runs() -> None:
    plans = [load_plan(name) for name in ("laptop-preview", "laptop", "laptop-thorough")]
    hashes = [{planned.run.content_hash() for planned in plan.runs} for plan in plans]
    assert all(small < large for small, large in pairwise(hashes))


def test_rates_follow_the_tokens_alone() -> None:
    for planned in load_plan("laptop").runs:
        run, tokens = planned.run, planned.horizon.tokens
        rates = peak_rates(run.optim, run.model, batch_tokens=run.batch_tokens, tokens=tokens)
        assert rates["matrix_loop"] == pytest.approx(0.02 * (tokens / 1e6) ** -0.32)
        assert rates["matrix_once"] == rates["matrix_loop"]


@pytest.mark.parametrize("name", GRIDS)
def test_a_budget_and_a_width_are_one_stack(name: str) -> None:
    runs = [planned.run for planned in load_plan(name).runs]
    formed = stacks(runs)
    assert all(len(places) == 4 for places in formed)
    assert len(formed) == len(runs) / 4


@pytest.mark.parametrize("method", PROBES)
def test_a_probe_changes_the_looped_runs_and_shares_the_others(method: str) -> None:
    plain = {planned.run.content_hash() for planned in load_plan("laptop").runs}
    plan = probe(load_plan("laptop"), method)
    shared = [run for run in plan.runs if run.run.content_hash() in plain]
    assert len(plan.runs) == 48
    assert [run.role for run in shared] == ["plain"] * 12
    assert {run.study for run in plan.runs} == {method}
    if method in ("truncated_bptt", "hyperconnections"):
        assert all(len(places) == 4 for places in stacks([planned.run for planned in plan.runs]))


def test_windows_are_half_of_the_recurrence_rounded_up() -> None:
    models = {planned.run.model for planned in probe(load_plan("laptop"), "truncated_bptt").runs}
    windows = {(model.recurrence, model.bptt_window) for model in models}
    assert windows == {(1, None), (2, 1), (4, 2), (8, 4)}


def test_an_unknown_probe_is_refused() -> None:
    with pytest.raises(ValueError, match="'truncated' is no probe; did you mean 'truncated_bptt'"):
        probe(load_plan("laptop"), "truncated")
    unlooped = Plan("plain", [run for run in load_plan("laptop").runs if run.role == "plain"])
    with pytest.raises(ValueError, match="additive changes no run of plain"):
        probe(unlooped, "additive")


def test_text_of_ones_own_decides_the_vocabulary(tmp_path: Path) -> None:
    data = DataSpec(source=str(make_data(tmp_path)))
    assert {planned.run.model.vocab_size for planned in load_plan("laptop", data).runs} == {264}
    known = {"chars": 104, "bytes": 264}
    for tokenizer, columns in known.items():
        plan = load_plan("laptop", DataSpec(tokenizer=tokenizer, seed=3))
        assert {planned.run.model.vocab_size for planned in plan.runs} == {columns}
