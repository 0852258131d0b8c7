"""Small models, and a looped model written out from its definition, for the tests of the model."""

import math
from typing import Any

import torch
from torch import Tensor

from loopworth.model import LoopedTransformer, build
from loopworth.spec import ModelSpec

LOOPED = ["passthrough", "linear", "additive", "diagonal", "hyperconnections"]
RETURNING = LOOPED[1:]
ALL_CONDITIONING = ("loop_embedding", "loop_norm", "low_rank")


def small(injection: str = "linear", **fields: Any) -> ModelSpec:
    given = {"d_model": 32, "head_dim": 8, "vocab_size": 40, "context": 12, "n_prelude": 1,
             "n_recur": 2, "n_coda": 1, "recurrence": 1 if injection == "none" else 3}  # fmt: skip
    return ModelSpec(injection=injection, **(given | fields))  # type: ignore[arg-type]


def tokens(spec: ModelSpec, rows: int = 2, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, spec.vocab_size, (rows, spec.context), generator=generator)


def grown(spec: ModelSpec, dtype: torch.dtype = torch.float64) -> LoopedTransformer:
    """Return a model in which every parameter has left its initial value."""
    model = build(spec).to(dtype)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.empty(parameter.shape).normal_(0, 0.1, generator=generator)
            parameter.add_(noise.to(dtype))
    return model


def gradients(model: LoopedTransformer) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


# The reference: one function a layer, positions by complex numbers, attention by a mask, and the
# recurrences written out one after the other with the same weights.


def reference_norm(x: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * scale


def reference_rope(x: Tensor, head_dim: int) -> Tensor:
    """Turn channel pairs (c, c + C/2) by -t base^(-2c/C), as complex numbers, (B, H, T, C)."""
    half = head_dim // 2
    pairs = torch.complex(x[..., :half], x[..., half:])
    angle = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * 10000.0 ** (
        -torch.arange(half, dtype=torch.float64) / half
    )
    turned = pairs * torch.polar(torch.ones_like(angle), -angle)
    return torch.cat((turned.real, turned.imag), dim=-1)


def reference_block(spec: ModelSpec, p: dict[str, Tensor], x: Tensor) -> Tensor:
    h = reference_norm(x, p["norm_attention.weight"])
    heads = []
    for name in ("q", "k", "v"):
        y = (h @ p[name].T).unflatten(-1, (-1, spec.head_dim)).transpose(1, 2)
        if name != "q":
            y = y.repeat_interleave(spec.n_heads // spec.kv_heads, dim=1)
        heads.append(y)
    q, k = (reference_norm(reference_rope(y, spec.head_dim)) for y in heads[:2])
    scores = q @ k.transpose(-1, -2) / math.sqrt(spec.head_dim)
    ahead = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    mixed = scores.masked_fill(ahead, -math.inf).softmax(-1) @ heads[2]
    x = x + mixed.transpose(1, 2).flatten(-2) @ p["o"].T
    h = reference_norm(x, p["norm_mlp.weight"])
    up = h @ p["up"].T
    if spec.mlp_kind == "swiglu":
        gate = h @ p["gate"].T
        return x + (gate * torch.sigmoid(gate) * up) @ p["down"].T
    return x + up.clamp(min=0).pow(2) @ p["down"].T


def stack(
    spec: ModelSpec, p: dict[str, Tensor], inputs: Tensor, r: int, cut: int = 0
) -> tuple[Tensor, list[Tensor]]:
    """Return logits and states; the outputs of the first `cut` recurrences are constants."""

    def part(prefix: str) -> dict[str, Tensor]:
        return {n.removeprefix(prefix): v for n, v in p.items() if n.startswith(prefix)}

    def run(group: str, layers: int, x: Tensor) -> Tensor:
        for layer in range(layers):
            x = reference_block(spec, part(f"{group}.{layer}."), x)
        return x

    e = reference_norm(p["embedding"][inputs], p["norm_embedding.weight"])
    e = run("prelude", spec.n_prelude, e)
    lanes = [e] * spec.n_lanes
    s = torch.zeros_like(e) if spec.injection == "additive" else e
    states = []
    for i in range(r):
        if spec.injection == "linear":
            u = e @ p["injection.weight"][:, : spec.d_model].T
            u = u + s @ p["injection.weight"][:, spec.d_model :].T
        elif spec.injection == "additive":
            u = s + e
        elif spec.injection == "diagonal":
            u = p["injection.gains"][0] * s + p["injection.gains"][1] * e
        elif spec.injection == "hyperconnections":
            alpha, mix, beta = (p[f"injection.{n}"][min(i, int(spec.recurrence) - 1)]
                                for n in ("alpha", "mix", "beta"))  # fmt: skip
            u = sum(alpha[n] * lanes[n] for n in range(spec.n_lanes))  # type: ignore[assignment]
        else:
            u = s
        y = reference_norm(run("recur", spec.n_recur, u), p["norm_recur.weight"])
        y = y.detach() if i < cut else y
        s = y
        if spec.injection == "hyperconnections":
            lanes = [
                sum(mix[n, j] * lanes[j] for j in range(spec.n_lanes)) + beta[n] * y  # type: ignore[misc]
                for n in range(spec.n_lanes)
            ]
            s = sum(lanes)  # type: ignore[assignment]
        states.append(s)
    x = reference_norm(run("coda", spec.n_coda, s), p["norm_final.weight"])
    return 15 * torch.tanh(x @ p.get("head.weight", p["embedding"]).T / 15), states
