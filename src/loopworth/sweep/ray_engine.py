"""The engine of a Ray cluster: a task a run, on whatever node has what the run needs.

A task starts the run with a worker of its node (`pack.py`). Where the worker or the node is lost,
Ray says so, and the launcher starts the run again, from its last checkpoint: Ray itself retries
nothing, so that one count, the one on disk, says how often a run may die.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loopworth.sweep.engines import GRACE_SECONDS, Job, Poll, Resources

FOLDER = "ray"  # in the sweep's folder: what workers log


class RayEngine:
    """Runs as tasks of a Ray cluster; the folder of the sweep must be seen by all its nodes.

    workers    runs at once; None is what the cluster has room for
    resources  of one run        address   of the cluster; None is the one that Ray finds

    Raises ValueError where Ray is not installed, there is no cluster, or no node of it is large
    enough for a run.
    """

    name = "ray"
    stacks = False

    def __init__(
        self, sweep: Path, workers: int | None, resources: Resources, address: str | None = None
    ) -> None:
        try:
            import ray
        except ImportError:
            raise ValueError(
                "the engine ray needs Ray; install it with `pip install 'loopworth[ray]'`"
            ) from None
        self._ray: Any = ray
        self._ours = not ray.is_initialized()
        if self._ours:
            self._connect(address or "auto")
        self._folder, self._limit = sweep.absolute() / FOLDER, workers
        self._needs = _needs(resources)
        self._tasks: dict[Any, Path] = {}
        self._words: dict[Path, str] = {}
        if not self._fitting():
            self.close()
            asked = ", ".join(f"{name} {amount:g}" for name, amount in self._needs.items())
            raise ValueError(
                f"no node of the Ray cluster has {asked}, which a run was given; give it less, or "
                "add such a node first"
            )
        self.workers = workers

    def _connect(self, address: str) -> None:
        try:
            _knock(address)
            self._ray.init(address=address, log_to_driver=False, logging_level="error")
        except (OSError, RuntimeError) as problem:
            why = str(problem).splitlines()[0]
            raise ValueError(
                f"there is no Ray cluster at {address!r}: {why}; start one with "
                "`ray start --head`, or name another address"
            ) from None

    def _fitting(self) -> int:
        """Return how many runs the cluster does at once, as it is now."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return sum(_fits(node, self._needs) for node in nodes)

    def room(self) -> int:
        """Return how many runs it takes: one more than fit, so that no node waits for the next."""
        return max(0, (self._limit or self._fitting() + 1) - len(self._tasks))

    def submit(self, jobs: Sequence[Job], resources: Resources) -> None:
        """Queue a task for each run."""
        needs = _needs(resources)
        for (run,) in jobs:
            self._words.pop(run, None)
            task = self._ray.remote(_do).options(
                name=run.name, max_retries=0,
                num_cpus=needs["CPU"], num_gpus=needs.get("GPU", 0), memory=needs.get("memory", 0),
            )  # fmt: skip
            self._tasks[task.remote(str(run), str(self._folder / run.name), resources)] = run

    def poll(self, seconds: float) -> Poll:
        """Return which tasks are queued or at work; wakes as soon as one ends."""
        if not self._tasks:
            time.sleep(seconds)
        elif self._ray.wait([*self._tasks], timeout=seconds)[0]:
            for task in self._ray.wait([*self._tasks], num_returns=len(self._tasks), timeout=0)[0]:
                self._end(task)
        return Poll(frozenset(self._tasks.values()), dict(self._words))

    def _end(self, task: Any) -> None:
        """Take what a task has to say."""
        run = self._tasks.pop(task)
        try:
            words = self._ray.get(task)
        except self._ray.exceptions.RayError as problem:
            lines = str(problem).strip().splitlines() or [type(problem).__name__]
            inside = isinstance(problem, self._ray.exceptions.RayTaskError)  # a traceback
            words = f"Ray says: {lines[-1 if inside else 0]}"
        if words:
            self._words[run] = words

    def cancel(self) -> None:
        """Drop what waits, ask what runs to save, and return when nothing is alive."""
        self._cancel(force=False)
        deadline = time.monotonic() + GRACE_SECONDS + 30
        while self._tasks:
            self.poll(1.0)
            if time.monotonic() > deadline:
                self._cancel(force=True)

    def _cancel(self, force: bool) -> None:
        for task in self._tasks:
            self._ray.cancel(task, force=force)

    def close(self) -> None:
        """End what is at work, as after a second Ctrl-C, and leave the cluster."""
        self._cancel(force=True)
        self._tasks.clear()
        if self._ours:
            self._ray.shutdown()


def _knock(address: str) -> None:
    """Raise OSError where nobody listens at HOST:PORT; Ray would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()


def _do(run: str, place: str, resources: Resources) -> str:
    """Do one run, on a node; return what is known about its end where it did not go well."""
    from loopworth.sweep.pack import work_through

    # Ray cancels by SIGINT, which a cluster that was started in the background ignores.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    words = work_through([Path(run)], resources, Path(place))
    return words.get(Path(run), "")


def _needs(resources: Resources) -> dict[str, float]:
    """Return what a run is given, by Ray's names.

    >>> _needs(Resources(threads=4, gpus=1))
    {'CPU': 4, 'GPU': 1}
    """
    needs = {
        "CPU": resources.threads, "GPU": resources.gpus, "memory": resources.memory_bytes or 0,
    }  # fmt: skip
    return {name: amount for name, amount in needs.items() if amount}


def _fits(node: Mapping[str, float], needs: Mapping[str, float]) -> int:
    """Return how many runs a node does at once.

    >>> _fits({"CPU": 16, "GPU": 2}, {"CPU": 4, "GPU": 1})
    2
    """
    return min(int(node.get(name, 0) // amount) for name, amount in needs.items())
