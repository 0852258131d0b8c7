"""Several small looped models as one: their weights lie in banks, and all cells move together.

Cells share width, depth, prelude, coda and context; each has its own recurrence, injection and
weights. A cell's unique layers are rows of a bank; at every effective layer the rows that the cells
are in are gathered, so one product serves all. Axes as in `stack_layers`, and U unique layers,
E effective layers, L lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from loopworth.model import LoopedTransformer
from loopworth.spec import ModelSpec
from loopworth.train.stack_layers import Shape, cut, layer, losses, norm

Banks = Mapping[str, Tensor]
MATRICES = ("square", "wide", "inject")
VECTORS = ("embedding", "head", "norms", "gains", "lanes")
_NORMS = ("norm_embedding", "norm_recur", "norm_final")


@dataclass(frozen=True, slots=True)
class Cell:
    """Where the weights of one model lie in the banks.

    first   its first row in the banks of unique layers      position   its place in the stack
    inject  its row in the bank of injection matrices        lanes      its part of the lanes' bank
    """

    spec: ModelSpec
    position: int
    first: int
    inject: int | None
    lanes: slice

    @property
    def layers(self) -> list[str]:
        """The names of the unique layers, in the order of the bank."""
        spec = self.spec
        rooms = {"prelude": spec.n_prelude, "recur": spec.n_recur, "coda": spec.n_coda}
        return [f"{room}.{i}" for room, count in rooms.items() for i in range(count)]

    def effective(self) -> list[int]:
        """Return the bank's row of each effective layer."""
        spec = self.spec
        loop = list(range(spec.n_prelude, spec.n_prelude + spec.n_recur)) * int(spec.recurrence)
        coda = range(spec.n_prelude + spec.n_recur, len(self.layers))
        return [self.first + row for row in (*range(spec.n_prelude), *loop, *coda)]

    def forward_only(self, index: int) -> bool:
        """Say whether a recurrence, counted from 0, runs without gradient."""
        window = self.spec.bptt_window
        return window is not None and index < int(self.spec.recurrence) - window

    def views(self, banks: Banks) -> dict[str, Tensor]:
        """Return what belongs to this cell by the names of `LoopedTransformer`, as views.

        Works on weights, gradients and states alike; banks that are left out are left out.
        """
        found: dict[str, Tensor] = {}
        for name in ("embedding", "head"):
            if name in banks:
                key = "head.weight" if name == "head" else name
                found[key] = banks[name][self.position]
        for k, name in enumerate(_NORMS if "norms" in banks else ()):
            found[f"{name}.weight"] = banks["norms"][self.position, k]
        for row, name in enumerate(self.layers, start=self.first):
            found |= {f"{name}.{k}": view for k, view in _layer_views(banks, row).items()}
        if self.inject is not None and "inject" in banks:
            found["injection.weight"] = banks["inject"][self.inject]
        if self.spec.injection == "hyperconnections" and "lanes" in banks:
            parts = _lanes(self.spec, banks["lanes"][self.lanes])
            names = ("injection.alpha", "injection.mix", "injection.beta")
            found |= dict(zip(names, parts, strict=True))
        return found


def _layer_views(banks: Banks, row: int) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    if "square" in banks:
        found |= dict(zip("qkvo", banks["square"][row].unbind(), strict=True))
    if "wide" in banks:
        found |= {"up": banks["wide"][row, 0], "down": banks["wide"][row, 1].mT}
    if "gains" in banks:
        attention, mlp = banks["gains"][row].unbind()
        found |= {"norm_attention.weight": attention, "norm_mlp.weight": mlp}
    return found


