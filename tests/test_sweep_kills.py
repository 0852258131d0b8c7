"""kill -9 of launcher and workers at random moments: the table is that of an undisturbed sweep."""

import json
import os
import signal
import subprocess
import sys

import pytest

from loopworth.sweep.folder import SweepFolder
from sweep_killer import children, kill_at_random, wait_until
from sweep_runs import HERE, launch, plan, table, train_swept, with_seeds
from train_runs import make_data, untimed


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def test_the_table_of_a_killed_sweep_is_that_of_an_undisturbed_one(data, tmp_path):
    made = with_seeds(data, *range(12))
    undisturbed, killed = SweepFolder(tmp_path / "undisturbed"), SweepFolder(tmp_path / "killed")
    launch(undisturbed, made)
    killed.grow(made)
    command = [sys.executable, str(HERE / "sweep_runs.py"), str(killed.path), "1000"]
    assert sum(kill_at_random(killed, command, 8, 1, 0.7).values()) > 1
    assert table(killed) == table(undisturbed)
    left = [path.name for path in killed.path.glob("runs/*/claim")] + [
        path.name for path in killed.path.iterdir() if path.name in ("launcher", "stop")
    ]
    assert left == []


def test_a_real_stack_whose_worker_dies_ends_as_its_runs_one_by_one(data, tmp_path):
    made = plan(data, budgets=[1e9], widths=[16], seeds=[1, 2])
    undisturbed, killed = SweepFolder(tmp_path / "undisturbed"), SweepFolder(tmp_path / "killed")
    undisturbed.grow(made)
    killed.grow(made)
    for cell, planned in zip(undisturbed.cells, made.runs, strict=True):
        train_swept(planned.run, undisturbed.run_path(cell))
    command = [
        sys.executable, "-m", "loopworth", "sweep", "start", "--out", str(killed.path), "-q",
        "--workers", "1", "--device", "cpu", "--save-every", "4", "--json",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE) as launcher:
        wait_until(lambda: list(killed.path.glob("runs/*/checkpoint/step-*")), launcher)
        for worker in children(launcher.pid):
            os.kill(worker, signal.SIGKILL)
        shown = json.loads(launcher.communicate()[0])
    assert launcher.returncode == 0
    assert shown["counts"]["complete"] == 4
    assert (killed.path / "runs.csv").read_text() == table(undisturbed)
    for cell in killed.cells:
        place = killed.run_path(cell)
        assert untimed(place) == untimed(undisturbed.run_path(cell))
        starts = json.loads((place / "environment.json").read_text())["starts"]
        assert [len(start["stack"]) for start in starts] == [4, 4]
