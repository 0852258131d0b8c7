"""One run of a sweep, in its folder: done once, by one process, however often it is started.

    spec.json      the RunSpec
    result.json    one row of a run table; there once the run is complete
    claim          of the process at work (see `claim.py`); its mtime is the heartbeat
    status.json    how the last attempt went: state, attempts, error, seconds; a hint for people,
                   the other files decide

The rest is what training keeps: checkpoint/, metrics.jsonl, environment.json, lock.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from loopworth.spec import RunSpec
from loopworth.sweep.claim import Claim, HeldError, owner_alive
from loopworth.sweep.files import read_object, write_json

SPEC, RESULT, STATUS, CLAIM, LOCK = (
    "spec.json", "result.json", "status.json", "claim", "lock",
)  # fmt: skip
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
State = Literal["waiting", "running", "stopped", "failed", "complete"]

# Trains a run in a folder; returns whether it is complete, or was stopped with a checkpoint.
Work = Callable[[RunSpec, Path], bool]


@dataclass(frozen=True, slots=True)
class Look:
    """What is to be seen of a run from outside.

    row        the content of result.json, where the run is complete
    error      of the last attempt        attempts   how often it was started
    lost       attempts in a row that ended without a word and without a new checkpoint
    seconds    at work, in all attempts   notes      what is damaged
    """

    state: State
    row: Mapping[str, Any] | None = None
    error: str | None = None
    attempts: int = 0
    lost: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


def look(path: Path, run_id: str) -> Look:
    """Return how a run is, from its folder alone; nothing is written.

    >>> look(Path("no/such/folder"), "0").state
    'waiting'
    """
    row, damage = _read_result(path, run_id)
    notes = [damage] if damage else []
    if row is not None:
        return Look("complete", row, seconds=float(row.get("seconds") or 0.0))
    status: dict[str, Any] = {}
    try:
        status = read_object(path / STATUS) or {}
    except ValueError as problem:
        notes.append(str(problem))
    said = status.get("state")
    state: State = "waiting"
    if owner_alive(path / CLAIM):
        state = "running"
    elif said == "failed":
        state = "failed"
    elif said in ("running", "stopped", "complete") or notes:
        state = "stopped"  # it was killed, or what it left cannot be read
    return Look(
        state,
        error=status.get("error"),
        attempts=int(_number(status, "attempts")),
        lost=_losses(path, status) if state != "running" else int(_number(status, "lost")),
        seconds=_number(status, "seconds"),
        notes=tuple(notes),
    )


def run_folder(path: Path, work: Work, lost: Callable[[str], None] | None = None) -> State:
    """Do the run in a folder, or what is left of it; return complete or stopped.

    work   trains it       lost   is told, from a thread, where another process took the folder

    A complete run returns at once. Raises HeldError where a living process works on it, and what
    `work` raises, which is then also written to status.json.
    """
    run = _read_spec(path)
    run_id = run.content_hash()[:16]
    if _read_result(path, run_id)[0] is not None:
        return "complete"
    with Claim.take(path / CLAIM, lost):
        row, damage = _read_result(path, run_id)
        if row is not None:  # another process finished it just now
            return "complete"
        _refuse_trained(path)
        if damage:
            _set_aside(path / RESULT)
        return _attempt(path, run, work)


def _attempt(path: Path, run: RunSpec, work: Work) -> State:
    """Do the work, and write down when it began and how it ended."""
    before = _read_status(path)
    spent, deaths = _number(before, "seconds"), _losses(path, before)
    status = {
        "state": "running",
        "attempts": int(_number(before, "attempts")) + 1,
        "lost": deaths,
        "checkpoint": _checkpoint(path),
        "error": before.get("error"),
        "pid": os.getpid(),
        "started": _now(),
        "updated": _now(),
        "seconds": spent,
    }
    write_json(path / STATUS, status, sync=False)
    start = time.monotonic()

    def ended(state: State, error: str | None, lost: int = 0) -> None:
        took = spent + time.monotonic() - start
        end = {"state": state, "error": error, "lost": lost, "updated": _now(), "seconds": took}
        write_json(path / STATUS, status | end, sync=False)

    try:
        complete = work(run, path)
    except Exception as problem:
        with suppress(ValueError):  # where it cannot be written, what is raised says why
            if _disk_refused(problem):  # not the run's fault: it goes on where there is room
                ended("stopped", in_words(problem), deaths + 1)
            else:
                ended("failed", in_words(problem))
        raise
    ended("complete" if complete else "stopped", None)
    return "complete" if complete else "stopped"


def _disk_refused(problem: BaseException | None) -> bool:
    """Return whether an error comes from a disk that takes no more."""
    while problem is not None:
        if isinstance(problem, OSError) and problem.errno in _DISK:
            return True
        problem = problem.__cause__ or problem.__context__
    return False


def give_up(path: Path, error: str) -> None:
    """Write down that a run has failed, where its process can no longer say so."""
    status = _read_status(path)
    write_json(path / STATUS, status | {"state": "failed", "error": error, "updated": _now()})


def forgive(path: Path) -> None:
    """Let a run that has failed be done again: from its last checkpoint, if it has one."""
    status = _read_status(path)
    write_json(path / STATUS, status | {"state": "stopped", "lost": 0, "updated": _now()})


def in_words(problem: Exception) -> str:
    """Return an error as a person wants it: its message, and its kind where that says more."""
    if isinstance(problem, (ValueError, OSError)) and str(problem):
        return str(problem)
    return f"{type(problem).__name__}: {problem}"


def _read_spec(path: Path) -> RunSpec:
    """Return the run of a folder; raises ValueError where there is none."""
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder; name the folder of a run")
    try:
        return RunSpec.from_json((path / SPEC).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} has no {SPEC}; name the folder of a run") from None
    except ValueError as problem:
        raise ValueError(
            f"{path / SPEC} cannot be read: {problem}. Where the run belongs to a sweep, delete "
            "the file and start the sweep again, which has a copy"
        ) from None


def _read_result(path: Path, run_id: str) -> tuple[Mapping[str, Any] | None, str]:
    """Return the row of a complete run, and what is wrong with a result that cannot be used."""
    try:
        row = read_object(path / RESULT)
    except ValueError as problem:
        return None, f"{problem}; the run is done again from its last checkpoint"
    if row is None:
        return None, ""
    if row.get("run_id") != run_id or not isinstance(row.get("val_loss"), float):
        return None, f"{path / RESULT} is of another run; this one is done again"
    return row, ""


def _read_status(path: Path) -> dict[str, Any]:
    try:
        return read_object(path / STATUS) or {}
    except ValueError:
        return {}  # only a hint is lost


def _number(status: Mapping[str, Any], name: str) -> float:
    """Return a number of a status, 0 where it is missing or something else."""
    value = status.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _losses(path: Path, status: Mapping[str, Any]) -> int:
    """Return how many attempts in a row ended without a word and brought nothing."""
    before = int(_number(status, "lost"))
    if status.get("state") != "running":
        return before
    return 1 if _checkpoint(path) != status.get("checkpoint") else before + 1


def _checkpoint(path: Path) -> str | None:
    """Return the name of the newest checkpoint."""
    return max((p.name for p in (path / "checkpoint").glob("step-*")), default=None)


def _refuse_trained(path: Path) -> None:
    """Refuse a folder that `loopworth train` works on: it knows no claims, only its lock."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    with (path / LOCK).open("ab") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HeldError(
                f"{path} is being trained by another process; wait for it, or stop it"
            ) from None
        except OSError:
            return  # a file system without locks


def _set_aside(place: Path) -> None:
    """Keep a damaged file under another name: it may be asked about."""
    place.replace(place.with_name(f"{place.name}.damaged"))


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
