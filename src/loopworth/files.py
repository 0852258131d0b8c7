"""Read what a user names as a file: whole, but never a device and never without an end."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import IO

MOST_BYTES = 2**28  # 256 MiB: a thousand times the largest table of runs that was ever published


def read_file(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """Return the bytes of a regular file or a pipe, of `most` bytes at most.

    Raises OSError where it cannot be opened, and ValueError where it is a device, a socket or
    longer than that: `/dev/zero` and an endless pipe would otherwise fill the memory.

    >>> read_file("/no/such/file")
    Traceback (most recent call last):
    FileNotFoundError: [Errno 2] No such file or directory: '/no/such/file'
    """
    if not isinstance(path, str | Path):
        raise ValueError(f"{path!r} is of type {type(path).__name__}; give the path of a file.")
    if not str(path) or "\0" in str(path):
        raise ValueError(f"{str(path)!r} is no path; give the path of a file.")
    place = Path(path)
    mode = place.stat().st_mode
    # A directory passes: opening it raises the system's own error.
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISDIR(mode)):
        raise ValueError(f"{path} is a device or a socket; give a file, a pipe, or - for stdin.")
    with place.open("rb") as file:
        return _capped(file, str(path), most)


def read_stdin(most: int = MOST_BYTES) -> bytes:
    """Return the bytes of standard input, of `most` bytes at most.

    Raises ValueError where it is closed or longer than that.
    """
    if sys.stdin is None:
        raise ValueError("Standard input is closed; name a file, or pipe the table in.")
    return _capped(sys.stdin.buffer, "Standard input", most)


def _capped(file: IO[bytes], name: str, most: int) -> bytes:
    content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(
            f"{name} holds more than {most / 2**20:g} MiB; give a file that holds only the columns "
            "and rows that are needed."
        )
    return content
