"""How a sweep reads and writes its small files: whole or not there, and in words where it fails."""

from __future__ import annotations

import json
import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any


def write_whole(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Replace a file as a whole: a reader sees the old one or the new one.

    sync   also survive a power cut; what is only shown to people need not

    Raises ValueError that names the file and the reason: no space, read-only.
    """
    aside = path.with_name(f".unfinished-{path.name}-{uuid.uuid4().hex[:12]}")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        aside.replace(path)
    except OSError as problem:
        _remove(aside)
        raise refusal(path, problem) from problem


def refusal(path: Path, problem: OSError) -> ValueError:
    """Return the error of a file that could not be written, for the user."""
    return ValueError(
        f"{path} could not be written: {problem.strerror or problem}. Make room or mend the "
        "folder, then start again; nothing that was done is lost"
    )


def write_json(path: Path, value: object, *, sync: bool = True) -> None:
    """Write a JSON file as a whole; raises ValueError where it cannot."""
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    write_whole(path, text.encode(), sync=sync)


def read_object(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None where there is no file.

    Raises ValueError where it is damaged. A reader decides what that means: status.json is only a
    hint, and result.json can be made again.
    """
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        return None
    except ValueError as problem:
        raise ValueError(f"{path} is damaged: {problem}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} is damaged: it holds no JSON object")
    return value


def probe(folder: Path, size: int = 2**20) -> None:
    """Write and remove a file of `size` bytes; raises ValueError where the disk takes no more."""
    place = folder / f".probe-{uuid.uuid4().hex[:12]}"
    try:
        with place.open("wb") as file:
            file.write(b"\0" * size)
            file.flush()
            os.fsync(file.fileno())
    except OSError as problem:
        raise refusal(folder, problem) from problem
    finally:
        _remove(place)


def file_system_now(folder: Path) -> float:
    """Return the time by the clock of the file system: that of the machine may differ from it.

    Over NFS it is the server's, so it can be compared with the mtime of a file that another machine
    touched. Raises OSError where nothing can be written.
    """
    place = folder / f".clock-{uuid.uuid4().hex[:12]}"
    try:
        place.touch()
        return place.stat().st_mtime
    finally:
        _remove(place)


def _remove(path: Path) -> None:
    with suppress(OSError):  # where nothing can be written, nothing is there to be removed
        path.unlink()
