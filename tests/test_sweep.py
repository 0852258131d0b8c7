"""Sweeps from plan to table: what is done, what is kept, what is said about runs that fail."""

import csv
import errno
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine_runs import long
from loopworth.runs import load_runs
from loopworth.spec import RunSpec
from loopworth.sweep.claim import HeldError
from loopworth.sweep.collect import collect
from loopworth.sweep.engines import Resources
from loopworth.sweep.folder import SweepFolder
from loopworth.sweep.jobs import in_order
from loopworth.sweep.launch import Ended, forgive_failed, stop_launcher
from loopworth.sweep.local import LocalEngine
from loopworth.sweep.run import run_folder
from loopworth.sweep.status import read_status
from sweep_killer import wait_until
from sweep_runs import HERE, Quick, engine, launch, plan, table, with_seeds
from sweep_worker import BREAKS, DIES, DIES_ONCE, DIVERGES, WAITS, work
from train_runs import make_data


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def sweep(tmp_path):
    return SweepFolder(tmp_path / "sweep")


@pytest.fixture(scope="module")
def done(data, tmp_path_factory):
    """A sweep of eight runs that nothing disturbed."""
    sweep = SweepFolder(tmp_path_factory.mktemp("done") / "sweep")
    launch(sweep, plan(data))
    return sweep


def states(sweep: SweepFolder) -> dict[int, str]:
    return {run.cell.seed: run.state for run in read_status(sweep).runs}


def test_the_table_is_what_fit_reads(done, data):
    status = read_status(done)
    assert status.complete
    assert (status.left, status.launcher) == (0, None)
    runs = load_runs(collect(done).path)
    made = plan(data).runs
    assert len(runs) == len(made) == 8
    assert runs.recurrence.tolist() == [p.run.model.recurrence for p in made]
    assert runs.tokens.tolist() == [p.horizon.tokens for p in made]
    assert [spec.canonical() for spec in runs.specs] == [p.run.model.canonical() for p in made]
    assert set(runs.study) == {"baseline"}
    remarks = {finding.code for finding in runs.findings if finding.severity != "note"}
    assert remarks <= {"unit_suspected"}  # so few tokens look like thousands


def test_the_table_depends_on_nothing_but_the_plan(done, data, tmp_path):
    other = SweepFolder(tmp_path / "other")
    launch(other, plan(data), workers=1)
    assert table(other) == table(done)


def test_more_budgets_and_seeds_reuse_what_is_there(sweep, data):
    launch(sweep, plan(data, budgets=[2e9]))
    before = {path: path.stat().st_mtime_ns for path in sweep.path.glob("runs/*/result.json")}
    again = SweepFolder(sweep.path)
    ended = launch(again, plan(data, seeds=[42, 43]))
    assert (ended.grown.added, ended.grown.reused) == (12, 4)
    assert len(before) == 4
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in before.items())
    assert len(collect(again).rows) == 16
    assert [cell.name for cell in again.cells[:4]] == [cell.name for cell in sweep.cells]


def test_a_plan_of_other_runs_is_not_mixed_in_by_mistake(sweep, data):
    sweep.grow(with_seeds(data, 1))
    with pytest.raises(ValueError, match="1 other runs; name another folder"):
        sweep.grow(with_seeds(data, 2))
    assert sweep.grow(with_seeds(data, 2), foreign=True).added == 1


def test_a_folder_of_other_things_is_refused(tmp_path, data):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match=r"no plan.json but holds thesis.tex"):
        SweepFolder(tmp_path).grow(with_seeds(data, 1))


