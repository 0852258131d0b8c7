"""Stacked layers, models and optimisers against the plain ones, in float64."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopworth.model import LoopedTransformer, build
from loopworth.model.looped import Block
from loopworth.spec import ModelSpec, OptimSpec
from loopworth.train.health import state_norms
from loopworth.train.optim import build_optimizer
from loopworth.train.stack_layers import Shape, layer
from loopworth.train.stack_model import StackedModel
from loopworth.train.stack_optim import StackedOptimizer
from stack_cells import cell_spec

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


@settings(max_examples=15)
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
