"""Several processes on one run: DDP and FSDP2 under torchrun, and nothing of either without it.

The rest of training asks a `World` who it is and for sums, and sees whole tensors in checkpoints.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from loopworth.model import LoopedTransformer
from loopworth.train.machine import Parallel, Place

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class World:
    """The processes of a run: we are `rank` of `size`, and `local_rank` on this machine.

    >>> World().sum([1.5]), World().first(lambda: "read by one, known to all")
    ([1.5], 'read by one, known to all')
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and reports."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all processes, in float64."""
        return self._reduce(values, torch.float64, dist.ReduceOp.SUM)

    def largest(self, values: Sequence[int]) -> list[int]:
        """Return the largest of each value over all processes."""
        return self._reduce(values, torch.int64, dist.ReduceOp.MAX)

    def _reduce(self, values: Sequence[Any], dtype: torch.dtype, how: Any) -> list[Any]:
        if self.size == 1:
            return list(values)
        # A tensor on the CPU goes through gloo, so no GPU has to wait for it.
        tensor = torch.tensor(values, dtype=dtype)
        dist.all_reduce(tensor, how)
        result: list[Any] = tensor.tolist()
        return result

    def first(self, work: Callable[[], T]) -> T:
        """Let the first process do something; all get its result, or raise its ValueError."""
        if self.size == 1:
            return work()
        answer: list[Any] = [None, None]
        if self.is_first:
            try:
                answer[0] = work()
            except (ValueError, OSError) as problem:
                answer[1] = problem
        dist.broadcast_object_list(answer, src=0, device=torch.device("cpu"))
        if answer[1] is not None:
            raise answer[1]
        result: T = answer[0]
        return result


@contextmanager
def join_world(gpu: bool) -> Iterator[World]:
    """Join the processes that torchrun started, and leave them at the end; alone without it."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    mine = not dist.is_initialized()
    if mine:
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo")
    try:
        local = int(os.environ.get("LOCAL_RANK", "0"))
        yield World(dist.get_rank(), dist.get_world_size(), local)
    finally:
        if mine:
            dist.destroy_process_group()


# The tables of the model never change; torch 2.13 gave the option that says so another name.
_OPTIONS = inspect.signature(nn.parallel.DistributedDataParallel).parameters
_CONSTANT_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _OPTIONS else "broadcast_buffers": False
}


class Replica:
    """A model as it is trained here: alone, copied to every process, or sharded over them.

    model    whose parameters the optimiser gets
    run      what is called in training: same arguments, gradients averaged over the processes
    """

    def __init__(self, model: LoopedTransformer, mode: str, world: World, place: Place) -> None:
        self.model, self.mode, self.size = model, mode, world.size
        self.run: nn.Module = model
        if mode == "ddp":
            ids = [place.device.index] if place.device.type == "cuda" else None
            self.run = nn.parallel.DistributedDataParallel(
                model,
                device_ids=ids,
                **_CONSTANT_BUFFERS,
                gradient_as_bucket_view=True,
                # A short draw leaves the parameters of later recurrences without gradient.
                find_unused_parameters=model.spec.has_parameters_per_recurrence,
            )
        elif mode == "fsdp2":
            _shard(model, world, place)

    def accumulate(self, last: bool) -> AbstractContextManager[Any]:
        """Return the context of a micro-batch; only the last of a step talks to the others."""
        if isinstance(self.run, nn.parallel.DistributedDataParallel):
            return nullcontext() if last else self.run.no_sync()
        if self.mode == "fsdp2":
            sharded: Any = self.model  # `fully_shard` has given it the method
            sharded.set_requires_gradient_sync(last)
        return nullcontext()

    @property
    def parameters(self) -> int:
        """Numbers that are trained."""
        return sum(parameter.numel() for parameter in self.model.parameters())


def _shard(model: LoopedTransformer, world: World, place: Place) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(place.device.type, (world.size,))
    loop = set(model.recur)
    for block in model.blocks():
        # A block of the loop is needed again at once: gathering it r times would cost r times.
        fully_shard(block, mesh=mesh, reshard_after_forward=block not in loop)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)


def choose_mode(asked: Parallel, world: World, place: Place, parameters: int) -> str:
    """Return how the processes share the work: alone, ddp or fsdp2.

    fsdp2 where weights, gradients and two moments in float32 fill more than half of a device.

    >>> from loopworth.train.machine import Machine, find_place
    >>> choose_mode("auto", World(size=2), find_place(Machine(device="cpu"), "auto"), 10**9)
    'ddp'
    """
    if world.size == 1:
        return "alone"
    if asked != "auto":
        return asked
    if place.device.type != "cuda":
        return "ddp"
    memory = torch.cuda.get_device_properties(place.device).total_memory
    return "fsdp2" if 16 * parameters > memory / 2 else "ddp"


def gathered(value: Any, *, keep: bool, copy: bool) -> Any:
    """Return a state with whole tensors on the CPU in place of shards; all processes must call it.

    keep   whether this process needs the result; the others get None for every tensor
    copy   whether the tensors must not change when training goes on
    """
    if isinstance(value, DTensor):
        value = value.full_tensor()
        copy = False  # it is a copy already, unless it has to come from the device
    if isinstance(value, torch.Tensor):
        if not keep:
            return None
        value = value.detach()
        return value.to("cpu", copy=copy) if copy or value.device.type != "cpu" else value
    if isinstance(value, Mapping):
        return {key: gathered(item, keep=keep, copy=copy) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(gathered(item, keep=keep, copy=copy) for item in value)
    return value


@torch.no_grad()
def load_weights(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy whole weights into a model, sharded or not; raises ValueError for another model's."""
    own = model.state_dict()
    if own.keys() != weights.keys() or any(own[n].shape != weights[n].shape for n in own):
        odd = sorted(own.keys() ^ weights.keys()) or [
            name for name in own if own[name].shape != weights[name].shape
        ]
        raise ValueError(f"the weights are another model's: {', '.join(odd[:5])} do not fit")
    for name, tensor in own.items():
        value = weights[name]
        if isinstance(tensor, DTensor):  # every process has read the whole: nothing is sent
            value = distribute_tensor(
                value.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None
            )
        tensor.copy_(value)
