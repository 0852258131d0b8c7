"""Kill a sweep at random moments, until it is done: launcher or worker, without a warning."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from loopworth.sweep.folder import SweepFolder
from loopworth.sweep.status import read_status


def children(pid: int) -> list[int]:
    """Return the living children of a process, by the system's list of processes."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(stat.parent.name))
    return found


def wait_until(there: Callable[[], object], process: subprocess.Popen) -> None:
    """Wait until something is there while a process lives; the process has the cores meanwhile."""
    while not there():
        with suppress(subprocess.TimeoutExpired):
            raise AssertionError(f"it ended with code {process.wait(0.05)}")


def kill_at_random(
    sweep: SweepFolder, command: Sequence[str], kills: int, seed: int, pause: float,
    tell: Callable[[str], None] = lambda _line: None,
) -> dict[str, int]:  # fmt: skip
    """Start a launcher again and again while it or one of its workers is killed; then let it end.

    pause   the longest wait before a kill, in seconds

    Returns how often which was killed. The sweep has its table afterwards, or the launcher failed.
    """
    choose = random.Random(seed)
    killed = {"launcher": 0, "worker": 0}
    launcher: subprocess.Popen[bytes] | None = None
    while sum(killed.values()) < kills and not read_status(sweep).complete:
        if launcher is None or launcher.poll() is not None:
            launcher = subprocess.Popen(command)
        time.sleep(choose.uniform(0, pause))
        workers = children(launcher.pid)
        victim = choose.choice([launcher.pid, *workers])
        kind = "launcher" if victim == launcher.pid else "worker"
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            continue
        killed[kind] += 1
        counts = read_status(sweep).counts
        tell(f"{sum(killed.values())}: {kind} killed; {counts}")
        if kind == "launcher":
            launcher.wait()
    if launcher is not None and launcher.poll() is None:
        launcher.wait()
    subprocess.run(command, check=True)
    return killed