def test_runs_that_fail_do_not_stop_the_others(sweep, data):
    told = []
    ended = launch(
        sweep, with_seeds(data, DIVERGES, DIES, DIES_ONCE, BREAKS, 1, 2), tell=told.append
    )
    assert ended.to_the_end
    assert states(sweep) == {
        DIVERGES: "failed", DIES: "failed", DIES_ONCE: "complete", BREAKS: "failed",
        1: "complete", 2: "complete",
    }  # fmt: skip
    errors = {run.cell.seed: run.look.error for run in read_status(sweep).runs}
    assert errors[DIVERGES] == "the loss is not finite"
    assert errors[BREAKS] == "RuntimeError: device-side assert"
    assert errors[DIES] == "its process was killed by SIGKILL; 3 times in a row"
    assert {run.cell.seed: run.look.attempts for run in read_status(sweep).runs}[DIES] == 3
    assert [each.done for each in told if isinstance(each, Ended)][-1] == 3
    collected = collect(sweep)
    assert [run.cell.seed for run in collected.missing] == [DIVERGES, DIES, BREAKS]


def test_failed_runs_are_done_again_only_when_asked(sweep, data):
    launch(sweep, with_seeds(data, DIVERGES, 1))
    launch(sweep)
    assert read_status(sweep).runs[0].look.attempts == 1
    with pytest.raises(ValueError, match="is no run of"):
        forgive_failed(sweep, ["baselin"])
    assert [cell.seed for cell in forgive_failed(sweep)] == [DIVERGES]
    assert states(sweep)[DIVERGES] == "stopped"
    launch(sweep)
    assert states(sweep)[DIVERGES] == "failed"
    assert read_status(sweep).runs[0].look.attempts == 2


def test_workers_that_cannot_start_end_the_sweep_with_their_words(sweep, data):
    class Broken(Resources):
        def command(self, *arguments):
            return [sys.executable, "-c", "raise SystemExit('no torch here')"]

    from loopworth.sweep.launch import run_sweep

    with pytest.raises(ValueError, match=r"no run could be started: .*code 1: no torch here"):
        run_sweep(sweep, engine(sweep), Broken(), plan=with_seeds(data, 1, 2, 3, 4))
    assert set(states(sweep).values()) == {"waiting"}


def test_a_second_launcher_is_refused(sweep, data):
    sweep.grow(with_seeds(data, 1))
    with (
        sweep.hold(engine="local", workers=3),
        pytest.raises(HeldError, match="a launcher is at work"),
    ):
        launch(SweepFolder(sweep.path))
    with sweep.hold(engine="local", workers=3):
        assert read_status(sweep).to_json()["launcher"] == {"engine": "local", "workers": 3}


def test_a_run_that_another_process_does_is_waited_for_and_not_done_twice(sweep, data):
    sweep.grow(with_seeds(data, WAITS, 2))
    place = sweep.prepare(sweep.cells[0])
    command = [sys.executable, str(HERE / "sweep_worker.py"), str(place)]
    with subprocess.Popen(command) as other:
        wait_until(lambda: read_status(sweep).runs[0].state == "running", other)
        with pytest.raises(HeldError):
            run_folder(place, work)
        (place / "go").touch()
        launch(sweep)
    assert read_status(sweep).complete
    assert json.loads((place / "status.json").read_text())["attempts"] == 1


def test_run_returns_at_once_where_the_run_is_complete(sweep, data):
    sweep.grow(with_seeds(data, 1))
    place = sweep.prepare(sweep.cells[0])
    assert run_folder(place, work) == "complete"
    before = (place / "result.json").read_bytes()
    assert run_folder(place, lambda *_: pytest.fail("done twice")) == "complete"
    assert (place / "result.json").read_bytes() == before


def test_run_refuses_what_train_holds_and_what_is_no_run(sweep, data, tmp_path):
    from loopworth.train.folder import locked

    sweep.grow(with_seeds(data, 1))
    place = sweep.prepare(sweep.cells[0])
    with locked(place), pytest.raises(HeldError, match="being trained by another process"):
        run_folder(place, work)
    with pytest.raises(ValueError, match=r"has no spec.json"):
        run_folder(tmp_path, work)
    with pytest.raises(ValueError, match="not a folder"):
        run_folder(tmp_path / "none", work)


