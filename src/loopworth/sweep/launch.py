"""The launcher: hands jobs to an engine until all runs are done; how they ended is read from disk.

On a CPU a job is a stack of runs that one worker trains together, else one run. How runs are put
together changes no number.

It may be killed at any moment, and started again: it knows nothing that is not on disk.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from loopworth.plan import Plan
from loopworth.spec import RunSpec
from loopworth.spec.checks import hint
from loopworth.sweep.engines import Engine, Resources
from loopworth.sweep.files import probe, write_whole
from loopworth.sweep.folder import STOP, Cell, Grown, OtherRunError, SweepFolder
from loopworth.sweep.jobs import Cells, form_jobs, in_order, spread, stack_numbers
from loopworth.sweep.run import Look, State, forgive, give_up, look, saved_steps

ATTEMPTS = 3  # deaths in a row, without a new checkpoint, after which a run has failed
_TOGETHER = 2  # deaths in a row after which a run goes alone: it may be the one that kills others
_POLL_SECONDS = 0.5
_RECHECK_SECONDS = 2.0  # runs that others hold, and failed ones that may have been forgiven


@dataclass(frozen=True, slots=True)
class Ended:
    """A run came to an end: complete, failed, or to be done again (stopped)."""

    cell: Cell
    state: State
    look: Look
    done: int
    total: int
    words: str = ""


@dataclass(frozen=True, slots=True)
class Begun:
    """A run was handed to the engine."""

    cell: Cell


Happening = Ended | Begun
Tell = Callable[[Happening], None]


@dataclass(slots=True)
class Launcher:
    """Brings a sweep to its end on one engine; the caller holds the sweep (`SweepFolder.hold`).

    attempts   deaths of a run's process, in a row and without a new checkpoint, that are borne; no
               run is given up before it died alone
    tell       is told what happens       idle   is called about twice a second, to draw a board
    """

    sweep: SweepFolder
    engine: Engine
    resources: Resources
    attempts: int = ATTEMPTS
    tell: Tell | None = None
    idle: Callable[[], None] | None = None
    _queue: list[Cells] = field(default_factory=list)
    _back: list[Cell] = field(default_factory=list)  # to be done again, next
    _submitted: dict[Path, Cell] = field(default_factory=dict)
    _jobs: dict[str, Cells] = field(default_factory=dict)  # the last job of a run
    _numbers: dict[str, int] = field(default_factory=dict)  # the stack of a run
    _deaths: dict[str, int] = field(default_factory=dict)  # in a row
    _aside: list[Cell] = field(default_factory=list)  # failed, or held by others
    _attempts: dict[str, int] = field(default_factory=dict)  # as last seen on disk
    _unborn: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _unborn_jobs: int = 0
    _begun: bool = False
    _done: int = 0
    _checked: float = 0.0
    _asked: int = 0

    def go(self) -> bool:
        """Work until no run is left that can be done; return whether it came to that.

        False where it was asked to stop: by SIGTERM, SIGINT, or the file that `sweep stop` writes.
        Raises ValueError where no run can be started, or nothing can be written any more.
        """
        self._sort_out()
        with self._signals():
            try:
                while self._queue or self._back or self._submitted or self._held():
                    if self._asked or self._wanted_to_stop():
                        self.engine.cancel()
                        self._settle(frozenset(), {})
                        return False
                    self._fill()
                    seen = self.engine.poll(_POLL_SECONDS)
                    self._settle(seen.alive, seen.words)
                    self._recheck()
                    if self.idle is not None:
                        self.idle()
                return True
            except KeyboardInterrupt:
                raise  # the second Ctrl-C: what is at work goes on from its last checkpoint
            except BaseException:
                self.engine.cancel()
                raise
            finally:
                self.engine.close()

    @property
    def signalled(self) -> int:
        """The signal that ended it; 0 is none."""
        return self._asked

    def _sort_out(self) -> None:
        """Read how every run is, and line up those that are to be done."""
        started = self.sweep.started()
        if may_stack(self.engine, self.resources):
            self._numbers = stack_numbers(self.sweep.cells)
        waiting = []
        for cell in self.sweep.cells:
            found = self._look(cell) if cell.name in started else Look("waiting")
            self._attempts[cell.name], state = found.attempts, found.state
            self._deaths[cell.name] = found.lost
            if state == "complete":
                self._done += 1
            elif state in ("failed", "running"):
                self._aside.append(cell)
            else:
                waiting.append(cell)
        self._queue = self._formed(waiting)

    def _formed(self, cells: Iterable[Cell]) -> list[Cells]:
        """Return the jobs that runs are done in; one that died again and again goes alone."""
        borne = max(1, min(_TOGETHER, self.attempts - 1))
        numbers = {n: k for n, k in self._numbers.items() if self._deaths[n] < borne}
        return in_order(form_jobs(cells, numbers, self._saved))

    def _saved(self, cell: Cell) -> frozenset[int]:
        return saved_steps(self.sweep.run_path(cell))

    def _look(self, cell: Cell) -> Look:
        return look(self.sweep.run_path(cell), cell.run_id)

    def _fill(self) -> None:
        """Give the engine as many jobs as it takes."""
        if self._back:
            self._queue[:0] = self._formed(self._back)
            self._back = []
        self._queue = spread(self._queue, self.engine.workers or 0)
        room = self.engine.room()
        taken, self._queue = self._queue[:room], self._queue[room:]
        jobs = [job for cells in taken if (job := self._ready(cells))]
        if not jobs:
            return
        self.engine.submit([tuple(job) for job in jobs], self.resources)
        for job in jobs:
            self._submitted |= job
            for cell in job.values():
                self._jobs[cell.name] = tuple(job.values())
                self._say(Begun(cell))

    def _ready(self, cells: Cells) -> dict[Path, Cell]:
        return {path: cell for cell in cells if (path := self._prepared(cell)) is not None}

    def _prepared(self, cell: Cell) -> Path | None:
        """Return the folder of a run, ready to be started; None where it is another run's."""
        try:
            return self.sweep.prepare(cell).absolute()
        except OtherRunError as problem:
            self._fail(cell, str(problem))
            return None

    def _fail(self, cell: Cell, error: str) -> None:
        give_up(self.sweep.run_path(cell), error)
        self._ended(cell, "")

    def _settle(self, alive: Iterable[Path], words: Mapping[Path, str]) -> None:
        """Find out how the runs ended that are no longer alive."""
        for path in self._submitted.keys() - set(alive):
            self._ended(self._submitted.pop(path), words.get(path, ""))

    def _ended(self, cell: Cell, words: str) -> None:
        found = self._look(cell)
        born = found.attempts > self._attempts[cell.name] or found.state == "complete"
        self._begun |= born
        self._attempts[cell.name] = found.attempts
        if found.state == "complete":
            self._done += 1
        elif found.state == "failed":
            probe(self.sweep.path)  # a full disk would fail every other run as well
            self._aside.append(cell)
        elif found.state == "running":
            self._aside.append(cell)  # another process has it
        elif not (self._asked or self._wanted_to_stop()):
            found = self._again(cell, found, words, born)
        self._say(Ended(cell, found.state, found, self._done, len(self.sweep.cells), words))

    def _again(self, cell: Cell, found: Look, words: str, born: bool) -> Look:
        """Line up a run whose process is gone, or give it up where that happens again and again."""
        probe(self.sweep.path)
        job, deaths = self._jobs[cell.name], found.lost
        if not born:
            self._unborn[cell.name] += 1
            self._unborn_jobs += cell is job[0]
            deaths = max(deaths, self._unborn[cell.name])
            if not self._begun and self._unborn_jobs >= self.attempts:
                raise ValueError(f"no run could be started: {words or 'no process said why'}")
        self._deaths[cell.name] = deaths
        if deaths < self.attempts or len(job) > 1:
            self._back.append(cell)
            return found
        how = words or "its process died without a word"
        give_up(self.sweep.run_path(cell), f"{how}; {deaths} times in a row")
        self._aside.append(cell)
        return self._look(cell)

    def _wanted_to_stop(self) -> bool:
        return (self.sweep.path / STOP).exists()

    def _held(self) -> bool:
        """Return whether another process works on a run of this sweep."""
        return any(self._look(cell).state == "running" for cell in self._aside)

    def _recheck(self) -> None:
        """Take back what others have let go, and what was forgiven."""
        if time.monotonic() - self._checked < _RECHECK_SECONDS:
            return
        self._checked = time.monotonic()
        for cell in list(self._aside):
            state = self._look(cell).state
            if state in ("running", "failed"):
                continue
            self._aside.remove(cell)
            if state == "complete":
                self._done += 1
            else:
                self._deaths[cell.name] = self._unborn[cell.name] = 0
                self._back.append(cell)

    def _say(self, happening: Happening) -> None:
        if self.tell is not None:
            self.tell(happening)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Take SIGTERM and Ctrl-C as a wish to stop; a second Ctrl-C does not wait."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def asked(number: int, _frame: FrameType | None) -> None:
            if self._asked == signal.SIGINT == number:
                raise KeyboardInterrupt
            self._asked = number

        before = {
            number: signal.signal(number, asked) for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def may_stack(engine: Engine, resources: Resources) -> bool:
    """Return whether runs may be trained together: on a CPU, unless that is not wanted."""
    return engine.stacks and resources.stack and resources.device in ("auto", "cpu")


@dataclass(frozen=True, slots=True)
class Launched:
    """How a launch ended: whether all was tried that can be done, and the signal that ended it."""

    to_the_end: bool
    signal: int
    grown: Grown | None


def run_sweep(
    sweep: SweepFolder,
    engine: Engine,
    resources: Resources,
    *,
    plan: Plan | None = None,
    foreign: bool = False,
    attempts: int = ATTEMPTS,
    tell: Tell | None = None,
    idle: Callable[[], None] | None = None,
) -> Launched:
    """Do the runs of a plan in a sweep's folder, or what is left of them.

    plan   is added to the sweep first (see `SweepFolder.grow`); None takes the sweep as it is

    Raises HeldError where another launcher lives, ValueError where the data cannot be opened or
    nothing can be started or written.
    """
    if plan is None:
        sweep.require()
    stacks = may_stack(engine, resources)
    with sweep.hold(engine=engine.name, workers=engine.workers, stacks=stacks):
        (sweep.path / STOP).unlink(missing_ok=True)
        sweep.read()  # another launcher may have added runs since it was opened
        grown = None if plan is None else sweep.grow(plan, foreign=foreign)
        prepare_data(sweep)
        launcher = Launcher(sweep, engine, resources, attempts, tell, idle)
        return Launched(launcher.go(), launcher.signalled, grown)


def prepare_data(sweep: SweepFolder) -> None:
    """Open the data of every run once: the built-in text is prepared by one process, not by many.

    Raises ValueError where it cannot be opened, before anything is started.
    """
    from loopworth.data import open_data

    sources = {json.dumps(cell.spec["data"], sort_keys=True): cell.spec for cell in sweep.cells}
    for spec in sources.values():
        open_data(RunSpec.from_json(spec).data)


def forgive_failed(sweep: SweepFolder, names: Iterable[str] = ()) -> list[Cell]:
    """Let the runs that failed be done again, or those of them that are named; return them.

    Raises ValueError for a name that is no run of the sweep.
    """
    known = {cell.name: cell for cell in sweep.cells}
    chosen = list(names)
    for name in chosen:
        if name not in known:
            raise ValueError(f"{name!r} is no run of {sweep.path}; {hint(name, list(known))}")
    started = sweep.started()
    cells = [known[name] for name in chosen or known if name in started]
    failed = [cell for cell in cells if look(sweep.run_path(cell), cell.run_id).state == "failed"]
    for cell in failed:
        forgive(sweep.run_path(cell))
    return failed


def stop_launcher(sweep: SweepFolder) -> bool:
    """Ask the launcher of a sweep to save and stop, and wait for it; False where there is none."""
    if sweep.launcher() is None:
        return False
    place = sweep.path / STOP
    write_whole(place, b"")
    try:
        while sweep.launcher() is not None:
            time.sleep(0.2)
    finally:
        place.unlink(missing_ok=True)
    return True
