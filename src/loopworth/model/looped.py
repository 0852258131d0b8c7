"""A looped decoder-only transformer: prelude, a block that runs r times, coda, head.

Axes: B rows, T positions, D width, H heads, K key-value heads, C channels of a head (head_dim),
V vocabulary, F hidden units of the MLP. A suffix such as x_BTD names them where a shape changes.
Plain (r = 1, no injection) and fully looped (no prelude, no coda) models are cases of this code.
Source of the architecture and its initialisation: arXiv 2604.21106, section 3 and its public code.
"""

from collections.abc import Iterator
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as checkpointed

from loopworth.model.conditioning import Conditionings
from loopworth.model.fused import compute_dtype, rms_norm, rotated_unit, squared_relu
from loopworth.model.head import Head, Reduction
from loopworth.model.initial import normal_, uniform_
from loopworth.model.injection import INJECTIONS, Injection
from loopworth.spec import ModelSpec
from loopworth.tensors import layer_matrices
from loopworth.unroll import Unroll, trained

Beyond = Literal["clamp", "refuse"]
Deltas = dict[str, tuple[Tensor, Tensor]]  # by name of a matrix: inputs to rank, rank to outputs

ROPE_BASE = 10000.0


class RMSNorm(nn.Module):
    """x / rms(x), times a learnt scale; computed in fp32 at least."""

    def __init__(self, width: int) -> None:
        """Make the scale, in fp32, not yet initialised."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor, gain: Tensor | None = None) -> Tensor:
        """Normalise the last axis; `gain` multiplies the scale."""
        return rms_norm(x, self.weight if gain is None else self.weight * gain)


def _linear(x: Tensor, weight: Tensor, delta: tuple[Tensor, Tensor] | None) -> Tensor:
    """Multiply with a matrix, and with its low-rank change where there is one."""
    out = F.linear(x, weight)
    return out if delta is None else out + F.linear(F.linear(x, delta[0]), delta[1])


class Block(nn.Module):
    """One pre-norm layer: x + attention(norm(x)), then x + mlp(norm(x)). No biases."""

    def __init__(self, spec: ModelSpec) -> None:
        """Make the matrices of `tensors.layer_matrices`, one parameter each."""
        super().__init__()
        self.head_dim, self.n_heads, self.kv_heads = spec.head_dim, spec.n_heads, spec.kv_heads
        self.norm_attention, self.norm_mlp = RMSNorm(spec.d_model), RMSNorm(spec.d_model)
        for name, shape in layer_matrices(spec).items():
            setattr(self, name.split(".")[1], nn.Parameter(torch.empty(shape)))
        self.gated = spec.mlp_kind == "swiglu"

    # Declared for the type checker; made above.
    q: nn.Parameter
    k: nn.Parameter
    v: nn.Parameter
    o: nn.Parameter
    gate: nn.Parameter
    up: nn.Parameter
    down: nn.Parameter

    def forward(self, x_BTD: Tensor, rope: tuple[Tensor, Tensor], deltas: Deltas) -> Tensor:
        """Return x after both sub-layers; `rope` holds cosines and sines of (T, C / 2)."""
        x_BTD = x_BTD + self.attention(self.norm_attention(x_BTD), rope, deltas)
        return x_BTD + self.mlp(self.norm_mlp(x_BTD), deltas)

    def attention(self, x_BTD: Tensor, rope: tuple[Tensor, Tensor], deltas: Deltas) -> Tensor:
        """Causal attention over the whole row: rotary positions, then unit RMS of q and k."""
        B, T, _ = x_BTD.shape
        x_BTD = x_BTD.to(compute_dtype(x_BTD))
        heads = (B, T, -1, self.head_dim)
        q_BTHC = _linear(x_BTD, self.q, deltas.get("q")).view(heads)
        k_BTKC = _linear(x_BTD, self.k, deltas.get("k")).view(heads)
        v_BTKC = _linear(x_BTD, self.v, deltas.get("v")).view(heads)
        q_BTHC, k_BTKC = rotated_unit(q_BTHC, *rope), rotated_unit(k_BTKC, *rope)
        out_BHTC = F.scaled_dot_product_attention(
            q_BTHC.transpose(1, 2),
            k_BTKC.transpose(1, 2),
            v_BTKC.transpose(1, 2),
            is_causal=True,
            enable_gqa=self.kv_heads != self.n_heads,
        )
        return _linear(out_BHTC.transpose(1, 2).reshape(x_BTD.shape), self.o, deltas.get("o"))

    def mlp(self, x_BTD: Tensor, deltas: Deltas) -> Tensor:
        """Squared ReLU, or SwiGLU where the spec says so."""
        x_BTD = x_BTD.to(compute_dtype(x_BTD))
        up_BTF = _linear(x_BTD, self.up, deltas.get("up"))
        if self.gated:
            hidden_BTF = F.silu(_linear(x_BTD, self.gate, deltas.get("gate"))) * up_BTF
        else:
            hidden_BTF = squared_relu(up_BTF)
        return _linear(hidden_BTF, self.down, deltas.get("down"))

    def matrices(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the matrices of this layer by their short names."""
        yield from self.named_parameters(recurse=False)

    def initialise(self, generator: torch.Generator) -> None:
        """Uniform with standard deviation inputs^-1/2; no matrix is zero, scales are one."""
        for _, matrix in self.matrices():
            uniform_(matrix, matrix.shape[1] ** -0.5, generator)
        for norm in (self.norm_attention, self.norm_mlp):
            nn.init.ones_(norm.weight)


