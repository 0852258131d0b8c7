"""How a sweep is, read from its folder: every run, what was spent, what is left, how long yet."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopworth.sweep.folder import Cell, SweepFolder
from loopworth.sweep.run import Look, State, look

STATES: tuple[State, ...] = ("complete", "running", "stopped", "failed", "waiting")
_METRICS, _TAIL = "metrics.jsonl", 8192


@dataclass(frozen=True, slots=True)
class RunStatus:
    """One run: what it is, how it was found, and how far it is.

    step   steps that are done        loss   validation loss in nats per token when complete, else
                                             that of the last training step, None before the first
    """

    cell: Cell
    look: Look
    step: int
    loss: float | None

    @property
    def state(self) -> State:
        """Waiting, running, stopped, failed or complete."""
        return self.look.state

    @property
    def share(self) -> float:
        """The part of its FLOPs that is spent, 0 to 1."""
        return 1.0 if self.state == "complete" else min(1.0, self.step / self.cell.steps)

    def to_json(self) -> dict[str, Any]:
        """Return the run as plain values."""
        cell = self.cell
        return {
            "name": cell.name,
            "study": cell.study,
            "role": cell.role,
            "budget_flops": cell.budget,
            "d_model": cell.width,
            "recurrence": cell.recurrence,
            "seed": cell.seed,
            "state": self.state,
            "step": self.step,
            "steps": cell.steps,
            "loss": self.loss,
            "error": self.look.error if self.state == "failed" else None,
            "attempts": self.look.attempts,
            "seconds": self.look.seconds,
            "notes": list(self.look.notes),
        }


@dataclass(frozen=True, slots=True)
class SweepStatus:
    """A sweep as it is on disk.

    spent, left    FLOPs            eta_seconds   None where no run is at work or none is done yet
    launcher       what the living launcher says about itself: engine, workers; None without one
    """

    name: str
    path: Path
    runs: tuple[RunStatus, ...]
    spent: float
    left: float
    eta_seconds: float | None
    launcher: Mapping[str, Any] | None

    @property
    def counts(self) -> dict[State, int]:
        """How many runs are in each state."""
        counted = Counter(run.state for run in self.runs)
        return {state: counted[state] for state in STATES}

    @property
    def complete(self) -> bool:
        """Whether every run is complete."""
        return all(run.state == "complete" for run in self.runs)

    def to_json(self) -> dict[str, Any]:
        """Return the sweep as a dict that `json.dumps` writes."""
        launcher = self.launcher
        return {
            "name": self.name,
            "path": str(self.path),
            "counts": self.counts,
            "complete": self.complete,
            "flops_spent": self.spent,
            "flops_left": self.left,
            "eta_seconds": self.eta_seconds,
            "launcher": None
            if launcher is None
            else {"engine": launcher.get("engine"), "workers": launcher.get("workers")},
            "runs": [run.to_json() for run in self.runs],
        }


def read_status(sweep: SweepFolder) -> SweepStatus:
    """Return how a sweep is. Nothing is asked of an engine and nothing is written.

    Raises ValueError where there is no sweep.
    """
    sweep.require()
    started = sweep.started()
    runs = tuple(
        _run_status(sweep, cell) if cell.name in started else _waiting(cell) for cell in sweep.cells
    )
    spent = sum(run.cell.flops * run.share for run in runs)
    total = sum(cell.flops for cell in sweep.cells)
    launcher = sweep.launcher()
    workers = sum(run.state == "running" for run in runs)
    if launcher is not None:
        stated = int(launcher.get("workers") or 1)
        workers = stated if launcher.get("stacks") else max(workers, stated)
    return SweepStatus(
        sweep.name, sweep.path, runs, spent, max(0.0, total - spent),
        _eta(runs, workers), launcher,
    )  # fmt: skip


def _waiting(cell: Cell) -> RunStatus:
    return RunStatus(cell, Look("waiting"), 0, None)


def _run_status(sweep: SweepFolder, cell: Cell) -> RunStatus:
    path = sweep.run_path(cell)
    found = look(path, cell.run_id)
    if found.row is not None:
        return RunStatus(cell, found, cell.steps, float(found.row["val_loss"]))
    step, loss = _last_step(path / _METRICS)
    return RunStatus(cell, found, step, loss)


def _last_step(path: Path) -> tuple[int, float | None]:
    """Return the last step in a file of metrics and its loss, from the end of the file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            lines = file.read().splitlines()
    except OSError:
        return 0, None
    for line in reversed(lines):
        try:
            found = json.loads(line)
            if found["event"] == "step":
                return int(found["step"]), found["loss"]
        except (ValueError, KeyError, TypeError):
            continue  # cut short: it is being written
    return 0, None


def _eta(runs: Iterable[RunStatus], workers: int) -> float | None:
    """Return the seconds until all is done, None where nothing tells them.

    A run is expected to take the seconds a FLOP of the complete runs that are most like it: same
    width and recurrence, else same width, else any. The workers share what is left, and the longest
    run goes on alone.
    """
    runs = list(runs)
    rates: dict[tuple[float, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for run in runs:
        if run.state == "complete" and run.look.seconds > 0:
            for key in _likeness(run.cell):
                rates[key][0] += run.look.seconds
                rates[key][1] += run.cell.flops
    if not rates or not workers:
        return None
    left = []
    for run in runs:
        if run.state in ("waiting", "running", "stopped"):
            seconds, flops = next(rates[key] for key in _likeness(run.cell) if key in rates)
            left.append(seconds / flops * run.cell.flops * (1 - run.share))
    return max(sum(left) / workers, *left) if left else 0.0


def _likeness(cell: Cell) -> tuple[tuple[float, ...], ...]:
    return (cell.width, cell.recurrence), (cell.width,), ()
