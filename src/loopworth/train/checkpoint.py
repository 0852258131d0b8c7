"""Checkpoints that are whole or not there: written aside, synced, renamed, and checked when read.

A checkpoint is the folder step-XXXXXXXX with

    model.safetensors   the weights, whole whatever number of processes trained them
    state.pt            the optimiser and the random states (torch, read with weights_only)
    manifest.json       what it belongs to, and the size and sha256 of the other files

A process killed at any instant leaves the last checkpoint as it was. One that is corrupt is passed
over for the one before it, and the reader is told.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from loopworth.quantities import format_bytes

FORMAT, VERSION = "loopworth checkpoint", 1
MODEL, STATE, MANIFEST = "model.safetensors", "state.pt", "manifest.json"
_ASIDE = ".unfinished-"
Tensors = Mapping[str, torch.Tensor]


class CheckpointError(ValueError):
    """A checkpoint that cannot be written, or none that can be read."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk whose files were found to be as its manifest says."""

    step: int
    path: Path
    meta: Mapping[str, Any]

    def model(self) -> dict[str, torch.Tensor]:
        """Return the weights by name, on the CPU."""
        return load_file(self.path / MODEL)

    def state(self) -> dict[str, Any]:
        """Return the optimiser and the random states, on the CPU; runs no code from the file."""
        state: dict[str, Any] = torch.load(
            self.path / STATE, map_location="cpu", weights_only=True, mmap=True
        )
        return state


class Checkpoints:
    """The checkpoints of one run.

    folder   where they lie; made when the first is written
    keep     how many of the newest stay

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     kept = Checkpoints(Path(place), keep=1)
    ...     for step in (1, 2):
    ...         _ = kept.write(step, {"w": torch.zeros(2)}, {"lr": 0.1}, {"spec": "abc"})
    ...     found, problems = kept.newest()
    ...     found.step, found.state()["lr"], problems, kept.steps()
    (2, 0.1, [], [2])
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep

    def steps(self) -> list[int]:
        """Return the steps that have a folder, in rising order; nothing is read."""
        names = (path.name for path in self.folder.glob("step-*"))
        return sorted(int(name[5:]) for name in names if name[5:].isdecimal())

    def place(self, step: int) -> Path:
        """Return the folder of a step."""
        return self.folder / f"step-{step:08d}"

    def write(self, step: int, model: Tensors, state: object, meta: Mapping[str, Any]) -> Path:
        """Write a checkpoint and remove those that are too many; return its folder.

        Raises CheckpointError where it cannot be written; what was there before is untouched.
        """
        target = self.place(step)
        aside = self.folder / f"{_ASIDE}{step:08d}-{os.getpid()}"
        try:
            aside.mkdir(parents=True)
            files = {MODEL: _write_model(aside / MODEL, model)}
            files[STATE] = _write_state(aside / STATE, state)
            _write_manifest(aside / MANIFEST, step, files, meta)
            sync_folder(aside)
            if target.exists():  # a corrupt one that was passed over
                self._remove(target)
            aside.rename(target)
            sync_folder(self.folder)
        except Exception as problem:
            shutil.rmtree(aside, ignore_errors=True)
            raise CheckpointError(self._why(step, problem)) from problem
        self.prune()
        return target

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest checkpoint that is whole, and what is wrong with newer ones.

        None where there is no checkpoint at all. Raises CheckpointError where there are some and
        none is whole: a run is not started over without being asked.
        """
        problems: list[str] = []
        for step in reversed(self.steps()):
            try:
                return read_checkpoint(self.place(step)), problems
            except (CheckpointError, OSError) as problem:
                problems.append(str(problem))
        if problems:
            raise CheckpointError(
                f"no checkpoint in {self.folder} can be used: {'; '.join(problems)}. Copy a good "
                "one back, or delete that folder to start over"
            )
        return None, []

    def prune(self) -> None:
        """Remove all but the newest `keep`."""
        for step in self.steps()[: -self.keep]:
            self._remove(self.place(step))

    def sweep(self) -> None:
        """Remove what killed processes left half written; only for who owns the run."""
        for path in self.folder.glob(f"{_ASIDE}*"):
            shutil.rmtree(path, ignore_errors=True)

    def _remove(self, path: Path) -> None:
        """Remove a checkpoint so that no half of it is ever seen under its name."""
        trash = self.folder / f"{_ASIDE}{path.name}-{os.getpid()}"
        path.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def _why(self, step: int, problem: Exception) -> str:
        last = self.steps()
        good = f"the last good one is step {last[-1]}" if last else "there is none yet"
        try:
            free = f" ({format_bytes(shutil.disk_usage(self.folder).free)} free)"
        except OSError:
            free = ""
        reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else problem
        return (
            f"the checkpoint of step {step} could not be written to {self.folder}: {reason}{free}; "
            f"{good}. Make room or mend the folder, then run again to go on from it"
        )


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint's manifest and compare every file with it.

    Raises CheckpointError that names the file and what is wrong with it.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        step, files, meta = manifest["step"], manifest["files"], manifest["meta"]
        seal = manifest["sha256"]
        kind = (manifest["format"], manifest["version"])
    except FileNotFoundError:
        raise CheckpointError(f"{path.name} has no {MANIFEST}") from None
    except (ValueError, KeyError, TypeError) as problem:
        raise CheckpointError(f"{path.name}/{MANIFEST} is corrupt ({problem})") from None
    if kind != (FORMAT, VERSION):
        raise CheckpointError(f"{path.name}/{MANIFEST} is of another format, {kind}")
    if seal != _seal(step, files, meta):
        raise CheckpointError(f"{path.name}/{MANIFEST} is corrupt (its sha256 differs)")
    for name, expected in files.items():
        _compare(path, name, expected)
    return Checkpoint(step, path, meta)


