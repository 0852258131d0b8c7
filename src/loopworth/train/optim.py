"""The optimiser of a run: MuonH for the matrices, AdamW for the rest, one schedule for both."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from loopworth.spec import ModelSpec, OptimSpec
from loopworth.spec.checks import hint, whole
from loopworth.train.muonh import MuonH
from loopworth.train.polar import polar_flops
from loopworth.train.share import as_dtensor
from loopworth.train.transfer import GROUPS, MATRIX_GROUPS, VECTOR_GROUPS, multiplier, peak_rates

Groups = Mapping[str, Sequence[tuple[str, nn.Parameter]]]
# Devices that have AdamW as one kernel over all tensors.
_FUSED = ("cuda", "cpu", "mps")


def build_optimizer(
    groups: Groups,
    optim: OptimSpec,
    *,
    model: ModelSpec,
    batch_tokens: int,
    tokens: float,
    steps: int,
    share: bool = True,
) -> "LoopOptimizer":
    """Return the optimiser of a run over the parameters of a model.

    groups   named parameters by group, as `LoopedTransformer.parameter_groups` returns them: after
             fully_shard, where the model is sharded; a group may be empty or left out
    tokens, steps   the horizon of the whole run, batch_tokens tokens a step
    share    under a process group, whether its processes orthogonalise a share each and exchange
             the results; all must then hold the same parameters and gradients (DDP, FSDP2)

    Raises ValueError for an unknown group, a parameter in two of them, a matrix group's parameter
    that is no matrix, and a count that is not positive.

    >>> weight = nn.Parameter(torch.eye(2))
    >>> optimiser = build_optimizer(
    ...     {"matrix_once": [("w", weight)]}, OptimSpec(), model=ModelSpec(640),
    ...     batch_tokens=2**18, tokens=2**20, steps=4)
    >>> weight.grad = torch.ones(2, 2)
    >>> optimiser.step()
    >>> round(optimiser.rates()["matrix_once"] / optimiser.peaks["matrix_once"], 3)
    0.775
    """
    _check(groups)
    peaks = peak_rates(optim, model, batch_tokens=batch_tokens, tokens=tokens)
    ready = share and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return LoopOptimizer(groups, optim, peaks, steps, group=dist.group.WORLD if ready else None)


class LoopOptimizer:
    """MuonH and AdamW behind one step; rates are a function of the step alone.

    groups, optim   as in `build_optimizer`       peaks   peak rate of each group
    steps           of the whole run, counted from 0
    group           processes that share the work on plain matrices

    peaks, steps and `step_count`, the steps done, may be read.
    """

    def __init__(
        self,
        groups: Groups,
        optim: OptimSpec,
        peaks: Mapping[str, float],
        steps: int,
        *,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.peaks, self.steps, self.step_count = dict(peaks), whole("steps", steps, 1), 0
        self._optim = optim
        self._parameters = {name: each for members in groups.values() for name, each in members}
        matrices = _param_groups(groups, MATRIX_GROUPS)
        vectors = _param_groups(groups, VECTOR_GROUPS)
        self._matrices = MuonH(matrices, momentum=optim.momentum, group=group) if matrices else None
        self._vectors = _adamw(vectors, optim) if vectors else None
        self.set_step(0)

    def step(self) -> None:
        """Move the parameters that have a gradient, at the rates of this step, and count it."""
        self.set_step(self.step_count)
        for each in self._both():
            each.step()
        self.step_count += 1

    def set_step(self, step: int) -> None:
        """Say which step comes next, from 0; without it they are counted."""
        factor = multiplier(self._optim, step, self.steps)
        self.step_count = step
        for each in self._both():
            for members in each.param_groups:
                members["lr"] = self.peaks[members["name"]] * factor

    def rates(self) -> dict[str, float]:
        """Return the rate of each group that has parameters, at the step that comes next."""
        factor = multiplier(self._optim, self.step_count, self.steps)
        present = [members["name"] for each in self._both() for members in each.param_groups]
        return {name: self.peaks[name] * factor for name in present}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        for each in self._both():
            each.zero_grad(set_to_none=set_to_none)

    def polar_flops(self) -> float:
        """Return the FLOPs a step spends on orthogonalisation, all processes together."""
        if self._matrices is None:
            return 0.0
        members = [each for group in self._matrices.param_groups for each in group["params"]]
        return sum(polar_flops(*each.shape, gram=each.device.type != "cuda") for each in members)

    def state_dict(self) -> dict[str, Any]:
        """Return the state by the names of parameters: numbers and tensors, sharded as they are.

        Peaks and schedule are left out: they follow from the spec of the run that goes on.
        """
        state: dict[str, Any] = {"step": self.step_count, "parameters": {}}
        for each in self._both():
            for members in each.param_groups:
                for name, parameter in zip(members["param_names"], members["params"], strict=True):
                    if parameter in each.state:
                        state["parameters"][name] = dict(each.state[parameter])
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: whole tensors are sharded as their parameter is.

        Raises ValueError for a state of other parameters or shapes.
        """
        saved: Mapping[str, Mapping[str, Any]] = state["parameters"]
        for name, values in saved.items():
            if name not in self._parameters:
                raise ValueError(
                    f"the optimiser's state has {name!r}, which is no parameter of this model; "
                    f"resume with the spec of the run that saved it"
                )
            _check_shapes(name, self._parameters[name], values)
        for each in self._both():
            each.state.clear()
            for members in each.param_groups:
                for name, parameter in zip(members["param_names"], members["params"], strict=True):
                    if name in saved:
                        each.state[parameter] = {
                            key: _placed(value, parameter) for key, value in saved[name].items()
                        }
        self.set_step(int(state["step"]))

    def _both(self) -> list[torch.optim.Optimizer]:
        return [each for each in (self._matrices, self._vectors) if each is not None]


