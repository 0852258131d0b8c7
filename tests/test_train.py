"""Training in one process: it learns, adds up, resumes bit for bit, and refuses what is wrong."""

import json
import math
import random
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from loopworth.data import Batches, open_folder
from loopworth.ledger import ledger
from loopworth.model import build
from loopworth.reach import reach
from loopworth.runs import load_runs
from loopworth.spec import UnrollSpec
from loopworth.train import (
    CheckpointError,
    Diverged,
    Finished,
    Machine,
    Noted,
    Saved,
    Started,
    Stepped,
    Validated,
    read_metrics,
    train,
)
from loopworth.train.checkpoint import Checkpoints
from loopworth.train.machine import find_place
from loopworth.train.rows import micro_batch_rows
from loopworth.train.transfer import multiplier
from loopworth.unroll import draw, flops_per_token
from train_runs import (
    CONTEXT,
    final_weights,
    losses,
    make_data,
    same_weights,
    small_run,
    train_apart,
    train_here,
    untimed,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    """One run that nothing happened to; the others are compared with it."""
    run, out = small_run(data), tmp_path_factory.mktemp("undisturbed")
    events = []
    result = train(
        run, out, Machine(device="cpu", threads=1, save_every=5, eval_every=6, peak_flops=1e12),
        events.append,
    )  # fmt: skip
    return run, out, result, events


def test_the_loss_falls_from_that_of_a_guess(undisturbed):
    _, out, result, _ = undisturbed
    found = losses(out)
    assert found[0] == pytest.approx(math.log(257), rel=0.01)  # 257 tokens, all equally likely
    assert found[-1] < found[0] - 1
    assert result.complete
    assert result.val_loss < found[0] - 1


def test_events_tell_the_story(undisturbed):
    _, _, result, events = undisturbed
    assert isinstance(events[0], Started)
    assert events[0].steps == 12
    assert [e.step for e in events if isinstance(e, Stepped)] == list(range(1, 13))
    assert [e.step for e in events if isinstance(e, Saved)] == [5, 10, 12]
    assert [e.step for e in events if isinstance(e, Validated)] == [6, 12]
    assert events[-1] == Finished(result)
    last = [e for e in events if isinstance(e, Stepped)][-1]
    assert last.eta_seconds == 0
    assert last.utilisation == last.flops_per_second / 1e12


def test_metrics_have_every_step_once_and_its_account(undisturbed):
    run, out, _, _ = undisturbed
    lines = read_metrics(out / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 13))
    per_step = ledger(run.model).train_flops_per_token * run.batch_tokens
    assert [line["flops"] for line in lines] == [per_step * step for step in range(1, 13)]
    assert [line["tokens"] for line in lines] == [256 * step for step in range(1, 13)]
    factors = [multiplier(run.optim, step, 12) for step in range(12)]
    assert [line["lr_factor"] for line in lines] == factors
    validations = read_metrics(out / "metrics.jsonl", "validation")
    assert [line["step"] for line in validations] == [6, 12]


def test_the_result_is_a_row_that_a_run_table_takes(undisturbed):
    run, out, result, _ = undisturbed
    row = json.loads((out / "result.json").read_text())
    assert row == result.row
    table = load_runs([row])
    assert table.val_loss[0] == row["val_loss"]
    assert table.tokens[0] == 12 * 256
    count = ledger(run.model).count()
    assert (table.n_once[0], table.n_rec[0]) == (count.n_once, count.n_rec)
    assert table.train_flops_per_token[0] == ledger(run.model).train_flops_per_token
    assert [finding.code for finding in table.findings if finding.severity == "error"] == []


def test_validation_is_the_mean_over_the_set_in_nats_and_in_bits_per_byte(undisturbed):
    run, out, result, _ = undisturbed
    data = open_folder(run.data.source)
    model = build(run.model, n_tokens=data.vocab_size).double()
    model.load_state_dict(
        {name: torch.from_numpy(value).double() for name, value in final_weights(out).items()}
    )
    rows = torch.from_numpy(data.validation.rows(np.arange(data.validation.n_rows(32)), 32))
    with torch.no_grad():
        nats = model(rows[:, :-1], rows[:, 1:], reduction="none").sum().item()
    assert result.val_loss == pytest.approx(nats / rows[:, 1:].numel(), rel=1e-6)
    characters = (rows[:, 1:] != data.bos).sum().item()  # the text is ASCII: a byte a token
    bits = nats / math.log(2) / characters
    assert result.row["val_bits_per_byte"] == pytest.approx(bits, rel=1e-6)