def test_damaged_files_are_told_and_done_again(sweep, data):
    launch(sweep, with_seeds(data, 1, 2, 3, 4))
    undisturbed = table(sweep)
    paths = [sweep.run_path(cell) for cell in sweep.cells]
    (paths[0] / "result.json").write_text('{"val_loss": 2')
    (paths[1] / "result.json").write_bytes((paths[0] / "spec.json").read_bytes())
    (paths[2] / "status.json").write_text("\0")
    (paths[2] / "result.json").unlink()
    (paths[3] / "spec.json").write_text("")
    (paths[3] / "result.json").unlink()
    status = read_status(sweep)
    assert [run.state for run in status.runs] == ["stopped"] * 4
    assert "result.json is damaged" in status.runs[0].look.notes[0]
    assert "of another run" in status.runs[1].look.notes[0]
    assert "status.json is damaged" in status.runs[2].look.notes[0]
    launch(sweep)
    assert table(sweep) == undisturbed
    assert (paths[0] / "result.json.damaged").exists()


def test_the_folder_of_another_run_is_left_alone(sweep, data):
    sweep.grow(with_seeds(data, 1, 2))
    place = sweep.prepare(sweep.cells[0])
    other = with_seeds(data, 7).runs[0].run.to_json()
    (place / "spec.json").write_text(json.dumps(other))
    launch(sweep)
    run = read_status(sweep).runs[0]
    assert (run.state, "is of another run" in run.look.error) == ("failed", True)
    assert RunSpec.from_json((place / "spec.json").read_text()).seed == 7


def test_a_damaged_plan_is_told_with_the_way_out(sweep, data):
    launch(sweep, with_seeds(data, 1, 2))
    undisturbed = table(sweep)
    whole = (sweep.path / "plan.json").read_text()
    for damage in (whole[:100], "[]", '{"format": "x"}', '{"format": "loopworth sweep"}'):
        (sweep.path / "plan.json").write_text(damage)
        with pytest.raises(ValueError, match="move the file away and start the same recipe"):
            SweepFolder(sweep.path)
    (sweep.path / "plan.json").rename(sweep.path / "plan.json.damaged")
    again = SweepFolder(sweep.path)
    launch(again, with_seeds(data, 1, 2), tell=lambda _: pytest.fail("done again"))
    assert table(again) == undisturbed


def test_stop_saves_and_start_goes_on(sweep, data):
    sweep.grow(long(data, *range(12), steps=100))
    command = [sys.executable, str(HERE / "sweep_runs.py"), str(sweep.path)]
    with subprocess.Popen(command) as launcher:
        wait_until(lambda: list(sweep.path.glob("runs/*/checkpoint/step-*")), launcher)
        assert stop_launcher(sweep)
    assert launcher.returncode == 0
    assert not stop_launcher(sweep)
    counts = read_status(sweep).counts
    assert counts["running"] == counts["failed"] == 0
    assert counts["complete"] < 12
    launch(sweep)
    assert read_status(sweep).complete
    attempts = [
        json.loads((sweep.run_path(cell) / "status.json").read_text()) for cell in sweep.cells
    ]
    assert max(each["attempts"] for each in attempts) <= 2
    assert not any(each["lost"] for each in attempts)


def test_a_launcher_saves_on_sigterm(sweep, data):
    sweep.grow(long(data, *range(12), steps=100))
    command = [sys.executable, str(HERE / "sweep_runs.py"), str(sweep.path)]
    with subprocess.Popen(command) as launcher:
        wait_until(lambda: list(sweep.path.glob("runs/*/checkpoint/step-*")), launcher)
        launcher.send_signal(signal.SIGTERM)
    assert read_status(sweep).counts["running"] == 0
    assert read_status(sweep).launcher is None


def test_all_budgets_move_on_together_and_the_last_is_cheap(data, tmp_path):
    sweep = SweepFolder(tmp_path / "sweep")
    sweep.grow(plan(data, budgets=[1e9, 2e9, 4e9], widths=[16, 24, 32, 40]))
    order = [job[0].budget for job in in_order((cell,) for cell in sweep.cells)]
    assert sorted(order[:6]) == [1e9, 1e9, 2e9, 2e9, 4e9, 4e9]
    assert order[0] == 4e9
    assert order[-1] == 1e9


