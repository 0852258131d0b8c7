"""Metrics in a tracker: with the real libraries where they are installed, else a clear refusal."""

import importlib.util
import json
import sqlite3

import pytest

from loopworth.train.trackers import TRACKERS
from train_runs import losses, make_data, small_run, train_apart, train_here

# What these libraries warn about themselves at import is not ours to mend.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_that_is_not_installed_is_refused_in_words(data, tmp_path, name):
    if importlib.util.find_spec(name):
        pytest.skip(f"{name} is installed")
    with pytest.raises(ValueError, match=f"tracker {name} is not installed; .*pip install {name}"):
        train_here(small_run(data, steps=1), tmp_path, trackers=(name,))


def test_tensorboard_has_every_step_once_after_a_resume(data, tmp_path):
    pytest.importorskip("tensorboard")
    run = small_run(data)
    train_apart(run, tmp_path, kill_at=7, save_every=4, trackers=("tensorboard",))
    train_here(run, tmp_path, trackers=("tensorboard",))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = events.Scalars("train/loss")
    assert [each.step for each in found] == list(range(1, 13))
    assert [each.value for each in found] == pytest.approx(losses(tmp_path), rel=1e-6)
    assert "validation/val_loss" in events.Tags()["scalars"]
    assert "train/state_norms/2" in events.Tags()["scalars"]


def test_trackio_keeps_a_local_project(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read at import
    pytest.importorskip("trackio")
    train_here(small_run(data, steps=4), tmp_path / "out", trackers=("trackio",))
    with sqlite3.connect(next((tmp_path / "trackio").glob("loopworth*.db"))) as database:
        rows = database.execute("select step, metrics from metrics order by step").fetchall()
    database.close()
    found = {step: value["train/loss"] for step, value in _parsed(rows) if "train/loss" in value}
    assert list(found.values()) == pytest.approx(losses(tmp_path / "out"), rel=1e-6)
    assert capsys.readouterr().out == ""


def _parsed(rows):
    return [(step, json.loads(text)) for step, text in rows]


def test_wandb_works_offline(data, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    train_here(small_run(data, steps=4), tmp_path / "out", trackers=("wandb",))
    assert list((tmp_path / "out" / "wandb").glob("offline-run-*/*.wandb"))
    assert json.loads((tmp_path / "out" / "result.json").read_text())["step"] == 4
