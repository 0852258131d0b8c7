"""The runs of a sweep, each in its folder: done once, by one process, however often it is started.

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
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
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

# How a run ended: complete, stopped with a checkpoint (False), or failed with an error.
Outcome = bool | Exception
# Trains runs in their folders, several together, and says of each how it ended as soon as it has.
# What it says nothing about was stopped; what it raises is the end of all that are left.
Work = Callable[[Mapping[Path, RunSpec], Callable[[Path, Outcome], None]], None]


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
    ended = run_folders([path], work, lost=lost)[path]
    if isinstance(ended, Exception):
        raise ended
    return ended


def run_folders(
    paths: Sequence[Path],
    work: Work,
    told: Callable[[Path, Exception | None], None] | None = None,
    lost: Callable[[str], None] | None = None,
) -> dict[Path, State | Exception]:
    """Do the runs in these folders together, or what is left of them; return how each ended.

    told   hears of each run that has ended, when its folder is free again, and of its error

    A run that cannot be done, as one that a living process works on, is left out; the others go on.
    Where `work` itself fails with several runs, nobody knows whose fault it is: they are stopped
    and one attempt is lost, as if their process had died.
    """
    group = _Group(told, lost)
    try:
        for path in paths:
            group.join(path)
        group.train(work)
    finally:
        group.leave()
    return group.ended


class _Group:
    """Runs that are trained together: who holds their folders, and the time that each has had."""

    def __init__(
        self,
        told: Callable[[Path, Exception | None], None] | None,
        lost: Callable[[str], None] | None,
    ) -> None:
        self._told, self._lost = told, lost
        self._at_work: dict[Path, _Attempt] = {}
        self._left: dict[Path, _Attempt] = {}  # ended, but what trains the others has their locks
        self._clock = 0.0
        self.ended: dict[Path, State | Exception] = {}

    def join(self, path: Path) -> None:
        """Take a run in, unless it is complete or cannot be done here."""
        try:
            with ExitStack() as held:
                run = _read_spec(path)
                run_id = run.content_hash()[:16]
                if _read_result(path, run_id)[0] is None:
                    held.enter_context(Claim.take(path / CLAIM, self._lost))
                    row, damage = _read_result(path, run_id)
                    if row is None:  # else another process finished it just now
                        _refuse_trained(path)
                        if damage:
                            _set_aside(path / RESULT)
                        attempt = _Attempt(path, run)
                        attempt.held = held.pop_all()
                        self._at_work[path] = attempt
                        return
        except Exception as problem:
            self._tell(path, problem)
        else:
            self._tell(path, "complete")

    def train(self, work: Work) -> None:
        """Do the work; what is left when it returns was stopped."""
        if not self._at_work:
            return
        shared = len(self._at_work) > 1
        self._clock = time.monotonic()
        outcome: Outcome = False
        try:
            work({path: each.run for path, each in self._at_work.items()}, self._end)
        except Exception as problem:
            if not self._at_work:
                raise
            outcome = problem
        for path in list(self._at_work):
            try:
                self._end(path, outcome, blamed=not shared)
            except ValueError as problem:  # status.json cannot be written
                self._end(path, problem, blamed=False)

    def _end(self, path: Path, outcome: Outcome, *, blamed: bool = True) -> None:
        """Write down how a run ended; a complete one is wanted by nobody any more."""
        now = time.monotonic()
        for each in self._at_work.values():
            each.seconds += (now - self._clock) / len(self._at_work)
        self._clock = now
        attempt = self._at_work[path]
        state = attempt.end(outcome, blamed=blamed)
        del self._at_work[path]
        self.ended[path] = outcome if isinstance(outcome, Exception) else state
        if state == "complete":
            attempt.held.close()
            self._tell(path, state)
        else:
            self._left[path] = attempt

    def leave(self) -> None:
        """Give all folders back, and tell of those that ended and were not told of."""
        for attempt in (*self._at_work.values(), *self._left.values()):
            attempt.held.close()
        for path in self._left:
            self._tell(path, self.ended[path])

    def _tell(self, path: Path, ended: State | Exception) -> None:
        self.ended[path] = ended
        if self._told is not None:
            self._told(path, ended if isinstance(ended, Exception) else None)


class _Attempt:
    """One start of one run: status.json says when it began and how it ended.

    held      what is given back when it has ended       seconds   of the work, this run's share
    """

    def __init__(self, path: Path, run: RunSpec) -> None:
        self.path, self.run, self.held, self.seconds = path, run, ExitStack(), 0.0
        before = _read_status(path)
        self._spent, self._deaths = _number(before, "seconds"), _losses(path, before)
        self._status = {
            "state": "running",
            "attempts": int(_number(before, "attempts")) + 1,
            "lost": self._deaths,
            "checkpoint": _checkpoint(path),
            "error": before.get("error"),
            "pid": os.getpid(),
            "started": _now(),
            "updated": _now(),
            "seconds": self._spent,
        }
        write_json(path / STATUS, self._status, sync=False)

    def end(self, outcome: Outcome, *, blamed: bool) -> State:
        """Write down how it ended and return that."""
        if not isinstance(outcome, Exception):
            return self._write("complete" if outcome else "stopped", None)
        with suppress(ValueError):  # where it cannot be written, the error says why
            if not blamed or _disk_refused(outcome):  # not its fault: it is done again
                return self._write("stopped", in_words(outcome), self._deaths + 1)
            return self._write("failed", in_words(outcome))
        return "failed"

    def _write(self, state: State, error: str | None, lost: int = 0) -> State:
        end = {
            "state": state, "error": error, "lost": lost, "updated": _now(),
            "seconds": self._spent + self.seconds,
        }  # fmt: skip
        write_json(self.path / STATUS, self._status | end, sync=False)
        return state


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


def saved_steps(path: Path) -> frozenset[int]:
    """Return the steps of the checkpoints in the folder of a run, from their names."""
    names = (p.name[5:] for p in (path / "checkpoint").glob("step-*"))
    return frozenset(int(name) for name in names if name.isdecimal())


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
