"""A worker: a process that does many runs, since importing torch takes longer than a small run.

It reads folders from its standard input, a line of JSON each, and answers each with a line on its
standard output. When its input ends, its launcher has ended: the run at hand is saved and stopped.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import IO

from loopworth.spec import RunSpec
from loopworth.sweep.run import Work, in_words, run_folder

EXIT_STOPPED = 75  # EX_TEMPFAIL: nothing is wrong, do it again


class Worker:
    """Does the runs whose folders come in, one after another, until the input ends.

    source   folders come in from there, unbuffered      answers   go there
    work     trains one      lost   is told where another process took over a folder

    A run that fails leaves the worker alive where the failure was foreseen (ValueError, OSError);
    any other may have left torch in a bad state, so the worker ends after its answer, with code 1.
    """

    def __init__(
        self, source: IO[bytes], answers: IO[str], work: Work, lost: Callable[[str], None]
    ) -> None:
        self._source, self._answers = source, answers
        self._work, self._lost = work, lost
        self._folders: queue.Queue[Path | None] = queue.Queue()
        self._busy = self._asked = False
        self._orphaned = threading.Event()

    def serve(self) -> int:
        """Work until there is no more; return the code that the process should exit with."""
        before = signal.signal(signal.SIGTERM, self._stop)
        threading.Thread(target=self._listen, name="launcher", daemon=True).start()
        try:
            while (path := self._folders.get()) is not None and not self._unwanted:
                if not self._do(path):
                    return 1
            return EXIT_STOPPED if self._asked else 0
        except _StoppedIdleError:
            return EXIT_STOPPED
        finally:
            signal.signal(signal.SIGTERM, before)

    def _do(self, path: Path) -> bool:
        """Do one run and answer; return whether this process can do another."""
        self._busy = True
        answer = {"run": str(path), "error": None}
        sound = True
        try:
            run_folder(path, self._unless_asked, self._lost)
        except Exception as problem:
            answer["error"] = in_words(problem)
            sound = isinstance(problem, (ValueError, OSError))
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()
        self._busy = False
        return sound

    @property
    def _unwanted(self) -> bool:
        return self._asked or self._orphaned.is_set()

    def _unless_asked(self, run: RunSpec, path: Path) -> bool:
        return False if self._unwanted else self._work(run, path)

    def _listen(self) -> None:
        for line in self._source:
            self._folders.put(Path(json.loads(line)["run"]))
        self._orphaned.set()
        self._folders.put(None)
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