def test_validation_tokens_limits_the_set(data, tmp_path):
    run = small_run(data, steps=1, validation_tokens=5 * CONTEXT + 3)
    assert train_here(run, tmp_path / "out").row["val_tokens"] == 5 * CONTEXT


def test_the_environment_is_recorded_without_names(undisturbed):
    run, out, _, _ = undisturbed
    text = (out / "environment.json").read_text()
    import platform

    assert platform.node() not in text or len(platform.node()) < 3
    assert str(out) not in text
    start = json.loads(text)["starts"][0]
    assert start["step"] == 0
    assert start["versions"]["torch"] == torch.__version__
    assert start["data_digest"] == open_folder(run.data.source).digest
    assert (start["threads"], start["processes"], start["precision"]) == (1, 1, "float32")


def test_a_finished_run_returns_at_once(undisturbed):
    run, out, result, _ = undisturbed
    before = (out / "metrics.jsonl").read_bytes()
    events = []
    again = train(run, out, Machine(device="cpu"), events.append)
    assert (again, events) == (result, [Finished(result, already=True)])
    assert (out / "metrics.jsonl").read_bytes() == before


def test_a_folder_of_another_spec_is_refused(undisturbed):
    run, out, _, _ = undisturbed
    with pytest.raises(ValueError, match="another run: seed is 42 there and 43 here"):
        train(run.replace(seed=43), out)


def test_a_folder_that_holds_other_things_is_refused(data, tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match=r"no spec.json but holds thesis.tex"):
        train(small_run(data), tmp_path)


def test_a_run_that_could_not_start_leaves_the_folder_to_the_next_try(data, tmp_path):
    mistaken = small_run(data, steps=1, model={"vocab_size": 8})
    with pytest.raises(ValueError, match="vocab"):
        train_here(mistaken, tmp_path)
    assert not (tmp_path / "spec.json").exists()
    assert train_here(small_run(data, steps=1), tmp_path).complete


def test_a_folder_in_use_is_refused(data, tmp_path):
    from loopworth.train.folder import locked

    with locked(tmp_path), pytest.raises(ValueError, match="trained by another process"):
        train(small_run(data), tmp_path)


def test_killed_at_random_steps_it_ends_bit_for_bit_the_same(undisturbed, tmp_path):
    run, undisturbed_out, _, _ = undisturbed
    choose = random.Random(3)
    step, out, kills = 0, tmp_path / "out", 0
    while step < 12:
        step += choose.randint(2, 5)  # some before the next checkpoint: they lose their work
        code = train_apart(run, out, kill_at=step, save_every=3, eval_every=6)
        kills += code == -signal.SIGKILL
    assert kills >= 3
    assert train_apart(run, out, save_every=3, eval_every=6) == 0
    assert untimed(out) == untimed(undisturbed_out)
    assert same_weights(out, undisturbed_out)
    mine, other = (json.loads((o / "result.json").read_text()) for o in (out, undisturbed_out))
    assert mine["val_loss"] == other["val_loss"]


def test_killed_at_any_moment_it_ends_bit_for_bit_the_same(undisturbed, tmp_path):
    run, undisturbed_out, _, _ = undisturbed
    choose, out, wait = random.Random(5), tmp_path / "out", 0.6
    while train_apart(
        run, out, seconds=wait * choose.uniform(0.3, 1.0), save_every=1, eval_every=6
    ):  # in imports, in a step, in a checkpoint, in the validation
        wait *= 2
    assert untimed(out) == untimed(undisturbed_out)
    assert same_weights(out, undisturbed_out)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_and_stops(undisturbed, tmp_path, number):
    run, undisturbed_out, _, _ = undisturbed
    out = tmp_path / "out"
    code = train_apart(run, out, kill_at=7, signal_number=number, eval_every=6)
    assert code == 75
    assert [path.name for path in (out / "checkpoint").iterdir()] == ["step-00000007"]
    assert not (out / "result.json").exists()
    train_here(run, out, eval_every=6)
    assert untimed(out) == untimed(undisturbed_out)
    assert same_weights(out, undisturbed_out)
    starts = json.loads((out / "environment.json").read_text())["starts"]
    assert [start["step"] for start in starts] == [0, 7]


def test_sampled_recurrences_and_parameters_per_recurrence_resume(data, tmp_path):
    unroll = UnrollSpec("poisson", window="random")
    model = {"recurrence": 3, "bptt_window": 2, "injection": "hyperconnections"}
    run = small_run(data, model=model, unroll=unroll)
    train_here(run, tmp_path / "whole")
    train_apart(run, tmp_path / "killed", kill_at=8, save_every=3)
    train_here(run, tmp_path / "killed")
    assert untimed(tmp_path / "whole") == untimed(tmp_path / "killed")
    assert same_weights(tmp_path / "whole", tmp_path / "killed")
    drawn = [line["recurrence"] for line in read_metrics(tmp_path / "whole" / "metrics.jsonl")]
    assert len(set(drawn)) > 1


