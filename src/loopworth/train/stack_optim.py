"""One optimiser for the cells of a stack: MuonH and AdamW as in `optim`, rates of each cell's own.

All matrices of one shape, of all cells, are orthogonalised in one stack; all other parameters lie
in one flat tensor. U unique layers, P numbers of the vectors; all cells are at the same step.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from loopworth.spec import OptimSpec
from loopworth.train.optim import LoopOptimizer
from loopworth.train.polar import orthogonalise
from loopworth.train.stack_banks import MATRICES, VECTORS, Cell
from loopworth.train.stack_model import StackedModel

_Peaks = Mapping[str, float]
_VECTOR_GROUPS = {"embedding": "embedding", "head": "head", "lanes": "injection"}


class StackedOptimizer:
    """Moves the banks of a stack.

    peaks   of each cell, by group of parameters; its rate is that times a factor of the step
    """

    def __init__(self, model: StackedModel, optim: OptimSpec, peaks: Sequence[_Peaks]) -> None:
        self._model, self._optim = model, optim
        self._matrices = {name: model.banks[name] for name in MATRICES if name in model.banks}
        self._momentum = {name: torch.zeros_like(each) for name, each in self._matrices.items()}
        self._radius = {name: _norms(each) for name, each in self._matrices.items()}
        self._mean, self._square = (torch.zeros_like(model.vectors) for _ in range(2))
        owners, rates = _vector_rates(model, peaks)
        self._owner_P, self._peak_P = owners, rates
        self._matrix_rates = _matrix_rates(model, peaks)

    @torch.no_grad()
    def step(self, step: int, factors: Sequence[float]) -> None:
        """Move all parameters in step `step`, counted from 0; `factors` multiply the rates."""
        factors_C = torch.tensor(factors, dtype=self._model.vectors.dtype)
        self._step_matrices(factors_C)
        self._step_vectors(step, factors_C)

    def _step_matrices(self, factors_C: Tensor) -> None:
        mu = self._optim.momentum
        momenta = list(self._momentum.values())
        gradients = [each.grad for each in self._matrices.values() if each.grad is not None]
        torch._foreach_lerp_(momenta, gradients, 1 - mu)
        directions = dict(
            zip(self._matrices, torch._foreach_lerp(gradients, momenta, mu), strict=True)
        )
        for name, bank in self._matrices.items():
            owners, peaks = self._matrix_rates[name]
            direction, radius = directions[name], self._radius[name]
            u = orthogonalise(direction, dtype=direction.dtype)
            size = _norms(u)
            reach = radius * (peaks * factors_C[owners]) / size
            reach = torch.where(size > 0, reach, 0)
            weight = bank.detach()
            weight.sub_(u.mul_(reach[..., None, None]))
            weight.mul_((radius / _norms(weight))[..., None, None])

    def _step_vectors(self, step: int, factors_C: Tensor) -> None:
        optim, gradient = self._optim, self._model.vector_gradients
        self._mean.lerp_(gradient, 1 - optim.beta1)
        self._square.mul_(optim.beta2).addcmul_(gradient, gradient, value=1 - optim.beta2)
        unbias = math.sqrt(1 - optim.beta2 ** (step + 1))
        divisor = self._square.sqrt().div_(unbias).add_(optim.eps)
        rate_P = factors_C[self._owner_P].mul_(self._peak_P)
        update = divisor.reciprocal_().mul_(rate_P)
        self._model.vectors.addcmul_(update, self._mean, value=-1 / (1 - optim.beta1 ** (step + 1)))

    def _banks(self) -> dict[str, dict[str, Tensor]]:
        """Return the states as banks, by the name that the plain optimiser gives them."""
        return {
            "momentum": self._momentum,
            "exp_avg": self._model.vector_banks(self._mean),
            "exp_avg_sq": self._model.vector_banks(self._square),
        }

    @torch.no_grad()
    def load(self, cell: Cell, optimiser: LoopOptimizer) -> None:
        """Take over the state of a cell's plain optimiser; one without a state is at its start."""
        saved = optimiser.state_dict()["parameters"]
        if not saved:
            return
        for key, banks in self._banks().items():
            for name, view in cell.views(banks).items():
                view.copy_(saved[name][key])
        for name, view in _radius_views(cell, self._radius).items():
            view.copy_(saved[name]["radius"])

    @torch.no_grad()
    def store(self, cell: Cell, optimiser: LoopOptimizer, step: int) -> None:
        """Give the state of a cell to its plain optimiser, as after `step` steps of it."""
        saved: dict[str, dict[str, Any]] = {}
        for key, banks in self._banks().items():
            for name, view in cell.views(banks).items():
                saved.setdefault(name, {})[key] = view.clone()
        for name, view in _radius_views(cell, self._radius).items():
            saved[name]["radius"] = view.clone()
        for state in saved.values():
            if "exp_avg" in state:
                state["step"] = torch.tensor(float(step))
        optimiser.load_state_dict({"step": step, "parameters": saved})

    def gradient_norms(self) -> dict[str, Tensor]:
        """Return the norm of the gradient of each group, (C), and of all; see `health`."""
        model, count = self._model, len(self._model.cells)
        squares: dict[str, Tensor] = {
            name: model.vectors.new_zeros(count) for name in ("matrix_once", "matrix_loop")
        }
        for name, bank in self._matrices.items():
            assert bank.grad is not None
            square = _norms(bank.grad).square_()
            for group, rows, owners in model.groups[name]:
                squares[group].index_add_(0, owners, square[rows].view(len(rows), -1).sum(1))
        banks = model.vector_banks(model.vector_gradients)
        for name in ("embedding", "head"):
            squares[name] = _square_sums(banks[name])
        squares["norm"] = _square_sums(banks["norms"])
        gains = _square_sums(banks["gains"])
        squares["norm"].index_add_(0, model.owner_U, gains)
        if "lanes" in banks:
            squares["injection"] = model.vectors.new_zeros(count).index_add_(
                0, model.owner_lanes, banks["lanes"].square()
            )
        # One by one: the order in a sum over a stack depends on how many cells there are.
        squares["all"] = functools.reduce(torch.add, squares.values())
        return {name: each.sqrt_() for name, each in squares.items()}


