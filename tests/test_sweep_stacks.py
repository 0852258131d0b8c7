"""Stacks in sweeps: which runs go together, and what becomes of the others when one goes wrong."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from loopworth.cli.running import _Trainer
from loopworth.sweep.claim import HeldError
from loopworth.sweep.folder import SweepFolder
from loopworth.sweep.jobs import form_jobs, in_order, spread, stack_numbers
from loopworth.sweep.run import look, run_folders, saved_steps
from loopworth.sweep.status import read_status
from loopworth.train import Stepped
from stack_cells import stack_runs
from sweep_runs import HERE, Quick, engine, launch, plan, table, with_seeds
from sweep_worker import DIES, DIVERGES, WAITS, work
from train_runs import make_data, same_weights


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def sweep(tmp_path):
    return SweepFolder(tmp_path / "sweep")


def folders_of(place: Path, runs) -> list[Path]:
    """Return a folder for each run, with its spec in it."""
    paths = [place / f"run{k}" for k in range(len(runs))]
    for path, run in zip(paths, runs, strict=True):
        path.mkdir(parents=True)
        (path / "spec.json").write_text(json.dumps(run.to_json()))
    return paths


def trainer(*, stack: bool = True, watch=None, **machine) -> _Trainer:
    given = {"device": "cpu", "threads": 1, "peak_flops": 1e12, "log_every": 1}
    return _Trainer(given | machine, stack, watch)


def status(path: Path) -> dict:
    return json.loads((path / "status.json").read_text())


def result(path: Path) -> dict:
    return json.loads((path / "result.json").read_text()) | {"seconds": 0}


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_run_that_kills_its_stack_again_and_again_fails_alone(sweep, data, attempts):
    launch(sweep, with_seeds(data, 1, 2, DIES, 3), workers=1, attempts=attempts)
    runs = {run.cell.seed: run for run in read_status(sweep).runs}
    assert {seed: run.state for seed, run in runs.items()} == {
        1: "complete", 2: "complete", DIES: "failed", 3: "complete",
    }  # fmt: skip
    tries = max(2, attempts)  # the last of them alone
    error = f"its process was killed by SIGKILL; {tries} times in a row"
    assert runs[DIES].look.error == error
    assert [status(sweep.run_path(cell))["attempts"] for cell in sweep.cells] == [tries] * 4


def test_the_board_shows_every_run_of_a_stack_at_work(sweep, data):
    sweep.grow(with_seeds(data, WAITS, 1, 2))
    seen = set()

    def look_around() -> None:
        seen.add(read_status(sweep).counts["running"])
        if 3 in seen:
            (sweep.run_path(sweep.cells[0]) / "go").touch()

    launch(sweep, workers=1, idle=look_around)
    assert 3 in seen
    assert read_status(sweep).complete
    assert not list(sweep.path.glob("runs/*/claim"))


def test_runs_that_are_held_or_done_are_left_out_of_their_stack(sweep, data):
    sweep.grow(with_seeds(data, WAITS, 1, 2, DIVERGES))
    paths = [sweep.prepare(cell) for cell in sweep.cells]
    assert run_folders(paths[1:2], work) == {paths[1]: "complete"}
    before, told = (paths[1] / "status.json").read_bytes(), {}
    command = [sys.executable, str(HERE / "sweep_worker.py"), str(paths[0])]
    with subprocess.Popen(command) as other:
        while look(paths[0], sweep.cells[0].run_id).state != "running":
            assert other.poll() is None
        ended = run_folders(paths, work, told.__setitem__)
        (paths[0] / "go").touch()
    assert isinstance(ended[paths[0]], HeldError)
    assert [ended[path] for path in paths[1:3]] == ["complete", "complete"]
    assert told == {path: e if isinstance(e, Exception) else None for path, e in ended.items()}
    assert (paths[1] / "status.json").read_bytes() == before
    assert status(paths[3])["error"] == "the loss is not finite"


def test_whose_fault_it_was_is_found_out_alone(sweep, data):
    sweep.grow(with_seeds(data, 1, 2))
    paths = [sweep.prepare(cell) for cell in sweep.cells]

    def broken(runs, ended):
        raise RuntimeError("no such kernel")

    assert {str(each) for each in run_folders(paths, broken).values()} == {"no such kernel"}
    assert [status(path)["state"] for path in paths] == ["stopped", "stopped"]
    assert [status(path)["lost"] for path in paths] == [1, 1]
    run_folders(paths[:1], broken)
    assert status(paths[0])["state"] == "failed"


def test_without_stacks_every_run_goes_alone(sweep, data):
    made = with_seeds(data, 1, 2, DIES, 3)
    together = []

    def watched() -> None:
        together.append(read_status(sweep).counts["running"])

    from loopworth.sweep.launch import run_sweep

    run_sweep(sweep, engine(sweep, 1), Quick(stack=False), plan=made, idle=watched)
    assert max(together) <= 1
    assert [status(sweep.run_path(cell))["attempts"] for cell in sweep.cells] == [1, 1, 3, 1]
    other = SweepFolder(sweep.path.with_name("other"))
    launch(other, made)
    assert table(other) == table(sweep)
    assert Quick(stack=False).environment() == Quick().environment()


def test_jobs_hold_runs_of_a_width_that_can_go_on_together(sweep, data):
    sweep.grow(plan(data, seeds=[1, 2]))
    cells = sweep.cells
    numbers = stack_numbers(cells)
    jobs = form_jobs(cells, numbers, lambda cell: frozenset())
    assert [len(job) for job in jobs] == [4] * 4
    assert all(len({(cell.budget, cell.width) for cell in job}) == 1 for job in jobs)
    saved = {cells[0].name: {4, 8}, cells[1].name: {8, 12}, cells[2].name: {12, 16}}
    parts = form_jobs(cells[:3], numbers, lambda cell: frozenset(saved[cell.name]))
    assert parts == [cells[:2], cells[2:3]]
    assert form_jobs(cells[:3], {}, lambda cell: frozenset()) == [(cell,) for cell in cells[:3]]
    ordered = in_order(jobs)
    assert [job[0].budget for job in ordered] == [4e9, 2e9, 4e9, 2e9]
    assert [len(job) for job in spread(ordered[:1], 3)] == [1, 1, 2]
    assert [len(job) for job in spread(ordered, 99)] == [1] * 16
    assert spread(ordered, 2) == ordered
    assert spread([], 2) == []


def test_a_member_that_diverges_fails_and_the_others_complete(data, tmp_path):
    runs = stack_runs(data)
    runs[1] = replace(runs[1], optim=replace(runs[1].optim, norm_lr=1e30, head_lr=1e30))
    paths = folders_of(tmp_path, runs)
    start = time.monotonic()
    ended = run_folders(paths, trainer())
    took = time.monotonic() - start
    assert [status(path)["state"] for path in paths] == [
        "complete", "failed", "complete", "complete",
    ]  # fmt: skip
    assert isinstance(ended[paths[1]], ValueError)
    assert "is nan; there is no checkpoint. Training again leads" in status(paths[1])["error"]
    assert 0 < sum(status(path)["seconds"] for path in paths) <= took
    assert len({status(path)["seconds"] for path in paths}) > 1  # who left early has less


def test_a_stack_that_is_stopped_saves_every_run_and_goes_on(data, tmp_path):
    runs = stack_runs(data)
    whole, parts = folders_of(tmp_path / "whole", runs), folders_of(tmp_path / "parts", runs)
    run_folders(whole, trainer())

    def stop(event):
        if isinstance(event, Stepped) and event.step == 3:
            signal.raise_signal(signal.SIGTERM)

    stopped = trainer(watch=stop)
    assert set(run_folders(parts, stopped).values()) == {"stopped"}
    assert stopped.reason == "SIGTERM"
    assert [saved_steps(path) for path in parts] == [frozenset({3})] * 4
    run_folders(parts[:1], trainer())  # by hand, alone
    run_folders(parts, trainer())
    assert [result(path) for path in parts] == [result(path) for path in whole]
    assert all(same_weights(one, other) for one, other in zip(parts, whole, strict=True))


def test_the_plain_loop_gives_the_same_to_rounding(data, tmp_path):
    runs = stack_runs(data)[1:3]
    stacked, plain = folders_of(tmp_path / "a", runs), folders_of(tmp_path / "b", runs)
    run_folders(stacked, trainer())
    assert set(run_folders(plain, trainer(stack=False)).values()) == {"complete"}
    for one, other in zip(stacked, plain, strict=True):
        assert abs(result(one)["val_loss"] - result(other)["val_loss"]) < 1e-4
        environment = (other / "environment.json").read_text()
        assert '"stack"' not in environment
