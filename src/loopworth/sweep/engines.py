"""What a sweep asks of the place where its runs are done: start them, say which live, stop them.

An engine gets jobs: a run, or a stack of runs that one process trains together. It holds no state
of a run: how a run ended is read from its folder, and an engine may be lost with all it knows.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

# For a step and a checkpoint of a large model, between the wish to stop and the end.
GRACE_SECONDS = 120

# The folders of one run, or of several that are trained as a stack.
Job = tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Resources:
    """What one job gets, and how it is started.

    threads        CPU threads               gpus        devices; 0 is the CPU
    device         auto, cpu, cuda, mps      save_every  between checkpoints, as `loopworth train`
    stack          train what fits in a stack as one, on a CPU (see `plan.stacking`)
    memory_bytes, seconds   what a cluster is asked for; None leaves it to the cluster

    >>> Resources(threads=2).command(Path("runs/a"))[1:]
    ['-m', 'loopworth', 'run', 'runs/a', '--threads', '2', '--device', 'auto', '--save-every', ...]
    """

    threads: int = 1
    gpus: int = 0
    device: str = "auto"
    save_every: str = "1min"
    stack: bool = True
    memory_bytes: float | None = None
    seconds: float | None = None

    def command(self, *arguments: str | Path) -> list[str]:
        """Return the command of a run folder, or of a worker where the argument is --worker.

        It ends with 0 when the run is complete, 75 when it was stopped with a checkpoint and wants
        to be started again (SIGTERM and SIGUSR1 do that), and 1 when it failed. Started twice, it
        refuses; started again after its end, it returns at once. A run on several GPUs is started
        by torchrun, one process a device; it ends with 0 or 1, since torchrun passes on no other.
        """
        launcher = [sys.executable, "-m", "loopworth"]
        if self.gpus > 1:
            # A signal to save is for the processes; torchrun itself would die of it.
            launcher = [
                "/bin/sh", "-c", """trap '' USR1; exec "$@\"""", "torchrun",
                sys.executable, "-m", "torch.distributed.run", "--standalone",
                "--nproc-per-node", str(self.gpus), "-m", "loopworth",
            ]  # fmt: skip
        return [
            *launcher, "run", *map(str, arguments),
            "--threads", str(self.threads), "--device", self.device,
            "--save-every", self.save_every, *([] if self.stack else ["--no-stack"]),
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        """Return the variables of a run: its libraries are held to its threads."""
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        several = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(GRACE_SECONDS)} if self.gpus > 1 else {}
        return dict.fromkeys(names, str(self.threads)) | several


@dataclass(frozen=True, slots=True)
class Poll:
    """What an engine sees.

    alive   the folders of submitted runs that wait or run there
    words   what it knows about the end of others, such as "killed by SIGKILL"; only for messages
    """

    alive: frozenset[Path]
    words: Mapping[Path, str] = field(default_factory=dict)


class Engine(Protocol):
    """The place where runs are done. One launcher owns it.

    workers   how many jobs it does at once; None where it does not know
    stacks    whether it takes jobs of several runs
    """

    name: str
    workers: int | None
    stacks: bool

    def room(self) -> int:
        """Return how many more jobs can be submitted now; a cluster with a queue takes any."""
        ...

    def submit(self, jobs: Sequence[Job], resources: Resources) -> None:
        """Start these jobs, or queue them.

        Raises ValueError in words for the user where it cannot.
        """
        ...

    def poll(self, seconds: float) -> Poll:
        """Return which runs are alive; waits for a change, at most `seconds`.

        A run leaves `alive` after its process has ended, whatever the end was.
        """
        ...

    def cancel(self) -> None:
        """Drop what waits, ask what runs to save and stop, and return when nothing is alive."""
        ...

    def close(self) -> None:
        """Give back what the engine holds; no run is alive when it is called."""
        ...