def interrupted(run, out, *, step=9, every=4):
    assert train_apart(run, out, kill_at=step, save_every=every) < 0


def test_a_corrupt_checkpoint_is_passed_over_and_said(undisturbed, tmp_path):
    run, undisturbed_out, _, _ = undisturbed
    interrupted(run, tmp_path)
    weights = tmp_path / "checkpoint" / "step-00000008" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    events = []
    machine = Machine(device="cpu", threads=1, eval_every=6)
    train(run, tmp_path, machine, events.append)
    notes = [event.message for event in events if isinstance(event, Noted)]
    assert len(notes) == 1
    assert "step-00000008/model.safetensors has" in notes[0]
    assert next(event for event in events if isinstance(event, Started)).step == 4
    assert untimed(tmp_path) == untimed(undisturbed_out)
    assert same_weights(tmp_path, undisturbed_out)


def test_other_data_and_lost_checkpoints_are_refused(data, tmp_path):
    moved = tmp_path / "tokens"
    shutil.copytree(data, moved)
    run, out = small_run(moved), tmp_path / "out"
    interrupted(run, out)
    shutil.rmtree(moved)
    (tmp_path / "other").mkdir()
    (tmp_path / "other.txt").write_text("something else\n" * 999)
    from loopworth.data.prepare import prepare

    (tmp_path / "more.jsonl").write_text(
        "".join(json.dumps({"text": f"{n} " * 40}) + "\n" for n in range(99))
    )
    prepare(tmp_path / "more.jsonl", moved, validation=0.1)
    with pytest.raises(ValueError, match="its split or its tokenizer has changed"):
        train_here(run, out)
    for path in (out / "checkpoint").glob("*/state.pt"):
        path.unlink()
    with pytest.raises(CheckpointError, match=r"state.pt is missing.*delete that folder"):
        train_here(run, out)


def test_a_truncated_shard_is_refused(data, tmp_path):
    shutil.copytree(data, tmp_path / "tokens")
    shard = tmp_path / "tokens" / "train-00000.bin"
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"train-00000.bin is truncated"):
        train_here(small_run(tmp_path / "tokens"), tmp_path / "out")


