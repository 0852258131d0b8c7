"""The commands `loopworth run` and `loopworth sweep`: what they print, and how they exit."""

import io
import json

import pytest
from click.testing import CliRunner

from loopworth.cli import main
from loopworth.report.board import SweepProgress, board, happening_line
from loopworth.runs import load_runs
from loopworth.sweep.folder import SweepFolder
from loopworth.sweep.launch import Begun, Ended
from loopworth.sweep.run import RESULT
from loopworth.sweep.status import read_status
from sweep_runs import launch, plan, with_seeds
from sweep_worker import DIVERGES
from train_runs import make_data


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def mixed(data, tmp_path_factory):
    """A sweep with complete, failed and waiting runs."""
    sweep = SweepFolder(tmp_path_factory.mktemp("mixed") / "sweep")
    launch(sweep, with_seeds(data, 1, DIVERGES, 2))
    sweep.grow(plan(data), foreign=True)
    return sweep


def call(*arguments: object):
    return CliRunner().invoke(main, [str(each) for each in arguments], standalone_mode=False)


def text_of(page) -> str:
    from rich.console import Console

    console = Console(width=80, file=io.StringIO())
    console.print(page)
    return console.file.getvalue()


def test_the_board_has_a_line_a_budget_and_names_what_failed(mixed):
    shown = call("sweep", "status", mixed.path).stdout
    assert shown == "\n".join(
        line.rstrip() for line in text_of(board(read_status(mixed))).split("\n")
    )
    lines = shown.splitlines()
    assert lines[0] == "tests: 11 runs · 2 complete, 1 failed, 8 waiting"
    assert lines[1].endswith("FLOPs · no launcher at work")
    losses = [run.loss for run in read_status(mixed).runs if run.state == "complete"]
    row = next(line for line in lines if line.startswith("2e9"))
    assert row.split() == ["2e9", "●●·✗·", f"{min(losses):.3f}", "··"]
    assert f"-seed{DIVERGES}-" in lines[-1]
    assert all(len(line) <= 80 for line in lines)


def test_status_as_json(mixed):
    shown = json.loads(call("sweep", "status", mixed.path, "--json").stdout)
    assert shown["counts"] == {
        "complete": 2, "running": 0, "stopped": 0, "failed": 1, "waiting": 8,
    }  # fmt: skip
    failed = next(run for run in shown["runs"] if run["state"] == "failed")
    assert (failed["seed"], failed["error"]) == (DIVERGES, "the loss is not finite")
    assert shown["flops_spent"] + shown["flops_left"] == pytest.approx(
        sum(cell.flops for cell in mixed.cells)
    )


def test_collect_lists_what_is_missing(mixed, tmp_path):
    place = tmp_path / "table.csv"
    shown = call("sweep", "collect", mixed.path, "--to", place).stdout
    assert shown.startswith(f"2 of 11 runs in {place}\nmissing  ")
    assert "(failed): the loss is not finite" in shown
    assert "missing  and 1 more" in shown
    runs = load_runs(place)
    assert len(runs) == 2
    lost = next(each for each in runs.findings if each.code == "missing_value")
    assert len(lost.rows) == 9
    shown = json.loads(call("sweep", "collect", mixed.path, "--to", place, "--json").stdout)
    assert (shown["n_runs"], len(shown["missing"])) == (2, 9)


def test_watch_in_a_pipe_tells_each_run_once_and_ends_with_the_launcher(mixed):
    lines = call("sweep", "watch", mixed.path, "--every", "0.1").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["2/11", "2/11", "2/11", "tests:"]
    assert "failed: the loss is not finite" in lines[1]


@pytest.mark.parametrize("command", ["status", "watch", "retry", "stop", "collect"])
def test_a_folder_without_a_sweep_is_refused(tmp_path, command):
    done = call("sweep", command, tmp_path)
    assert "holds no sweep (no plan.json)" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sweep", "start"), "Name a RECIPE"),
        (("sweep", "start", "papr"), "did you mean 'paper'"),
        (("sweep", "start", "paper", "--engine", "lokal"), "engine='lokal' is unknown"),
        (("sweep", "start", "paper", "--save-every", "often"), "use steps, such as 500"),
        (("run",), "Give either DIR, or --worker"),
        (("run", "none"), "not a folder"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(
    tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    done = call(*arguments)
    assert message in str(getattr(done.exception, "message", done.exception))
    assert list(tmp_path.iterdir()) == []


def test_stop_without_a_launcher_says_so(mixed):
    assert call("sweep", "stop", mixed.path).stdout == f"no launcher is at work on {mixed.path}\n"


def test_run_trains_one_folder_and_is_idempotent(data, tmp_path):
    sweep = SweepFolder(tmp_path / "sweep")
    sweep.grow(plan(data, budgets=[1e9], widths=[16], recurrences=[1]))
    place = sweep.prepare(sweep.cells[0])
    first = call("run", place, "--device", "cpu", "--threads", "1")
    assert first.exit_code == 0, first.exception
    row = json.loads((place / RESULT).read_text())
    assert f"{row['val_loss']:.4f} nats per token" in first.stdout
    again = json.loads(call("run", place, "--json", "-q").stdout)
    assert (again["state"], again["result"]) == ("complete", row)
    shown = call("sweep", "retry", sweep.path, "--workers", "1", "-q")
    assert "1 of 1 runs" in shown.stdout


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_a_board_and_a_pipe_only_lines(mixed):
    cell, look = mixed.cells[0], read_status(mixed).runs[0].look
    line = happening_line(Ended(cell, "complete", look, 1, 11))
    assert happening_line(Begun(cell)) is None
    for stream, drawn in ((Terminal(), True), (io.StringIO(), False)):
        progress = SweepProgress(stream)
        assert progress.due is drawn
        progress.draw(read_status(mixed))
        progress.line(line)
        progress.close()
        assert ("no launcher at work" in stream.getvalue()) is drawn
        assert cell.name in stream.getvalue()
        assert drawn or stream.getvalue() == f"{line}\n"
