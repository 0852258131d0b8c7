"""Norms of gradients and of the looped state, and an alarm that sees what a loss hides.

A norm before the head takes the scale out of the state, so it can grow a thousandfold while the
loss looks fine. Shapes: R recurrences, B rows, T tokens, D channels.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from loopworth.findings import Finding
from loopworth.spec.checks import real, whole
from loopworth.train.share import Sharing, local

ALL = "all"
"""The name of the norm over every group together."""


@torch.no_grad()
def gradient_norms(
    groups: Mapping[str, Sequence[tuple[str, nn.Parameter]]],
) -> dict[str, Tensor]:
    """Return the norm of the gradient of each group and, as `all`, of the whole model.

    Scalars in fp32 on the device: nothing waits until they are read. Sharded gradients are summed
    over the processes, so all of them must call it. A group without gradient has norm 0.

    >>> weight = nn.Parameter(torch.zeros(2))
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> gradient_norms({"norm": [("w", weight)]})
    {'norm': tensor(5.), 'all': tensor(5.)}
    """
    found = {
        group: [(name, each.grad) for name, each in members if each.grad is not None]
        for group, members in groups.items()
    }
    everything = [pair for members in found.values() for pair in members]
    if not everything:
        return {name: torch.zeros(()) for name in (*found, ALL)}
    sharing = Sharing.of([name for name, _ in everything], [each for _, each in everything])
    zero = torch.zeros((), device=local(everything[0][1]).device)
    squares = []
    for members in found.values():
        parts = [local(each) for _, each in members]
        norms = torch._foreach_norm(parts, dtype=torch.float32) if parts else []
        squares.append((torch.stack(list(norms)) ** 2).sum() if norms else zero)
    totals = sharing.sum(torch.stack(squares))
    norms_G = torch.cat([totals, totals.sum()[None]]).sqrt()
    return dict(zip((*found, ALL), norms_G.unbind(), strict=True))


@torch.no_grad()
def state_norms(states: Sequence[Tensor]) -> Tensor:
    """Return the size of the state after each recurrence, (R, 2): mean and largest over tokens.

    states   as the model returns them with return_states, (B, T, D) each
    The size of a token's state is the root mean square of its channels, so 1 is what a norm with
    scales 1 gives at any width. fp32, on the device.

    >>> state_norms([torch.tensor([[[3.0, 3.0], [1.0, 1.0]]])])
    tensor([[2., 3.]])
    """
    sizes = []
    for state_BTD in states:
        norm_BT = torch.linalg.vector_norm(state_BTD.detach(), dim=-1, dtype=torch.float32)
        norm_BT = norm_BT / math.sqrt(state_BTD.shape[-1])
        sizes.append(torch.stack([norm_BT.mean(), norm_BT.max()]))
    return torch.stack(sizes)


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """When norms are alarming.

    state      largest size of a token's state, in root mean square of its channels
    growth     how many times its usual value a norm may have, and the last recurrence's state the
               first one's
    settle     records before the usual value counts: the start of a run is not usual

    Raises ValueError for a limit that is not positive.

    >>> HealthLimits().growth
    10.0
    """

    state: float = 100.0
    growth: float = 10.0
    settle: int = 20

    def __post_init__(self) -> None:
        """Refuse a limit that would always or never be passed."""
        real("limits.state", self.state, "a positive number", "100 is usual")
        if real("limits.growth", self.growth, "a number above 1", "10 is usual") <= 1:
            raise ValueError(f"limits.growth={self.growth} must be above 1; 10 is usual")
        whole("limits.settle", self.settle, 1)


class HealthWatch:
    """Compares the norms of a run with its limits and with what they usually are.

    The usual value of a norm is the geometric mean of its past, the last 50 records above all. An
    alarm is told when it begins, not at every record while it lasts.

    >>> watch = HealthWatch(HealthLimits(settle=1))
    >>> [len(watch.check(step, {"all": norm})) for step, norm in enumerate((1.0, 1.1, 30.0, 31.0))]
    [0, 0, 1, 0]
    """

    def __init__(self, limits: HealthLimits | None = None) -> None:
        self.limits = limits or HealthLimits()
        self._usual: dict[str, tuple[int, float]] = {}  # records, mean logarithm
        self._lasting: set[str] = set()

    def check(
        self,
        step: int,
        gradients: Mapping[str, float] | None = None,
        states: Sequence[Sequence[float]] = (),
    ) -> tuple[Finding, ...]:
        """Return the alarms that begin at this record.

        gradients   of `gradient_norms`, read: `{name: norm.item()}`
        states      of `state_norms`, read: `norms.tolist()`
        """
        values = {f"the gradient of {name}": norm for name, norm in (gradients or {}).items()}
        values |= {f"the state after loop {i}": each[0] for i, each in enumerate(states, start=1)}
        found = [self._against_usual(name, value) for name, value in values.items()]
        found += self._states(states)
        here = {each.message.split(" is ")[0] + each.code: each for each in found if each}
        new = [alarm for key, alarm in here.items() if key not in self._lasting]
        self._lasting = set(here)
        return tuple(
            Finding(each.code, each.severity, f"Step {step}: {each.message}", remedy=each.remedy,
                    evidence={"step": step, **each.evidence})
            for each in new
        )  # fmt: skip

    def _against_usual(self, name: str, value: float) -> Finding | None:
        """Compare a norm with its past, then make it part of it."""
        if not math.isfinite(value):
            return Finding(
                "norm_not_finite", "error", f"{name} is {value}.",
                remedy="Go back to the last checkpoint with a lower learning rate.",
                evidence={"name": name},
            )  # fmt: skip
        records, mean = self._usual.get(name, (0, 0.0))
        usual = math.exp(mean)
        alarm = None
        if records >= self.limits.settle and value > self.limits.growth * usual:
            alarm = Finding(
                "norm_grows", "warning",
                f"{name} is {value:.3g}, {value / usual:.3g} times its usual {usual:.3g}.",
                remedy="See whether the loss follows; a lower learning rate or a norm on the state "
                "keeps it bounded.",
                evidence={"name": name, "value": value, "usual": usual},
            )  # fmt: skip
        if value > 0:
            records += 1
            mean += (math.log(value) - mean) / min(records, 50)
            self._usual[name] = records, mean
        return alarm

    def _states(self, states: Sequence[Sequence[float]]) -> list[Finding]:
        found = []
        largest = max((each[1] for each in states), default=0.0)
        remedy = "Give the injection a norm on the state, or lower the learning rate of the loop."
        if math.isfinite(largest) and largest > self.limits.state:
            found.append(
                Finding(
                    "state_large", "warning",
                    f"the largest state of a token is {largest:.3g}, above {self.limits.state:g}.",
                    remedy=remedy, evidence={"value": largest, "limit": self.limits.state},
                )
            )  # fmt: skip
        if len(states) > 1 and states[-1][0] > self.limits.growth * states[0][0] > 0:
            times = states[-1][0] / states[0][0]
            found.append(
                Finding(
                    "state_grows_over_loops", "warning",
                    f"the state after the last loop is {times:.3g} times that after the first.",
                    remedy=remedy, evidence={"states": [each[0] for each in states]},
                )
            )  # fmt: skip
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return plain numbers and text from which a resumed run goes on."""
        usual = {name: list(pair) for name, pair in self._usual.items()}
        return {"usual": usual, "lasting": sorted(self._lasting)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._usual = {name: (int(n), float(mean)) for name, (n, mean) in state["usual"].items()}
        self._lasting = set(state["lasting"])