def test_weights_that_are_no_numbers_are_not_saved(data, tmp_path):
    run = small_run(data)
    wild = run.replace(optim=replace(run.optim, head_lr=1e38))
    with pytest.raises(Diverged, match=r"after step 1, head.weight .* no checkpoint.*lower"):
        train_here(wild, tmp_path, save_every=1)
    assert Checkpoints(tmp_path / "checkpoint").steps() == []
    with pytest.raises(Diverged, match=r"loss of step 2 is nan"):
        train_here(wild, tmp_path)


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_state(data, tmp_path):
    run = small_run(data)
    interrupted(run, tmp_path)
    kept = Checkpoints(tmp_path / "checkpoint")
    good, _ = kept.newest()
    weights = good.model()
    weights["head.weight"][0] = math.nan  # as a memory fault would leave it
    kept.write(8, weights, good.state(), good.meta)
    before = (kept.place(8) / "model.safetensors").read_bytes()
    with pytest.raises(Diverged, match=r"loss of step 9 is nan; the last good .* is step 8"):
        train_here(run, tmp_path, save_every=1)
    assert kept.steps() == [4, 8]
    assert (kept.place(8) / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_the_gradient_does_not_depend_on_the_micro_batch(undisturbed, tmp_path, rows):
    run, out, _, _ = undisturbed
    train_here(run, tmp_path, micro_batch_rows=rows)
    # Equal to rounding, which twelve steps at a large rate let grow.
    assert losses(tmp_path) == pytest.approx(losses(out), rel=1e-5)
    assert losses(tmp_path)[0] == pytest.approx(losses(out)[0], rel=1e-6)


def test_recomputing_activations_changes_nothing(undisturbed, tmp_path):
    run, out, _, _ = undisturbed
    train_here(run, tmp_path, checkpoint_activations=True)
    assert losses(tmp_path) == losses(out)


def test_reading_losses_in_bursts_changes_nothing(undisturbed, tmp_path):
    run, out, _, _ = undisturbed
    train_here(run, tmp_path, log_every=5, eval_every=6)
    assert untimed(tmp_path) == untimed(out)


def test_bfloat16_is_allowed_on_a_cpu(data, tmp_path):
    run = small_run(data, precision="bfloat16")
    train_here(run, tmp_path)
    found = losses(tmp_path)
    assert found[-1] < found[0] - 1


def test_another_machine_is_said_to_end_bit_exactness(data, tmp_path):
    run, events = small_run(data), []
    interrupted(run, tmp_path)
    train(run, tmp_path, Machine(device="cpu", threads=1, micro_batch_rows=2), events.append)
    notes = [event.message for event in events if isinstance(event, Noted)]
    assert len(notes) == 1
    assert "micro_batch_rows 8 -> 2" in notes[0]


@pytest.mark.parametrize(
    ("horizon", "steps"), [({"steps": 7}, 7), ({"tokens": 256 * 7 + 100}, 7), ({"tokens": 9}, 1)]
)
def test_the_horizon_in_steps_or_tokens(data, horizon, steps):
    run = small_run(data).replace(**horizon)
    assert reach(run).steps == steps
    assert reach(run).flops == ledger(run.model).train_flops_per_token * steps * 256


@pytest.mark.parametrize(
    "unroll",
    [
        UnrollSpec(),
        UnrollSpec("poisson"),
        UnrollSpec("lognormal_poisson"),
        UnrollSpec("grow"),
        UnrollSpec(window="curriculum"),
    ],
    ids=lambda u: f"{u.recurrence}-{u.window}",
)
def test_a_budget_buys_the_flops_of_the_draws(data, unroll):
    model = {"recurrence": 4, "bptt_window": 3}
    run = small_run(data, model=model, unroll=unroll).replace(budget_flops=1e10)
    found = reach(run)
    steps = [
        draw(run.model, unroll, seed=42, step=t, steps=found.steps) for t in range(found.steps)
    ]
    spent = [flops_per_token(run.model, one) * run.batch_tokens for one in steps]
    assert found.flops == pytest.approx(sum(spent), rel=1e-12)
    assert abs(found.flops - 1e10) <= max(spent)


def test_rows_of_a_pass(data):
    run, place = small_run(data), find_place(Machine(device="cpu"), "auto")
    assert micro_batch_rows(run, place, 8, None, checkpoint=False) == 8
    with pytest.raises(ValueError, match="micro_batch_rows=3 does not divide the 8 rows"):
        micro_batch_rows(run, place, 8, 3, checkpoint=False)
    wide = small_run(data, model={"d_model": 2048, "context": 1024}, batch_tokens=2**16)
    rows = [micro_batch_rows(wide, place, 64, None, checkpoint=c) for c in (False, True)]
    assert rows[0] <= rows[1] < 64


def test_too_little_memory_is_said_with_what_to_do(data, tmp_path):
    for width, asked in ((2**20, r" \(4398046511104 bytes more were asked for\)"), (2**34, "")):
        wide = small_run(data, model={"d_model": width}, steps=1)
        with pytest.raises(ValueError, match=f"not enough memory for this run{asked}; use a small"):
            train_here(wide, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device": "tpu"}, "device='tpu' is"),
        ({"keep": 0}, "keep=0 is too small"),
        ({"threads": 1.5}, "threads=1.5"),
        ({"save_seconds": -1}, "save_seconds=-1"),
        ({"parallel": "ddq"}, "did you mean 'ddp'"),
        ({"trackers": ("wandbb",)}, "did you mean 'wandb'"),
        ({"device": "cuda:7"}, "needs GPU 7"),
    ],
)
def test_a_machine_that_cannot_be_is_refused(data, tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        train(small_run(data), tmp_path, Machine(**change))


def test_specs_that_do_not_fit_the_data_are_refused(data, tmp_path):
    with pytest.raises(ValueError, match=r"vocab_size=128 is too small.*use 320"):
        train_here(small_run(data, model={"vocab_size": 128}), tmp_path / "a")
    with pytest.raises(ValueError, match="too few for one row"):
        train_here(small_run(data, model={"context": 10**5}, batch_tokens=10**5), tmp_path / "b")
    with pytest.raises(ValueError, match="does not exist"):
        train_here(small_run(tmp_path / "none"), tmp_path / "c")
    run = small_run(data)
    other = run.replace(data=replace(run.data, digest="0" * 64))
    with pytest.raises(ValueError, match="digest"):
        train_here(other, tmp_path / "d")


def test_rows_are_read_in_the_order_of_the_seed(undisturbed):
    run, _, _, events = undisturbed
    batches = Batches(open_folder(run.data.source).train, CONTEXT, 8, run.data.seed)
    assert events[0].epochs == batches.epoch(12)
