"""Metrics forwarded to a tracker, besides metrics.jsonl: one small class and one line each.

The libraries are the extra `track` and are imported when a run asks for them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from loopworth.spec.checks import hint

PROJECT = "loopworth"
_MODULES = {"tensorboard": "torch.utils.tensorboard"}  # where not of the package's name


@dataclass(frozen=True, slots=True)
class Tracked:
    """Which run is tracked: `run_id` stays the same over resumes; `step` is where it goes on."""

    folder: Path
    run_id: str
    name: str
    config: Mapping[str, Any]
    step: int


class Tracker(Protocol):
    """Where numbers go. Names are such as train/loss; steps rise."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record numbers of a step."""

    def close(self) -> None:
        """Send what is left."""


class TensorBoard:
    """Event files in the folder `tensorboard` of the run; what comes after a resume is purged."""

    def __init__(self, run: Tracked) -> None:
        library = _library("tensorboard")
        purge = run.step + 1 if run.step else None
        self._writer = library.SummaryWriter(str(run.folder / "tensorboard"), purge_step=purge)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record numbers of a step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


class Trackio:
    """A local trackio project, $TRACKIO_PROJECT or loopworth; resumes go on in the same run."""

    def __init__(self, run: Tracked) -> None:
        self._library = _library("trackio")
        with redirect_stdout(sys.stderr):  # it greets on stdout, which may be somebody's JSON
            self._library.init(
                project=os.environ.get("TRACKIO_PROJECT", PROJECT),
                name=f"{run.name}-{run.run_id[:8]}",
                config=dict(run.config),
                resume="allow",
            )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record numbers of a step."""
        self._library.log(dict(values), step=step)

    def close(self) -> None:
        """Send what is left."""
        with redirect_stdout(sys.stderr):
            self._library.finish()


class WandB:
    """A Weights & Biases run; $WANDB_MODE, $WANDB_PROJECT and the others keep their meaning."""

    def __init__(self, run: Tracked) -> None:
        self._run = _library("wandb").init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=run.run_id[:16],
            name=f"{run.name}-{run.run_id[:8]}",
            config=dict(run.config),
            dir=str(run.folder),
            resume="allow",
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record numbers of a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Send what is left."""
        self._run.finish()


TRACKERS: dict[str, Callable[[Tracked], Tracker]] = {
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": WandB,
}


def check_trackers(names: tuple[str, ...]) -> None:
    """Refuse a tracker that does not exist or is not installed, before any work is done.

    >>> check_trackers(("tensorbord",))
    Traceback (most recent call last):
    ValueError: tracker 'tensorbord' is unknown; did you mean 'tensorboard'? ...
    """
    for name in names:
        if name not in TRACKERS:
            raise ValueError(f"tracker {name!r} is unknown; {hint(name, list(TRACKERS))}")
        _library(name)


def _library(package: str) -> ModuleType:
    try:
        return import_module(_MODULES.get(package, package))
    except ImportError:
        raise ValueError(
            f"the tracker {package} is not installed; install it with pip install {package} (or "
            "pip install 'loopworth[track]'), or leave it out: metrics.jsonl is always written"
        ) from None
