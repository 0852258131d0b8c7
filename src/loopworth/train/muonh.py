"""MuonH: orthogonalised momentum on the sphere of each matrix's first Frobenius norm.

A step of rate eta changes a matrix W by eta ||W||_F and brings it back to its norm, so eta is a
relative step, free of width, and weight decay has nothing left to do.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from loopworth.train.polar import compute_dtype, orthogonalise
from loopworth.train.share import Shape, Sharing, local, shared

# Numbers in one stack: what one product works on, and a bound on its buffers.
_STACK = 2**26


class MuonH(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, on the Frobenius sphere.

    With gradient G, momentum M (0 at first), rate eta and c = ||W||_F at the first step:
      M <- mu M + (1 - mu) G      g = (1 - mu) G + mu M      U = orthogonal factor of g
      W <- W - eta c U / ||U||    W <- W c / ||W||
    Matrices of one shape, and tall ones with the wide ones that they are turned, are stacked. A
    matrix without gradient is left as it is; one whose g is zero does not move.

    params     named matrices, or groups of them with their own `lr`: dict(params=[(name, matrix)])
    lr         eta      momentum   mu
    group      processes that hold the same plain matrices and share the work; DTensors bring theirs
    dtype      of the products; None is bfloat16 on a GPU, float32 on a CPU

    The state of a matrix is `momentum`, float32 and sharded as the matrix, and `radius`, c. Raises
    ValueError for a parameter that is no matrix, and at its first step for one of norm 0.
    Source: arXiv 2604.21106 and its code; Muon on the sphere: arXiv 2606.16899.

    >>> matrix = torch.nn.Parameter(torch.eye(2))
    >>> optimiser = MuonH([("w", matrix)], lr=0.1)
    >>> matrix.grad = torch.tensor([[1.0, 0.0], [0.0, -1.0]])
    >>> _ = optimiser.step()
    >>> round(matrix.norm().item() ** 2, 4)
    2.0
    """

    def __init__(
        self,
        params: Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]],
        *,
        lr: float = 0.014,
        momentum: float = 0.95,
        group: dist.ProcessGroup | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})
        self._dtype = dtype
        names, matrices = [], []
        for members in self.param_groups:
            if "param_names" not in members:
                raise ValueError(
                    "MuonH needs the names of its parameters, to say which one is wrong; give "
                    "pairs such as model.named_parameters()"
                )
            for name, matrix in zip(members["param_names"], members["params"], strict=True):
                if matrix.ndim != 2:
                    raise ValueError(
                        f"{name} has shape {tuple(matrix.shape)}; MuonH moves matrices, give the "
                        "others to AdamW"
                    )
                names.append(name)
                matrices.append(matrix)
        self._sharing = Sharing.of(names, matrices, group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move every matrix that has a gradient; a `closure` is called first and its loss returned.

        Under several processes all of them must call it, with gradients on the same matrices.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        names, matrices, rates, directions = [], [], [], []
        for members in self.param_groups:
            here = [
                (name, matrix)
                for name, matrix in zip(members["param_names"], members["params"], strict=True)
                if matrix.grad is not None
            ]
            if not here:
                continue
            names += [name for name, _ in here]
            matrices += [matrix for _, matrix in here]
            rates += [float(members["lr"])] * len(here)
            directions += self._directions([matrix for _, matrix in here], members["momentum"])
        if matrices:
            self._move(names, matrices, rates, directions)
        return loss

    def _directions(self, matrices: Sequence[Tensor], mu: float) -> list[Tensor]:
        """Move the momenta, return the Nesterov directions: what this process holds of them."""
        for matrix in matrices:
            state = self.state[matrix]
            if "momentum" not in state:
                # fp32 at least: a bfloat16 momentum would lose gradients below 0.4 % of it.
                dtype = torch.promote_types(matrix.dtype, torch.float32)
                state["momentum"] = torch.zeros_like(matrix, dtype=dtype, requires_grad=False)
        momenta = [local(self.state[matrix]["momentum"]) for matrix in matrices]
        gradients = [
            local(matrix.grad).to(momentum.dtype)
            for matrix, momentum in zip(matrices, momenta, strict=True)
            if matrix.grad is not None
        ]
        torch._foreach_lerp_(momenta, gradients, 1 - mu)
        return list(torch._foreach_lerp(gradients, momenta, mu))

    def _move(
        self,
        names: Sequence[str],
        matrices: Sequence[Tensor],
        rates: Sequence[float],
        directions: Sequence[Tensor],
    ) -> None:
        """Step along the orthogonal factors and return to the spheres."""
        weights = [local(matrix) for matrix in matrices]
        shapes: list[Shape] = [(matrix.shape[0], matrix.shape[1]) for matrix in matrices]
        radii_K = self._radii(names, matrices, weights)
        dtype = self._compute_dtype(directions)
        parts = [direction.to(dtype) for direction in directions]
        updates = shared(parts, shapes, self._sharing, partial(_on_sphere, radii_K))
        for weight, update, rate in zip(weights, updates, rates, strict=True):
            weight.add_(update, alpha=-rate)
        factors = (radii_K / self._norms(weights)).unbind()
        torch._foreach_mul_(weights, list(factors))

    def _compute_dtype(self, directions: Sequence[Tensor]) -> torch.dtype:
        if self._dtype is not None:
            return self._dtype
        if directions[0].dtype == torch.float64:
            return torch.float64
        return compute_dtype(directions[0].device)

    def _norms(self, weights: Sequence[Tensor]) -> Tensor:
        """Return the Frobenius norms of the whole matrices, (K)."""
        dtype = torch.promote_types(weights[0].dtype, torch.float32)
        norms_K = torch.stack(list(torch._foreach_norm(list(weights), dtype=dtype)))
        return norms_K if not self._sharing.sharded else self._sharing.sum(norms_K**2).sqrt()

    def _radii(
        self, names: Sequence[str], matrices: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> Tensor:
        """Return the norms that the matrices keep, (K), measured at the first step of each."""
        new = [i for i, matrix in enumerate(matrices) if "radius" not in self.state[matrix]]
        if new:
            norms = self._norms([weights[i] for i in new])
            for i, norm in zip(new, norms.tolist(), strict=True):
                if not 0 < norm < float("inf"):
                    raise ValueError(
                        f"{names[i]} has Frobenius norm {norm}, and MuonH keeps a matrix on the "
                        "sphere of its first norm, on which it could never move; initialise it "
                        "with finite numbers that are not all zero, or give it to AdamW"
                    )
            for i, radius in zip(new, norms.unbind(), strict=True):
                self.state[matrices[i]]["radius"] = radius.clone()
        return torch.stack([self.state[matrix]["radius"] for matrix in matrices])


def _on_sphere(
    radii_K: Tensor, positions: Sequence[int], directions: Sequence[Tensor]
) -> list[Tensor]:
    """Return c U / ||U|| for whole matrices; zero where the direction is."""
    stacks: dict[Shape, list[int]] = defaultdict(list)
    for index, direction in enumerate(directions):
        rows, columns = direction.shape
        stacks[min(rows, columns), max(rows, columns)].append(index)
    results: dict[int, Tensor] = {}
    radii = radii_K.unbind()
    for (rows, columns), members in stacks.items():
        per_stack = max(1, _STACK // (rows * columns))
        for first in range(0, len(members), per_stack):
            here = members[first : first + per_stack]
            wide = [_wide(directions[i]) for i in here]
            u_KRC = orthogonalise(torch.stack(wide), dtype=wide[0].dtype)
            norms = torch.linalg.matrix_norm(u_KRC, dtype=radii_K.dtype)
            scale_K = torch.stack([radii[positions[i]] for i in here]) / norms
            # In place, a factor of float32 is not rounded to the dtype of the products first.
            u_KRC.mul_(torch.where(norms > 0, scale_K, 0)[:, None, None])
            results |= {
                i: u if directions[i].shape == u.shape else u.mT
                for i, u in zip(here, u_KRC.unbind(), strict=True)
            }
    return [results[index] for index in range(len(directions))]


def _wide(matrix: Tensor) -> Tensor:
    return matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix
