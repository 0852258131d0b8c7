"""The command `loopworth train`: what it prints, where it writes, how it exits."""

import io
import json
import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from loopworth.cli import main
from loopworth.recipes.single import RUNS, load_run
from loopworth.report.train_text import TrainProgress
from loopworth.spec import RunSpec
from loopworth.train import Noted, Stepped
from train_runs import make_data, same_weights, small_run, train_here


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def spec(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.json"
    path.write_text(json.dumps(small_run(data, steps=4).to_json()))
    return path


def call(*arguments: str):
    return CliRunner().invoke(main, ["train", *arguments], standalone_mode=False)


def train_command(*arguments: object):
    return call(*map(str, arguments), "--device", "cpu", "--threads", "1")


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_printed_as_a_spec_to_start_from(name, tmp_path):
    shown = call(name, "--print").stdout
    assert RunSpec.from_json(shown) == RUNS[name]()
    path = tmp_path / "mine.json"
    path.write_text(shown)
    assert load_run(str(path)) == ("mine", RUNS[name](), None)


def test_toml_is_read(data, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        f'steps = 3\nbatch_tokens = 64\n[data]\nsource = "{data}"\n'
        "[model]\nd_model = 32\nhead_dim = 16\nvocab_size = 320\ncontext = 32\n"
    )
    _, run, _ = load_run(str(path))
    assert (run.steps, run.model.d_model, run.data.source) == (3, 32, str(data))


def test_it_trains_into_runs_name_hash_and_says_what_came_of_it(spec, data, tmp_path):
    done = train_command(spec)
    run = small_run(data, steps=4)
    out = tmp_path / "runs" / f"small-{run.content_hash()[:8]}"
    assert RunSpec.from_json((out / "spec.json").read_text()) == run
    row = json.loads((out / "result.json").read_text())
    assert f"{row['val_loss']:.4f} nats per token" in done.stdout
    assert "training 4 steps: 1.02K tokens" in done.stderr
    assert "step 4/4 · loss" in done.stderr
    again = json.loads(train_command(out, "--json", "-q").stdout)  # the folder is a spec as well
    assert again["complete"]
    assert again["result"] == row


def test_options_reach_the_machine(spec, tmp_path):
    out = tmp_path / "out"
    train_command(
        spec, "--out", out, "--micro-batch", 2, "--save-every", 1, "--keep", 3, "--eval-every", 2
    )
    kept = sorted(path.name for path in (out / "checkpoint").iterdir())
    assert kept == ["step-00000002", "step-00000003", "step-00000004"]
    start = json.loads((out / "environment.json").read_text())["starts"][0]
    assert (start["micro_batch_rows"], start["threads"]) == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tinny",), "did you mean 'tiny'"),
        (("small.json", "--track", "wandbb"), "wandbb"),
        (("small.json", "--save-every", "often"), "use steps, such as 500, or a duration"),
        (("small.json", "--micro-batch", "3"), "does not divide"),
        (("empty.json",), "the run spec has no model"),
        (("bad.toml",), "is not TOML"),
        (("folder",), "a folder without spec.json"),
        (("utf16.json",), "utf16.json is not UTF-8 text"),
        (("twice.json",), "twice.json: the run spec has 'd_model' more than once"),
    ],
)
def test_what_is_wrong_is_said(spec, tmp_path, arguments, message):
    (tmp_path / "empty.json").write_text("{}")
    (tmp_path / "bad.toml").write_text("steps = = 3")
    (tmp_path / "folder").mkdir()
    (tmp_path / "utf16.json").write_bytes("{}".encode("utf-16"))
    (tmp_path / "twice.json").write_text('{"model": {"d_model": 64, "d_model": 32}}')
    done = train_command(*arguments)
    assert message in str(getattr(done.exception, "message", done.exception))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_ends_the_command_with_a_checkpoint_and_its_code(data, tmp_path, number, code):
    run = small_run(data, steps=2000)
    path, out = tmp_path / "long.json", tmp_path / "out"
    path.write_text(json.dumps(run.to_json()))
    command = [sys.executable, "-m", "loopworth", "train", str(path), "--out", str(out), "--device"]
    command += ["cpu", "--threads", "1", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        for line in process.stderr:  # the first step is done
            if line.startswith("step "):
                break
        process.send_signal(number)
        output, errors = process.communicate()
    assert process.returncode == code
    answer = json.loads(output)
    assert not answer["complete"]
    assert answer["reason"] == signal.Signals(number).name
    assert f"at step {answer['step']} of 2000, which is saved" in errors
    kept = [path.name for path in (out / "checkpoint").iterdir()]
    assert kept == [f"step-{answer['step']:08d}"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_and_notes_above_it(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    progress = TrainProgress(stream)
    progress(Stepped(1, 2, 5.0, 2e4, 5e10, None, 1.0, 1.0, {}))
    progress(Noted("something"))
    progress(Stepped(2, 2, 4.0, 2e4, 5e10, 0.5, 2.0, 0.0, {}))
    progress.close()
    text = stream.getvalue()
    frames = text.split("\r\x1b[K")[1:]
    assert all(len(frame.rstrip("\n")) < 80 for frame in frames)
    assert frames[1].startswith("note: something\n")  # and the line again
    assert "step 2/2 · loss 4.000" in frames[2]
    assert text.count("\n") == 2


def test_a_pipe_has_few_lines_and_no_control_characters():
    stream = io.StringIO()
    progress = TrainProgress(stream)
    for step in range(1, 1001):
        progress(Stepped(step, 1000, 5.0, 2e4, 5e10, None, 1.0, 1.0, {}))
    progress.close()
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("step 1/1000")
    assert lines[-1].startswith("step 1000/1000")
    assert len(lines) < 10


def test_the_library_writes_nothing(data, tmp_path, capfd):
    train_here(small_run(data, steps=2), tmp_path / "out")
    assert capfd.readouterr() == ("", "")


def test_the_command_and_the_library_train_the_same(spec, data, tmp_path):
    train_command(spec, "--out", tmp_path / "command", "-q")
    train_here(small_run(data, steps=4), tmp_path / "library")
    assert same_weights(tmp_path / "command", tmp_path / "library")


@pytest.mark.parametrize(("size", "ended"), [("1", True), ("2", False)])
def test_one_of_several_processes_leaves_before_the_interpreter_ends(size, ended):
    """DDP keeps gloo's threads, and one at work while the interpreter ends aborts the process."""
    program = (
        "import atexit; from loopworth.cli import main;"
        "atexit.register(print, 'the interpreter ends'); main(['train', 'nothing'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "WORLD_SIZE": size}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "'nothing' is neither a run nor a file" in done.stderr
    assert ("the interpreter ends" in done.stdout) is ended
