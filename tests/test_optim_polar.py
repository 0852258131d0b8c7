"""The orthogonal factor of a stack, against the SVD and against torch's own Newton-Schulz."""

import numpy as np
import pytest
import torch
from torch.optim import _muon

from loopworth.train.polar import POLAR_EXPRESS, SAFETY, orthogonalise, polar_flops

torch.set_num_threads(1)
SHAPES = [(24, 24), (16, 64), (64, 16), (20, 30), (30, 20), (1, 8), (8, 1)]


def _normal(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)


def _svd(g):
    return np.linalg.svd(g.double().numpy(), full_matrices=False)


def _scalar(sigma, coefficients=POLAR_EXPRESS):
    """The polynomial on singular values, in float64."""
    for a, b, c in coefficients:
        sigma = a * sigma + b * sigma**3 + c * sigma**5
    return sigma


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_is_the_polynomial_of_the_singular_values(shape, dtype):
    g = _normal(3, *shape, dtype=dtype)
    left, sigma, right = _svd(g)
    norm = np.linalg.norm(g.double().numpy(), axis=(1, 2))[:, None]
    wanted = (left * _scalar(sigma / (SAFETY * norm + 1e-6))[:, None]) @ right
    found = orthogonalise(g)
    assert found.dtype == dtype
    assert found.shape == g.shape
    tolerance = 2e-5 if dtype == torch.float32 else 1e-11
    np.testing.assert_allclose(found.numpy(), wanted, atol=tolerance)


@pytest.mark.parametrize("shape", [(16, 64), (64, 16), (32, 96), (40, 64)])
def test_singular_values_are_near_one_and_vectors_the_svds(shape):
    g = _normal(*shape)
    left, _, right = _svd(g)
    u = orthogonalise(g)
    sigma = _svd(u)[1]
    assert sigma.min() > 0.85
    assert sigma.max() < 1.14 + 2e-3
    # The polar factor itself: nothing but the sizes is approximate.
    assert np.linalg.norm(u.numpy() - left @ right) < 0.15 * np.sqrt(min(shape))


def test_in_bfloat16_singular_values_are_near_one_too():
    u = orthogonalise(_normal(4, 32, 96), dtype=torch.bfloat16)
    assert u.dtype == torch.bfloat16
    sigma = _svd(u.float())[1]
    assert sigma.min() > 0.8
    assert sigma.max() < 1.2


def test_equals_torchs_newton_schulz_with_its_coefficients():
    # torch works in bfloat16 and divides by the plain norm.
    triple, steps = (_muon.DEFAULT_A, _muon.DEFAULT_B, _muon.DEFAULT_C), _muon.DEFAULT_NS_STEPS
    for shape in SHAPES[:5]:
        g = _normal(*shape)
        theirs = _muon._zeropower_via_newtonschulz(g, triple, steps, _muon.EPS).float()
        ours = orthogonalise(g, coefficients=[triple] * steps, safety=1.0, dtype=torch.float32)
        assert (ours - theirs).norm() < 0.03 * theirs.norm()
        coarse = orthogonalise(g, coefficients=[triple] * steps, safety=1.0, dtype=torch.bfloat16)
        assert (coarse.float() - theirs).norm() < 0.03 * theirs.norm()


def test_a_stack_is_each_matrix_alone():
    g = _normal(2, 3, 12, 40)
    together = orthogonalise(g)
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(together[i, j], orthogonalise(g[i, j]), atol=2e-6, rtol=0)


def test_turned_round_is_the_result_turned_round():
    g = _normal(3, 12, 40)
    torch.testing.assert_close(orthogonalise(g.mT), orthogonalise(g).mT, atol=0, rtol=0)


@pytest.mark.parametrize("shape", [(16, 64), (24, 24)])
def test_low_rank_and_ill_conditioned_matrices_stay_bounded(shape):
    rows, columns = shape
    low = _normal(rows, 2) @ _normal(2, columns, seed=1)
    ill = _normal(rows, rows) * torch.logspace(0, -9, rows) @ _normal(rows, columns, seed=1)
    for g in (low, ill):
        sigma = _svd(orthogonalise(g))[1]
        exact = _svd(orthogonalise(g.double()))[1]
        np.testing.assert_allclose(sigma, exact, atol=5e-3)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-8, 1e8, 1e18])
def test_any_size_of_gradient_gives_finite_numbers(scale):
    u = orthogonalise(_normal(2, 8, 16) * scale)
    assert u.isfinite().all()
    assert (u == 0).all() == (scale == 0)


def test_refuses_what_is_no_matrix():
    with pytest.raises(ValueError, match=r"shape \(3,\) is no matrix"):
        orthogonalise(torch.ones(3))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((16, 16), torch.float32), ((16, 64), torch.float32), ((64, 16), torch.bfloat16)],
)
def test_flops_are_those_that_torch_counts(shape, dtype):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        orthogonalise(torch.ones(3, *shape), dtype=dtype)
    assert counter.get_total_flops() == 3 * polar_flops(*shape, gram=dtype == torch.float32)
