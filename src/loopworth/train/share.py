"""Several processes share the orthogonalisation of a step: each takes its matrices whole.

A matrix that is sharded by rows travels to the process that works on it, and the result travels
back in shards; of a matrix that every process holds, only the result travels.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from loopworth.train.polar import polar_flops

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Shape = tuple[int, int]
# Takes whole matrices with their positions in the list of all, returns one result for each.
Work = Callable[[Sequence[int], Sequence[Tensor]], list[Tensor]]


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process holds: all of a plain one.

    >>> local(torch.ones(2)).shape
    torch.Size([2])
    """
    sharded = as_dtensor(tensor)
    return tensor if sharded is None else sharded.to_local()


def as_dtensor(tensor: Tensor) -> "DTensor | None":
    """Return the tensor where it is a DTensor, else None.

    Importing DTensor takes a second, and there is none before somebody has.

    >>> as_dtensor(torch.ones(2)) is None
    True
    """
    module = sys.modules.get("torch.distributed.tensor")
    return tensor if module is not None and isinstance(tensor, module.DTensor) else None


@dataclass(frozen=True)
class Sharing:
    """How matrices lie on the processes of a group.

    group     the processes that share the work; None works alone
    sharded   whether each holds some rows of every matrix, or all of them

    >>> Sharing().size
    1
    """

    group: dist.ProcessGroup | None = None
    sharded: bool = False

    @property
    def size(self) -> int:
        """Processes that share the work."""
        return 1 if self.group is None else dist.get_world_size(self.group)

    @property
    def rank(self) -> int:
        """The place of this process among them."""
        return 0 if self.group is None else dist.get_rank(self.group)

    @classmethod
    def of(
        cls, names: Sequence[str], tensors: Sequence[Tensor], group: dist.ProcessGroup | None = None
    ) -> "Sharing":
        """Return how `tensors` lie: the mesh of DTensors says so, `group` holds for plain ones.

        Raises ValueError for a DTensor sharded by anything but rows, and for two layouts at once.
        """
        found = {_layout(name, tensor, group) for name, tensor in zip(names, tensors, strict=True)}
        if len(found) > 1:
            raise ValueError(
                f"the matrices {names[0]} ... {names[-1]} lie on the processes in {len(found)} "
                "different ways; shard the whole model by one fully_shard mesh, or none of it"
            )
        return found.pop() if found else cls()

    def sum(self, values_K: Tensor) -> Tensor:
        """Return the sum over the shards; the values themselves where nothing is sharded."""
        if self.sharded and self.size > 1:
            values_K = values_K.clone()
            dist.all_reduce(values_K, group=self.group)
        return values_K


def _layout(name: str, tensor: Tensor, group: dist.ProcessGroup | None) -> Sharing:
    placed = as_dtensor(tensor)
    if placed is None:
        return Sharing(group)
    axes = [axis for axis, each in enumerate(placed.placements) if not each.is_replicate()]
    if not axes:
        return Sharing()
    if len(axes) > 1 or not placed.placements[axes[0]].is_shard(0):
        raise ValueError(
            f"{name} is placed as {placed.placements}; MuonH works on matrices that are sharded by "
            "rows over one dimension of the mesh, as fully_shard does by default"
        )
    return Sharing(placed.device_mesh.get_group(axes[0]), sharded=True)


def share_out(shapes: Sequence[Shape], size: int) -> list[int]:
    """Return the process that works on each matrix: the dearest first, to the least busy one.

    >>> share_out([(8, 8), (8, 32), (8, 8)], 2)
    [1, 0, 1]
    """
    owners, busy = [0] * len(shapes), [0.0] * size
    costs = [polar_flops(*shape) for shape in shapes]
    for index in sorted(range(len(shapes)), key=lambda i: -costs[i]):
        owners[index] = busy.index(min(busy))
        busy[owners[index]] += costs[index]
    return owners


