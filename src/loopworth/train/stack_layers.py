"""Layers of several small models at once, with derivatives by hand.

Axes: C cells, D width, N tokens (rows B times positions T), H heads, K channels of a head, F hidden
units, M = C H B attention matrices. Features come before tokens, so that norms and rotations work
on long contiguous rows and one batched product serves all cells. At widths of 8 to 32 the cost of
an operation is its call, and the largest arrays are the attention's scores.

The arithmetic is that of `model.looped.Block`; `tests/test_stack.py` holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from loopworth.model.fused import EPS
from loopworth.model.head import SOFTCAP


@dataclass(frozen=True, slots=True)
class Shape:
    """What the layers of a stack have in common; rope tables are (K / 2, T), the mask (T, T)."""

    heads: int
    rows: int
    cosine: Tensor
    sine: Tensor
    mask: Tensor

    @classmethod
    def of(cls, heads: int, rows: int, cosine_TK: Tensor, sine_TK: Tensor) -> Shape:
        """Take the rope tables of a model, (T, K / 2)."""
        length = cosine_TK.shape[0]
        # Keys by queries: a query sees the keys up to its own position.
        mask = torch.ones(length, length, dtype=cosine_TK.dtype).triu_()
        return cls(heads, rows, cosine_TK.mT.contiguous(), sine_TK.mT.contiguous(), mask)

    def split(self, x_CDN: Tensor) -> Tensor:
        """View features and tokens as (C, H, B, K, T)."""
        cells, width, _ = x_CDN.shape
        shape = (cells, self.heads, width // self.heads, self.rows, self.mask.shape[0])
        return x_CDN.view(shape).transpose(2, 3)

    def by_head(self, x_CEN: Tensor) -> Tensor:
        """View queries and keys, 2 D features, as (C, 2 H, K, N)."""
        cells, width, tokens = x_CEN.shape
        return x_CEN.view(cells, 2 * self.heads, width // (2 * self.heads), tokens)

    def pairs(self, x_CHKN: Tensor) -> Tensor:
        """View queries and keys, one head after the other, as (2, C, H, B, K, T)."""
        cells, heads, channels, _ = x_CHKN.shape
        shape = (cells, 2, heads // 2, channels, self.rows, self.mask.shape[0])
        return x_CHKN.view(shape).permute(1, 0, 2, 4, 3, 5)


@lru_cache(maxsize=64)
def _averaging(shape: torch.Size, plus: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    cells, width, tokens = shape
    weights = torch.full((cells, 1, width), 1 / width, dtype=dtype)
    return torch.full((cells, 1, tokens), plus, dtype=dtype), weights


def _mean(x_CDN: Tensor, plus: float = 0.0) -> Tensor:
    """Return the mean over the features plus a number, (C, 1, N).

    As a product, which takes half as long as a reduction over an inner axis.
    """
    return torch.baddbmm(*_averaging(x_CDN.shape, plus, x_CDN.dtype), x_CDN)


def _inverse_rms(x_CDN: Tensor) -> Tensor:
    return _mean(x_CDN * x_CDN, EPS).rsqrt_()


def _through_norm(dy: Tensor, dh: Tensor, h: Tensor, scale: Tensor) -> Tensor:
    """Return dy plus the gradient through h = x * scale, the norm of x; dh is overwritten."""
    inner = _mean(dh * h)
    return torch.addcmul(dy, dh.addcmul_(h, inner, value=-1), scale)


def _rotate(out: Tensor, x: Tensor, shape: Shape, sign: int) -> None:
    """Write x, rotated by the angles (sign 1) or back (-1), to `out`: (..., K, T) both."""
    one, two = x.chunk(2, dim=-2)
    out_one, out_two = out.chunk(2, dim=-2)
    torch.mul(one, shape.cosine, out=out_one)
    out_one.addcmul_(two, shape.sine, value=sign)
    torch.mul(two, shape.cosine, out=out_two)
    out_two.addcmul_(one, shape.sine, value=-sign)


class _Layer(torch.autograd.Function):
    """x + attention(norm(x)), then x + mlp(norm(x)); the norms' scales are in qkv and up.

    qkv (C, 3 D, D), o (C, D, D), up (C, F, D), down (C, F, D), turned.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, qkv: Tensor, o: Tensor, up: Tensor, down: Tensor, shape: Shape
    ) -> Tensor:
        width = x.shape[1]
        scale1 = _inverse_rms(x)
        h1 = x * scale1
        z = torch.bmm(qkv, h1)
        qk, scale_qk = _unit(z[:, : 2 * width], shape)
        v1, scores, sums = _attend(z[:, 2 * width :], qk, shape)
        a = torch.empty_like(x)
        sums = sums.view(*qk.shape[1:4], -1, qk.shape[-1])
        torch.div(sums[..., :-1, :], sums[..., -1:, :], out=shape.split(a))
        y = torch.baddbmm(x, o, a)
        scale2 = _inverse_rms(y)
        h2 = y * scale2
        u = torch.bmm(up, h2).clamp_(min=0)
        f = u * u
        ctx.shape = shape
        ctx.save_for_backward(
            qkv, o, up, down, scale1, h1, qk, scale_qk, v1, scores, sums, a, scale2, h2, u, f
        )
        return torch.baddbmm(y, down.mT, f)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (qkv, o, up, down, scale1, h1, qk, scale_qk, v1, scores, sums, a, scale2, h2, u, f) = (
            ctx.saved_tensors
        )
        dout, shape = grads[0], ctx.shape
        du = torch.bmm(down, dout).mul_(u)  # half of the derivative; the products double it
        ddown = torch.bmm(f, dout.mT)
        dup = torch.baddbmm(up, du, h2.mT, beta=0, alpha=2)
        dh2 = torch.baddbmm(h2, up.mT, du, beta=0, alpha=2)
        dy = _through_norm(dout, dh2, h2, scale2)
        do = torch.bmm(dy, a.mT)
        da = torch.bmm(o.mT, dy)
        dz = torch.empty(*da.shape[:1], 3 * da.shape[1], da.shape[2], dtype=da.dtype)
        dqk = _through_attention(dz, da, a, sums, qk, v1, scores, shape)
        _through_unit(dz, dqk, qk, scale_qk, shape)
        dqkv = torch.bmm(dz, h1.mT)
        dx = _through_norm(dy, torch.bmm(qkv.mT, dz), h1, scale1)
        return dx, dqkv, do, dup, ddown, None