def _compare(path: Path, name: str, expected: Mapping[str, Any]) -> None:
    try:
        with (path / name).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != expected["bytes"]:
                raise CheckpointError(
                    f"{path.name}/{name} has {size} bytes instead of {expected['bytes']}"
                )
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise CheckpointError(f"{path.name}/{name} is missing") from None
    if digest != expected["sha256"]:
        raise CheckpointError(f"{path.name}/{name} is corrupt (its sha256 differs)")


def _write_model(path: Path, tensors: Tensors) -> dict[str, Any]:
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(plain, path)
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": digest}


def _write_state(path: Path, state: object) -> dict[str, Any]:
    # Into memory first: torch ends the process where a file that it writes to cannot grow.
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getbuffer()
    write_synced(path, content)
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _write_manifest(
    path: Path, step: int, files: Mapping[str, Any], meta: Mapping[str, Any]
) -> None:
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "step": step,
        "files": files,
        "meta": meta,
        "sha256": _seal(step, files, meta),
    }
    write_synced(path, (json.dumps(manifest, indent=1) + "\n").encode())


def _seal(step: int, files: object, meta: object) -> str:
    text = json.dumps([step, files, meta], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def write_synced(path: Path, content: bytes | memoryview) -> None:
    """Write a file and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, content: bytes) -> None:
    """Replace a file as a whole: a reader sees the old one or the new one."""
    aside = path.with_name(f"{_ASIDE}{path.name}-{os.getpid()}")
    try:
        write_synced(aside, content)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in a folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class BackgroundWriter:
    """Runs one write at a time in a thread, while training goes on.

    `submit` waits for the write before it; `wait` and `failure` report what went wrong there.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self.failure: BaseException | None = None

    def submit(self, work: Callable[[], object]) -> None:
        """Start a write. Raises what the write before it raised."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(work,), name="checkpoint")
        self._thread.start()

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as problem:  # reported where the run can act on it
            self.failure = problem

    def wait(self) -> None:
        """Wait for the write under way; raises what it raised."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self.failure is not None:
            problem, self.failure = self.failure, None
            raise problem
