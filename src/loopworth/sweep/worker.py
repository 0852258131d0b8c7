"""A worker: a process that does many runs, since importing torch takes longer than a small run.

A line of its standard input is a job, {"runs": [folder, ...]}, several where they are trained as a
stack. It answers with a line for each run that has ended, {"run": folder, "error": words or null}.
When its input ends, its launcher has ended: the runs at hand are saved and stopped.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import IO

from loopworth.spec import RunSpec
from loopworth.sweep.engines import Job
from loopworth.sweep.run import Outcome, Work, in_words, run_folders

EXIT_STOPPED = 75  # EX_TEMPFAIL: nothing is wrong, do it again


class Worker:
    """Does the jobs that come in, one after another, until the input ends.

    source   jobs come in from there, unbuffered      answers   go there
    work     trains the runs of one      lost   is told where another process took over a folder

    A run that fails leaves the worker alive where the failure was foreseen (ValueError, OSError);
    any other may have left torch in a bad state, so the worker ends after its answer, with code 1.
    """

    def __init__(
        self, source: IO[bytes], answers: IO[str], work: Work, lost: Callable[[str], None]
    ) -> None:
        self._source, self._answers = source, answers
        self._work, self._lost = work, lost
        self._jobs: queue.Queue[Job | None] = queue.Queue()
        self._busy = self._asked = False
        self._orphaned = threading.Event()

    def serve(self) -> int:
        """Work until there is no more; return the code that the process should exit with."""
        before = signal.signal(signal.SIGTERM, self._stop)
        threading.Thread(target=self._listen, name="launcher", daemon=True).start()
        try:
            while (job := self._jobs.get()) is not None and not self._unwanted:
                if not self._do(job):
                    return 1
            return EXIT_STOPPED if self._asked else 0
        except _StoppedIdleError:
            return EXIT_STOPPED
        finally:
            signal.signal(signal.SIGTERM, before)

    def _do(self, job: Job) -> bool:
        """Do one job; return whether this process can do another."""
        self._busy = True
        ended = run_folders(job, self._unless_asked, self._answer, self._lost)
        self._busy = False
        problems = [each for each in ended.values() if isinstance(each, Exception)]
        return all(isinstance(each, ValueError | OSError) for each in problems)

    def _answer(self, path: Path, problem: Exception | None) -> None:
        answer = {"run": str(path), "error": None if problem is None else in_words(problem)}
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()

    @property
    def _unwanted(self) -> bool:
        return self._asked or self._orphaned.is_set()

    def _unless_asked(
        self, runs: Mapping[Path, RunSpec], ended: Callable[[Path, Outcome], None]
    ) -> None:
        if not self._unwanted:
            self._work(runs, ended)

    def _listen(self) -> None:
        for line in self._source:
            self._jobs.put(tuple(map(Path, json.loads(line)["runs"])))
        self._orphaned.set()
        self._jobs.put(None)
        while self._busy:  # the launcher is gone; training saves on this signal
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1.0)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True
        if not self._busy:
            raise _StoppedIdleError


class _StoppedIdleError(Exception):
    pass


def private_streams() -> tuple[IO[bytes], IO[str]]:
    """Return input and output for the launcher alone: what else prints goes to standard error.

    The input has no buffer, whose lock a thread would still hold when the process ends.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return open(0, "rb", buffering=0, closefd=False), answers
