"""The tensors of a looped transformer: what each stores, and what a token's visits to it cost.

A visit is one pass of a token through a tensor. A weight costs 2 FLOPs a parameter on a visit
without gradient and 6 on one with gradient; attention scores cost 4 d T and 12 d T a layer visit
(full T x T, no causal halving). Lookups and the three global norms are free. These are the counts
of arXiv 2604.21106 and its public code.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from loopworth.spec import ModelSpec

Group = Literal[
    "embedding", "prelude", "recur", "injection", "conditioning", "coda", "norm", "head"
]

Visits = tuple[int | float, int | float]  # forward, and those of them that carry gradient


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One tensor, summed over the `layers` of its group that have one of its shape.

    parameters counts the stored numbers, visits the passes of one token in training; FLOPs are per
    token. kind is matrix, vector, lanes, norm, lookup, or scores (attention: FLOPs, no parameters).
    """

    name: str
    group: Group
    kind: str
    layers: int
    parameters: int
    visits_forward: int | float
    visits_gradient: int | float
    train_flops_per_token: float
    inference_flops_per_token: float


def _row(
    name: str,
    group: Group,
    kind: str,
    layers: int,
    parameters: int,
    visits: Visits,
    *,
    weights: int | None = None,
) -> TensorRow:
    """Charge 2 FLOPs a weight on each visit, and 4 more where there is gradient.

    `weights` is what a visit multiplies, where that differs from the stored parameters.
    """
    forward, gradient = visits
    per_visit = parameters if weights is None else weights
    train = (2 * forward + 4 * gradient) * per_visit
    return TensorRow(
        name, group, kind, layers, parameters, forward, gradient, train, 2 * forward * per_visit
    )


def _free(name: str, group: Group, kind: str, parameters: int, visits: Visits) -> TensorRow:
    """Make a row whose visits cost nothing: a lookup, or a norm the reference does not charge."""
    return _row(name, group, kind, 1, parameters, visits, weights=0)


def layer_matrices(spec: ModelSpec) -> dict[str, tuple[int, int]]:
    """Return the matrices of one layer by name, each as (outputs, inputs).

    >>> layer_matrices(ModelSpec(640))["mlp.up"]
    (2560, 640)
    """
    d, kv_width, hidden = spec.d_model, spec.kv_heads * spec.head_dim, spec.mlp_width
    gate = {"mlp.gate": (hidden, d)} if spec.mlp_kind == "swiglu" else {}
    return {
        "attention.q": (d, d),
        "attention.k": (kv_width, d),
        "attention.v": (kv_width, d),
        "attention.o": (d, d),
        **gate,
        "mlp.up": (hidden, d),
        "mlp.down": (d, hidden),
    }


def _layers(group: Group, spec: ModelSpec, layers: int, visits: Visits) -> list[TensorRow]:
    """Return the tensors of `layers` transformer layers, each row the sum over the layers."""
    if layers == 0:
        return []
    d = spec.d_model
    rows = [
        _row(f"{group}.{name}", group, "matrix", layers, layers * math.prod(shape), visits)
        for name, shape in layer_matrices(spec).items()
    ]
    # Scores and their product with v are 2 d T each: as much as 2 d T weights.
    scores = layers * 2 * d * spec.context
    rows.insert(
        4, _row(f"{group}.attention.scores", group, "scores", layers, 0, visits, weights=scores)
    )
    # The reference charges block norms like weights; it is 0.01 % and keeps tokens identical.
    rows.append(_row(f"{group}.norms", group, "norm", layers, layers * 2 * d, visits))
    return rows


def _no_rows(_spec: ModelSpec, _loop: Visits) -> list[TensorRow]:
    return []


def _linear(spec: ModelSpec, loop: Visits) -> list[TensorRow]:
    return [_row("injection.linear", "injection", "matrix", 1, 2 * spec.d_model**2, loop)]


