"""Elementwise arithmetic of a layer, written to touch memory as seldom as it can.

At the widths that a CPU trains, a layer without care spends as long on its norms and rotations as
on half of its matrix products. So eager mode on a CPU takes autograd functions, with derivatives by
hand; everything else takes the plain formula, which the compiler fuses.

Axes: B rows, T positions, H heads, C channels of a head, N all but the last axis, D width.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

EPS = 1e-6
_FULL = (torch.float32, torch.float64)


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which matrices multiply x: autocast's, or its own."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if _autocasts(kind) else x.dtype


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which products have the dtype of their factors."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if _autocasts(kind) else nullcontext()


def _autocasts(kind: str) -> bool:
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Return x / rms(x) * weight over the last axis, computed and given in the weight's dtype.

    >>> rms_norm(torch.tensor([[3.0, -3.0]]), torch.tensor([1.0, 2.0]))
    tensor([[ 1.0000, -2.0000]])
    """
    x = x.to(weight.dtype)
    if _by_hand(x):
        return _rms_norm(x, weight)
    return F.rms_norm(x, weight.shape, weight, EPS)


def rotated_unit(x_BTHC: Tensor, cosine_TC: Tensor, sine_TC: Tensor) -> Tensor:
    """Rotate channel c against c + C / 2 by the position, then divide by the RMS; dtype of x.

    cosine_TC and sine_TC are (T, C / 2). Source: arXiv 2104.09864 (rotary positions).
    """
    cosine, sine = cosine_TC[:, None, :], sine_TC[:, None, :]
    if _by_hand(x_BTHC):
        return _rotated_unit(x_BTHC, cosine, sine)
    one, two = x_BTHC.chunk(2, dim=-1)
    out = torch.cat((one * cosine + two * sine, two * cosine - one * sine), dim=-1)
    return F.rms_norm(out, out.shape[-1:], eps=EPS).to(x_BTHC.dtype)


def squared_relu(x: Tensor) -> Tensor:
    """Return max(x, 0)^2; x is scratch afterwards: nothing else may still need it.

    >>> squared_relu(torch.tensor([-2.0, 3.0]))
    tensor([0., 9.])
    """
    if _by_hand(x):
        return _squared_relu(x)
    return F.relu(x).square()


def _by_hand(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype in _FULL and not torch.compiler.is_compiling()


def _inverse_rms(x: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().div_(x.shape[-1]).add_(EPS).rsqrt_()


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        scale = _inverse_rms(x)
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, scale = ctx.saved_tensors
        product_ND = (grads[0] * x).flatten(0, -2)
        dweight_D = torch.mv(product_ND.t(), scale.flatten())
        inner = torch.mv(product_ND, weight).view(scale.shape)
        inner.mul_(scale).mul_(scale).mul_(scale).div_(-x.shape[-1])
        dx = torch.mul(x, inner)
        return dx.addcmul_(torch.mul(grads[0], weight, out=product_ND.view_as(x)), scale), dweight_D


class _RotatedUnit(torch.autograd.Function):
    """A rotation keeps the RMS, so it can be taken before: the output is all that must be kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        scale = _inverse_rms(x)
        y = _rotate(x, cosine, sine, 1).mul_(scale)
        ctx.save_for_backward(y, scale, cosine, sine)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        y, scale, cosine, sine = ctx.saved_tensors
        inner = (y * grads[0]).mean(-1, keepdim=True)
        across = torch.addcmul(grads[0], y, inner, value=-1)
        return _rotate(across, cosine, sine, -1).mul_(scale), None, None


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor, sign: int) -> Tensor:
    """Rotate by the angles (sign 1) or back (sign -1)."""
    out = torch.empty(x.shape, dtype=x.dtype)
    one, two = x.chunk(2, dim=-1)
    out_one, out_two = out.chunk(2, dim=-1)
    torch.mul(one, cosine, out=out_one).addcmul_(two, sine, value=sign)
    torch.mul(two, cosine, out=out_two).addcmul_(one, sine, value=-sign)
    return out


class _SquaredReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = x.clamp_(min=0)  # four times the width: the largest array of a layer
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        zero = positive.new_zeros(())
        return torch.addcmul(zero, grads[0], positive, value=2)


# torch leaves `apply` without types
_rms_norm: Callable[..., Tensor] = _RMSNorm.apply
_rotated_unit: Callable[..., Tensor] = _RotatedUnit.apply
_squared_relu: Callable[..., Tensor] = _SquaredReLU.apply
