"""The folder of a run: what is in it, who may write to it, and whether the run is done.

    spec.json          the RunSpec; a folder belongs to one
    environment.json   where the run was started and resumed: versions, device, digest of the data
    metrics.jsonl      one line a step and a validation
    checkpoint/        the newest checkpoints
    result.json        one row of a run table; there once the run is complete
    lock               held by the process that trains

The folder is the only truth: what a run is and how far it got is read from here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loopworth.spec import RunSpec
from loopworth.train.checkpoint import Checkpoints, write_atomic

SPEC, ENVIRONMENT, METRICS, RESULT = "spec.json", "environment.json", "metrics.jsonl", "result.json"


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: Path, run: RunSpec, keep: int = 2) -> None:
        self.path, self.run = path, run
        self.checkpoints = Checkpoints(path / "checkpoint", keep)

    @property
    def metrics(self) -> Path:
        """The file of the metrics."""
        return self.path / METRICS

    def claim(self) -> None:
        """Make the folder, or find that it is the run's; `started` makes it so.

        A run that cannot start, as one whose data is not there, leaves no spec, so that the next
        try may correct it.

        Raises ValueError where it is another run's, and OSError where it cannot be written.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        place = self.path / SPEC
        if place.exists():
            refuse_other_spec(place, self.run)
            return
        foreign = sorted(p.name for p in self.path.iterdir() if p.name not in ("lock", SPEC))
        if foreign:
            raise ValueError(
                f"{self.path} has no {SPEC} but holds {', '.join(foreign[:3])}; name a new folder "
                "for the run"
            )

    def result(self) -> dict[str, Any] | None:
        """Return the result of a complete run; None where there is none that can be read."""
        try:
            row = json.loads((self.path / RESULT).read_bytes())
        except (FileNotFoundError, ValueError):
            return None  # a result that is damaged is made again from the last checkpoint
        whole = isinstance(row, dict) and row.get("run_id") == self.run.content_hash()[:16]
        return row if whole else None

    def finish(self, row: Mapping[str, Any]) -> None:
        """Write the result; from now on the run is complete."""
        self._write(RESULT, row)

    def started(self, environment: Mapping[str, Any], step: int) -> None:
        """Make the folder the run's; add where it was started or resumed, and at which step."""
        if not (self.path / SPEC).exists():
            self._write(SPEC, self.run.to_json())
        try:
            starts = json.loads((self.path / ENVIRONMENT).read_bytes())["starts"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            starts = []
        self._write(ENVIRONMENT, {"starts": [*starts, {"step": step, **environment}]})

    def _write(self, name: str, value: object) -> None:
        text = json.dumps(value, indent=1, allow_nan=False) + "\n"
        try:
            write_atomic(self.path / name, text.encode())
        except OSError as problem:
            reason = problem.strerror or problem
            raise ValueError(f"{self.path / name} could not be written: {reason}") from problem


def refuse_other_spec(place: Path, run: RunSpec) -> None:
    """Refuse to go on where spec.json describes another run; say which fields differ."""
    try:
        found = RunSpec.from_json(place.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise ValueError(f"{place} cannot be read: {problem}") from problem
    if found.content_hash() == run.content_hash():
        return
    before, now = _flat(found.to_json()), _flat(run.to_json())
    changed = [
        f"{name} is {before.get(name)!r} there and {now.get(name)!r} here"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    more = f", and {len(changed) - 4} more" if len(changed) > 4 else ""
    raise ValueError(
        f"{place.parent} belongs to another run: {', '.join(changed[:4])}{more}. Name another "
        "folder, or train the spec that lies there"
    )


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, Mapping):
            flat |= _flat(item, f"{prefix}{name}.")
        else:
            flat[prefix + name] = list(item) if isinstance(item, tuple) else item
    return flat


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a run's folder; the system drops it when a process dies, however it dies.

    Raises ValueError where a live process holds it.
    """
    try:
        import fcntl
    except ImportError:  # not on Windows, where two writers are not caught
        yield
        return
    path.mkdir(parents=True, exist_ok=True)
    handle = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(
                f"{path} is being trained by another process; wait for it, or name another folder"
            ) from None
        yield
    finally:
        os.close(handle)
