"""Plans: designs, the paper's grids against its run table, cost."""

import csv
import io
import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from loopworth.cli import main
from loopworth.ledger import ledger
from loopworth.plan import Plan, PlannedRun, iso_depth, iso_parameter, iso_token, width_fixed
from loopworth.plan.cost import cost
from loopworth.plan.devices import DEVICES
from loopworth.recipes import RECIPES, load_plan
from loopworth.runs import load_runs
from loopworth.spec import DataSpec, ModelSpec, RunSpec, UnrollSpec

STUDIES = {
    "paper": "schwethelm2026:baseline",
    "paper-truncated": "schwethelm2026:truncated_bptt",
    "paper-hyperconnections": "schwethelm2026:hyperconnections",
}


@pytest.mark.parametrize("recipe", STUDIES)
def test_a_recipe_has_every_run_of_its_published_study(recipe: str) -> None:
    table = load_runs(STUDIES[recipe])
    published = {
        (float(f"{budget:.3g}"), spec.d_model, float(r)): (int(tokens), int(once), int(rec))
        for budget, spec, r, tokens, once, rec in zip(
            table.budgets, table.specs, table.recurrence, table.tokens, table.n_once, table.n_rec,
            strict=True,
        )
    }  # fmt: skip
    planned = {
        (row["budget_flops"], row["d_model"], row["recurrence"]): (
            row["tokens"], row["n_once"], row["n_rec"],
        )
        for row in (run.to_json() for run in load_plan(recipe).runs)
    }  # fmt: skip
    assert published.items() <= planned.items()


@pytest.mark.parametrize(
    ("recipe", "runs", "looped"),
    [("paper", 116, 87), ("paper-truncated", 131, 102), ("paper-hyperconnections", 119, 90)],
)
def test_the_grids_have_the_published_sizes(recipe: str, runs: int, looped: int) -> None:
    plan = load_plan(recipe)
    assert len(plan.runs) == runs
    assert sum(planned.role == "cell" for planned in plan.runs) == looped


def test_controls_are_shared_between_the_paper_sweeps() -> None:
    main_grid = {run.run.content_hash() for run in load_plan("paper").runs}
    for recipe in ("paper-truncated", "paper-hyperconnections"):
        shared = [run for run in load_plan(recipe).runs if run.run.content_hash() in main_grid]
        assert len(shared) == 29
        assert {run.role for run in shared} == {"plain"}


def test_truncation_keeps_half_the_recurrences() -> None:
    windows = {
        (run.run.model.recurrence, run.run.model.gradient_visits)
        for run in load_plan("paper-truncated").runs
    }
    assert windows == {(1, 1), (2, 1), (4, 2), (8, 4)}


def test_the_extrapolation_pair_sees_47_billion_tokens() -> None:
    tokens = {run.horizon.tokens for run in load_plan("paper-extrapolation").runs}
    assert tokens == {89_645 * 2**19}


def test_iso_depth_holds_the_layers_a_token_passes() -> None:
    runs = iso_depth({1e17: [640, 1280]}, depth=12, ends=(1, 1), recurrences=(1, 2, 5))
    assert {run.run.model.effective_layers for run in runs} == {12}
    assert [run.role for run in runs] == ["plain", "cell", "cell"] * 2


def test_iso_parameter_holds_the_block_and_iso_token_the_tokens() -> None:
    runs = iso_parameter({1e17: [640]}, layers=(1, 3, 1), recurrences=(2, 4))
    cells = [run for run in runs if run.role != "untied"]
    unique = {ledger(replace(run.run.model, injection="passthrough")).parameters for run in cells}
    assert len(unique) == 1
    untied = {run.run.model.effective_layers for run in runs if run.role == "untied"}
    assert untied == {run.run.model.effective_layers for run in runs if run.role == "cell"}
    tokens = iso_token({10**8: [640]}, recurrences=(2,))
    assert len({run.horizon.tokens for run in tokens}) == 1


def test_width_fixed_has_one_width() -> None:
    assert {run.run.model.d_model for run in width_fixed(640, [1e17, 1e18])} == {640}


def test_a_recurrence_that_does_not_divide_is_refused_with_what_does() -> None:
    with pytest.raises(
        ValueError, match=r"recurrence 3 does not divide the 16 shared layers.*8, 16"
    ):
        iso_depth({1e18: [640]}, recurrences=(1, 3))
    with pytest.raises(ValueError, match="leaves no layer to share"):
        iso_depth({1e18: [640]}, depth=4)


