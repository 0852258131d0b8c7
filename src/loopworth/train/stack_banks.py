"""Where the weights of a stack's models lie: matrices of one shape, of all cells, in one bank.

Axes: C cells, U unique layers, D width, F hidden units, R recurrences, L lanes. Weights, gradients
and the optimiser's moments lie alike, so one description of a cell finds them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loopworth.spec import ModelSpec

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
            parts = lane_parts(self.spec, banks["lanes"][self.lanes])
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


def lane_parts(spec: ModelSpec, flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
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


Rows = tuple[str, Tensor, Tensor]  # a group, its rows in a bank, the cell that each is of


def matrix_groups(cells: Sequence[Cell]) -> dict[str, list[Rows]]:
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


def make_banks(
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
