"""The head and the hand-written derivatives, against PyTorch's own formulas."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from loopworth.model import head as heads
from loopworth.model.fused import EPS, rms_norm, rotated_unit, squared_relu
from loopworth.model.head import Head
from loopworth.spec import ModelSpec

torch.set_num_threads(1)

SPEC = ModelSpec(16, head_dim=8, vocab_size=24, context=9)


def case(dtype: torch.dtype = torch.float64, n_tokens: int | None = None) -> Any:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(3, 9, 16, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(24, 16, generator=generator).to(dtype).mul(3).requires_grad_()
    targets = torch.randint(0, n_tokens or 24, (3, 9), generator=generator)
    targets[0, :4] = -1
    return x, weight, targets


def plain(x: Tensor, weight: Tensor, targets: Tensor, n: int, reduction: str) -> Tensor:
    logits = 15 * torch.tanh((x @ weight.T)[..., :n].flatten(0, 1) / 15)
    return F.cross_entropy(logits, targets.flatten(), ignore_index=-1, reduction=reduction)


@pytest.mark.parametrize("n_tokens", [None, 21])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("values", [24, 100, 10**6])
def test_the_chunked_head_equals_cross_entropy(
    monkeypatch: pytest.MonkeyPatch, reduction: Any, n_tokens: int | None, values: int
) -> None:
    monkeypatch.setitem(heads._CHUNK_VALUES, "cpu", values)  # 27, 7 and 1 chunks
    x, weight, targets = case(n_tokens=n_tokens)
    found = Head(SPEC, n_tokens)(x, weight, targets, reduction)
    expected = plain(x, weight, targets, n_tokens or 24, reduction)
    torch.testing.assert_close(found.flatten(), expected.flatten())
    shape = targets.shape if reduction == "none" else ()
    assert found.shape == shape
    factors = torch.rand(targets.numel(), dtype=torch.float64, generator=torch.manual_seed(1))
    factor = factors if reduction == "none" else factors[0]
    dx, dw = torch.autograd.grad((found.flatten() * factor).sum(), (x, weight))
    ex, ew = torch.autograd.grad((expected.flatten() * factor).sum(), (x, weight))
    torch.testing.assert_close(dx, ex)
    torch.testing.assert_close(dw, ew)


def test_gradients_accumulate_over_micro_batches() -> None:
    x, weight, targets = case()
    head = Head(SPEC, None)
    for row in range(3):
        (head(x[row : row + 1], weight, targets[row : row + 1], "sum") / 23).backward()
    ex, ew = torch.autograd.grad(plain(x, weight, targets, 24, "sum") / 23, (x, weight))
    torch.testing.assert_close(x.grad, ex)
    torch.testing.assert_close(weight.grad, ew)


def test_a_frozen_weight_gets_no_gradient_and_no_grad_keeps_nothing() -> None:
    x, weight, targets = case()
    head = Head(SPEC, None)
    head(x, weight.detach(), targets, "mean").backward()
    assert x.grad is not None
    with torch.no_grad():
        loss = head(x, weight, targets, "mean")
    assert not loss.requires_grad
    torch.testing.assert_close(loss, plain(x, weight, targets, 24, "mean"))


def test_the_head_under_autocast_has_the_gradients_of_half_precision() -> None:
    x, weight, targets = case(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = Head(SPEC, 21)(x, weight, targets.clamp(max=20), "mean")
        expected = plain(x, weight, targets.clamp(max=20), 21, "mean")
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=0.01)
    dx, dw = torch.autograd.grad(loss, (x, weight))
    ex, ew = torch.autograd.grad(expected, (x, weight))
    for one, other in ((dx, ex), (dw, ew)):
        assert one.dtype == torch.float32
        assert (one - other).norm() / other.norm() < 0.02


def test_the_logits_never_exist_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(heads._CHUNK_VALUES, "cpu", 100)
    seen = []

    def watched(logits: Tensor, *rest: Any) -> Any:
        seen.append(logits.numel())
        return heads.loss_and_slope(logits, *rest)

    x, weight, targets = case()
    head = Head(SPEC, None)
    head.arithmetic = watched
    head(x, weight, targets, "mean")
    assert max(seen) <= 100
    assert sum(seen) == 27 * 24


def test_hand_written_derivatives() -> None:
    generator = torch.Generator().manual_seed(4)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    def own_scratch(x: Tensor) -> Tensor:
        return squared_relu(x * 1.0)

    angles = torch.rand(5, 4, generator=generator, dtype=torch.float64)
    checks = (
        (rms_norm, (normal(2, 3, 8), normal(8))),
        (lambda x: rotated_unit(x, angles.cos(), angles.sin()), (normal(2, 5, 3, 8),)),
        (own_scratch, (normal(4, 6),)),
    )
    for function, inputs in checks:
        assert torch.autograd.gradcheck(function, inputs)
        compiled = torch.compile(function, backend="eager")  # takes the plain formula
        torch.testing.assert_close(function(*inputs), compiled(*inputs))
    torch._dynamo.reset()


def test_norms_are_those_of_pytorch() -> None:
    x, weight = torch.randn(4, 7, 16) * 30, torch.rand(16)
    torch.testing.assert_close(rms_norm(x, weight), F.rms_norm(x, (16,), weight, EPS))
    assert torch.isfinite(rms_norm(torch.zeros(2, 16), weight)).all()
    half = rms_norm(x.bfloat16(), weight)
    assert half.dtype == torch.float32
