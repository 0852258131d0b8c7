"""How many rows of a step go through the device at once, and what is said where none does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from loopworth.reach import activation_bytes
from loopworth.spec import RunSpec
from loopworth.spec.checks import divisors, listed
from loopworth.train.machine import Place
from loopworth.unroll import Unroll, draw

# Bytes that the kept activations of a pass may fill. On a CPU more is not faster: past a few
# hundred MB the passes leave the cache anyway, and every new page costs.
_CPU_BYTES = 2**27
_GPU_SHARE = 0.85
_NO_ROOM = ("DefaultCPUAllocator: can't allocate", "Storage size calculation overflowed")


def micro_batch_rows(
    run: RunSpec, place: Place, share: int, asked: int | None, *, checkpoint: bool
) -> int:
    """Return the rows of one pass: what was asked for, or the most that memory has room for.

    share   rows of a step on one device; the result divides it

    Raises ValueError for a number that does not divide it.
    """
    if asked is not None:
        if share % asked:
            raise ValueError(
                f"micro_batch_rows={asked} does not divide the {share} rows of a step on one "
                f"device; use {listed(divisors(share))}"
            )
        return asked
    room = _CPU_BYTES
    if place.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(place.device)
        room = int(_GPU_SHARE * free)
    width = 2 if place.autocast is not None else 4
    most = max(1, room // activation_bytes(run.model, _largest(run), width, checkpoint=checkpoint))
    return max(rows for rows in divisors(share) if rows <= most)


@contextmanager
def memory_in_words(place: Place) -> Iterator[None]:
    """Say what to do where the device has no room, which torch reports by its allocators' names."""
    try:
        yield
    except (MemoryError, RuntimeError) as problem:
        words = str(problem)
        of_torch = isinstance(problem, (MemoryError, torch.OutOfMemoryError))
        if not of_torch and not any(sign in words for sign in _NO_ROOM):
            raise
        size = re.search(r"[Tt]ried to allocate ([\d.]+ ?[KMGT]?i?B|\d+ bytes)", words)
        wanted = f" ({size[1]} more were asked for)" if size else ""
        raise ValueError(
            f"{place.name} has not enough memory for this run{wanted}; use a smaller "
            "--micro-batch, --checkpoint-activations, more devices with --parallel fsdp2, or a "
            "smaller model. The last checkpoint stays"
        ) from problem


def _largest(run: RunSpec) -> Unroll:
    """Return an unrolling that few draws exceed: memory must hold the large ones too."""
    probes = (draw(run.model, run.unroll, seed=run.seed, step=t, steps=256) for t in range(256))
    return max(probes, key=lambda each: each.with_gradient)
