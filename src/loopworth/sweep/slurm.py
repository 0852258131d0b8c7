"""The engine of a Slurm cluster: job arrays, submitted by submitit, that save and requeue.

A job of an array does one run, or a pack of them, with the workers of the node it lands on
(`pack.py`). What may happen to it:
    SIGUSR1   its time is nearly up, or it is preempted: it saves, and asks Slurm to queue it again
    SIGTERM   Slurm ends it, and queues it again where that was preemption: it saves
In both cases it goes on from its checkpoint, on whatever node. submitit's own way to do that runs
inside a signal handler and needs a time limit, so the handlers are ours.

Jobs outlive the launcher. One that is started again finds them in Slurm's queue by the name of the
sweep, and does not submit their runs twice.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopworth.plan import Plan
from loopworth.sweep.engines import GRACE_SECONDS, Engine, Poll, Resources
from loopworth.sweep.engines import Job as SweepJob
from loopworth.sweep.files import read_object, write_json
from loopworth.sweep.folder import Cell, SweepFolder
from loopworth.sweep.run import RESULT, look

if TYPE_CHECKING:
    from submitit import SlurmExecutor

FOLDER = "slurm"  # in the sweep's folder: scripts, logs, and which job was given which runs
EVERY_SECONDS = 10.0  # between looks at the queue, which all users of a cluster share
_ARRAY = 1000  # jobs in an array; Slurm takes 1001 unless it is told otherwise
_EXIT_STOPPED = 75
_SUBMITIT = ("-u", "-m", "submitit.core._submit")
_OURS = ("array", "comment", "error", "job_name", "open_mode", "output", "requeue", "signal")
_SLURM_SAYS = ("srun:", "slurmstepd", "submitit ")
_LIMIT = re.compile(r"violates|limit|array", re.IGNORECASE)
_ENDED = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REVOKED", "TIMEOUT",
)  # fmt: skip


class _RefusedError(Exception):
    """A command of Slurm failed; the message is Slurm's."""


@dataclass(frozen=True, slots=True)
class Job:
    """What one job does; submitit carries it to the node.

    runs   folders of runs      at_once   how many of them at a time      folder   for logs
    """

    runs: tuple[str, ...]
    resources: Resources
    at_once: int
    folder: str

    def __call__(self) -> None:
        """Do the runs; where asked to stop, save them, and requeue unless Slurm does that."""
        from loopworth.sweep.pack import work_through

        asked: list[int] = []
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda number, _frame: asked.append(number))
        words = work_through(
            [Path(run) for run in self.runs], self.resources, Path(self.folder) / _own_id(),
            at_once=self.at_once, asked=asked.copy,
        )  # fmt: skip
        if signal.SIGUSR1 in asked:
            _call("scontrol", "requeue", _own_id())
        if asked:
            sys.exit(_EXIT_STOPPED)
        if words:
            sys.exit("\n".join(words.values()))


