"""The engine of this machine: worker processes that stay alive from job to job."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from loopworth.sweep.engines import GRACE_SECONDS, Job, Poll, Resources

_TAIL = 3  # lines of a worker's log that are told when it dies


@dataclass(eq=False, slots=True)
class _Slot:
    """The place of one worker: its process, the runs at hand, its devices."""

    number: int
    gpus: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    runs: set[Path] = field(default_factory=set)
    rest: bytes = b""
    persistent: bool = True
    written: int = field(default=0)  # bytes of the log when the job was begun


class LocalEngine:
    """Jobs on this machine, one a worker.

    workers   how many at once      gpus   their devices, shared out evenly; none is the CPU
    logs      folder for what workers write to stderr
    """

    name = "local"

    def __init__(self, workers: int, logs: Path, gpus: Sequence[str] = ()) -> None:
        """Start nothing yet: a worker starts with its first job."""
        if workers < 1:
            raise ValueError(f"workers={workers} must be 1 or more")
        each = len(gpus) // workers
        if gpus and not each:
            raise ValueError(
                f"{workers} workers cannot share {len(gpus)} GPUs; use at most {len(gpus)} workers"
            )
        self._slots = [_Slot(k, tuple(gpus[k * each : (k + 1) * each])) for k in range(workers)]
        self._logs = logs
        self.workers: int | None = workers
        self.stacks = not gpus
        self._selector = selectors.DefaultSelector()
        self._words: dict[Path, str] = {}

    def room(self) -> int:
        """Return how many workers have nothing to do."""
        return sum(not slot.runs for slot in self._slots)

    def submit(self, jobs: Sequence[Job], resources: Resources) -> None:
        """Hand jobs to idle workers, those that are warm first."""
        idle = [slot for slot in self._slots if not slot.runs]
        idle.sort(key=lambda slot: slot.process is None)
        for job, slot in zip(jobs, idle, strict=False):
            self._hand(slot, tuple(run.absolute() for run in job), resources)

    def _hand(self, slot: _Slot, job: Job, resources: Resources) -> None:
        slot.runs, slot.written = set(job), self._log_size(slot)
        for run in job:
            self._words.pop(run, None)
        if slot.process is None:
            self._start(slot, job, resources)
        if slot.persistent:
            assert slot.process is not None
            assert slot.process.stdin is not None
            with suppress(BrokenPipeError):  # it died just now; poll finds that
                slot.process.stdin.write(_line(job))
                slot.process.stdin.flush()

    def _start(self, slot: _Slot, job: Job, resources: Resources) -> None:
        """Start a worker; several GPUs of one run need processes of their own, by torchrun."""
        slot.persistent = resources.gpus <= 1
        command = resources.command(*(["--worker"] if slot.persistent else job))
        environment = os.environ | resources.environment()
        if slot.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(slot.gpus)
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
            log: IO[bytes] = self._log(slot).open("ab")
        except OSError:
            log = Path(os.devnull).open("ab")  # noqa: SIM115  (a full disk is told by the run)
        with log:
            slot.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the launcher, which asks workers to save
            )  # fmt: skip
        slot.rest = b""
        assert slot.process.stdout is not None
        os.set_blocking(slot.process.stdout.fileno(), False)
        self._selector.register(slot.process.stdout, selectors.EVENT_READ, slot)

    def poll(self, seconds: float) -> Poll:
        """Return which runs are at work; wakes as soon as a worker answers or dies."""
        if self._selector.get_map():
            for key, _ in self._selector.select(seconds):
                self._read(key.data)
        else:
            time.sleep(seconds)
        alive = frozenset(run for slot in self._slots for run in slot.runs)
        return Poll(alive, dict(self._words))

    def _read(self, slot: _Slot) -> None:
        """Take the answers of a worker, or its end."""
        assert slot.process is not None
        assert slot.process.stdout is not None
        part = os.read(slot.process.stdout.fileno(), 65536)
        if not part:
            self._reap(slot)
            return
        *lines, slot.rest = (slot.rest + part).split(b"\n")
        for line in lines:
            answer = json.loads(line) if slot.persistent else {}
            if answer and (run := Path(answer["run"])) in slot.runs:
                if answer["error"]:
                    self._words[run] = answer["error"]
                slot.runs.remove(run)

    def _reap(self, slot: _Slot) -> None:
        """Note how a worker ended; the runs that it had are no longer alive."""
        process = slot.process
        assert process is not None
        assert process.stdout is not None
        with suppress(KeyError, ValueError):  # it was interrupted here before
            self._selector.unregister(process.stdout)
        code = process.wait()
        for stream in (process.stdout, process.stdin):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        if slot.runs and (code or slot.persistent):
            self._words |= dict.fromkeys(slot.runs, _how(code) + self._tail(slot))
        slot.process, slot.runs = None, set()

    def cancel(self) -> None:
        """Ask every worker to save and stop; end those that do not within two minutes."""
        deadline = time.monotonic() + GRACE_SECONDS
        while living := [slot for slot in self._slots if slot.process is not None]:
            late = time.monotonic() > deadline
            for slot in living:
                self._signal(slot, signal.SIGKILL if late else signal.SIGTERM)
            self.poll(1.0)

    def close(self) -> None:
        """Let the workers end; kill those at work, as after a second Ctrl-C."""
        for slot in self._slots:
            if slot.process is not None:
                if slot.runs:
                    self._signal(slot, signal.SIGKILL)
                elif slot.process.stdin is not None:
                    with suppress(OSError):
                        slot.process.stdin.close()
                self._reap(slot)
        self._selector.close()

    def _signal(self, slot: _Slot, number: int) -> None:
        assert slot.process is not None
        with suppress(ProcessLookupError):
            # torchrun has children of its own: the whole session is asked
            if slot.persistent:
                slot.process.send_signal(number)
            else:
                os.killpg(slot.process.pid, number)

    def _log(self, slot: _Slot) -> Path:
        return self._logs / f"{slot.number}.log"

    def _log_size(self, slot: _Slot) -> int:
        try:
            return self._log(slot).stat().st_size
        except OSError:
            return 0

    def _tail(self, slot: _Slot) -> str:
        """Return the last lines that a worker wrote during its job."""
        try:
            with self._log(slot).open("rb") as file:
                file.seek(slot.written)
                lines = file.read()[-2000:].decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return f": {' / '.join(lines[-_TAIL:])}" if lines else ""


def _line(job: Job) -> bytes:
    """Return what a worker is told.

    >>> _line((Path("/a"), Path("/b")))
    b'{"runs": ["/a", "/b"]}\\n'
    """
    return json.dumps({"runs": [str(run) for run in job]}).encode() + b"\n"


def _how(code: int) -> str:
    """Say how a process ended.

    >>> _how(-9), _how(1)
    ('its process was killed by SIGKILL', 'its process ended with code 1')
    """
    if code >= 0:
        return f"its process ended with code {code}"
    try:
        return f"its process was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"its process was killed by signal {-code}"


def available_cores() -> int:
    """Return the cores that this process may use: by its affinity, and by its container.

    >>> available_cores() >= 1
    True
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        cores = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no container, or "max"
        pass
    return cores


def available_gpus() -> list[str]:
    """Return the NVIDIA devices that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name.strip() and name.strip() != "-1"]
    folder = Path("/proc/driver/nvidia/gpus")
    return [str(k) for k in range(len(list(folder.iterdir())))] if folder.is_dir() else []