def _diagonal(spec: ModelSpec, loop: Visits) -> list[TensorRow]:
    return [_row("injection.diagonal", "injection", "vector", 1, 2 * spec.d_model, loop)]


def _lanes(spec: ModelSpec, loop: Visits) -> list[TensorRow]:
    # Every recurrence has its own N^2 + 2 N scalars; mixing the lanes with them costs a token
    # (N^2 + 2 N) d "equivalent parameters" a recurrence.
    scalars = spec.n_lanes**2 + 2 * spec.n_lanes
    stored, weights = int(spec.recurrence) * scalars, scalars * spec.d_model
    return [_row("injection.lanes", "injection", "lanes", 1, stored, loop, weights=weights)]


def _per_recurrence(
    name: str, kind: str, layers: int, size: int, spec: ModelSpec, loop: Visits
) -> list[TensorRow]:
    """Return the row of a conditioning that has `size` parameters for each recurrence."""
    stored = int(spec.recurrence) * size
    return [_row(f"conditioning.{name}", "conditioning", kind, layers, stored, loop, weights=size)]


def _loop_embedding(spec: ModelSpec, loop: Visits) -> list[TensorRow]:
    return _per_recurrence("loop_embedding", "vector", 1, spec.d_model, spec, loop)


def _loop_norm(spec: ModelSpec, loop: Visits) -> list[TensorRow]:
    # Folded into the scale of the norm, which is free.
    stored = int(spec.recurrence) * spec.d_model
    return [_free("conditioning.loop_norm", "conditioning", "norm", stored, loop)]


def _low_rank(spec: ModelSpec, loop: Visits) -> list[TensorRow]:
    sides = sum(rows + columns for rows, columns in layer_matrices(spec).values())
    size = spec.n_recur * spec.conditioning_rank * sides
    return _per_recurrence("low_rank", "matrix", spec.n_recur, size, spec, loop)


# The rows of every injection and conditioning, under the names that `loopworth.model` builds.
INJECTION_ROWS: dict[str, Callable[[ModelSpec, Visits], list[TensorRow]]] = {
    "none": _no_rows,
    "passthrough": _no_rows,
    "linear": _linear,
    "additive": _no_rows,
    "diagonal": _diagonal,
    "hyperconnections": _lanes,
}
CONDITIONING_ROWS: dict[str, Callable[[ModelSpec, Visits], list[TensorRow]]] = {
    "loop_embedding": _loop_embedding,
    "loop_norm": _loop_norm,
    "low_rank": _low_rank,
}


def tensor_rows(spec: ModelSpec) -> tuple[TensorRow, ...]:
    """Return the tensors of a model in the order in which a token meets them.

    >>> [row.name for row in tensor_rows(ModelSpec.from_scale(10))][:3]
    ['embedding.token', 'norm.embedding', 'prelude.attention.q']
    """
    d, vocab = spec.d_model, spec.vocab_size
    loop = (spec.recurrence, spec.gradient_visits)
    rows = [_free("embedding.token", "embedding", "lookup", vocab * d, (1, 1))]
    rows += [_free("norm.embedding", "norm", "norm", d, (1, 1))]
    rows += _layers("prelude", spec, spec.n_prelude, (1, 1))
    rows += INJECTION_ROWS[spec.injection](spec, loop)
    for name in spec.conditioning:
        rows += CONDITIONING_ROWS[name](spec, loop)
    rows += _layers("recur", spec, spec.n_recur, loop)
    rows += [_free("norm.recur", "norm", "norm", d, loop)]
    rows += _layers("coda", spec, spec.n_coda, (1, 1))
    rows += [_free("norm.final", "norm", "norm", d, (1, 1))]
    stored = 0 if spec.tied_embeddings else vocab * d  # a tied head is stored as the embedding
    rows += [_row("head.unembedding", "head", "matrix", 1, stored, (1, 1), weights=vocab * d)]
    return tuple(rows)
