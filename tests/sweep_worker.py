"""`loopworth run` with a training that needs no torch: its number follows from the spec alone.

It saves its step as training does, goes on from there, and stops on SIGTERM. The seed of a run says
how it misbehaves. Run as a program it is the worker, or the run of one folder.
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from loopworth.reach import reach
from loopworth.spec import RunSpec
from loopworth.sweep.run import run_folder
from loopworth.sweep.worker import Worker, private_streams
from loopworth.train.result import run_row

DIVERGES, DIES, DIES_ONCE, BREAKS, STARTS_TWICE, WAITS = 1001, 1002, 1003, 1004, 1005, 1006
SPINS = 4000  # hashes a step: some milliseconds


def work(run: RunSpec, path: Path) -> bool:
    """Hash the spec, step after step."""
    asked = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: asked.append(number))
    try:
        misbehave(run, path)
        folder = path / "checkpoint"
        step = max((int(p.name[5:]) for p in folder.glob("step-*")), default=0)
        steps = run.steps or 8
        while step < steps:
            state = json.dumps([step, run.to_json()], sort_keys=True).encode()
            for _ in range(SPINS):
                state = hashlib.sha256(state).digest()
            step += 1
            (folder / f"step-{step:08d}").mkdir(parents=True)
            if asked:
                return False
    finally:
        signal.signal(signal.SIGTERM, before)
    finish(run, path)
    return True


def finish(run: RunSpec, path: Path) -> None:
    loss = 2 + int(run.content_hash()[:6], 16) / 2**24
    row = run_row(run, reach(run), val_loss=loss, val_bits_per_byte=loss / 2, seconds=os.getpid())
    aside = path / ".result"
    aside.write_text(json.dumps(row))
    aside.replace(path / "result.json")


def misbehave(run: RunSpec, path: Path) -> None:
    mark = path / "tried"
    first = not mark.exists()
    mark.touch()
    if run.seed == DIVERGES:
        raise ValueError("the loss is not finite")
    while run.seed == WAITS and not (path / "go").exists():
        time.sleep(0.01)
    if run.seed == BREAKS:
        raise RuntimeError("device-side assert")
    if run.seed == DIES or (run.seed == DIES_ONCE and first):
        os.kill(os.getpid(), signal.SIGKILL)


def lost(message: str) -> None:
    sys.stderr.write(message)
    os._exit(75)


if __name__ == "__main__":
    if sys.argv[1] == "--worker":
        source, answers = private_streams()
        sys.exit(Worker(source, answers, work, lost).serve())
    sys.exit(0 if run_folder(Path(sys.argv[1]), work, lost) == "complete" else 75)
