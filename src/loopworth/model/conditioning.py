"""What tells one recurrence from another: plug-ins with parameters of each recurrence's own.

Each is an exact no-op at initialisation. To add one: a class here, a line in `CONDITIONINGS`, the
name in `spec.model.Conditioning`, its rows in `tensors.CONDITIONING_ROWS`.
"""

from typing import Any

import torch
from torch import Tensor, nn

from loopworth.model.initial import uniform_
from loopworth.spec import ModelSpec
from loopworth.tensors import layer_matrices

Deltas = dict[str, tuple[Tensor, Tensor]]


class Conditioning(nn.Module):
    """What a plug-in may change; without more, nothing. `index` is the recurrence, from 0."""

    def __init__(self, spec: ModelSpec) -> None:
        """Make the parameters, without values."""
        super().__init__()
        self.spec, self.loops = spec, int(spec.recurrence)

    def enter(self, x_BTD: Tensor, _index: int) -> Tensor:
        """Return what enters the block."""
        return x_BTD

    def gain(self, _index: int) -> Tensor | None:
        """Return what multiplies the scale of the norm after the block, (D,)."""
        return None

    def deltas(self, _layer: int, _index: int) -> Deltas:
        """Return the low-rank changes of a layer's matrices: (rank, inputs), (outputs, rank)."""
        return {}

    def initialise(self, _generator: torch.Generator) -> None:
        """Give the parameters values that change nothing."""


def _row(parameter: Tensor, index: int) -> Tensor:
    """Return what belongs to one recurrence.

    A view made under no_grad would still say that it requires gradient, which confuses hooks.
    """
    return (parameter if torch.is_grad_enabled() else parameter.detach())[index]


class LoopEmbedding(Conditioning):
    """A learnt vector a recurrence, added to the block's input; zero at the start."""

    def __init__(self, spec: ModelSpec) -> None:
        """Make the vectors."""
        super().__init__(spec)
        self.weight = nn.Parameter(torch.empty(self.loops, spec.d_model))

    def enter(self, x_BTD: Tensor, index: int) -> Tensor:
        """Return x plus the vector, in the dtype of x."""
        return x_BTD + _row(self.weight, index).to(x_BTD.dtype)

    def initialise(self, _generator: torch.Generator) -> None:
        """Zero."""
        nn.init.zeros_(self.weight)


class LoopNorm(Conditioning):
    """A gain a recurrence on the scale of the norm of the state; one at the start."""

    def __init__(self, spec: ModelSpec) -> None:
        """Make the gains."""
        super().__init__(spec)
        self.weight = nn.Parameter(torch.empty(self.loops, spec.d_model))

    def gain(self, index: int) -> Tensor:
        """Return the gain of a recurrence."""
        return _row(self.weight, index)

    def initialise(self, _generator: torch.Generator) -> None:
        """One."""
        nn.init.ones_(self.weight)


class LowRank(Conditioning):
    """A low-rank change of every matrix of the block: W + B A, of each recurrence's own.

    A is uniform with standard deviation inputs^-1/2, B is zero at the start.
    Source: arXiv 2410.20672 (relaxed recursive transformers), from zero, not from a pretrained W.
    """

    def __init__(self, spec: ModelSpec) -> None:
        """Make A and B of every matrix, stacked over the recurrences."""
        super().__init__(spec)
        rank = spec.conditioning_rank
        self.names = [name.split(".")[1] for name in layer_matrices(spec)]
        for layer in range(spec.n_recur):
            for name, (outputs, inputs) in zip(
                self.names, layer_matrices(spec).values(), strict=True
            ):
                down = nn.Parameter(torch.empty(self.loops, rank, inputs))
                self.register_parameter(f"{name}_{layer}_down", down)
                up = nn.Parameter(torch.empty(self.loops, outputs, rank))
                self.register_parameter(f"{name}_{layer}_up", up)

    def deltas(self, layer: int, index: int) -> Deltas:
        """Return A and B of every matrix of a layer."""
        return {
            name: (
                _row(getattr(self, f"{name}_{layer}_down"), index),
                _row(getattr(self, f"{name}_{layer}_up"), index),
            )
            for name in self.names
        }

    def initialise(self, generator: torch.Generator) -> None:
        """Draw A, and let B be zero."""
        for name, parameter in self.named_parameters():
            if name.endswith("_down"):
                uniform_(parameter, parameter.shape[-1] ** -0.5, generator)
            else:
                nn.init.zeros_(parameter)


CONDITIONINGS: dict[str, type[Conditioning]] = {
    "loop_embedding": LoopEmbedding,
    "loop_norm": LoopNorm,
    "low_rank": LowRank,
}


class Conditionings(nn.ModuleDict):
    """The plug-ins of a spec, asked one after the other."""

    def __init__(self, spec: ModelSpec) -> None:
        """Make the plug-ins that the spec names."""
        super().__init__({name: CONDITIONINGS[name](spec) for name in spec.conditioning})

    def _plugins(self) -> Any:
        return self.values()

    def enter(self, x_BTD: Tensor, index: int) -> Tensor:
        """Return what enters the block."""
        for plugin in self._plugins():
            x_BTD = plugin.enter(x_BTD, index)
        return x_BTD

    def gain(self, index: int) -> Tensor | None:
        """Return the product of all gains, None where there is none."""
        product: Tensor | None = None
        for plugin in self._plugins():
            gain = plugin.gain(index)
            if gain is not None:
                product = gain if product is None else product * gain
        return product

    def deltas(self, layer: int, index: int) -> Deltas:
        """Return the low-rank changes of a layer's matrices; one plug-in at most has them."""
        found: Deltas = {}
        for plugin in self._plugins():
            found |= plugin.deltas(layer, index)
        return found

    def initialise(self, generator: torch.Generator) -> None:
        """Give all parameters values that change nothing."""
        for plugin in self._plugins():
            plugin.initialise(generator)