class SlurmEngine:
    """Runs as jobs of a Slurm cluster; the folder of the sweep must be seen by all its nodes.

    limit       jobs of an array that run at once; None leaves that to Slurm
    pack        runs that one job does, one after another or `at_once` of them at a time
    options     more of sbatch's, by their long names, such as partition or account
    every       seconds between looks at the queue
    """

    name = "slurm"
    stacks = False

    def __init__(
        self,
        sweep: Path,
        limit: int | None = None,
        *,
        pack: int = 1,
        at_once: int = 1,
        options: Mapping[str, str] | None = None,
        every: float = EVERY_SECONDS,
    ) -> None:
        """Submit nothing yet. Raises ValueError for an option that is not the user's to set."""
        self._options = {name.replace("-", "_"): v for name, v in (options or {}).items()}
        for name in _OURS:
            if name in self._options:
                raise ValueError(f"option {name} of sbatch is set by loopworth; leave it out")
        self._sweep, self._folder = sweep.absolute(), sweep.absolute() / FOLDER
        self.workers, self._pack, self._at_once, self._every = limit, pack, at_once, every
        mark = hashlib.sha256(str(self._sweep).encode()).hexdigest()[:8]
        self.job_name = f"{re.sub(r'[^A-Za-z0-9._-]', '-', sweep.name)}-{mark}"
        self._later: list[Path] = []  # what Slurm does not take yet
        self._alive: dict[Path, str] = {}  # runs of living jobs, and the job
        self._words: dict[Path, str] = {}
        self._packs: dict[str, list[list[Path]]] = {}
        self._resources = Resources()
        self._looked = -math.inf

    def room(self) -> int:
        """Return how many runs fit in one more array."""
        return max(0, _ARRAY * self._pack - len(self._later))

    def submit(self, jobs: Sequence[SweepJob], resources: Resources) -> None:
        """Queue what is not in Slurm's queue yet.

        Raises ValueError with Slurm's words where it takes nothing at all.
        """
        self._resources = resources
        self._look()  # jobs of a launcher that died
        self._later += [run for (run,) in jobs if run not in self._alive]
        self._drain()
        self._look()

    def _drain(self) -> None:
        """Submit what waits, in smaller arrays where Slurm's limits ask for that."""
        size = _ARRAY
        while self._later:
            runs = self._later[: size * self._pack]
            try:
                self._sbatch(runs)
            except _RefusedError as problem:
                if len(runs) > self._pack and _LIMIT.search(str(problem)):
                    size = math.ceil(len(runs) / self._pack) // 2
                    continue
                if not self._alive:
                    raise ValueError(f"Slurm does not take a job: {problem}") from None
                return  # there will be room later
            self._alive |= dict.fromkeys(runs, "")
            del self._later[: len(runs)]

    def _sbatch(self, runs: Sequence[Path]) -> None:
        """Submit one array. Which job has which runs is written down before there is a job."""
        packs = self._split(runs)
        token = uuid.uuid4().hex[:16]
        names = [[run.relative_to(self._sweep).as_posix() for run in pack] for pack in packs]
        self._folder.mkdir(parents=True, exist_ok=True)
        write_json(self._folder / f"{token}.json", {"jobs": names})
        executor = self._executor(token, self._resources)
        from submitit.core.utils import FailedJobError

        try:
            executor.map_array(_start, [self._job(pack, self._resources) for pack in packs])
        except (FailedJobError, OSError) as problem:
            raise _RefusedError(_last_line(str(problem))) from problem

    def _split(self, runs: Sequence[Path]) -> list[list[Path]]:
        return [list(runs[k : k + self._pack]) for k in range(0, len(runs), self._pack)]

    def _job(self, runs: Sequence[Path], resources: Resources) -> Job:
        return Job(tuple(map(str, runs)), resources, self._at_once, str(self._folder))

    def _executor(self, token: str, resources: Resources) -> SlurmExecutor:
        try:
            import submitit
        except ImportError:
            raise ValueError(
                "Slurm needs submitit; install it with `pip install 'loopworth[slurm]'`"
            ) from None
        try:
            executor = submitit.SlurmExecutor(self._folder)
        except RuntimeError:
            raise ValueError(
                "there is no Slurm here (no srun); start the sweep where jobs can be submitted"
            ) from None
        executor.update_parameters(**self._parameters(token, resources))
        return executor

    def _parameters(self, token: str, resources: Resources) -> dict[str, Any]:
        """Return what submitit is told; None leaves a value to the cluster."""
        threads, seconds = resources.threads * self._at_once, resources.seconds
        notice = GRACE_SECONDS if seconds is None else min(GRACE_SECONDS, int(seconds / 4))
        memory = resources.memory_bytes
        more: dict[str, Any] = {"requeue": True, "signal": f"USR1@{notice}"}
        if memory is not None:
            more["mem"] = f"{math.ceil(memory * self._at_once / 2**20)}M"
        return {
            "job_name": self.job_name,
            "comment": token,
            "ntasks_per_node": 1,
            "cpus_per_task": threads,
            "srun_args": [f"--cpus-per-task={threads}"],  # srun no longer takes it from sbatch
            "gpus_per_node": resources.gpus * self._at_once or None,
            "time": None if seconds is None else math.ceil(seconds / 60),
            "wckey": None,
            "array_parallelism": self.workers or _ARRAY,
            "additional_parameters": more | {k: v or True for k, v in self._options.items()},
        }

    def script(self, runs: Sequence[Path], resources: Resources) -> str:
        """Return the script that sbatch would be given for these runs; nothing is submitted."""
        try:
            from submitit.slurm.slurm import _make_sbatch_string
        except ImportError:
            raise ValueError(
                "Slurm needs submitit; install it with `pip install 'loopworth[slurm]'`"
            ) from None
        packs = self._split(runs[: _ARRAY * self._pack])
        text: str = _make_sbatch_string(
            command=shlex.join([sys.executable, *_SUBMITIT, str(self._folder)]),
            folder=self._folder,
            map_count=len(packs) if len(packs) > 1 else None,
            **self._parameters("TOKEN", resources),
        )
        return text

    def poll(self, seconds: float) -> Poll:
        """Return which runs are queued or at work, as Slurm said at most `every` seconds ago."""
        due = self._looked + self._every - time.monotonic()
        time.sleep(max(0.0, min(seconds, due)))
        if due <= seconds:
            self._look()
            self._drain()
        return Poll(frozenset(self._alive) | frozenset(self._later), dict(self._words))

    def _look(self) -> None:
        """Ask Slurm for the jobs of this sweep; where it does not answer, all is as it was."""
        self._looked = time.monotonic()
        try:
            listed = _call(
                "squeue", "--noheader", "--array", "--states=all", f"--name={self.job_name}",
                "--format=%F|%K|%T|%k",
            )  # fmt: skip
        except _RefusedError:
            return
        self._alive, self._words = {}, {}
        rows = [line.strip().split("|", 3) for line in listed.splitlines()]
        for job, index, state, token in sorted(rows, key=lambda row: int(row[0])):
            single = not index.isdecimal()
            name = job if single else f"{job}_{index}"
            for run in self._runs(token, 0 if single else int(index)):
                self._words.pop(run, None)  # of an earlier job
                if state not in _ENDED:
                    if self._pack == 1 or not (run / RESULT).exists():
                        self._alive[run] = name
                elif state != "COMPLETED":
                    self._words[run] = f"Slurm says {state} of job {name}" + self._tail(name)

    def _runs(self, token: str, index: int) -> list[Path]:
        """Return the runs of a job."""
        if token not in self._packs:
            found: dict[str, Any] | None = None
            with suppress(ValueError):
                found = read_object(self._folder / f"{token}.json")
            packs = found["jobs"] if found else []
            self._packs[token] = [[self._sweep / name for name in pack] for pack in packs]
        packs = self._packs[token]
        return packs[index] if index < len(packs) else []

    def _tail(self, job: str) -> str:
        """Return the last line of a job's log that is not Slurm's own."""
        try:
            text = (self._folder / f"{job}_0_log.err").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        said = [line for line in text.splitlines() if not line.startswith(_SLURM_SAYS)]
        return f": {said[-1]}" if said else ""

    def cancel(self) -> None:
        """Take back what waits, ask what runs to save, and return when nothing is alive."""
        self._later.clear()
        deadline = time.monotonic() + 2 * GRACE_SECONDS
        self._look()
        while self._alive:
            late = time.monotonic() > deadline
            with suppress(_RefusedError):
                _call("scancel", f"--name={self.job_name}", "--state=PENDING")
                how = [] if late else ["--signal=TERM"]
                _call("scancel", f"--name={self.job_name}", "--state=RUNNING", *how)
            time.sleep(min(1.0, self._every))
            self._look()

    def close(self) -> None:
        """Cancel what is alive, as after a second Ctrl-C: Slurm gives it half a minute to save."""
        if self._alive:
            with suppress(_RefusedError):
                _call("scancel", f"--name={self.job_name}")


