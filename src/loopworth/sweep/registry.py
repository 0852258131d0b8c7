"""The engines by name. Each is imported only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from loopworth.spec.checks import hint
from loopworth.sweep.engines import Engine, Resources
from loopworth.sweep.folder import LOGS

Options = Mapping[str, str]

# From the folder of a sweep, how many runs at once (None: what there is room for), what each of
# them gets, and what else the engine is told.
Opener = Callable[[Path, int | None, Resources, Options], Engine]


def _local(folder: Path, workers: int | None, resources: Resources, options: Options) -> Engine:
    from loopworth.sweep.local import LocalEngine, available_cores, available_gpus

    _refuse("local", options, ())
    gpus = [] if resources.device == "cpu" else available_gpus()
    if gpus:
        count = workers or max(1, len(gpus) // max(1, resources.gpus))
        return LocalEngine(count, folder / LOGS, gpus)
    if resources.gpus:
        raise ValueError(f"gpus={resources.gpus} a run, but there is no GPU here; leave it out")
    return LocalEngine(workers or max(1, available_cores() // resources.threads), folder / LOGS)


def _slurm(folder: Path, workers: int | None, _: Resources, options: Options) -> Engine:
    from loopworth.sweep.slurm import SlurmEngine

    others = {name: value for name, value in options.items() if name not in ("pack", "at-once")}
    return SlurmEngine(
        folder, workers,
        pack=_whole(options, "pack", 1), at_once=_whole(options, "at-once", 1), options=others,
    )  # fmt: skip


def _ray(folder: Path, workers: int | None, resources: Resources, options: Options) -> Engine:
    from loopworth.sweep.ray_engine import RayEngine

    _refuse("ray", options, ("address",))
    return RayEngine(folder, workers, resources, address=options.get("address"))


def _whole(options: Options, name: str, otherwise: int) -> int:
    value = options.get(name, str(otherwise))
    if not value.isdecimal() or not int(value):
        raise ValueError(f"option {name}={value!r} must be a whole number of 1 or more")
    return int(value)


def _refuse(engine: str, options: Options, known: tuple[str, ...]) -> None:
    for name in options:
        if name not in known:
            allowed = hint(name, list(known)) if known else "it has none"
            raise ValueError(f"option {name!r} of the engine {engine} is unknown; {allowed}")


ENGINES: dict[str, Opener] = {"local": _local, "slurm": _slurm, "ray": _ray}


def open_engine(
    name: str, folder: Path, workers: int | None, resources: Resources,
    options: Options | None = None,
) -> Engine:  # fmt: skip
    """Return an engine for the sweep in a folder.

    options   of the engine: slurm takes pack (runs a job), at-once (of them, at a time), and all
              that sbatch does, by its long names; ray takes address

    Raises ValueError for an unknown name, and where the machine has not what is asked for.
    """
    if name not in ENGINES:
        raise ValueError(f"engine={name!r} is unknown; {hint(name, list(ENGINES))}")
    return ENGINES[name](folder, workers, resources, options or {})
