"""MuonH against its formula in float64 and, where they overlap, torch.optim.Muon."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from loopworth.train.muonh import MuonH
from loopworth.train.polar import POLAR_EXPRESS

torch.set_num_threads(1)
SHAPES = [(8, 8), (32, 8), (8, 32), (8, 16), (8, 8)]


def _normal(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)


def _matrices(shapes=SHAPES, dtype=torch.float32):
    return [
        (f"w{i}", nn.Parameter(_normal(*shape, seed=i, dtype=dtype)))
        for i, shape in enumerate(shapes)
    ]


def _give_gradients(named, step, scale=1.0):
    for i, (_, each) in enumerate(named):
        each.grad = scale * _normal(*each.shape, seed=1000 * step + i, dtype=each.dtype)


def _polar(g):
    """The reference's steps one by one, the right-hand gram for tall matrices, in numpy."""
    x = g / (1.02 * np.linalg.norm(g) + 1e-6)
    for a, b, c in POLAR_EXPRESS:
        if g.shape[0] <= g.shape[1]:
            gram = x @ x.T
            x = a * x + (b * gram + c * gram @ gram) @ x
        else:
            gram = x.T @ x
            x = a * x + x @ (b * gram + c * gram @ gram)
    return x


@pytest.mark.parametrize("mu", [0.95, 0.0, 0.3])
def test_follows_the_formula_in_float64(mu):
    named = _matrices(dtype=torch.float64)
    optimiser = MuonH(named, lr=0.02, momentum=mu)
    weights = [each.detach().numpy().copy() for _, each in named]
    radii = [np.linalg.norm(weight) for weight in weights]
    momenta = [np.zeros_like(weight) for weight in weights]
    for step in range(4):
        _give_gradients(named, step)
        for i, (_, each) in enumerate(named):
            gradient = each.grad.numpy()
            momenta[i] = mu * momenta[i] + (1 - mu) * gradient
            update = _polar((1 - mu) * gradient + mu * momenta[i])
            moved = weights[i] - 0.02 * update * radii[i] / np.linalg.norm(update)
            weights[i] = moved * radii[i] / np.linalg.norm(moved)
        optimiser.step()
        for (name, each), weight, momentum in zip(named, weights, momenta, strict=True):
            np.testing.assert_allclose(each.detach(), weight, atol=1e-11, err_msg=name)
            np.testing.assert_allclose(optimiser.state[each]["momentum"], momentum, atol=1e-14)


def test_in_float32_it_is_the_same_to_rounding():
    exact, rounded = _matrices(dtype=torch.float64), _matrices()
    optimisers = [MuonH(named, lr=0.05) for named in (exact, rounded)]
    for step in range(5):
        for named, optimiser in zip((exact, rounded), optimisers, strict=True):
            _give_gradients(named, step)
            optimiser.step()
    for (_, a), (_, b) in zip(exact, rounded, strict=True):
        torch.testing.assert_close(a.float(), b, atol=2e-4, rtol=0)


def test_directions_are_torchs_muon_directions():
    """On its first steps torch.optim.Muon moves along the same nesterov momentum."""
    mu, coefficients = 0.9, (3.4445, -4.7750, 2.0315)
    theirs = nn.Parameter(_normal(12, 12, dtype=torch.float32))
    start = theirs.detach().clone()
    muon = torch.optim.Muon(
        [theirs], lr=1.0, weight_decay=0.0, momentum=mu, nesterov=True, ns_coefficients=coefficients
    )
    ours = nn.Parameter(start.clone())
    named = [("w", ours)]
    optimiser = MuonH(named, lr=1e-3, momentum=mu)
    for step in range(3):
        before = theirs.detach().clone()
        gradient = _normal(12, 12, seed=step + 5)
        theirs.grad, ours.grad = gradient.clone(), gradient.clone()
        muon.step()
        mine = ours.detach().clone()
        optimiser.step()
        # One polar factor, two approximations of it: compare their exact parts.
        factors = [
            torch.linalg.svd(delta.double())
            for delta in (before - theirs.detach(), mine - ours.detach())
        ]
        their_polar, our_polar = (left @ right for left, _, right in factors)
        assert (their_polar - our_polar).norm() < 0.1 * our_polar.norm()
        momentum = optimiser.state[ours]["momentum"]
        torch.testing.assert_close(momentum, muon.state[theirs]["momentum_buffer"])