def _norms(matrices: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.matrix_norm(matrices.detach())
    return norms


def _square_sums(bank: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(bank.flatten(1), dim=1)
    return norms.square_()


def _radius_views(cell: Cell, radii: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the radii of a cell's matrices by name."""
    found: dict[str, Tensor] = {}
    for row, name in enumerate(cell.layers, start=cell.first):
        found |= {f"{name}.{k}": radii["square"][row, i] for i, k in enumerate("qkvo")}
        found |= {f"{name}.{k}": radii["wide"][row, i] for i, k in enumerate(("up", "down"))}
    if cell.inject is not None:
        found["injection.weight"] = radii["inject"][cell.inject]
    return found


def _matrix_rates(model: StackedModel, peaks: Sequence[_Peaks]) -> dict[str, tuple[Tensor, Tensor]]:
    """Return, for each bank of matrices, which cell a matrix is of and its peak rate."""
    found = {}
    for name, groups in model.groups.items():
        bank = model.banks[name]
        owner_K = torch.zeros(bank.shape[:-2], dtype=torch.int64)
        peak_K = bank.new_zeros(bank.shape[:-2])
        for group, rows, owners in groups:
            values = bank.new_tensor([peaks[i][group] for i in owners.tolist()])
            extra = (1,) * (peak_K.ndim - 1)
            owner_K[rows] = owners.view(-1, *extra).expand(-1, *peak_K.shape[1:])
            peak_K[rows] = values.view(-1, *extra).expand(-1, *peak_K.shape[1:])
        found[name] = owner_K, peak_K
    return found


def _vector_rates(model: StackedModel, peaks: Sequence[_Peaks]) -> tuple[Tensor, Tensor]:
    """Return which cell a number of the vectors is of, and its peak rate, (P) both."""
    owner_P = torch.zeros(model.vectors.shape, dtype=torch.int64)
    peak_P = torch.zeros_like(model.vectors)
    owners, rates = model.vector_banks(owner_P), model.vector_banks(peak_P)
    for cell, peak in zip(model.cells, peaks, strict=True):
        for view in cell.views(owners).values():
            view.fill_(cell.position)
        for name in VECTORS:
            if name in rates:
                part = {name: rates[name]}
                for view in cell.views(part).values():
                    view.fill_(peak[_VECTOR_GROUPS.get(name, "norm")])
    return owner_P, peak_P