def script_of(sweep: SweepFolder, plan: Plan | None, engine: Engine, resources: Resources) -> str:
    """Return the script by which a launcher would submit what is left of a sweep, or of a plan.

    Raises ValueError for an engine that has no script.
    """
    if not isinstance(engine, SlurmEngine):
        raise ValueError(f"the engine {engine.name} has no script to print; Slurm has one")
    here = {cell.hash: cell for cell in sweep.cells}
    new = [] if plan is None else [Cell.of(p, p.run.content_hash()) for p in plan.runs]
    cells = here | {cell.hash: cell for cell in new if cell.hash not in here}
    left = [
        sweep.run_path(cell).absolute()
        for cell in cells.values()
        if look(sweep.run_path(cell), cell.run_id).state != "complete"
    ]
    if not left:
        raise ValueError(f"every run of {sweep.path} is complete; there is nothing to submit")
    return engine.script(left, resources)


def _start(job: Job) -> None:
    job()


def _own_id() -> str:
    """Return the job that this process is: an array's number alone would mean all of its jobs."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"]


def _call(*command: str) -> str:
    """Run a command of Slurm and return what it prints; raises _RefusedError where it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=GRACE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise _RefusedError(f"{command[0]} does not answer") from None
    except OSError as problem:
        raise _RefusedError(f"{command[0]}: {problem.strerror}") from problem
    if done.returncode:
        raise _RefusedError(_last_line(done.stderr) or f"{command[0]} failed")
    return done.stdout


def _last_line(text: str) -> str:
    """Return the last line of a text that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