def test_a_matrix_keeps_its_norm_for_life():
    named = _matrices()
    norms = [each.norm().item() for _, each in named]
    optimiser = MuonH(named, lr=0.5)
    for step in range(60):
        _give_gradients(named, step, scale=10.0 ** (step % 7 - 3))
        optimiser.step()
    assert [each.norm().item() for _, each in named] == pytest.approx(norms, rel=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_rate_is_the_relative_step(dtype):
    eta = 0.02
    named = _matrices([(64, 64), (64, 256), (256, 64)])
    optimiser = MuonH(named, lr=eta, dtype=dtype)
    _give_gradients(named, 1)
    before = [each.detach().double() for _, each in named]
    optimiser.step()
    for (_, each), old in zip(named, before, strict=True):
        new = each.detach().double()
        moved = ((new - old).norm() / old.norm()).item()
        # Back on the sphere, the chord of a step eta nearly at right angles to W; 0.0199994 was
        # measured on the reference.
        assert moved == pytest.approx(2 * math.sin(math.atan(eta) / 2), rel=1e-3)


def test_zero_gradient_moves_nothing():
    named = _matrices()
    optimiser = MuonH(named, lr=0.1)
    before = [each.detach().clone() for _, each in named]
    for _ in range(3):
        for _, each in named:
            each.grad = torch.zeros_like(each)
        optimiser.step()
    for (_, each), old in zip(named, before, strict=True):
        assert torch.equal(each, old)


def test_zero_gradient_beside_others_moves_only_them():
    named = _matrices([(8, 8), (8, 8)])
    optimiser = MuonH(named, lr=0.1)
    before = [each.detach().clone() for _, each in named]
    named[0][1].grad = torch.zeros(8, 8)
    named[1][1].grad = torch.ones(8, 8)
    optimiser.step()
    assert torch.equal(named[0][1], before[0])
    assert not torch.equal(named[1][1], before[1])
    assert named[1][1].isfinite().all()


def test_without_gradient_a_matrix_is_left_alone():
    named = _matrices([(8, 8), (8, 16)])
    optimiser = MuonH(named, lr=0.1)
    optimiser.step()  # nothing to do is no error
    named[0][1].grad = torch.ones(8, 8)
    optimiser.step()
    assert named[1][1] not in optimiser.state


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_refuses_a_matrix_without_a_norm(value):
    named = [*_matrices([(8, 8)]), ("recur.0.mlp.down", nn.Parameter(torch.full((8, 8), value)))]
    _give_gradients(named, 0)
    with pytest.raises(ValueError, match=r"recur\.0\.mlp\.down has Frobenius norm .* AdamW"):
        MuonH(named, lr=0.1).step()


def test_refuses_what_is_no_matrix():
    with pytest.raises(ValueError, match=r"scale has shape \(8,\)"):
        MuonH([("scale", nn.Parameter(torch.ones(8)))])


def test_needs_names_to_say_which_matrix_is_wrong():
    with pytest.raises(ValueError, match="named_parameters"):
        MuonH([nn.Parameter(torch.ones(2, 2))])


def test_bfloat16_weights_have_a_float32_momentum_and_radius():
    named = _matrices([(32, 32), (64, 32)], dtype=torch.bfloat16)
    optimiser = MuonH(named, lr=0.05)
    norms = [each.float().norm().item() for _, each in named]
    for step in range(5):
        _give_gradients(named, step)
        optimiser.step()
    for (_, each), norm in zip(named, norms, strict=True):
        state = optimiser.state[each]
        assert state["momentum"].dtype == state["radius"].dtype == torch.float32
        assert each.float().norm().item() == pytest.approx(norm, rel=2e-3)


def test_a_closure_is_called_with_gradients():
    named = _matrices([(4, 4)])
    optimiser = MuonH(named)

    def closure():
        loss = (named[0][1] ** 2).sum()
        loss.backward()
        return loss

    assert optimiser.step(closure).item() == pytest.approx(16, rel=1)
    assert named[0][1] in optimiser.state
