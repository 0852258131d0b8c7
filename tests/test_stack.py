"""Stacked training against the plain loop: folders, kills, divergence, what is refused."""

import json
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from loopworth.plan.stacking import stacks
from loopworth.spec import OptimSpec
from loopworth.train.events import Noted, Stepped, Stopped
from loopworth.train.machine import Machine
from loopworth.train.metrics import read_metrics
from loopworth.train.stack import train_stack
from stack_cells import stack_runs
from train_runs import (
    CONTEXT,
    FORK,
    final_weights,
    make_data,
    same_weights,
    train_here,
    untimed,
)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("stack-data"))


def outs(folder: Path, runs) -> list[Path]:
    return [folder / f"run{k}" for k in range(len(runs))]


def stack_here(runs, folders, watch=None, **machine):
    return train_stack(runs, folders, Machine(threads=1, peak_flops=1e12, **machine), watch)


def names_in(folder: Path) -> list[str]:
    """Return the files of a run and of its last checkpoint; a stack saves when a run of it ends."""
    last = max((folder / "checkpoint").iterdir())
    kept = [*folder.iterdir(), *last.iterdir()]
    return sorted(str(path.relative_to(folder)) for path in kept)


def test_folders_are_those_of_runs_trained_alone(data, tmp_path):
    runs = stack_runs(data)
    start = time.perf_counter()
    stacked = stack_here(runs, outs(tmp_path / "stack", runs))
    assert 0 < sum(found.row["seconds"] for found in stacked) < time.perf_counter() - start
    for run, found in zip(runs, stacked, strict=True):
        alone = train_here(run, tmp_path / "alone" / found.out.name)
        assert found.complete
        assert abs(found.val_loss - alone.val_loss) < 1e-4
        close = pytest.approx(alone.row, rel=1e-4)
        assert {k: v for k, v in found.row.items() if k != "seconds"} == {
            k: v for k, v in close.expected.items() if k != "seconds"
        } | {
            k: pytest.approx(alone.row[k], abs=1e-4)
            for k in ("val_loss", "val_bits_per_byte", "train_loss")
        }
        assert names_in(found.out) == names_in(alone.out)
        mine, theirs = untimed(found.out), untimed(alone.out)
        assert [line.keys() for line in mine] == [line.keys() for line in theirs]
        for left, right in zip(mine, theirs, strict=True):
            assert left == {
                k: pytest.approx(v, rel=1e-2, abs=1e-4) if k != "event" else v
                for k, v in right.items()
            }
        weights, others = final_weights(found.out), final_weights(alone.out)
        assert weights.keys() == others.keys()
        # Asked again, both ways find it done.
        assert train_here(run, found.out).row == found.row
    assert [r.row for r in stack_here(runs, [r.out for r in stacked])] == [r.row for r in stacked]


def _killed_stack(runs, folders, kill_at, machine):
    """Train a stack in a new process that kills itself at a report of one run."""

    def watch(folder, event):
        if isinstance(event, Stepped) and (folder.name, event.step) == kill_at:
            signal.raise_signal(signal.SIGKILL)

    torch.set_num_threads(1)
    stack_here(runs, folders, watch, **machine)


@pytest.mark.parametrize("kill_at", [("run1", 5), ("run0", 7), ("run3", 2)])
def test_a_killed_stack_ends_as_if_it_had_not_been(data, tmp_path, kill_at):
    runs = stack_runs(data)
    options = {"save_every": 2, "log_every": 1}
    whole = stack_here(runs, outs(tmp_path / "whole", runs), **options)
    folders = outs(tmp_path / "killed", runs)
    process = FORK.Process(target=_killed_stack, args=(runs, folders, kill_at, options))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    resumed = stack_here(runs, folders, **options)
    for one, other in zip(whole, resumed, strict=True):
        assert one.row | {"seconds": 0} == other.row | {"seconds": 0}
        assert same_weights(one.out, other.out)
        assert untimed(one.out) == untimed(other.out)


@pytest.mark.parametrize("most", [1, 2])
def test_what_a_run_is_trained_with_changes_nothing(data, tmp_path, most):
    """High rates, so that a difference of one bit would grow."""
    optim = OptimSpec(batch_exponent=0, matrix_lr=0.03, embedding_lr=0.05, head_lr=0.01)
    runs = [replace(run, optim=optim) for run in stack_runs(data, steps=(14, 12, 13, 12))]
    whole = stack_here(runs, outs(tmp_path / "whole", runs))
    folders = outs(tmp_path / "parts", runs)
    for k in range(0, len(runs), most):
        stack_here(runs[k : k + most], folders[k : k + most])
    for one, folder in zip(whole, folders, strict=True):
        assert same_weights(one.out, folder)
        assert untimed(one.out) == untimed(folder)
        other = json.loads((folder / "result.json").read_text())
        assert one.row | {"seconds": 0} == other | {"seconds": 0}


