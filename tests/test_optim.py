"""MuonH and AdamW behind one step: rates, groups, states."""

import math

import pytest
import torch
from torch import nn

from loopworth.spec import ModelSpec, OptimSpec
from loopworth.train.muonh import MuonH
from loopworth.train.optim import build_optimizer
from loopworth.train.transfer import multiplier

torch.set_num_threads(1)


def _normal(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)


def _give_gradients(named, step):
    for i, (_, each) in enumerate(named):
        each.grad = _normal(*each.shape, seed=1000 * step + i, dtype=each.dtype)


MODEL = ModelSpec(640, recurrence=4)
REFERENCE = {"model": MODEL, "batch_tokens": 2**18, "tokens": 1_016_083_200}


def _groups(seed=0):
    members = {
        "matrix_once": [(8, 8), (8, 32)],
        "matrix_loop": [(32, 8), (8, 16)],
        "embedding": [(20, 8)],
        "head": [(20, 8)],
        "norm": [(8,), (8,)],
        "injection": [(2, 2)],
    }
    return {
        group: [
            (f"{group}.{i}", nn.Parameter(_normal(*shape, seed=seed + 10 * g + i)))
            for i, shape in enumerate(shapes)
        ]
        for g, (group, shapes) in enumerate(members.items())
    }


def _flat(groups):
    return [pair for members in groups.values() for pair in members]


def test_adamw_groups_are_torchs_adamw_step_by_step():
    optim, steps = OptimSpec(), 7
    ours, theirs = _groups(), _groups()
    optimiser = build_optimizer(ours, optim, steps=steps, **REFERENCE)
    rates = {"embedding": 0.3, "head": 0.004, "norm": 0.005, "injection": 0.01}
    plain = torch.optim.AdamW(
        [{"params": [each for _, each in theirs[name]], "name": name} for name in rates],
        betas=(0.8, 0.95), eps=1e-10, weight_decay=0.0, foreach=False, fused=False,
    )  # fmt: skip
    for step in range(steps):
        for named in (_flat(ours), _flat(theirs)):
            _give_gradients(named, step)
        for group in plain.param_groups:
            group["lr"] = rates[group["name"]] * (1 - 0.9 * step / steps)
        plain.step()
        optimiser.step()
        for name in rates:
            for (_, a), (_, b) in zip(ours[name], theirs[name], strict=True):
                torch.testing.assert_close(a, b, atol=2e-6, rtol=2e-6)


def test_matrix_groups_are_muonh_at_their_rates():
    optim = OptimSpec(recurrence_rule="inverse")
    ours, theirs = _groups(), _groups()
    optimiser = build_optimizer(ours, optim, steps=4, **REFERENCE)
    assert optimiser.rates()["matrix_once"] == pytest.approx(0.014)
    assert optimiser.rates()["matrix_loop"] == pytest.approx(0.014 / 4)
    both = [("matrix_once", 0.014), ("matrix_loop", 0.0035)]
    apart = [MuonH(theirs[name], lr=rate, momentum=0.95) for name, rate in both]
    _give_gradients(_flat(ours), 0)
    _give_gradients(_flat(theirs), 0)
    optimiser.step()
    for each in apart:
        each.step()
    for name, _ in both:
        for (_, a), (_, b) in zip(ours[name], theirs[name], strict=True):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)


def test_rates_follow_the_step_that_is_said_or_counted():
    optim, groups = OptimSpec(warmup=0.2, warmdown=0.5), _groups()
    optimiser = build_optimizer(groups, optim, steps=10, **REFERENCE)
    for step in (0, 1, 2):
        assert optimiser.step_count == step
        assert optimiser.rates()["head"] == pytest.approx(0.004 * multiplier(optim, step, 10))
        optimiser.step()
    optimiser.set_step(8)
    assert optimiser.rates()["norm"] == pytest.approx(0.005 * multiplier(optim, 8, 10))


def test_zero_grad_forgets():
    groups = _groups()
    optimiser = build_optimizer(groups, OptimSpec(), steps=1, **REFERENCE)
    _give_gradients(_flat(groups), 0)
    optimiser.zero_grad(set_to_none=False)
    assert all((each.grad == 0).all() for _, each in _flat(groups))
    optimiser.zero_grad()
    assert all(each.grad is None for _, each in _flat(groups))