def _unit(qk_CEN: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Divide queries and keys by their RMS and by K^(1/4), which scales the scores; rotate them.

    Returns them, (2, C, H, B, K, T), and what they were multiplied with, (C, 2 H, 1, N). A rotation
    keeps the RMS.
    """
    heads = shape.by_head(qk_CEN)
    channels = heads.shape[-2]
    scale = (heads * heads).sum(-2, keepdim=True)
    scale.mul_(channels**-0.5).add_(EPS * channels**0.5).rsqrt_()
    pairs = shape.pairs(heads * scale)
    out = torch.empty(pairs.shape, dtype=pairs.dtype)
    _rotate(out, pairs, shape, 1)
    return out, scale


def _attend(v_CDN: Tensor, qk: Tensor, shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    """Return values with a row of ones (M, K + 1, T), exp scores (M, T, T), and their product.

    Unit queries and keys bound the scores by K^(1/2), so nothing is subtracted before the
    exponential; the row of ones sums the weights.
    """
    channels, length = qk.shape[-2:]
    v1 = torch.empty(*qk.shape[1:4], channels + 1, length, dtype=qk.dtype)
    v1[..., :channels, :] = shape.split(v_CDN)
    v1[..., channels, :] = 1
    q, k = qk.flatten(1, 3)
    v1 = v1.flatten(0, 2)
    scores = torch.bmm(k.mT, q).exp_().mul_(shape.mask)
    return v1, scores, torch.bmm(v1, scores)


def _through_attention(
    dz: Tensor, da: Tensor, a: Tensor, sums: Tensor, qk: Tensor, v1: Tensor, scores: Tensor,
    shape: Shape,
) -> Tensor:  # fmt: skip
    """Write the gradient of the values into dz; return that of queries and keys."""
    g = torch.empty_like(sums)  # d loss / d sums: of the values' rows, and of the row of ones
    torch.div(shape.split(da), sums[..., -1:, :], out=g[..., :-1, :])
    torch.sum(g[..., :-1, :] * shape.split(a), -2, out=g[..., -1, :]).neg_()
    g = g.flatten(0, 2)
    q, k = qk.flatten(1, 3)
    dscores = torch.bmm(v1.mT, g).mul_(scores)
    dqk = torch.empty_like(qk)
    dq, dk = dqk.flatten(1, 3)
    torch.bmm(k, dscores, out=dq)
    torch.bmm(q, dscores.mT, out=dk)
    dv = torch.bmm(g[:, :-1], scores.mT)
    shape.split(dz[:, -da.shape[1] :]).copy_(dv.view(*qk.shape[1:]))
    return dqk


def _through_unit(dz: Tensor, dqk: Tensor, qk: Tensor, scale: Tensor, shape: Shape) -> None:
    """Write the gradient through `_unit` into dz; dqk is overwritten."""
    width = dz.shape[1] // 3
    inner = (dqk * qk).sum(-2, keepdim=True).mul_(qk.shape[-2] ** -0.5)
    heads = shape.by_head(dz[:, : 2 * width])
    _rotate(shape.pairs(heads), dqk.addcmul_(qk, inner, value=-1), shape, -1)
    heads.mul_(scale)


class _Norm(torch.autograd.Function):
    """x / rms(x) times a gain of each cell, (C, D)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor) -> Tensor:
        scale = _inverse_rms(x)
        h = x * scale
        ctx.save_for_backward(h, scale, gain)
        return h * gain[:, :, None]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        h, scale, gain = ctx.saved_tensors
        dgain = (grads[0] * h).sum(-1)
        dh = grads[0] * gain[:, :, None]
        inner = _mean(dh * h)
        return dh.addcmul_(h, inner, value=-1).mul_(scale), dgain