def test_seeds_are_a_column_and_names_are_unique() -> None:
    runs = Plan("p", iso_depth({1e18: [640]}, seeds=(1, 2, 3))).runs
    assert len(runs) == 12
    assert len({run.name for run in runs}) == 12


def test_equal_runs_are_planned_once_and_no_runs_are_refused() -> None:
    run = PlannedRun(RunSpec(ModelSpec(640), steps=10), "one")
    assert len(Plan("p", [run, replace(run, study="two")]).runs) == 1
    with pytest.raises(ValueError, match="has no runs"):
        Plan("p", [])


def test_a_drawn_recurrence_is_charged_what_it_draws() -> None:
    model = ModelSpec(640, recurrence=4)
    drawn = RunSpec(model, unroll=UnrollSpec("poisson"), budget_flops=1e17)
    fixed = RunSpec(model, budget_flops=1e17)
    reach, plain = PlannedRun(drawn, "s").horizon, PlannedRun(fixed, "s").horizon
    step = 2**18 * ledger(model).train_flops_per_token
    assert reach.flops == pytest.approx(1e17, abs=step)
    assert reach.steps == pytest.approx(plain.steps, rel=0.1)


def test_hours_follow_from_flops_and_utilisation() -> None:
    plan = load_plan("paper")
    found = cost(plan, "a100", utilisation=0.5, price=2.0)
    assert found.hours == pytest.approx(plan.flops / (312e12 * 0.5) / 3600)
    assert found.money == pytest.approx(2 * found.hours)
    assert found.measured
    assert not cost(plan).measured


def test_a_model_too_large_for_a_device_is_an_error() -> None:
    plan = Plan("large", [PlannedRun(RunSpec(ModelSpec(8192, n_recur=30), steps=10), "s")])
    (finding,) = cost(plan, "rtx4090").findings
    assert finding.code == "does_not_fit"
    assert plan.runs[0].name in finding.message


@pytest.mark.parametrize("bad", [{"utilisation": 0.0}, {"utilisation": 1.5}, {"price": -1.0}])
def test_wrong_costs_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(bad))}="):
        cost(load_plan("paper-extrapolation"), **bad)


def test_unknown_names_say_what_was_meant(tmp_path) -> None:
    with pytest.raises(ValueError, match="did you mean 'paper'"):
        load_plan("papper")
    with pytest.raises(ValueError, match="is not a file"):
        load_plan(str(tmp_path / "none.py"))
    with pytest.raises(ValueError, match="did you mean 'h100'"):
        cost(load_plan("paper-extrapolation"), "h10")
    assert all(name == device.name for name, device in DEVICES.items())


def test_a_file_is_a_recipe(tmp_path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from loopworth.plan import iso_depth\n"
        "def recipe(data):\n"
        "    return iso_depth({1e17: [256]}, run={'data': data})\n"
    )
    plan = load_plan(str(path), DataSpec(source="some/folder"))
    assert (plan.name, len(plan.runs)) == ("mine", 4)
    assert {run.run.data.source for run in plan.runs} == {"some/folder"}
    path.write_text("def recipe(data):\n    return [3]\n")
    with pytest.raises(ValueError, match="returned a int"):
        load_plan(str(path))
    path.write_text("x = 1\n")
    with pytest.raises(ValueError, match="defines no function `recipe`"):
        load_plan(str(path))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\nimport nothing_here", "line 2 ended with ModuleNotFoundError: No module named"),
        ("def recipe(data):\n    return 1 / 0", "line 2 ended with ZeroDivisionError: division"),
        ("x = 1\ndef recipe(data:\n", "line 2 ended with SyntaxError"),
        ("def recipe():\n    return []", "ended with TypeError: recipe"),
        ("import sys\nsys.exit(0)", "line 2 ended with SystemExit: 0"),
    ],
)
def test_a_mistake_in_a_recipe_is_told_with_its_line(tmp_path, text, words):
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"mine.py.*{words}"):
        load_plan(str(path))


def test_the_command_writes_a_line_a_run() -> None:
    result = CliRunner().invoke(main, ["plan", "paper", "--csv"])
    rows = list(csv.DictReader(io.StringIO(result.output)))
    assert len(rows) == 116
    assert float(rows[0]["budget_flops"]) == 4.64e17
    whole = json.loads(CliRunner().invoke(main, ["plan", "paper", "--json"]).output)
    assert whole["n_runs"] == 116 == len(whole["runs"])
    assert whole["cost"]["measured"] is False


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_prints_within_80_columns(recipe: str) -> None:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(main, ["plan", recipe])
    assert result.exit_code == 0, result.output
    assert max(len(line) for line in result.output.splitlines()) <= 80
