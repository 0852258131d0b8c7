"""A sweep as a board: budgets by recurrences, every run a mark; and its news, a line each."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from loopworth.measure import PhiPoint
from loopworth.quantities import format_count, format_duration, format_flops
from loopworth.report.page import interval
from loopworth.sweep.collect import Collected
from loopworth.sweep.folder import SweepFolder
from loopworth.sweep.launch import Begun, Ended, Happening
from loopworth.sweep.run import State
from loopworth.sweep.status import RunStatus, SweepStatus, read_status

MARKS: dict[State, tuple[str, str]] = {
    "complete": ("●", "green"),
    "running": ("◐", "yellow"),
    "stopped": ("◌", "yellow"),
    "failed": ("✗", "red"),
    "waiting": ("·", "dim"),
}
_MOST_MARKS = 8
_MOST_NAMED = 8  # runs that are named below the board, of a state


def board(status: SweepStatus) -> Group:
    """Return a sweep as a page of 80 columns: how far it is, its board, and who runs or failed."""
    parts: list[RenderableType] = [_title(status), Text()]
    by_study: dict[str, list[RunStatus]] = defaultdict(list)
    for run in status.runs:
        by_study[run.cell.study].append(run)
    parts += [_grid(study, runs) for study, runs in by_study.items()]
    parts.append(_legend(status))
    return Group(*parts, *_named(status))


def _title(status: SweepStatus) -> Text:
    text = Text(f"{status.name}: {_plural(len(status.runs), 'run')}", "bold")
    text.append(f" · {_counts(status)}\n", "not bold")
    text.append(spending(status), "not bold dim")
    return text


def _counts(status: SweepStatus) -> str:
    return ", ".join(f"{count} {state}" for state, count in status.counts.items() if count)


def spending(status: SweepStatus) -> str:
    """Say what was spent, who works, and how long it will take, in one line."""
    total = status.spent + status.left
    parts = [f"{format_flops(status.spent)} of {format_flops(total)} FLOPs"]
    if status.launcher is not None:
        workers = status.launcher.get("workers")
        engine = str(status.launcher.get("engine", "launcher"))
        parts.append(f"{engine}, {_plural(workers, 'worker')}" if workers else engine)
    elif not status.complete:
        parts.append("no launcher at work")
    if status.eta_seconds is not None and not status.complete:
        parts.append(f"about {format_duration(status.eta_seconds)} left")
    return " · ".join(parts)


def _plural(count: object, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"


def _grid(study: str, runs: Sequence[RunStatus]) -> Table:
    """Return the board of one study: a line a budget, a column a recurrence, a mark a run."""
    cells: dict[tuple[float, float], list[RunStatus]] = defaultdict(list)
    for run in runs:
        cells[run.cell.budget, run.cell.recurrence].append(run)
    recurrences = sorted({r for _, r in cells})
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(study, no_wrap=True)
    for r in recurrences:
        table.add_column(f"r = {r:g}", no_wrap=True)
    for budget in sorted({budget for budget, _ in cells}):
        line = [_cell(cells.get((budget, r), [])) for r in recurrences]
        table.add_row(format_flops(budget), *line)
    return table


def _cell(runs: Sequence[RunStatus]) -> Text:
    """Return the marks of the runs of a budget and a recurrence, and their lowest loss."""
    text = Text()
    if len(runs) > _MOST_MARKS:
        done = sum(run.state == "complete" for run in runs)
        text.append(f"{done}/{len(runs)}")
        if any(run.state == "failed" for run in runs):
            text.append("✗", "red")
    else:
        for run in sorted(runs, key=lambda run: (run.cell.width, run.cell.seed)):
            text.append(*MARKS[run.state])
    losses = [run.loss for run in runs if run.state == "complete" and run.loss is not None]
    if losses:
        text.append(f" {min(losses):.3f}")
    return text


def _legend(status: SweepStatus) -> Text:
    text = Text()
    for state, count in status.counts.items():
        if count:
            text.append(*MARKS[state])
            text.append(f" {state}  ", "dim")
    text.append("in order of width, with the lowest loss", "dim")
    return text


def _named(status: SweepStatus) -> Iterable[Text]:
    """Yield the runs at work with their step, and those that failed with their error."""
    running = [run for run in status.runs if run.state == "running"]
    failed = [run for run in status.runs if run.state == "failed"]
    if running or failed:
        yield Text()
    for run in running[:_MOST_NAMED]:
        loss = "" if run.loss is None else f", loss {run.loss:.3f}"
        step = f"step {format_count(run.step)}/{format_count(run.cell.steps)}"
        yield Text(f"{run.cell.name}: {step}{loss}", "yellow")
    for run in failed[:_MOST_NAMED]:
        yield Text(f"{run.cell.name} failed: {run.look.error or 'no error was written'}", "red")
    for runs, state in ((running, "running"), (failed, "failed")):
        if len(runs) > _MOST_NAMED:
            yield Text(f"and {len(runs) - _MOST_NAMED} more {state}", "dim")
    for run in status.runs:
        for note in run.look.notes:
            yield Text(f"note: {note}", "yellow")


def happening_line(happening: Happening) -> str | None:
    """Return the news of a sweep as one line; None where it needs none."""
    if isinstance(happening, Begun):
        return None
    return ended_line(happening)


def ended_line(ended: Ended) -> str:
    """Say how a run ended, and how many are done, in one line."""
    name, far = ended.cell.name, f"{ended.done}/{ended.total}"
    if ended.state == "complete":
        row = ended.look.row or {}
        return f"{far} {name}: loss {row['val_loss']:.4f}, {format_duration(ended.look.seconds)}"
    if ended.state == "failed":
        return f"{far} {name} failed: {ended.look.error}"
    if ended.state == "running":
        return f"{far} {name} is at work in another process; waiting for it"
    return f"{far} {name} was stopped{f' ({ended.words})' if ended.words else ''}; it goes on later"


def collected_text(table: Collected) -> str:
    """Say what a run table holds, and which runs are not in it."""
    total = len(table.rows) + len(table.missing)
    lines = [f"{len(table.rows)} of {total} runs in {table.path}"]
    for run in table.missing[:_MOST_NAMED]:
        error = f": {run.look.error}" if run.state == "failed" and run.look.error else ""
        lines.append(f"missing  {run.cell.name} ({run.state}){error}")
    if len(table.missing) > _MOST_NAMED:
        lines.append(f"missing  and {len(table.missing) - _MOST_NAMED} more")
    lines.append(f"next     loopworth fit {table.path}")
    return "\n".join(lines)


class SweepProgress:
    """Shows a sweep while it runs, on stderr: a board on a terminal, else a line for each news.

    stream   where to
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._live: Live | None = None
        if self._stream.isatty():
            console = Console(file=self._stream, highlight=False)
            self._live = Live(console=console, auto_refresh=False, transient=True)
            self._live.start()
        self._due = 0.0
        self._phi = ""

    @property
    def due(self) -> bool:
        """Whether it is time to draw the board again."""
        return self._live is not None and time.monotonic() >= self._due

    def draw(self, status: SweepStatus, took: float = 0.0) -> None:
        """Draw the board; `took` is what reading the status cost, which sets the pace."""
        if self._live is not None:
            shown = Group(board(status), Text(self._phi, "bold")) if self._phi else board(status)
            self._live.update(shown, refresh=True)
            self._due = time.monotonic() + max(1.0, 20 * took)

    def show_phi(self, points: Sequence[PhiPoint], *, new: bool) -> None:
        """Put phi so far below the board; where there is no board, a new one is a line."""
        if points:
            self._phi = f"phi = {interval(points[-1].estimate)} from {points[-1].runs} runs"
            if new and self._live is None:
                self.line(self._phi)

    def line(self, text: str) -> None:
        """Write a line, on a terminal above the board."""
        if self._live is not None:
            self._live.console.print(text, markup=False)
            return
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def close(self) -> None:
        """Take the board away."""
        if self._live is not None:
            self._live.stop()


def watch(folder: Path, every: float) -> None:
    """Show a sweep, every so many seconds, until it has no launcher and no run at work."""
    progress = SweepProgress(sys.stdout)
    told: dict[str, State] = {}
    try:
        while True:
            start = time.monotonic()
            status = read_status(SweepFolder(folder))
            progress.draw(status, time.monotonic() - start)
            for line in _news(status, told):
                progress.line(line)
            if status.launcher is None and not status.counts["running"]:
                break
            time.sleep(every)
    finally:
        progress.close()
    progress.line(f"{status.name}: {_counts(status)} · {spending(status)}")


def _news(status: SweepStatus, told: dict[str, State]) -> Iterable[str]:
    """Yield a line for every run that came to an end since it was told; remembers them."""
    done = status.counts["complete"]
    for run in status.runs:
        state, before = run.state, told.get(run.cell.name)
        told[run.cell.name] = state
        if state != before and state in ("complete", "failed"):
            yield ended_line(Ended(run.cell, state, run.look, done, len(status.runs)))
