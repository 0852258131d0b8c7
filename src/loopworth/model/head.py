"""The head: unembedding, softcap and cross-entropy, a chunk of tokens at a time.

Axes: N tokens, D width, V vocabulary. The (N, V) logits never exist at once: a chunk's loss and
gradients are computed together, in the three matrix products that any head needs.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from loopworth.model.fused import compute_dtype, without_autocast
from loopworth.spec import ModelSpec

Reduction = Literal["mean", "sum", "none"]
SOFTCAP = 15.0
IGNORED = -1
_CHUNK_VALUES = {"cpu": 2**20, "other": 2**27}  # logits of a chunk: in the cache, or in 512 MB
_HALF = (torch.bfloat16, torch.float16)
Arithmetic = Callable[[Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor]]


def loss_and_slope(
    logits_NV: Tensor, targets_N: Tensor, scale: Tensor, n_tokens: int
) -> tuple[Tensor, Tensor]:
    """Return the summed loss times `scale`, and its derivative by the logits, which it overwrites.

    Softcap and cross-entropy in the dtype of `scale`; columns from n_tokens on are padding.
    """
    capped_NV = logits_NV.to(scale.dtype).div_(SOFTCAP).tanh_()
    slope_NV = torch.addcmul(scale.new_ones(()), capped_NV, capped_NV, value=-1)
    capped_NV.mul_(SOFTCAP)
    if n_tokens < capped_NV.shape[1]:
        capped_NV[:, n_tokens:] = -torch.inf
    log_p_NV = torch.log_softmax(capped_NV, dim=-1)
    target_N1 = targets_N.clamp(min=0)[:, None]
    scale_N1 = (targets_N != IGNORED)[:, None] * scale
    loss = -(log_p_NV.gather(1, target_N1) * scale_N1).sum()
    d_NV = log_p_NV.exp_()
    d_NV.scatter_add_(1, target_N1, d_NV.new_full(target_N1.shape, -1.0))
    return loss, d_NV.mul_(slope_NV).mul_(scale_N1)


class _SummedLoss(torch.autograd.Function):
    """The loss over all tokens; the gradients are made beside it, chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_VD: Tensor,
        targets_N: Tensor,
        scale: Tensor,
        n_tokens: int,
        arithmetic: Arithmetic,
    ) -> Tensor:
        dtype = compute_dtype(x_ND)
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        with without_autocast(x_ND):
            weight, total = weight_VD.to(dtype), scale.new_zeros(())
            dx_ND = torch.empty_like(x_ND) if needs_x else None
            dw_VD = torch.zeros_like(weight_VD) if needs_weight else None
            for rows in _chunks(x_ND.shape[0], weight.shape[0], x_ND.device.type):
                x = x_ND[rows].to(dtype)
                loss, d = arithmetic(F.linear(x, weight), targets_N[rows], scale, n_tokens)
                total, d = total + loss, d.to(dtype)
                if dx_ND is not None:
                    dx_ND[rows] = d @ weight
                if dw_VD is not None and dtype == dw_VD.dtype:
                    dw_VD.addmm_(d.t(), x)
                elif dw_VD is not None:
                    dw_VD += d.t() @ x
        ctx.save_for_backward(dx_ND, dw_VD)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        dx_ND, dw_VD = ctx.saved_tensors
        dx = None if dx_ND is None else dx_ND * grads[0].to(dx_ND.dtype)
        dw = None if dw_VD is None else dw_VD * grads[0].to(dw_VD.dtype)
        return dx, dw, None, None, None, None


def _chunks(tokens: int, vocabulary: int, device: str) -> list[slice]:
    """Cut the tokens into equal parts, none with more logits than fit."""
    values = _CHUNK_VALUES.get(device, _CHUNK_VALUES["other"])
    count = max(1, -(-tokens * vocabulary // values))
    size = -(-tokens // count)
    return [slice(start, start + size) for start in range(0, tokens, size)]


class Head(nn.Module):
    """The unembedding, untied unless the spec ties it; then `weight` is None."""

    def __init__(self, spec: ModelSpec, n_tokens: int | None) -> None:
        """Make the weight, and refuse more tokens than it has rows."""
        super().__init__()
        self.n_tokens = spec.vocab_size if n_tokens is None else n_tokens
        if not 1 <= self.n_tokens <= spec.vocab_size:
            raise ValueError(
                f"n_tokens={n_tokens} is outside 1..{spec.vocab_size}, the padded vocabulary; "
                "use a spec with a larger vocab_size"
            )
        empty = torch.empty(spec.vocab_size, spec.d_model)
        self.weight = None if spec.tied_embeddings else nn.Parameter(empty)
        self.arithmetic: Arithmetic = loss_and_slope

    def compile_arithmetic(self, **options: Any) -> None:
        """Fuse what happens to the logits of a chunk."""
        self.arithmetic = torch.compile(loss_and_slope, **options)

    def forward(
        self, x_BTD: Tensor, weight: Tensor, targets_BT: Tensor | None, reduction: Reduction
    ) -> Tensor:
        """Return fp32 logits (B, T, n_tokens), or the loss where there are targets."""
        if targets_BT is None:
            logits = F.linear(x_BTD, weight)[..., : self.n_tokens]
            wide = logits.float() if logits.dtype in _HALF else logits
            return SOFTCAP * torch.tanh(wide / SOFTCAP)
        x_ND, targets_N = x_BTD.flatten(0, -2), targets_BT.flatten()
        if not torch.is_grad_enabled():  # what requires no gradient costs no gradient
            x_ND, weight = x_ND.detach(), weight.detach()
        if reduction == "none":
            return self._losses(x_ND, weight, targets_N).view(targets_BT.shape)
        scale = torch.ones((), dtype=_wide(x_ND), device=x_ND.device)
        if reduction == "mean":
            scale = scale / (targets_N != IGNORED).sum()
        elif reduction != "sum":
            raise ValueError(f"reduction={reduction!r} is unknown; use 'mean', 'sum' or 'none'")
        return _summed_loss(x_ND, weight, targets_N, scale, self.n_tokens, self.arithmetic)

    def _losses(self, x_ND: Tensor, weight: Tensor, targets_N: Tensor) -> Tensor:
        """Return the loss of each token; with gradient, a chunk's logits are computed twice."""
        parts = [
            checkpoint(
                self._plain,
                x_ND[rows],
                weight,
                targets_N[rows],
                use_reentrant=False,
                preserve_rng_state=False,
            )
            for rows in _chunks(x_ND.shape[0], weight.shape[0], x_ND.device.type)
        ]
        return torch.cat(parts)

    def _plain(self, x_ND: Tensor, weight: Tensor, targets_N: Tensor) -> Tensor:
        logits = self(x_ND, weight, None, "none")
        return F.cross_entropy(logits, targets_N, ignore_index=IGNORED, reduction="none")


def _wide(x: Tensor) -> torch.dtype:
    return torch.float32 if x.dtype in _HALF else x.dtype


_summed_loss: Callable[..., Tensor] = _SummedLoss.apply  # torch leaves it without types
