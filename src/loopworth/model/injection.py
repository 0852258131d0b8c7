"""How the input e of the loop returns to the state at each recurrence: one class an injection.

The loop asks an injection for four things: the state to start with, what enters the block at
recurrence i, the state after it, and what the coda sees. To add one: a class here, a line in
`INJECTIONS`, the name in `spec.model.Injection`, its rows in `tensors.INJECTION_ROWS`.
Source: arXiv 2604.21106, section 3 and its public code; `Diagonal` is linear with two diagonals.
"""

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loopworth.spec import ModelSpec


class Injection(nn.Module):
    """What every injection answers. Without more, the state starts at e and goes its own way.

    returns_e   e reaches every recurrence, so the first ones may go without gradient
    is_matrix   its parameters are matrices of the block, for the optimiser
    """

    returns_e = True
    is_matrix = False

    def __init__(self, spec: ModelSpec) -> None:
        """Make the parameters, without values."""
        super().__init__()
        self.spec = spec

    def start(self, e_BTD: Tensor) -> Tensor:
        """Return the state before the first recurrence."""
        return e_BTD

    @abstractmethod
    def enter(self, state: Tensor, e_BTD: Tensor, index: int) -> Tensor:
        """Return what enters the block at recurrence `index`, (B, T, D)."""

    def update(self, _state: Tensor, y_BTD: Tensor, _index: int) -> Tensor:
        """Return the state after recurrence `index`, whose normed output is y."""
        return y_BTD

    def output(self, state: Tensor) -> Tensor:
        """Return what a state shows to the coda, (B, T, D)."""
        return state

    def initialise(self) -> None:
        """Give the parameters their values."""


class Passthrough(Injection):
    """The state alone: u = s, and s starts at e."""

    returns_e = False

    def enter(self, state: Tensor, _e_BTD: Tensor, _index: int) -> Tensor:
        """Return s."""
        return state


class Linear(Injection):
    """u = W [e; s] with one W (D, 2D) for all recurrences; W = [I | 0] at the start."""

    is_matrix = True

    def __init__(self, spec: ModelSpec) -> None:
        """Make W."""
        super().__init__(spec)
        self.weight = nn.Parameter(torch.empty(spec.d_model, 2 * spec.d_model))

    def enter(self, state: Tensor, e_BTD: Tensor, _index: int) -> Tensor:
        """Return W [e; s]."""
        return F.linear(torch.cat((e_BTD, state), dim=-1), self.weight)

    def initialise(self) -> None:
        """Let every recurrence start from e: the loops are repeats until W grows."""
        nn.init.eye_(self.weight)


class Additive(Injection):
    """u = s + e, and s starts at zero."""

    def start(self, e_BTD: Tensor) -> Tensor:
        """Return zeros."""
        return torch.zeros_like(e_BTD)

    def enter(self, state: Tensor, e_BTD: Tensor, _index: int) -> Tensor:
        """Return s + e."""
        return state + e_BTD


class Diagonal(Injection):
    """u = a * s + b * e, a gain a channel; a = 0 and b = 1 at the start, as `Linear`."""

    def __init__(self, spec: ModelSpec) -> None:
        """Make a and b, in this order."""
        super().__init__(spec)
        self.gains = nn.Parameter(torch.empty(2, spec.d_model))

    def enter(self, state: Tensor, e_BTD: Tensor, _index: int) -> Tensor:
        """Return a * s + b * e."""
        return torch.addcmul(self.gains[1] * e_BTD, self.gains[0], state)

    def initialise(self) -> None:
        """Let every recurrence start from e."""
        nn.init.zeros_(self.gains[0])
        nn.init.ones_(self.gains[1])


class Hyperconnections(Injection):
    """N lanes of residual state X over the recurrences, (N, B, T, D), all e at the start.

    u = sum_n alpha[n] X_n, then X_n <- sum_j M[n, j] X_j + beta[n] y; the coda sees the sum of the
    lanes. alpha, M and beta are a recurrence's own: one-hot at i mod N, the identity, ones.
    """

    def __init__(self, spec: ModelSpec) -> None:
        """Make the lanes' parameters of all recurrences."""
        super().__init__(spec)
        loops, lanes = int(spec.recurrence), spec.n_lanes
        self.alpha = nn.Parameter(torch.empty(loops, lanes))
        self.mix = nn.Parameter(torch.empty(loops, lanes, lanes))
        self.beta = nn.Parameter(torch.empty(loops, lanes))

    def start(self, e_BTD: Tensor) -> Tensor:
        """Return N lanes of e."""
        return e_BTD.expand(self.spec.n_lanes, *e_BTD.shape)

    def enter(self, state: Tensor, e_BTD: Tensor, index: int) -> Tensor:
        """Return the lanes weighted by alpha."""
        return torch.matmul(self.alpha[index], state.flatten(1)).view(e_BTD.shape)

    def update(self, state: Tensor, y_BTD: Tensor, index: int) -> Tensor:
        """Return the mixed lanes, each with its share of y."""
        kept = torch.matmul(self.mix[index], state.flatten(1)).view(state.shape)
        return torch.addcmul(kept, self.beta[index].view(-1, 1, 1, 1), y_BTD)

    def output(self, state: Tensor) -> Tensor:
        """Return the sum of the lanes."""
        return state.sum(0)

    def initialise(self) -> None:
        """Make a residual stream of the recurrences."""
        lanes = self.spec.n_lanes
        for index in range(len(self.alpha)):
            nn.init.zeros_(self.alpha[index])
            self.alpha[index, index % lanes] = 1
            nn.init.eye_(self.mix[index])
        nn.init.ones_(self.beta)


INJECTIONS: dict[str, type[Injection]] = {
    "none": Passthrough,  # one recurrence: there is nothing to inject into
    "passthrough": Passthrough,
    "linear": Linear,
    "additive": Additive,
    "diagonal": Diagonal,
    "hyperconnections": Hyperconnections,
}
