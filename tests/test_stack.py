"""Stacked training against the plain model, the plain optimiser and the plain loop."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loopworth.model import LoopedTransformer, build
from loopworth.model.looped import Block
from loopworth.plan.designs import looped_model
from loopworth.plan.stacking import stacks
from loopworth.spec import ModelSpec, OptimSpec, RunSpec
from loopworth.train.events import Noted, Stepped, Stopped
from loopworth.train.health import state_norms
from loopworth.train.machine import Machine
from loopworth.train.metrics import read_metrics
from loopworth.train.optim import build_optimizer
from loopworth.train.stack import train_stack
from loopworth.train.stack_layers import Shape, layer
from loopworth.train.stack_model import StackedModel
from loopworth.train.stack_optim import StackedOptimizer
from train_runs import (
    CONTEXT,
    FORK,
    final_weights,
    make_data,
    same_weights,
    small_run,
    train_here,
    untimed,
)

LAYERS = {1: (1, 8, 1), 2: (1, 4, 1), 4: (1, 2, 1), 8: (1, 1, 1)}
# Recurrence, injection, window: every r, every injection, full and truncated gradients.
KINDS = [
    (8, "hyperconnections", None),
    (4, "hyperconnections", 2),
    (8, "linear", None),
    (8, "linear", 4),
    (4, "linear", None),
    (2, "linear", 1),
    (1, "none", None),
]
EXACT = torch.float64


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("stack-data"))


def cell_spec(kind, *, width=8, context=8, vocab_size=16):
    recurrence, injection, window = kind
    return looped_model(
        width, recurrence, LAYERS[recurrence], injection=injection, bptt_window=window,
        head_dim=4, vocab_size=vocab_size, context=context,
    )  # fmt: skip


def perturbed_models(kinds, n_tokens=13, scale=0.1):
    """Return models whose every parameter is away from its initial value, in float64."""
    generator = torch.Generator().manual_seed(5)
    models = [
        build(cell_spec(kind), seed=k, n_tokens=n_tokens).to(EXACT) for k, kind in enumerate(kinds)
    ]
    with torch.no_grad():
        for model in models:
            for each in model.parameters():
                each.add_(scale * torch.randn(each.shape, generator=generator, dtype=EXACT))
    return models


def some_rows(rows=3, context=8, n_tokens=13, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, n_tokens, (rows, context + 1), generator=generator)


def stacked_loss(stack, rows):
    cells = len(stack.cells)
    inputs, targets = rows[:, :-1].reshape(1, -1), rows[:, 1:].reshape(1, -1)
    return stack.forward(inputs.expand(cells, -1), targets.expand(cells, -1))


@given(
    st.sampled_from([(4, 4), (8, 4), (12, 12), (12, 6), (16, 8)]),
    st.integers(1, 3),
    st.integers(0, 9),
)
def test_a_layer_of_all_cells_is_the_block_of_each(sizes, rows, seed):
    width, head_dim = sizes
    torch.manual_seed(seed)
    spec = ModelSpec(width, head_dim=head_dim, context=6)
    blocks = [Block(spec).to(EXACT) for _ in range(2)]
    for block in blocks:
        for each in block.parameters():
            torch.nn.init.uniform_(each, -1, 1)
    plain = build(spec)
    rope = plain.cosine_TC.to(EXACT), plain.sine_TC.to(EXACT)
    x = torch.randn(2, rows, 6, width, dtype=EXACT, requires_grad=True)
    slope = torch.randn(2, rows, 6, width, dtype=EXACT)
    expected = torch.stack([block(x[k], rope, {}) for k, block in enumerate(blocks)])
    expected.backward(slope)

    def feature_major(value):
        return value.detach().flatten(1, 2).mT.contiguous()

    def gathered(of_block):
        return torch.stack([of_block(block).detach() for block in blocks]).requires_grad_()

    qkv = gathered(lambda b: torch.cat([b.q, b.k, b.v]))
    o, up, down = (gathered(f) for f in (lambda b: b.o, lambda b: b.up, lambda b: b.down.mT))
    first = gathered(lambda b: b.norm_attention.weight)
    second = gathered(lambda b: b.norm_mlp.weight)
    mine = feature_major(x).requires_grad_()
    shape = Shape.of(spec.n_heads, rows, *rope)
    found = layer(mine, qkv * first[:, None], o, up * second[:, None], down, shape)
    found.backward(feature_major(slope))

    torch.testing.assert_close(found, feature_major(expected))
    torch.testing.assert_close(mine.grad, feature_major(x.grad))
    for part, of_block in (
        (qkv, lambda b: torch.cat([b.q.grad, b.k.grad, b.v.grad])),
        (o, lambda b: b.o.grad),
        (up, lambda b: b.up.grad),
        (down, lambda b: b.down.grad.mT),
        (first, lambda b: b.norm_attention.weight.grad),
        (second, lambda b: b.norm_mlp.weight.grad),
    ):
        torch.testing.assert_close(part.grad, torch.stack([of_block(b) for b in blocks]))


def test_losses_gradients_and_states_are_those_of_each_model():
    models, rows = perturbed_models(KINDS), some_rows()
    stack = StackedModel(models, len(rows))
    losses, sizes = stacked_loss(stack, rows)
    losses.sum().backward()
    order = stack.state_order()
    slopes = {name: bank.grad for name, bank in stack.banks.items()}
    for cell, model in zip(stack.cells, models, strict=True):
        loss, states = model(rows[:, :-1], rows[:, 1:], return_states=True)
        loss.backward()
        torch.testing.assert_close(losses[cell.position], loss)
        mine = sizes[[i for i, position in enumerate(order) if position == cell.position]]
        torch.testing.assert_close(mine.float(), state_norms([each.float() for each in states]))
        found = cell.views(slopes)
        expected = {
            name: torch.zeros_like(each) if each.grad is None else each.grad
            for name, each in model.named_parameters()
        }
        assert found.keys() == expected.keys()
        for name, slope in expected.items():
            torch.testing.assert_close(found[name], slope, msg=lambda text, n=name: f"{n}: {text}")


def plain_optimizers(models: list[LoopedTransformer], optims: list[OptimSpec], steps: int):
    return [
        build_optimizer(
            {name: members for name, members in model.parameter_groups().items() if members},
            optim, model=model.spec, batch_tokens=24, tokens=10_000, steps=steps,
        )
        for model, optim in zip(models, optims, strict=True)
    ]  # fmt: skip


def test_steps_are_those_of_each_optimiser():
    steps, models = 6, perturbed_models(KINDS)
    base = OptimSpec(matrix_lr=0.02, batch_exponent=0, reference_tokens=10_000)
    optims = [replace(base, matrix_lr=0.02 / (1 + k), head_lr=0.002 * k + 1e-3) for k in range(7)]
    optimisers = plain_optimizers(models, optims, steps)
    stack = StackedModel(models, 3)
    mine = StackedOptimizer(stack, base, [each.peaks for each in optimisers])
    for step in range(steps):
        rows, factors = some_rows(seed=step), [1 / (1 + step + k) for k in range(len(models))]
        stack.zero_grad()
        stacked_loss(stack, rows)[0].sum().backward()
        norms = mine.gradient_norms()
        mine.step(step, factors)
        for k, (model, optimiser) in enumerate(zip(models, optimisers, strict=True)):
            model(rows[:, :-1], rows[:, 1:]).backward()
            groups = {n: m for n, m in model.parameter_groups().items() if m}
            for name, members in groups.items():
                square = sum(p.grad.square().sum() for _, p in members if p.grad is not None)
                torch.testing.assert_close(norms[name][k], torch.as_tensor(square).sqrt())
            for inner in optimiser._both():
                for members in inner.param_groups:
                    members["lr"] = optimiser.peaks[members["name"]] * factors[k]
                inner.step()
            optimiser.zero_grad()
    for cell, model, optimiser in zip(stack.cells, models, optimisers, strict=True):
        for name, view in cell.views(stack.banks).items():
            torch.testing.assert_close(view.detach(), model.state_dict()[name])
        expected = {k: dict(v) for k, v in optimiser.state_dict()["parameters"].items()}
        mine.store(cell, optimiser, steps)
        found = optimiser.state_dict()["parameters"]
        assert found.keys() == expected.keys()
        for name, state in expected.items():
            assert state.keys() == found[name].keys()
            for key, value in state.items():
                torch.testing.assert_close(found[name][key], value, check_dtype=False)


def test_state_goes_into_the_banks_and_back_unchanged():
    models = perturbed_models(KINDS)
    optimisers = plain_optimizers(models, [OptimSpec()] * len(models), 4)
    rows = some_rows()
    for model, optimiser in zip(models, optimisers, strict=True):
        model(rows[:, :-1], rows[:, 1:]).backward()
        optimiser.step()
    stack = StackedModel(models, 3)
    mine = StackedOptimizer(stack, OptimSpec(), [each.peaks for each in optimisers])
    for cell, model, optimiser in zip(stack.cells, models, optimisers, strict=True):
        before = {k: dict(v) for k, v in optimiser.state_dict()["parameters"].items()}
        weights = {name: each.clone() for name, each in model.state_dict().items()}
        mine.load(cell, optimiser)
        mine.store(cell, optimiser, 1)
        stack.store(cell, model)
        after = optimiser.state_dict()["parameters"]
        assert all(torch.equal(weights[n], each) for n, each in model.state_dict().items())
        for name, state in before.items():
            assert state.keys() == after[name].keys()
            assert all(torch.equal(state[key], after[name][key].to(state[key])) for key in state)


# ---- runs in folders ----


def stack_runs(data: Path, steps=(7, 6, 6, 5), **model) -> list[RunSpec]:
    """Return r = 1, 2, 4, 8 with horizons of their own and gentle rates.

    High rates would amplify rounding: the comparison is of the arithmetic, not of chaos.
    """
    optim = OptimSpec(
        batch_exponent=0, token_exponent=0, matrix_lr=0.01, embedding_lr=0.002, head_lr=0.001,
        norm_lr=0.001,
    )  # fmt: skip
    kinds = [
        (1, "none", None),
        (2, "linear", None),
        (4, "linear", 2),
        (8, "hyperconnections", None),
    ]
    return [
        small_run(
            data, steps=n, optim=optim,
            model=cell_spec(kind, context=CONTEXT, vocab_size=320).to_json() | model,
        )
        for n, kind in zip(steps, kinds, strict=True)
    ]  # fmt: skip


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
    stacked = stack_here(runs, outs(tmp_path / "stack", runs))
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
