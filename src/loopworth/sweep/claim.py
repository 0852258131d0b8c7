"""Who works on a folder: one living process, also where several machines share the disk.

A claim is a file. Its owner holds a lock on it (flock), which the system drops when the process
dies, and touches it every few seconds, which others see where locks do not reach, as over NFS. So
    a claim whose owner ran on this machine is dead as soon as its lock is free;
    a claim from elsewhere is dead when it has not been touched for a minute, by the clock of the
    file system, since the clocks of two machines may differ.
A dead claim is taken over.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from loopworth.sweep.files import file_system_now, refusal

BEAT_SECONDS = 5.0
SILENT_SECONDS = 60.0


class HeldError(ValueError):
    """A living process works on the folder."""


class Claim:
    """The claim of this process on a folder, from `take` to `release`.

    path   the file      lost   is called from a thread, in words, where another took the claim

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "claim"
    >>> with Claim.take(place):
    ...     owner_alive(place)
    True
    >>> owner_alive(place)
    False
    """

    def __init__(self, path: Path, handle: int, lost: Callable[[str], None] | None) -> None:
        self.path, self._handle, self._lost = path, handle, lost
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    @classmethod
    def take(
        cls,
        path: Path,
        lost: Callable[[str], None] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> Self:
        """Claim a folder; take over the claim of a dead process. `about` is what others may read.

        Raises HeldError where a living process has it, ValueError where it cannot be written.
        """
        aside = path.with_name(f".{path.name}-{uuid.uuid4().hex[:12]}")
        try:
            handle = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError as problem:
            raise refusal(path, problem) from problem
        try:
            _lock(handle)
            os.write(handle, json.dumps(_myself() | dict(about or {})).encode())
            for _ in range(10):  # whoever is taken over may be taken over by a third at once
                if _put(aside, path):
                    return cls(path, handle, lost)
                _remove_dead(path)
            raise HeldError(f"{path.parent} is wanted by many processes at once; try again")
        except OSError as problem:
            os.close(handle)
            raise refusal(path, problem) from problem
        except BaseException:
            os.close(handle)
            raise
        finally:
            with suppress(OSError):
                aside.unlink()

    def _beat(self) -> None:
        """Touch the claim until it is released; notice where it is no longer ours."""
        heard = time.monotonic()
        while not self._ended.wait(BEAT_SECONDS):
            try:
                ours = self._is_ours()
                if ours:
                    os.utime(self.path)
                    heard = time.monotonic()
            except OSError:  # a file server that is away for a while
                ours = time.monotonic() - heard < SILENT_SECONDS - 2 * BEAT_SECONDS
            if not ours and not self._ended.is_set():
                if self._lost is not None:
                    self._lost(f"{self.path.parent} was taken over by another process")
                return

    def _is_ours(self) -> bool:
        return _same_file(self.path, self._handle)

    def release(self) -> None:
        """Give the folder back."""
        self._ended.set()
        self._thread.join()
        with suppress(OSError):
            if self._is_ours():
                self.path.unlink()
        os.close(self._handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def owner_alive(path: Path) -> bool:
    """Return whether a living process has a claim; takes no lock, so it disturbs nobody."""
    return living_owner(path) is not None


def living_owner(path: Path) -> dict[str, Any] | None:
    """Return what a claim says about its owner, None where there is none that lives."""
    try:
        owner = _owner(path.read_bytes())
        alive = _known_here(owner)
        if alive is None:
            alive = _silence(path.parent, path.stat()) < SILENT_SECONDS
    except OSError:
        return None  # there is no claim
    return owner if alive else None


def _put(aside: Path, path: Path) -> bool:
    """Give a file its name unless the name is taken: in one step, on every file system."""
    try:
        os.link(aside, path)
    except FileExistsError:
        return False
    return True


def _remove_dead(path: Path) -> None:
    """Remove the claim of a dead process; raises HeldError where it lives."""
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return  # released just now
    try:
        if not _lock(handle):
            raise _held(path, "by another process on this machine")
        # By the handle: where others take the claim over meanwhile, the name is another file.
        owner = _owner(os.pread(handle, os.fstat(handle).st_size, 0))
        if not owner or owner.get("machine") != machine_id():
            silent = _silence(path.parent, os.fstat(handle))
            if silent < SILENT_SECONDS:
                raise _held(path, f"from elsewhere, last heard of {max(0, silent):.0f} s ago")
        if _same_file(path, handle):
            path.unlink()
    finally:
        os.close(handle)


def _held(path: Path, how: str) -> HeldError:
    return HeldError(
        f"{path.parent} is being worked on {how}. Wait for it, or stop it; it is taken over where "
        f"it dies, from elsewhere after {SILENT_SECONDS:.0f} s"
    )


def _lock(handle: int) -> bool:
    try:
        import fcntl
    except ImportError:  # not on Windows, where only the heartbeat tells
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks: the heartbeat decides alone
    return True


def _same_file(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _owner(content: bytes) -> dict[str, Any]:
    """Return who owns a claim; empty where the file is damaged."""
    try:
        owner = json.loads(content)
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _silence(folder: Path, claim: os.stat_result) -> float:
    """Return for how long a claim has not been touched, in seconds of the file system's clock."""
    try:
        now = file_system_now(folder)
    except OSError:  # a reader who may not write: the clock of this machine is all there is
        now = time.time()
    return now - claim.st_mtime


@cache
def machine_id() -> str:
    """Return what tells one running system from another; no name of a host is in it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = f"{uuid.getnode():x}"
    return boot


def _pid_space() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return the start of a living process in the system's ticks; empty where it is dead."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    state, *others = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else others[18]


def _myself() -> dict[str, Any]:
    return {
        "machine": machine_id(), "pids": _pid_space(), "pid": os.getpid(),
        "started": _started(os.getpid()),
    }  # fmt: skip


def _known_here(owner: dict[str, Any]) -> bool | None:
    """Return whether the owner lives, by its process; None where that is not seen from here."""
    if owner.get("machine") != machine_id() or owner.get("pids") != _pid_space():
        return None
    if not owner.get("started"):  # no /proc
        return None
    return _started(int(owner["pid"])) == str(owner["started"])