def _lanes(spec: ModelSpec, flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """View a cell's part of the lanes' bank as alpha (R, L), mix (R, L, L) and beta (R, L)."""
    loops, lanes = int(spec.recurrence), spec.n_lanes
    sizes = [loops * lanes, loops * lanes * lanes, loops * lanes]
    alpha, mix, beta = torch.split(flat, sizes)
    return alpha.view(loops, lanes), mix.view(loops, lanes, lanes), beta.view(loops, lanes)


def place_cells(specs: Sequence[ModelSpec]) -> list[Cell]:
    """Give every model of a stack its place in the banks."""
    cells: list[Cell] = []
    first = inject = lanes = 0
    for position, spec in enumerate(specs):
        linear, hyper = spec.injection == "linear", spec.injection == "hyperconnections"
        size = int(spec.recurrence) * spec.n_lanes * (spec.n_lanes + 2) if hyper else 0
        own = slice(lanes, lanes + size)
        cells.append(Cell(spec, position, first, inject if linear else None, own))
        first, inject, lanes = first + len(cells[-1].layers), inject + linear, lanes + size
    return cells


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
        self.banks, self.vectors, self.vector_gradients = _make_banks(self.cells, dtype)
        for cell, model in zip(self.cells, models, strict=True):
            self._load(cell, model)
        self.groups = _matrix_groups(self.cells)
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
            alpha, mix, beta = _lanes(cell.spec, self.banks["lanes"][cell.lanes])
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


Rows = tuple[str, Tensor, Tensor]  # a group, its rows in a bank, the cell that each is of


def _matrix_groups(cells: Sequence[Cell]) -> dict[str, list[Rows]]:
    """Return which rows of each bank of matrices belong to which of the optimiser's groups."""
    rows: dict[str, list[tuple[int, int]]] = {"matrix_once": [], "matrix_loop": []}
    for cell in cells:
        for row, name in enumerate(cell.layers, start=cell.first):
            group = "matrix_loop" if name.startswith("recur") else "matrix_once"
            rows[group].append((row, cell.position))
    layers = [_rows_of(group, pairs) for group, pairs in rows.items() if pairs]
    inject = [(cell.inject, cell.position) for cell in cells if cell.inject is not None]
    found = {"square": layers, "wide": layers}
    return found | ({"inject": [_rows_of("matrix_loop", inject)]} if inject else {})


def _rows_of(group: str, pairs: Sequence[tuple[int, int]]) -> Rows:
    rows, owners = zip(*pairs, strict=True)
    return group, torch.tensor(rows), torch.tensor(owners)


def _sizes(states: Sequence[Tensor]) -> Tensor:
    """Return mean and largest size over the tokens of each state, as `health.state_norms`."""
    all_SDN = torch.cat(list(states))
    size_SN = (all_SDN * all_SDN).mean(1).sqrt_()
    return torch.stack((size_SN.mean(-1), size_SN.amax(-1)), dim=-1)


def _make_banks(
    cells: Sequence[Cell], dtype: torch.dtype
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Return the banks without values, and the flat tensors behind vectors and their gradients."""
    spec = cells[0].spec
    count, layers = len(cells), cells[-1].first + len(cells[-1].layers)
    width, hidden, vocabulary = spec.d_model, spec.mlp_width, spec.vocab_size
    linear = sum(cell.inject is not None for cell in cells)
    shapes: dict[str, tuple[int, ...]] = {
        "square": (layers, 4, width, width),
        "wide": (layers, 2, hidden, width),
        "inject": (linear, width, 2 * width),
        "embedding": (count, vocabulary, width),
        "head": (count, vocabulary, width),
        "norms": (count, len(_NORMS), width),
        "gains": (layers, 2, width),
        "lanes": (cells[-1].lanes.stop,),
    }
    shapes = {name: shape for name, shape in shapes.items() if torch.Size(shape).numel()}
    banks = {
        name: torch.empty(shapes[name], dtype=dtype).requires_grad_()
        for name in MATRICES
        if name in shapes
    }
    sizes = [torch.Size(shapes[name]).numel() for name in VECTORS if name in shapes]
    flat, gradients = (torch.zeros(sum(sizes), dtype=dtype) for _ in range(2))
    names = [name for name in VECTORS if name in shapes]
    for name, part, slope in zip(
        names, torch.split(flat, sizes), torch.split(gradients, sizes), strict=True
    ):
        banks[name] = part.detach().view(shapes[name]).requires_grad_()
        banks[name].grad = slope.view(shapes[name])
    return banks, flat, gradients