def test_runs_whose_checkpoints_differ_go_on_from_the_newest_they_share(data, tmp_path):
    runs = stack_runs(data)
    options = {"save_every": 2, "log_every": 1}
    whole = stack_here(runs, outs(tmp_path / "whole", runs), **options)
    folders, notes = outs(tmp_path / "part", runs), []

    def stop(folder, event):
        if isinstance(event, Stepped) and event.step == 3:
            signal.raise_signal(signal.SIGTERM)

    parts = stack_here(runs, folders, stop, **options)
    assert [(p.complete, p.step, p.reason) for p in parts] == [(False, 3, "SIGTERM")] * 4
    last = folders[2] / "checkpoint" / "step-00000003" / "model.safetensors"
    last.write_bytes(last.read_bytes()[:-1])

    def note(folder, event):
        if isinstance(event, Noted):
            notes.append((folder.name, event.message))

    resumed = stack_here(runs, folders, note, **options)
    assert any("step 3 is dropped" in message for _, message in notes)
    assert all(same_weights(a.out, b.out) for a, b in zip(whole, resumed, strict=True))
    assert all(untimed(a.out) == untimed(b.out) for a, b in zip(whole, resumed, strict=True))


def test_a_run_that_was_stopped_in_a_stack_can_go_on_alone(data, tmp_path):
    runs = stack_runs(data)
    folders = outs(tmp_path / "part", runs)

    def stop(folder, event):
        if isinstance(event, Stepped) and event.step == 3:
            signal.raise_signal(signal.SIGTERM)

    stack_here(runs, folders, stop, log_every=1)
    whole = stack_here(runs, outs(tmp_path / "whole", runs))
    alone = train_here(runs[3], folders[3])
    assert alone.complete
    assert abs(alone.val_loss - whole[3].val_loss) < 1e-4
    assert [line["step"] for line in read_metrics(folders[3] / "metrics.jsonl")] == [1, 2, 3, 4, 5]


def test_a_run_that_diverges_leaves_and_the_others_do_not_notice(data, tmp_path):
    runs = stack_runs(data)
    wild = replace(runs[1], optim=replace(runs[1].optim, norm_lr=1e30, head_lr=1e30))
    told = []
    found = stack_here(
        [runs[0], wild, *runs[2:]], outs(tmp_path / "wild", runs),
        lambda folder, event: told.append((folder.name, event)), log_every=1,
    )  # fmt: skip
    calm = stack_here(runs, outs(tmp_path / "calm", runs), log_every=1)
    assert [each.complete for each in found] == [True, False, True, True]
    assert "is nan" in str(found[1].reason)
    assert [name for name, event in told if isinstance(event, Stopped)] == ["run1"]
    assert not (found[1].out / "result.json").exists()
    for k in (0, 2, 3):
        assert abs(found[k].val_loss - calm[k].val_loss) < 1e-4


def test_what_is_no_stack_is_refused(data, tmp_path):
    runs = stack_runs(data)
    with pytest.raises(ValueError, match="has no runs"):
        stack_here([], [])
    with pytest.raises(ValueError, match="one folder a run"):
        stack_here(runs, outs(tmp_path, runs)[:2])
    with pytest.raises(ValueError, match="have one folder"):
        stack_here(runs[:2], [tmp_path / "a", tmp_path / "a"])
    additive = replace(runs[1], model=replace(runs[1].model, injection="additive"))
    with pytest.raises(ValueError, match="injection='additive' is not"):
        stack_here([additive], [tmp_path / "a"])
    wide = replace(runs[1], model=replace(runs[1].model, d_model=12))
    with pytest.raises(ValueError, match="differ in width"):
        stack_here([runs[0], wide], outs(tmp_path, runs)[:2])


def test_stacks_hold_what_fits_together(data):
    runs = stack_runs(data, steps=(4, 4, 4, 4))
    other = [replace(run, batch_tokens=4 * CONTEXT) for run in runs]
    swiglu = replace(runs[0], model=replace(runs[0].model, mlp_kind="swiglu"))
    assert stacks([*runs, swiglu, *other]) == [[0, 1, 2, 3], [4], [5, 6, 7, 8]]
    assert json.dumps(stacks(runs, most=3)) == "[[0, 1, 2], [3]]"
