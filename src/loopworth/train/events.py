"""What a run tells while it runs. The library never prints: who watches decides what to show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loopworth.train.result import TrainResult


@dataclass(frozen=True, slots=True)
class Started:
    """The run is ready for step `step` of `steps`; step 0 is a fresh start."""

    step: int
    steps: int
    tokens: int
    flops: float
    parameters: int
    device: str
    processes: int
    parallel: str
    micro_batch_rows: int
    accumulation: int
    epochs: float


@dataclass(frozen=True, slots=True)
class Stepped:
    """`step` steps are done. Rates are those since the last report; eta_seconds may be None."""

    step: int
    steps: int
    loss: float
    tokens_per_second: float
    flops_per_second: float
    utilisation: float | None
    seconds: float
    eta_seconds: float | None
    metrics: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Validated:
    """The validation loss after `step` steps, in nats per token and in bits per byte."""

    step: int
    steps: int
    val_loss: float
    bits_per_byte: float


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint of step `step` is on disk."""

    step: int
    path: Path


@dataclass(frozen=True, slots=True)
class Noted:
    """Something that a person should know; the run goes on."""

    message: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The run is complete, or it was already when it was called."""

    result: TrainResult
    already: bool = False


@dataclass(frozen=True, slots=True)
class Stopped:
    """The run was asked to stop, has saved step `step`, and can be resumed."""

    step: int
    steps: int
    reason: str


Event = Started | Stepped | Validated | Saved | Noted | Finished | Stopped
Watch = Callable[[Event], None]
