"""Two processes that talk by gloo: the losses of one, its checkpoints, and rows of their own."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from loopworth.data import Batches, open_folder
from loopworth.spec import OptimSpec, UnrollSpec
from loopworth.train import read_metrics
from train_runs import (
    CONTEXT,
    final_weights,
    losses,
    make_data,
    same_weights,
    small_run,
    train_here,
    train_together,
)

# Rates as those of a real run: the loss falls smoothly, and rounding does not grow.
CALM = OptimSpec(batch_exponent=0, token_exponent=0, embedding_lr=0.01, head_lr=0.002)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


# Both with two passes of four rows a step, in turn or at once, and checkpoints of 7, 14 and 20.
SAVED = {"save_every": 7, "keep": 3, "micro_batch_rows": 4}


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone")
    run = small_run(data, steps=20, optim=CALM)
    return run, out, train_here(run, out, **SAVED)


@pytest.fixture(scope="module", params=["ddp", "fsdp2"])
def together(request, alone, tmp_path_factory):
    out = tmp_path_factory.mktemp(request.param)
    assert train_together(alone[0], out, parallel=request.param, **SAVED) == [0, 0]
    return request.param, out


def cut_back(out, place):
    """Return a copy of a run's folder as it was after step 7 or a little later."""
    shutil.copytree(out, place)
    for step in (14, 20):
        shutil.rmtree(place / "checkpoint" / f"step-{step:08d}")
    (place / "result.json").unlink()
    return place


def test_losses_equal_those_of_one_process(alone, together):
    _, alone_out, result = alone
    mode, out = together
    assert losses(out) == pytest.approx(losses(alone_out), rel=1e-6)
    row = json.loads((out / "result.json").read_text())
    assert row["val_loss"] == pytest.approx(result.val_loss, rel=1e-6)
    assert row["val_tokens"] == result.row["val_tokens"]
    start = json.loads((out / "environment.json").read_text())["starts"][0]
    assert (start["processes"], start["parallel"]) == (2, mode)


def test_copies_add_up_bit_for_bit_as_two_micro_batches_do(alone, together):
    mode, out = together
    if mode == "ddp":  # shards add up in another order
        assert losses(out) == losses(alone[1])
        assert same_weights(out, alone[1])


def test_checkpoints_hold_the_whole_model(alone, together):
    one, two = final_weights(alone[1]), final_weights(together[1])
    assert {name: value.shape for name, value in one.items()} == {
        name: value.shape for name, value in two.items()
    }
    for name, value in one.items():
        # Signs of tiny gradients decide single numbers; the tensors are the same.
        assert np.linalg.norm(two[name] - value) < 1e-3 * np.linalg.norm(value), name


def test_one_process_goes_on_where_two_were(alone, together, tmp_path):
    out = cut_back(together[1], tmp_path / "out")
    train_here(alone[0], out)
    check_resumed(out, alone[1], [(0, 2), (7, 1)])


@pytest.mark.parametrize("mode", ["ddp", "fsdp2"])
def test_two_processes_go_on_where_one_was(alone, tmp_path, mode):
    out = cut_back(alone[1], tmp_path / "out")
    assert train_together(alone[0], out, parallel=mode) == [0, 0]
    check_resumed(out, alone[1], [(0, 1), (7, 2)])


def check_resumed(out, undisturbed, starts):
    found = json.loads((out / "environment.json").read_text())["starts"]
    assert [(start["step"], start["processes"]) for start in found] == starts
    assert [line["step"] for line in read_metrics(out / "metrics.jsonl")] == [*range(1, 21)]
    assert losses(out) == pytest.approx(losses(undisturbed), rel=1e-6)


def test_lanes_and_sampled_recurrences_under_ddp(data, tmp_path):
    model = {"recurrence": 3, "bptt_window": 2, "injection": "hyperconnections"}
    run = small_run(data, model=model, optim=CALM, unroll=UnrollSpec("uniform"))
    train_here(run, tmp_path / "one", micro_batch_rows=2)
    two = {"parallel": "ddp", "micro_batch_rows": 2}
    assert train_together(run, tmp_path / "two", **two) == [0, 0]
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-6)


def test_recomputed_activations_under_fsdp2(data, alone, tmp_path):
    run, out, _ = alone
    machine = {"parallel": "fsdp2", "checkpoint_activations": True, "micro_batch_rows": 2}
    assert train_together(run, tmp_path, **machine) == [0, 0]
    assert losses(tmp_path) == pytest.approx(losses(out), rel=1e-6)


def test_processes_read_disjoint_rows_whose_union_is_that_of_one(data):
    train = open_folder(data).train
    batches = Batches(train, CONTEXT, 8, seed=0)
    for step in range(20):
        whole = batches.step(step)
        shares = [batches.step(step, rank=rank, world=2) for rank in range(2)]
        assert not set(shares[0]) & set(shares[1])
        assert np.concatenate(shares).tolist() == whole.tolist()


def test_a_signal_to_one_process_stops_both(alone, tmp_path):
    run, alone_out, _ = alone
    assert train_together(run, tmp_path, stop_at=6) == [75, 75]
    assert [p.name for p in (tmp_path / "checkpoint").iterdir()] == ["step-00000006"]
    assert train_together(run, tmp_path) == [0, 0]
    assert losses(tmp_path) == pytest.approx(losses(alone_out), rel=1e-6)


def test_a_batch_that_cannot_be_shared_is_refused_by_all(data, tmp_path):
    run = small_run(data, batch_tokens=7 * CONTEXT)
    assert train_together(run, tmp_path) == [1, 1]


def test_torchrun(alone, tmp_path):
    run, alone_out, _ = alone
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(run.to_json()))
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "-m", "loopworth", "train", str(spec), "--out", str(tmp_path / "out"), "--device", "cpu",
        "--threads", "1", "--json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout)  # one of the two speaks
    assert answer["complete"]
    assert losses(tmp_path / "out") == pytest.approx(losses(alone_out), rel=1e-6)
