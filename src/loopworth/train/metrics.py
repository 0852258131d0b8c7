"""metrics.jsonl: one JSON object a line, no step twice and none missing, whatever happened between.

Lines have `event` (step or validation) and `step`, the number of steps that are done. On a resume,
what was written after the checkpoint is cut off, and the run writes it again.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from loopworth.train.checkpoint import write_atomic

# What a clock measured: all other fields are equal when a run is repeated.
TIMED = ("seconds", "tokens_per_second", "flops_per_second", "utilisation")


class MetricsFile:
    """The metrics of a run, for its one writer.

    path    the file; its end after `step` is cut off
    step    where the run goes on: 0 starts over

    Raises ValueError where the file cannot be written.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "metrics.jsonl"
    >>> for start in (0, 1):
    ...     metrics = MetricsFile(place, start)
    ...     for step in (start + 1, start + 2):
    ...         metrics.write("step", step, {"loss": 1 / step})
    ...     metrics.close()
    >>> [line["step"] for line in read_metrics(place)]
    [1, 2, 3]
    """

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        try:
            self._cut(step)
            self._file: IO[str] = path.open("a", encoding="utf-8")
        except OSError as problem:
            raise self._refusal(problem) from problem

    def _cut(self, step: int) -> None:
        if not self.path.exists():
            return
        content = self.path.read_bytes()
        # A line that was cut short by a crash is not JSON; its step comes again.
        kept = [line for line, value in _lines(content) if value.get("step", step + 1) <= step]
        new = b"".join(line + b"\n" for line in kept)
        if new != content:
            write_atomic(self.path, new)

    def write(self, event: str, step: int, values: Mapping[str, Any]) -> None:
        """Append one line; it may stay in memory until `flush`."""
        record = {"event": event, "step": step} | {k: _plain(v) for k, v in values.items()}
        try:
            self._file.write(json.dumps(record, allow_nan=False) + "\n")
        except OSError as problem:
            raise self._refusal(problem) from problem

    def flush(self, *, sync: bool = False) -> None:
        """Hand lines to the system, with `sync` to the disk."""
        try:
            self._file.flush()
            if sync:
                os.fsync(self._file.fileno())
        except OSError as problem:
            raise self._refusal(problem) from problem

    def close(self) -> None:
        """Flush and close."""
        try:
            self._file.close()
        except OSError as problem:
            raise self._refusal(problem) from problem

    def _refusal(self, problem: OSError) -> ValueError:
        return ValueError(
            f"{self.path} could not be written: {problem.strerror or problem}. Make room or mend "
            "the folder, then run again to go on from the last checkpoint"
        )


def read_metrics(path: Path, event: str = "step") -> list[dict[str, Any]]:
    """Return the lines of one event, in order; lines that are not JSON are left out."""
    return [value for _, value in _lines(path.read_bytes()) if value.get("event") == event]


def _lines(content: bytes) -> Iterator[tuple[bytes, dict[str, Any]]]:
    for line in content.split(b"\n"):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield line, value


def _plain(value: Any) -> Any:
    """Return what JSON can hold: a number that is not finite becomes null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
