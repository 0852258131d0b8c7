"""Training: one run in one folder, on a CPU or on several GPUs, resumed wherever it was stopped.

The parts that need no torch (`transfer`, `metrics`, `events`) import without it: a name is imported
when it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loopworth.train.checkpoint import CheckpointError as CheckpointError
    from loopworth.train.events import Event as Event
    from loopworth.train.events import Finished as Finished
    from loopworth.train.events import Noted as Noted
    from loopworth.train.events import Saved as Saved
    from loopworth.train.events import Started as Started
    from loopworth.train.events import Stepped as Stepped
    from loopworth.train.events import Stopped as Stopped
    from loopworth.train.events import Validated as Validated
    from loopworth.train.loop import train as train
    from loopworth.train.machine import Machine as Machine
    from loopworth.train.metrics import read_metrics as read_metrics
    from loopworth.train.result import TrainResult as TrainResult
    from loopworth.train.saving import Diverged as Diverged
    from loopworth.train.stack import train_stack as train_stack

_EVENTS = ("Event", "Finished", "Noted", "Saved", "Started", "Stepped", "Stopped", "Validated")
_HOMES = dict.fromkeys(_EVENTS, "events") | {
    "CheckpointError": "checkpoint",
    "Diverged": "saving",
    "Machine": "machine",
    "TrainResult": "result",
    "read_metrics": "metrics",
    "train": "loop",
    "train_stack": "stack",
}


def __getattr__(name: str) -> Any:
    """Import a public name on its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"loopworth.train.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
