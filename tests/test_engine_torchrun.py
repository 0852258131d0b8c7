"""A run of several processes, as an engine starts it: torchrun, a signal, torchrun again."""

import os
import signal
import subprocess

from loopworth.sweep.engines import Resources
from loopworth.sweep.folder import SweepFolder
from loopworth.sweep.run import look
from sweep_runs import with_seeds
from train_runs import make_data


def test_two_processes_of_a_run_save_and_go_on(tmp_path):
    sweep = SweepFolder(tmp_path / "sweep")
    sweep.grow(with_seeds(make_data(tmp_path), 1))
    (run,) = [sweep.prepare(cell) for cell in sweep.cells]
    resources = Resources(gpus=2, device="cpu", save_every="10")
    environment = os.environ | resources.environment()

    def begin() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            resources.command(run), env=environment, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    first = begin()
    while not list(run.glob("checkpoint/step-*")):
        assert first.poll() is None
    os.killpg(first.pid, signal.SIGTERM)
    assert first.wait() != 0
    run_id = sweep.cells[0].run_id
    assert look(run, run_id).state == "stopped"
    assert begin().wait() == 0
    assert look(run, run_id).state == "complete"
    assert '"processes": 2' in (run / "environment.json").read_text()
    assert begin().wait() == 0  # a complete run returns at once, in all its processes