class _Losses(torch.autograd.Function):
    """The mean loss of each cell: unembedding (C, V, D), softcap and cross-entropy.

    The softcap bounds the logits, so nothing is subtracted before the exponential.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets_C1N: Tensor) -> Tensor:
        capped = torch.bmm(weight, x).mul_(1 / SOFTCAP).tanh_()
        p = (capped * SOFTCAP).exp_()
        total = p.sum(1, keepdim=True)
        chosen = capped.gather(1, targets_C1N)
        losses = total.log().sub_(chosen, alpha=SOFTCAP).mean((1, 2))
        p.div_(total)
        p.scatter_add_(1, targets_C1N, p.new_full((), -1.0).expand(targets_C1N.shape))
        p.addcmul_(p * capped, capped, value=-1).mul_(1 / x.shape[-1])
        ctx.save_for_backward(torch.bmm(weight.mT, p), torch.bmm(p, x.mT))
        return losses

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        dx, dweight = ctx.saved_tensors
        d = grads[0][:, None, None]
        return dx * d, dweight * d, None


class _Cut(torch.autograd.Function):
    """Let the gradient of some cells pass, and of the others nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, passes_C: Tensor) -> Tensor:
        ctx.save_for_backward(passes_C)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (passes_C,) = ctx.saved_tensors
        return grads[0] * passes_C[:, None, None], None


# torch leaves `apply` without types
_run_layer: Callable[..., Tensor] = _Layer.apply
_run_norm: Callable[..., Tensor] = _Norm.apply
_run_losses: Callable[..., Tensor] = _Losses.apply
_run_cut: Callable[..., Tensor] = _Cut.apply


def layer(x: Tensor, qkv: Tensor, o: Tensor, up: Tensor, down: Tensor, shape: Shape) -> Tensor:
    """Run one layer of all cells; see `_Layer`."""
    return _run_layer(x, qkv, o, up, down, shape)


def norm(x_CDN: Tensor, gain_CD: Tensor) -> Tensor:
    """Return the norm over the features, times a gain."""
    return _run_norm(x_CDN, gain_CD)


def losses(x_CDN: Tensor, weight_CVD: Tensor, targets_C1N: Tensor) -> Tensor:
    """Return the mean loss of each cell, (C)."""
    return _run_losses(x_CDN, weight_CVD, targets_C1N)


def cut(x_CDN: Tensor, passes_C: Tensor) -> Tensor:
    """Return x, whose gradient is multiplied by `passes`, one or zero a cell."""
    return _run_cut(x_CDN, passes_C)
