"""Several small looped models as one: their weights lie in banks, and all cells move together.

Cells share width, depth, prelude, coda and context; each has its own recurrence, injection and
weights. At every effective layer the rows of the banks that the cells are in are gathered, so one
product serves all. Axes as in `stack_layers` and `stack_banks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from loopworth.model import LoopedTransformer
from loopworth.train.stack_banks import (
    MATRICES,
    VECTORS,
    Cell,
    lane_parts,
    make_banks,
    matrix_groups,
    place_cells,
)
from loopworth.train.stack_layers import Shape, cut, layer, losses, norm


@dataclass(frozen=True, slots=True)
class _Segment:
    """Neighbouring cells that do the same at a seam: what closes there, then what opens.

    closed, opened   the recurrence of each cell that ends and begins here, None where none does
    keep   what lets pass the gradient, (C), of what closes and of what opens; None is everything
    """

    cells: list[Cell]
    closed: list[int] | None
    opened: list[int] | None
    keep_closed: Tensor | None
    keep_opened: Tensor | None

    @property
    def slice(self) -> slice:
        return slice(self.cells[0].position, self.cells[-1].position + 1)

    @property
    def kind(self) -> str:
        return self.cells[0].spec.injection


def _seam(cells: Sequence[Cell], place: int, last: int) -> list[_Segment]:
    """Return the segments of a seam: `place` layers of the loop are done, of `last`."""

    def doing(cell: Cell) -> tuple[str, bool, bool]:
        here = place % cell.spec.n_recur == 0
        opens = here and place < last and cell.spec.injection != "none"
        return cell.spec.injection, here and place > 0, opens

    segments = []
    for (_, closes, opens), members in groupby(cells, doing):
        group = list(members)
        index = [place // cell.spec.n_recur for cell in group]
        before = [i - 1 for i in index]
        segments.append(
            _Segment(
                group,
                before if closes else None,
                index if opens else None,
                _keep(group, before) if closes else None,
                _keep(group, index) if opens else None,
            )
        )
    return segments


def _keep(cells: Sequence[Cell], index: Sequence[int]) -> Tensor | None:
    passes = [float(not cell.forward_only(i)) for cell, i in zip(cells, index, strict=True)]
    return None if all(passes) else torch.tensor(passes)


@dataclass(slots=True)
class _Loop:
    """What the seams of one forward pass need and leave: what e adds, gains, lanes, states."""

    shares: tuple[Tensor, Tensor] | None
    recur: Tensor
    lanes: dict[int, Tensor] = field(default_factory=dict)
    states: list[Tensor] = field(default_factory=list)


class StackedModel:
    """The models of some cells, with their weights in banks.

    banks    leaves with gradients, by name: matrices and vectors (`MATRICES`, `VECTORS`)
    vectors  the one flat tensor that the banks of vectors are views of, and `vector_gradients`

    Cells with one kind of injection lie beside each other; what fits: `plan.stacking`.
    """

    def __init__(self, models: Sequence[LoopedTransformer], rows: int) -> None:
        specs = [model.spec for model in models]
        self.cells, spec = place_cells(specs), specs[0]
        self.n_tokens = models[0].head.n_tokens
        self.shape = Shape.of(spec.n_heads, rows, models[0].cosine_TC, models[0].sine_TC)
        dtype = models[0].embedding.dtype
        self.banks, self.vectors, self.vector_gradients = make_banks(self.cells, dtype)
        for cell, model in zip(self.cells, models, strict=True):
            self._load(cell, model)
        self.groups = matrix_groups(self.cells)
        self.owner_U = torch.tensor([c.position for c in self.cells for _ in c.layers])
        sizes = torch.tensor([c.lanes.stop - c.lanes.start for c in self.cells])
        self.owner_lanes = torch.arange(len(self.cells)).repeat_interleave(sizes)
        self._rows = torch.tensor([cell.effective() for cell in self.cells]).mT.contiguous()
        self._linear = [cell for cell in self.cells if cell.inject is not None]
        shared = spec.n_recur * int(spec.recurrence)
        self._seams = [_seam(self.cells, place, shared) for place in range(shared + 1)]

    @torch.no_grad()
    def _load(self, cell: Cell, model: LoopedTransformer) -> None:
        weights = model.state_dict()
        for name, view in cell.views(self.banks).items():
            view.copy_(weights[name])

    @torch.no_grad()
    def store(self, cell: Cell, model: LoopedTransformer) -> None:
        """Copy the weights of a cell into its plain model."""
        weights = model.state_dict()
        for name, view in cell.views(self.banks).items():
            weights[name].copy_(view)

    def vector_banks(self, flat: Tensor) -> dict[str, Tensor]:
        """View a flat tensor of the vectors' size, such as their gradients, as banks."""
        names = [name for name in VECTORS if name in self.banks]
        parts = torch.split(flat, [self.banks[name].numel() for name in names])
        shapes = [self.banks[name].shape for name in names]
        return {n: p.view(shape) for n, p, shape in zip(names, parts, shapes, strict=True)}

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self.vector_gradients.zero_()
        for name in MATRICES:
            if name in self.banks:
                self.banks[name].grad = None

    def forward(self, tokens_CN: Tensor, targets_CN: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss of each cell, (C), and the norms of the states.

        The norms are (cells' recurrences, 2), mean and largest over the tokens, in the order of
        `state_order`.
        """
        banks, spec = self.banks, self.cells[0].spec
        qkv, o, up, down = self._gathered()
        embedded = F.embedding(tokens_CN + self._offsets(), banks["embedding"].flatten(0, 1))
        g_embedding, g_recur, g_final = banks["norms"].unbind(1)
        x = norm(embedded.mT.contiguous(), g_embedding)
        loop: _Loop | None = None
        first, last = spec.n_prelude, spec.n_prelude + len(self._seams) - 1
        for index in range(last + spec.n_coda + 1):
            if first <= index <= last:
                loop = loop or _Loop(self._shares(x), g_recur)
                x = self._pass_seam(x, loop, self._seams[index - first])
            if index < len(qkv):
                x = layer(x, qkv[index], o[index], up[index], down[index], self.shape)
        assert loop is not None
        head = banks["head"][:, : self.n_tokens]
        found = losses(norm(x, g_final), head, targets_CN[:, None])
        return found, _sizes(loop.states)

    def _gathered(self) -> list[tuple[Tensor, ...]]:
        """Return the matrices of every effective layer, (C, ...) each, with the norms' scales."""
        square, wide, gains = (self.banks[name] for name in ("square", "wide", "gains"))
        attention, mlp = gains.unbind(1)
        qkv = (square[:, :3] * attention[:, None, None]).flatten(1, 2)
        up = wide[:, 0] * mlp[:, None]
        banks = (qkv, square[:, 3], up, wide[:, 1])
        return [bank[self._rows].unbind() for bank in banks]

    def _offsets(self) -> Tensor:
        size = self.cells[0].spec.vocab_size
        return torch.arange(0, len(self.cells) * size, size)[:, None]

    def _shares(self, e: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return W_e e of the cells with a linear injection, which every recurrence adds, and W_s.

        Such cells lie beside each other.
        """
        if not self._linear:
            return None
        of_e, of_state = self.banks["inject"].chunk(2, dim=-1)
        here = slice(self._linear[0].position, self._linear[-1].position + 1)
        return torch.bmm(of_e, e[here]), of_state

    def _pass_seam(self, x: Tensor, loop: _Loop, segments: Sequence[_Segment]) -> Tensor:
        """Close and open the recurrences that end and begin between two layers."""
        if len(segments) == 1:
            return self._pass_segment(x, loop, segments[0])
        parts = torch.split(x, [len(segment.cells) for segment in segments])
        return torch.cat(
            [self._pass_segment(x, loop, s) for x, s in zip(parts, segments, strict=True)]
        )

    def _pass_segment(self, x: Tensor, loop: _Loop, segment: _Segment) -> Tensor:
        if segment.closed is None and segment.opened is None:
            return x
        if segment.closed is not None:
            x = norm(x, loop.recur[segment.slice])
            if segment.keep_closed is not None:
                x = cut(x, segment.keep_closed)
        if segment.kind == "hyperconnections":
            x = self._pass_lanes(x, loop, segment)
        else:
            if segment.closed is not None:
                loop.states.append(x.detach())
            if segment.kind == "linear" and segment.opened is not None:
                x = self._enter(x, loop, segment)
        if segment.keep_opened is not None:
            x = cut(x, segment.keep_opened)
        return x

    def _enter(self, x: Tensor, loop: _Loop, segment: _Segment) -> Tensor:
        """Return W [e; s] of a segment with a linear injection."""
        assert loop.shares is not None
        start = self._linear[0].position
        here = slice(segment.slice.start - start, segment.slice.stop - start)
        of_e, of_state = loop.shares
        return torch.baddbmm(of_e[here], of_state[here], x)

    def _pass_lanes(self, x: Tensor, loop: _Loop, segment: _Segment) -> Tensor:
        """Update the lanes of each cell with what its block gave; return what enters next."""
        entered = []
        for k, cell in enumerate(segment.cells):
            alpha, mix, beta = lane_parts(cell.spec, self.banks["lanes"][cell.lanes])
            if segment.closed is None:
                lanes = x[k].expand(cell.spec.n_lanes, *x.shape[1:])
            else:
                i, lanes = segment.closed[k], loop.lanes[cell.position]
                kept = torch.mm(mix[i], lanes.flatten(1)).view(lanes.shape)
                lanes = torch.addcmul(kept, beta[i, :, None, None], x[k])
                loop.states.append(lanes.detach().sum(0, keepdim=True))
            loop.lanes[cell.position] = lanes
            if segment.opened is None:
                entered.append(lanes.sum(0))
            else:
                alpha_L = alpha[segment.opened[k]]
                entered.append(torch.mv(lanes.flatten(1).t(), alpha_L).view(x.shape[1:]))
        return torch.stack(entered)

    def state_order(self) -> list[int]:
        """Return the position of the cell that each row of the states' norms belongs to."""
        closing = [s for seam in self._seams for s in seam if s.closed is not None]
        return [cell.position for segment in closing for cell in segment.cells]


def _sizes(states: Sequence[Tensor]) -> Tensor:
    """Return mean and largest size over the tokens of each state, as `health.state_norms`."""
    all_SDN = torch.cat(list(states))
    size_SN = (all_SDN * all_SDN).mean(1).sqrt_()
    return torch.stack((size_SN.mean(-1), size_SN.amax(-1)), dim=-1)
