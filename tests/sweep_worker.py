"""`loopworth run` with a training that needs no torch: its number follows from the spec alone.

Runs move in step and save their step, go on from the newest that all have, and stop on SIGTERM. The
seed of a run says how it misbehaves. Run as a program it is the worker, or the run of one folder.
"""

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from loopworth.reach import reach
from loopworth.spec import RunSpec
from loopworth.sweep.run import Outcome, run_folder, saved_steps
from loopworth.sweep.worker import Worker, private_streams
from loopworth.train.result import run_row

DIVERGES, DIES, DIES_ONCE, BREAKS, WAITS = 1001, 1002, 1003, 1004, 1005
SPINS = 4000  # hashes a step: some milliseconds


def work(runs: Mapping[Path, RunSpec], ended: Callable[[Path, Outcome], None]) -> None:
    """Hash the specs, step after step."""
    asked = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: asked.append(number))
    left = dict(runs)
    try:
        misbehave(left, ended)
        if not left:
            return
        step = max(frozenset.intersection(*(saved_steps(p) | {0} for p in left)))
        while left:
            for path, run in list(left.items()):
                if step >= (run.steps or 8):
                    finish(run, path)
                    ended(path, True)
                    del left[path]
            step += 1
            for path, run in left.items():
                state = json.dumps([step, run.to_json()], sort_keys=True).encode()
                for _ in range(SPINS):
                    state = hashlib.sha256(state).digest()
                (path / f"checkpoint/step-{step:08d}").mkdir(parents=True, exist_ok=True)
            if asked:
                return
    finally:
        signal.signal(signal.SIGTERM, before)


def finish(run: RunSpec, path: Path) -> None:
    loss = 2 + int(run.content_hash()[:6], 16) / 2**24
    row = run_row(run, reach(run), val_loss=loss, val_bits_per_byte=loss / 2, seconds=os.getpid())
    aside = path / ".result"
    aside.write_text(json.dumps(row))
    aside.replace(path / "result.json")


def misbehave(left: dict[Path, RunSpec], ended: Callable[[Path, Outcome], None]) -> None:
    first = {path: not (path / "tried").exists() for path in left}
    for path in left:
        (path / "tried").touch()
    for path, run in list(left.items()):
        if run.seed == DIVERGES:
            ended(path, ValueError("the loss is not finite"))
            del left[path]
        while run.seed == WAITS and not (path / "go").exists():
            time.sleep(0.01)
    for path, run in left.items():
        if run.seed == BREAKS:
            raise RuntimeError("device-side assert")
        if run.seed == DIES or (run.seed == DIES_ONCE and first[path]):
            os.kill(os.getpid(), signal.SIGKILL)


def lost(message: str) -> None:
    sys.stderr.write(message)
    os._exit(75)


if __name__ == "__main__":
    if sys.argv[1] == "--worker":
        source, answers = private_streams()
        sys.exit(Worker(source, answers, work, lost).serve())
    sys.exit(0 if run_folder(Path(sys.argv[1]), work, lost) == "complete" else 75)
