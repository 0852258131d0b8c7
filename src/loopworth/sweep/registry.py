"""The engines by name. Each is imported only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from loopworth.spec.checks import hint
from loopworth.sweep.engines import Engine, Resources
from loopworth.sweep.folder import LOGS

# From the folder of a sweep, how many runs at once (None: what there is room for), and what each
# of them gets.
Opener = Callable[[Path, int | None, Resources], Engine]


def _local(folder: Path, workers: int | None, resources: Resources) -> Engine:
    from loopworth.sweep.local import LocalEngine, available_cores, available_gpus

    gpus = [] if resources.device == "cpu" else available_gpus()
    if gpus:
        count = workers or max(1, len(gpus) // max(1, resources.gpus))
        return LocalEngine(count, folder / LOGS, gpus)
    if resources.gpus:
        raise ValueError(f"gpus={resources.gpus} a run, but there is no GPU here; leave it out")
    return LocalEngine(workers or max(1, available_cores() // resources.threads), folder / LOGS)


ENGINES: dict[str, Opener] = {"local": _local}


def open_engine(name: str, folder: Path, workers: int | None, resources: Resources) -> Engine:
    """Return an engine for the sweep in a folder.

    Raises ValueError for an unknown name, and where the machine has not what is asked for.
    """
    if name not in ENGINES:
        raise ValueError(f"engine={name!r} is unknown; {hint(name, list(ENGINES))}")
    return ENGINES[name](folder, workers, resources)