LIMITED = """
import resource, runpy, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_disk_that_takes_no_more_ends_the_sweep_and_nothing_is_lost(sweep, data):
    sweep.grow(with_seeds(data, 1, 2, DIVERGES, 3))
    command = [sys.executable, "-c", LIMITED, str(HERE / "sweep_runs.py"), str(sweep.path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert f"{sweep.path} could not be written: File too large. Make room" in ended.stderr
    assert read_status(sweep).counts["running"] == 0
    launch(sweep)
    assert sorted(states(sweep).values()) == ["complete"] * 3 + ["failed"]


def test_a_run_that_found_the_disk_full_has_not_failed(sweep, data):
    sweep.grow(with_seeds(data, 1))
    place = sweep.prepare(sweep.cells[0])

    def no_room(*_):
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as problem:
            raise ValueError("the checkpoint could not be written") from problem

    with pytest.raises(ValueError, match="the checkpoint could not be written"):
        run_folder(place, no_room)
    found = read_status(sweep).runs[0].look
    assert (found.state, found.error, found.lost) == (
        "stopped", "the checkpoint could not be written", 1,
    )  # fmt: skip
    launch(sweep)
    assert read_status(sweep).complete


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_named(tmp_path, data):
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match="Permission denied"):
        launch(SweepFolder(tmp_path / "sweep"), with_seeds(data, 1))


def test_status_says_how_far_a_run_is_and_how_long_it_will_take(sweep, data):
    launch(sweep, with_seeds(data, 1))
    sweep.grow(with_seeds(data, 1, 2))
    place = sweep.prepare(sweep.cells[1])
    half = sweep.cells[1].steps // 2
    line = json.dumps({"event": "step", "step": half, "loss": 3.5})
    (place / "metrics.jsonl").write_text(line + '\n{"event": "st')
    (place / "status.json").write_text(json.dumps({"state": "running", "attempts": 1}))
    with sweep.hold(engine="local", workers=1):
        status = read_status(sweep)
    run = status.runs[1]
    assert (run.state, run.step, run.loss) == ("stopped", half, 3.5)
    assert status.left == pytest.approx(sweep.cells[1].flops * (1 - half / sweep.cells[1].steps))
    seconds = status.runs[0].look.seconds
    assert status.eta_seconds == pytest.approx(seconds * (1 - half / sweep.cells[1].steps))


def test_gpus_are_shared_out(tmp_path):
    shown = tmp_path / "shown"

    class Show(Resources):
        def command(self, *arguments):
            names = "'CUDA_VISIBLE_DEVICES', 'OMP_NUM_THREADS'"
            script = (
                f"import os; open({str(shown)!r}, 'a').write("
                f"'/'.join(os.environ[name] for name in ({names})) + ' ')"
            )
            return [sys.executable, "-c", script]

    local = LocalEngine(2, tmp_path / "logs", ["0", "1", "2", "3"])
    local.submit([(Path("a"),), (Path("b"),)], Show(threads=3, gpus=2))
    assert local.room() == 0
    while local.poll(1.0).alive:
        pass
    local.close()
    assert sorted(shown.read_text().split()) == ["0,1/3", "2,3/3"]
    with pytest.raises(ValueError, match="3 workers cannot share 2 GPUs"):
        LocalEngine(3, tmp_path, ["0", "1"])


def test_the_csv_has_every_field_exactly(done):
    rows = list(csv.DictReader(io.StringIO(table(done))))
    for cell, row in zip(done.cells, rows, strict=True):
        result = json.loads((done.run_path(cell) / "result.json").read_text())
        assert float(row["val_loss"]) == result["val_loss"]
        assert row["run_id"] == cell.run_id
        assert "seconds" not in row
    assert Quick().environment()["OMP_NUM_THREADS"] == "1"
