"""Where a run is trained and how often it speaks and saves: nothing here changes what is trained.

`Machine` is what a user may choose; `Place` is what came of it on the machine at hand.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from loopworth.spec.checks import one_of, real, whole

Parallel = Literal["auto", "ddp", "fsdp2"]

# Dense bf16 peak in FLOP/s by the name a device gives itself; the first that matches counts.
# Source: the makers' data sheets. V100 and T4 have no bf16: their fp16 rate.
_PEAKS = (
    (r"\bB[23]00\b", 2250e12),
    (r"\bGH200\b|\bH200\b|\bH100\b(?!.*(PCIe|NVL))", 989e12),
    (r"\bH100\b.*NVL", 835e12),
    (r"\bH100\b.*PCIe", 756e12),
    (r"\bH20\b", 148e12),
    (r"\bA100\b|\bA800\b", 312e12),
    (r"\bA40\b|\bA6000\b", 155e12),
    (r"\bA10G?\b", 125e12),
    (r"\bL40S\b", 362e12),
    (r"\bL40\b", 181e12),
    (r"\bL4\b", 121e12),
    (r"RTX 5090", 209e12),
    (r"RTX 4090", 165e12),
    (r"RTX 3090", 71e12),
    (r"\bV100\b", 125e12),
    (r"\bT4\b", 65e12),
    (r"MI355X", 2500e12),
    (r"MI325X|MI300X", 1307e12),
    (r"MI250X", 383e12),
)


_NARROW = 128


@dataclass(frozen=True, slots=True)
class Machine:
    """How a run uses the machine it is on.

    device      auto (a GPU if there is one), cpu, cuda, cuda:1, mps
    threads     CPU threads of torch; None leaves torch's number, but for narrow models takes one
    micro_batch_rows   rows of a forward pass on one device; None chooses from the memory
    compile     compile the blocks; None does on a GPU
    checkpoint_activations   recompute each recurrence in the backward pass instead of keeping it
    parallel    under torchrun: ddp keeps everything on each device, fsdp2 shards it; auto is ddp
                unless weights and optimiser would fill half of a device
    deterministic   only deterministic kernels, so that a resumed run is equal bit for bit; None is
                yes on a CPU, where it costs nothing
    log_every   steps between reports; None is 1 on a CPU, 10 on a GPU. The metrics of all steps
                are written in any case
    eval_every  steps between validations; None validates at the end only
    save_every  steps between checkpoints; None saves by time only
    save_seconds   seconds between checkpoints; None saves by steps only, and at the end
    keep        how many checkpoints stay; 2 or more leave one to fall back on
    trackers    where metrics go besides metrics.jsonl: tensorboard, trackio, wandb
    peak_flops  of one device, in FLOP/s, for the utilisation; None looks it up, or measures a CPU

    Raises ValueError that names the field, its value and what is allowed.

    >>> Machine(threads=1).keep
    2
    """

    device: str = "auto"
    threads: int | None = None
    micro_batch_rows: int | None = None
    compile: bool | None = None
    checkpoint_activations: bool = False
    parallel: Parallel = "auto"
    deterministic: bool | None = None
    log_every: int | None = None
    eval_every: int | None = None
    save_every: int | None = None
    save_seconds: float | None = 600.0
    keep: int = 2
    trackers: tuple[str, ...] = ()
    peak_flops: float | None = None

    def __post_init__(self) -> None:
        """Refuse what no machine can do."""
        for name in ("threads", "micro_batch_rows", "log_every", "eval_every", "save_every"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 1, optional=True)
        for name in ("save_seconds", "peak_flops"):
            if getattr(self, name) is not None:
                real(name, getattr(self, name), "a positive number", "or None")
        whole("keep", self.keep, 1)
        one_of("parallel", self.parallel, get_args(Parallel))


@dataclass(frozen=True, slots=True)
class Place:
    """A machine as found: the device, the arithmetic, and what the choices came to."""

    device: torch.device
    name: str
    threads: int
    autocast: torch.dtype | None
    compile: bool
    deterministic: bool
    log_every: int

    def training_math(self) -> AbstractContextManager[object]:
        """Return the context of a training pass: autocast, or nothing where all is float32."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast)

    def synchronise(self) -> None:
        """Wait for the device, so that a clock tells the truth."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def find_place(
    machine: Machine, precision: str, local_rank: int = 0, *, width: int | None = None
) -> Place:
    """Return what a machine's choices come to here.

    precision   of the run: auto, float32, bfloat16
    local_rank  which GPU of several is ours
    width       of the model: a narrow one on a CPU gets one thread

    Raises ValueError for a device that is not there or that lacks the precision.

    >>> find_place(Machine(device="cpu"), "auto").autocast is None
    True
    """
    device = _device(machine.device, local_rank)
    gpu = device.type == "cuda"
    autocast = torch.bfloat16 if precision == "bfloat16" or (precision == "auto" and gpu) else None
    if autocast and gpu and not torch.cuda.is_bf16_supported():
        if precision == "bfloat16":
            raise ValueError(
                f"precision='bfloat16' is not supported by {torch.cuda.get_device_name(device)}; "
                "use 'float32'"
            )
        autocast = None
    name = torch.cuda.get_device_name(device) if gpu else device.type
    return Place(
        device=device,
        name=name,
        threads=machine.threads or _threads(device, width),
        autocast=autocast,
        compile=gpu if machine.compile is None else machine.compile,
        deterministic=not gpu if machine.deterministic is None else machine.deterministic,
        log_every=machine.log_every or (10 if gpu else 1),
    )


def _device(name: str, local_rank: int) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(
            f"device={name!r} is unknown; use auto, cpu, cuda, cuda:N or mps"
        ) from None
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        index = device.index if ":" in name else local_rank
        if index >= count:
            have = f"torch sees {count} GPU{'s' * (count != 1)}"
            raise ValueError(f"device={name!r} needs GPU {index}, but {have}; use device='cpu'")
        return torch.device("cuda", index)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device='mps' is not available to this torch; use device='cpu'")
    if device.type not in ("cpu", "mps"):
        raise ValueError(f"device={name!r} is not supported; use auto, cpu, cuda, cuda:N or mps")
    return device


def _threads(device: torch.device, width: int | None) -> int:
    """Return one thread for a narrow model on a CPU: a second one would wait more than work."""
    narrow = device.type == "cpu" and width is not None and width < _NARROW
    return 1 if narrow else torch.get_num_threads()


@contextmanager
def numerics(place: Place) -> Iterator[None]:
    """Set threads, matmul precision and determinism for a run, and put them back after it."""
    threads = torch.get_num_threads()
    precision = torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    debugging: Any = torch.utils.deterministic  # its one setting is made at run time
    fill = debugging.fill_uninitialized_memory
    if place.device.type == "cuda":
        torch.cuda.set_device(place.device)
        if place.deterministic:  # cuBLAS reads it when its first handle is made
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        torch.set_num_threads(place.threads)
        torch.set_float32_matmul_precision("high")  # TF32 where autocast leaves float32
        torch.use_deterministic_algorithms(place.deterministic)
        # It would fill every new tensor with NaN, to find bugs that other tests look for.
        debugging.fill_uninitialized_memory = False
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(deterministic)
        debugging.fill_uninitialized_memory = fill


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute in float32 without TF32, for numbers that are compared between machines."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def peak_flops(place: Place) -> float | None:
    """Return the peak of a device in FLOP/s: from its data sheet, measured on a CPU, or None.

    On a CPU it is the rate of a float32 matrix product with the threads of the run, so 100 % means
    as fast as matrix products alone.
    """
    if place.device.type == "cuda":
        if place.autocast is None:
            return None  # the table is for bf16
        return next((peak for name, peak in _PEAKS if re.search(name, place.name)), None)
    return measured_gemm() if place.device.type == "cpu" else None


def measured_gemm(size: int = 512, seconds: float = 0.1) -> float:
    """Measure the float32 matrix product of this CPU with the present threads, in FLOP/s."""
    left = torch.ones(size, size)
    best, spent = 0.0, 0.0
    while spent < seconds:
        start = time.perf_counter()
        left @ left
        took = time.perf_counter() - start
        best, spent = max(best, 2 * size**3 / took), spent + took
    return best