def _adamw(groups: list[dict[str, Any]], optim: OptimSpec) -> torch.optim.AdamW:
    devices = {parameter.device.type for members in groups for _, parameter in members["params"]}
    return torch.optim.AdamW(
        groups, lr=0.0, betas=(optim.beta1, optim.beta2), eps=optim.eps, weight_decay=0.0,
        fused=True if devices <= set(_FUSED) else None,
    )  # fmt: skip


def _param_groups(groups: Groups, names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"params": list(groups[name]), "name": name, "lr": 0.0}
        for name in names
        if groups.get(name)
    ]


def _check(groups: Groups) -> None:
    seen: dict[int, str] = {}
    for group, members in groups.items():
        if group not in GROUPS:
            raise ValueError(f"{group!r} is no group of parameters; {hint(group, list(GROUPS))}")
        for name, parameter in members:
            if id(parameter) in seen:
                raise ValueError(
                    f"{name} in {group} is the parameter that is {seen[id(parameter)]} already; "
                    "name a shared parameter once"
                )
            seen[id(parameter)] = f"{name} in {group}"


def _check_shapes(name: str, parameter: Tensor, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Tensor) and value.ndim and value.shape != parameter.shape:
            raise ValueError(
                f"{key} of {name} has shape {tuple(value.shape)} in the optimiser's state, and the "
                f"parameter {tuple(parameter.shape)}; resume with the spec of the run that saved it"
            )


def _placed(value: Any, parameter: Tensor) -> Any:
    """Return a value of the state on the parameter's device, sharded as the parameter."""
    if not isinstance(value, Tensor):
        return value
    if as_dtensor(value) is not None:
        return value.detach().clone()
    value = value.detach().to(parameter.device, copy=True)
    like = as_dtensor(parameter)
    if value.ndim and like is not None:
        from torch.distributed.tensor import distribute_tensor

        # Every process has the whole tensor: nothing has to be sent.
        return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
    return value