def _run(groups, optimiser, steps):
    for step in steps:
        _give_gradients(_flat(groups), step)
        optimiser.step()
        optimiser.zero_grad()
    return [each.detach().clone() for _, each in _flat(groups)]


def test_two_runs_are_the_same_bit_for_bit():
    results = []
    for _ in range(2):
        groups = _groups()
        optimiser = build_optimizer(groups, OptimSpec(), steps=6, **REFERENCE)
        results.append(_run(groups, optimiser, range(6)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_goes_on_bit_for_bit_from_a_saved_state(tmp_path):
    groups = _groups()
    optimiser = build_optimizer(groups, OptimSpec(), steps=9, **REFERENCE)
    _run(groups, optimiser, range(4))
    torch.save(optimiser.state_dict(), tmp_path / "state.pt")
    weights = {name: each.detach().clone() for name, each in _flat(groups)}
    whole = _run(groups, optimiser, range(4, 9))

    again = _groups(seed=77)
    with torch.no_grad():
        for name, each in _flat(again):
            each.copy_(weights[name])
    resumed = build_optimizer(again, OptimSpec(), steps=9, **REFERENCE)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert resumed.step_count == 4
    found = _run(again, resumed, range(4, 9))
    assert all(torch.equal(a, b) for a, b in zip(whole, found, strict=True))


def test_a_loaded_state_is_a_copy():
    groups = _groups()
    optimiser = build_optimizer(groups, OptimSpec(), steps=9, **REFERENCE)
    _run(groups, optimiser, range(2))
    state = optimiser.state_dict()
    momentum = state["parameters"]["matrix_once.0"]["momentum"]
    other = build_optimizer(_groups(), OptimSpec(), steps=9, **REFERENCE)
    other.load_state_dict(state)
    before = momentum.clone()
    _run(_groups(), other, range(1))  # no gradients on other's parameters: counts only
    loaded = other.state_dict()["parameters"]["matrix_once.0"]["momentum"]
    assert loaded.data_ptr() != momentum.data_ptr()
    assert torch.equal(momentum, before)


def test_refuses_the_state_of_another_model():
    groups = _groups()
    optimiser = build_optimizer(groups, OptimSpec(), steps=9, **REFERENCE)
    _run(groups, optimiser, range(1))
    state = optimiser.state_dict()
    fewer = build_optimizer(
        {name: members for name, members in _groups().items() if name != "injection"},
        OptimSpec(), steps=9, **REFERENCE,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"'injection\.0', which is no parameter"):
        fewer.load_state_dict(state)
    state["parameters"]["head.0"]["exp_avg"] = torch.zeros(3, 8)
    with pytest.raises(ValueError, match=r"exp_avg of head\.0 has shape \(3, 8\)"):
        optimiser.load_state_dict(state)


def test_refuses_groups_that_are_wrong():
    shared = nn.Parameter(torch.ones(4, 4))
    with pytest.raises(ValueError, match="'heads' is no group of parameters; did you mean 'head'"):
        build_optimizer({"heads": []}, OptimSpec(), steps=1, **REFERENCE)
    twice = {"embedding": [("a", shared)], "head": [("b", shared)]}
    with pytest.raises(ValueError, match="b in head is the parameter that is a in embedding"):
        build_optimizer(twice, OptimSpec(), steps=1, **REFERENCE)


def test_a_model_without_matrices_or_without_vectors_trains():
    for name in ("matrix_once", "norm"):
        groups = {name: _groups()[name]}
        optimiser = build_optimizer(groups, OptimSpec(), steps=3, **REFERENCE)
        before = [each.detach().clone() for _, each in _flat(groups)]
        after = _run(groups, optimiser, range(1))
        assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert set(optimiser.rates()) == {name}


def test_learns_a_linear_map():
    torch.manual_seed(0)
    target = _normal(8, 8, seed=3)
    target *= math.sqrt(8) / target.norm()
    weight = nn.Parameter(_normal(8, 8, seed=4) * math.sqrt(8) / _normal(8, 8, seed=4).norm())
    groups = {"matrix_loop": [("w", weight)]}
    optim = OptimSpec(matrix_lr=0.1, token_exponent=0, batch_exponent=0)
    optimiser = build_optimizer(groups, optim, steps=150, **REFERENCE)
    for _ in range(150):
        ((weight - target) ** 2).sum().backward()
        optimiser.step()
        optimiser.zero_grad()
    assert (weight - target).norm() < 0.1 * target.norm()