def rows_held(rows: int, size: int) -> list[int]:
    """Return how many of the rows each process holds, as fully_shard deals them out.

    >>> rows_held(10, 4), rows_held(2, 4)
    ([3, 3, 3, 1], [1, 1, 0, 0])
    """
    chunk = -(-rows // size)
    return [max(0, min(chunk, rows - rank * chunk)) for rank in range(size)]


def shared(
    parts: Sequence[Tensor], shapes: Sequence[Shape], sharing: Sharing, work: Work
) -> list[Tensor]:
    """Return this process's part of the result for every matrix.

    parts    what this process holds of each matrix, of one dtype, which results must keep
    shapes   rows and columns of the whole matrices
    All processes must call it with the same shapes.

    >>> twice = lambda positions, matrices: [2 * matrix for matrix in matrices]
    >>> shared([torch.ones(1, 2)], [(1, 2)], Sharing(), twice)
    [tensor([[2., 2.]])]
    """
    if sharing.size == 1:
        return work(range(len(parts)), parts)
    owners = share_out(shapes, sharing.size)
    mine = [index for index, owner in enumerate(owners) if owner == sharing.rank]
    if not sharing.sharded:
        done = work(mine, [parts[index] for index in mine])
        return _gather(done, parts[0], shapes, owners, sharing)
    whole = _to_owners(parts, shapes, owners, mine, sharing)
    return _to_holders(work(mine, whole), parts[0], shapes, owners, mine, sharing)


def _gather(
    done: Sequence[Tensor], like: Tensor, shapes: Sequence[Shape], owners: Sequence[int],
    sharing: Sharing,
) -> list[Tensor]:  # fmt: skip
    """Return every result to every process, each sending its own."""
    totals = [0] * sharing.size
    for (rows, columns), owner in zip(shapes, owners, strict=True):
        totals[owner] += rows * columns
    width = max(totals)  # what is sent has one size, so a process with less to send fills up
    sent = like.new_zeros(width)
    if done:
        torch.cat([each.reshape(-1) for each in done], out=sent[: totals[sharing.rank]])
    everything = like.new_empty(width * sharing.size)
    dist.all_gather(list(everything.view(sharing.size, width)), sent, group=sharing.group)
    results, starts = [], [rank * width for rank in range(sharing.size)]
    for shape, owner in zip(shapes, owners, strict=True):
        stop = starts[owner] + shape[0] * shape[1]
        results.append(everything[starts[owner] : stop].view(shape))
        starts[owner] = stop
    return results


def _to_owners(
    parts: Sequence[Tensor], shapes: Sequence[Shape], owners: Sequence[int], mine: Sequence[int],
    sharing: Sharing,
) -> list[Tensor]:  # fmt: skip
    """Return the whole of the matrices that are `mine`, from the rows that each process holds."""
    sends = [
        [part for part, owner in zip(parts, owners, strict=True) if owner == rank]
        for rank in range(sharing.size)
    ]
    sizes = [
        [(rows_held(shapes[index][0], sharing.size)[rank], shapes[index][1]) for index in mine]
        for rank in range(sharing.size)
    ]
    came = _all_to_all(sends, sizes, parts[0], sharing)
    return [torch.cat([from_rank[i] for from_rank in came]) for i in range(len(mine))]


def _to_holders(
    done: Sequence[Tensor], like: Tensor, shapes: Sequence[Shape], owners: Sequence[int],
    mine: Sequence[int], sharing: Sharing,
) -> list[Tensor]:  # fmt: skip
    """Return this process's rows of every result, from the processes that worked on them."""
    split = [
        torch.split(each, rows_held(shapes[index][0], sharing.size))
        for index, each in zip(mine, done, strict=True)
    ]
    sends = [[rows[rank] for rows in split] for rank in range(sharing.size)]
    sizes: list[list[Shape]] = [[] for _ in range(sharing.size)]
    for (rows, columns), owner in zip(shapes, owners, strict=True):
        sizes[owner].append((rows_held(rows, sharing.size)[sharing.rank], columns))
    came = [iter(results) for results in _all_to_all(sends, sizes, like, sharing)]
    return [next(came[owner]) for owner in owners]


def _all_to_all(
    sends: Sequence[Sequence[Tensor]], sizes: Sequence[Sequence[Shape]], like: Tensor,
    sharing: Sharing,
) -> list[list[Tensor]]:  # fmt: skip
    """Send `sends[q]` to each process q; return what each sent here, in shapes `sizes[q]`."""
    flat = [each.reshape(-1) for tensors in sends for each in tensors]
    sent = torch.cat(flat) if flat else like.new_empty(0)
    counts = [sum(rows * columns for rows, columns in shapes) for shapes in sizes]
    came = like.new_empty(sum(counts))
    dist.all_to_all_single(
        came, sent, counts, [sum(each.numel() for each in tensors) for tensors in sends],
        group=sharing.group,
    )  # fmt: skip
    return [
        [
            piece.view(shape)
            for piece, shape in zip(
                torch.split(block, [rows * columns for rows, columns in shapes]),
                shapes,
                strict=True,
            )
        ]
        for block, shapes in zip(torch.split(came, counts), sizes, strict=True)
    ]