class LoopedTransformer(nn.Module):
    """The model of a `ModelSpec`. Make it with `build`, which also initialises it."""

    cosine_TC: Tensor
    sine_TC: Tensor

    def __init__(self, spec: ModelSpec, *, n_tokens: int | None = None) -> None:
        """Make the modules; the parameters have no values yet."""
        super().__init__()
        self.spec = spec
        self.embedding = nn.Parameter(torch.empty(spec.vocab_size, spec.d_model))
        self.norm_embedding, self.norm_recur = RMSNorm(spec.d_model), RMSNorm(spec.d_model)
        self.norm_final = RMSNorm(spec.d_model)
        self.prelude = nn.ModuleList(Block(spec) for _ in range(spec.n_prelude))
        self.recur = nn.ModuleList(Block(spec) for _ in range(spec.n_recur))
        self.coda = nn.ModuleList(Block(spec) for _ in range(spec.n_coda))
        self.injection: Injection = INJECTIONS[spec.injection](spec)
        self.conditioning = Conditionings(spec)
        self.head = Head(spec, n_tokens)
        for name in ("cosine_TC", "sine_TC"):
            table = torch.empty(spec.context, spec.head_dim // 2, dtype=torch.float32)
            self.register_buffer(name, table, persistent=False)

    def forward(
        self,
        tokens_BT: Tensor,
        targets_BT: Tensor | None = None,
        *,
        unroll: Unroll | None = None,
        reduction: Reduction = "mean",
        checkpoint: bool = False,
        return_states: bool = False,
        beyond: Beyond = "clamp",
    ) -> Any:
        """Return the loss (fp32) where there are targets, else the logits (B, T, n_tokens) in fp32.

        tokens_BT, targets_BT  int64; a target of -1 is ignored
        unroll         recurrences and how many of the last carry gradient; None is the spec's
        reduction      mean or sum over the targets, or none: (B, T)
        checkpoint     keep one state a recurrence and compute the rest again in the backward pass
        return_states  return also the list of the states after each recurrence, (B, T, D) each
        beyond         parameters per recurrence past the trained ones: clamp takes the last, refuse
                       raises

        Raises ValueError.

        >>> spec = ModelSpec(32, head_dim=16, vocab_size=64, context=8)
        >>> build(spec)(torch.zeros(2, 8, dtype=torch.int64)).shape
        torch.Size([2, 8, 64])
        """
        unroll = unroll or trained(self.spec)
        self._check(unroll, beyond)
        rope = self._rope(tokens_BT.shape[1])
        e_BTD = self.norm_embedding(F.embedding(tokens_BT, self.embedding))
        for block in self.prelude:
            e_BTD = block(e_BTD, rope, {})
        out_BTD, states = self._loop(e_BTD, rope, unroll, checkpoint, return_states)
        for block in self.coda:
            out_BTD = block(out_BTD, rope, {})
        weight = self.embedding if self.head.weight is None else self.head.weight
        result = self.head(self.norm_final(out_BTD), weight, targets_BT, reduction)
        return (result, states) if return_states else result

    def _loop(
        self,
        e_BTD: Tensor,
        rope: tuple[Tensor, Tensor],
        unroll: Unroll,
        checkpoint: bool,
        return_states: bool,
    ) -> tuple[Tensor, list[Tensor]]:
        """Run the recurrences: the first ones under no_grad, so that they cost a forward pass only.

        The block's output is cut, e never is: it comes back by the injection.
        """
        state, states = self.injection.start(e_BTD), []
        for index in range(unroll.recurrence):
            if index < unroll.forward_only:
                with torch.no_grad():
                    y_BTD = self._recurrence(state, e_BTD, rope, index)
            elif checkpoint:
                y_BTD = checkpointed(
                    self._recurrence, state, e_BTD, rope, index,
                    use_reentrant=False, preserve_rng_state=False,
                )  # fmt: skip
            else:
                y_BTD = self._recurrence(state, e_BTD, rope, index)
            state = self.injection.update(state, y_BTD, self._trained_index(index))
            if return_states:
                states.append(self.injection.output(state))
        return self.injection.output(state), states

    def _recurrence(
        self, state: Tensor, e_BTD: Tensor, rope: tuple[Tensor, Tensor], index: int
    ) -> Tensor:
        """Run the block once on the state and e."""
        index = self._trained_index(index)
        x_BTD = self.conditioning.enter(self.injection.enter(state, e_BTD, index), index)
        for layer, block in enumerate(self.recur):
            x_BTD = block(x_BTD, rope, self.conditioning.deltas(layer, index))
        y_BTD: Tensor = self.norm_recur(x_BTD, self.conditioning.gain(index))
        return y_BTD

    def _trained_index(self, index: int) -> int:
        """Return the index of the parameters of a recurrence: the last, past the trained ones."""
        if not self.spec.has_parameters_per_recurrence:
            return index
        return min(index, int(self.spec.recurrence) - 1)

    def _check(self, unroll: Unroll, beyond: Beyond) -> None:
        if beyond not in ("clamp", "refuse"):
            raise ValueError(f"beyond={beyond!r} is unknown; use 'clamp' or 'refuse'")
        spec = self.spec
        past = spec.has_parameters_per_recurrence and unroll.recurrence > spec.recurrence
        if past and beyond == "refuse":
            raise ValueError(
                f"recurrence={unroll.recurrence} is past the {spec.recurrence} that have "
                "parameters of their own; use fewer, or beyond='clamp' to use the last ones again"
            )
        if unroll.forward_only and torch.is_grad_enabled() and not self.injection.returns_e:
            raise ValueError(
                f"window={unroll.window} of {unroll.recurrence} recurrences leaves the embedding "
                f"and the prelude without gradient where injection={spec.injection!r}; use the "
                "full window, or an injection such as 'linear'"
            )

    def _rope(self, length: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of the first positions; past the context they are made anew."""
        if length > self.cosine_TC.shape[0]:
            return _rope_tables(length, self.spec.head_dim, self.cosine_TC.device)
        return self.cosine_TC[:length], self.sine_TC[:length]

    def blocks(self) -> Iterator[Block]:
        """Yield every layer once, in the order of the forward pass."""
        for group in (self.prelude, self.recur, self.coda):
            for block in group:
                assert isinstance(block, Block)
                yield block

    def compile_blocks(self, **options: Any) -> Self:
        """Compile layer by layer with `torch.compile`, and the head's arithmetic; return self.

        The loop stays in Python, so another recurrence or window compiles nothing new.
        """
        for block in self.blocks():
            block.compile(**options)
        self.head.compile_arithmetic(**options)
        return self

    def parameter_groups(self) -> dict[str, list[tuple[str, nn.Parameter]]]:
        """Return every parameter once, by the optimiser's group.

        matrix_once   matrices of prelude and coda      matrix_loop   those of the loop, and W
        embedding, head (empty where tied), norm        injection     lanes, gains, conditioning

        >>> groups = build(ModelSpec(32, head_dim=16, vocab_size=64)).parameter_groups()
        >>> [len(members) for members in groups.values()]
        [24, 25, 1, 1, 19, 0]
        """
        names = ("matrix_once", "matrix_loop", "embedding", "head", "norm", "injection")
        groups: dict[str, list[tuple[str, nn.Parameter]]] = {name: [] for name in names}
        for name, parameter in self.named_parameters():
            groups[self._group(name)].append((name, parameter))
        return groups

    def _group(self, name: str) -> str:
        room = name.split(".")[0]
        if room in ("embedding", "head"):
            return room
        if room.startswith("norm") or ".norm_" in name:
            return "norm"
        if room in ("prelude", "coda"):
            return "matrix_once"
        if room == "recur" or (room == "injection" and self.injection.is_matrix):
            return "matrix_loop"
        return "injection"

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Give every parameter and table its value; the same on every device."""
        generator = torch.Generator().manual_seed(seed)
        normal_(self.embedding, 1.0, generator)
        for block in self.blocks():
            block.initialise(generator)
        for norm in (self.norm_embedding, self.norm_recur, self.norm_final):
            nn.init.ones_(norm.weight)
        if self.head.weight is not None:
            normal_(self.head.weight, 0.001, generator)
        self.injection.initialise()
        self.conditioning.initialise(generator)
        device = self.cosine_TC.device
        tables = _rope_tables(self.spec.context, self.spec.head_dim, device)
        self.cosine_TC.copy_(tables[0])
        self.sine_TC.copy_(tables[1])


def _rope_tables(length: int, head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosines and sines (T, C / 2) in fp32: channel c turns by t * base^(-2 c / C)."""
    channels = torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim
    positions = torch.arange(length, dtype=torch.float64, device=device)
    angles = torch.outer(positions, ROPE_BASE**-channels)
    return angles.cos().float(), angles.sin().float()


def build(
    spec: ModelSpec,
    *,
    seed: int = 42,
    device: str | torch.device = "cpu",
    n_tokens: int | None = None,
) -> LoopedTransformer:
    """Build the model of a spec: made on meta, materialised on `device`, initialised by `seed`.

    n_tokens is the real vocabulary; the columns above it are padding and never in the logits.
    device "meta" leaves it without values, for counting. Raises ValueError.

    >>> model = build(ModelSpec(32, head_dim=16, vocab_size=64), n_tokens=60)
    >>> model(torch.zeros(1, 8, dtype=torch.int64)).shape
    torch.Size([1, 8, 60])
    """
    with torch.device("meta"):
        model = LoopedTransformer(spec, n_tokens=n_tokens)
    if torch.device(device).type != "meta":
        model.to_empty(device=device)
        model.initialise(seed)
    return model
