"""A run while it trains, and what came of it, as text: one line that renews itself, or plain lines.

On a terminal the line says how far the run is, its loss, how fast it is and when it will end. In a
pipe or a log there is a line at times instead, and none that is written over.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from loopworth.quantities import format_count, format_duration, format_flops, format_quantity
from loopworth.train.events import (
    Event,
    Finished,
    Noted,
    Saved,
    Started,
    Stepped,
    Stopped,
    Validated,
)

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_FRAMES = 0.1
_BAR = 20


class TrainProgress:
    """Writes a run's events to stderr. Use it as a run's `watch`.

    stream   where to; a terminal gets the line that renews itself
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._said = 0.0
        self._line = ""

    def __call__(self, event: Event) -> None:
        """Show an event."""
        if isinstance(event, Stepped):
            self._step(event)
            return
        text = told(event)
        if text:
            self._say(text)

    def _step(self, event: Stepped) -> None:
        """Renew the line, or write one where enough time has passed."""
        now = time.monotonic()
        pause = _SECONDS_BETWEEN_FRAMES if self._live else _SECONDS_BETWEEN_LINES
        if now - self._said < pause and event.step < event.steps:
            return
        self._said = now
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._line = f"{_bar(event)} {step_line(event)}"[:width]
            self._stream.write(f"\r\x1b[K{self._line}")
        else:
            self._stream.write(f"{step_line(event)}\n")
        self._stream.flush()

    def _say(self, text: str) -> None:
        """Write a line of its own, above the one that renews itself."""
        self._stream.write(f"\r\x1b[K{text}\n{self._line}" if self._live else f"{text}\n")
        self._stream.flush()

    def close(self) -> None:
        """Leave the line as it is and go to the next."""
        if self._line:
            self._stream.write("\n")
            self._line = ""
            self._stream.flush()


def _bar(event: Stepped) -> str:
    full = round(_BAR * event.step / event.steps)
    return "━" * full + "╌" * (_BAR - full)


def step_line(event: Stepped) -> str:
    """Write how far a run is, in one line.

    >>> print(step_line(Stepped(5, 10, 2.5, 2e4, 5e10, 0.31, 12.0, 61.0, {})))
    step 5/10 · loss 2.500 · 20K tokens/s · 5e10 FLOP/s · 31 % of peak · 1 min 1 s left
    """
    parts = [
        f"step {event.step}/{event.steps}",
        f"loss {event.loss:.3f}",
        f"{format_quantity(event.tokens_per_second)} tokens/s",
        f"{format_flops(event.flops_per_second)} FLOP/s",
    ]
    if event.utilisation is not None:
        parts.append(f"{100 * event.utilisation:.0f} % of peak")
    if event.eta_seconds is not None and event.step < event.steps:
        parts.append(f"{format_duration(event.eta_seconds)} left")
    return " · ".join(parts)


def told(event: Event) -> str:
    """Write an event that is no step as one line; empty where it needs none.

    >>> told(Validated(5, 10, 2.25, 1.5))
    'step 5/10 · validation 2.2500 nats per token, 1.5000 bits per byte'
    """
    match event:
        case Started():
            return _started(event)
        case Validated():
            return (
                f"step {event.step}/{event.steps} · validation {event.val_loss:.4f} nats per "
                f"token, {event.bits_per_byte:.4f} bits per byte"
            )
        case Saved():
            return f"saved step {event.step}"
        case Noted():
            return f"note: {event.message}"
        case Stopped():
            return (
                f"stopped by {event.reason} at step {event.step} of {event.steps}, which is saved; "
                "run the same command to go on"
            )
        case Finished(already=True):
            return f"{event.result.out} is complete already"
        case _:
            return ""


def _started(event: Started) -> str:
    where = event.device
    if event.processes > 1:
        where = f"{event.processes} processes of {event.device} ({event.parallel})"
    passes = f", {event.accumulation} passes a step" if event.accumulation > 1 else ""
    begin = f"going on at step {event.step} of" if event.step else "training"
    return (
        f"{begin} {format_count(event.steps)} steps: {format_quantity(event.tokens)} tokens "
        f"({event.epochs:.2f} epochs), {format_flops(event.flops)} FLOPs, "
        f"{format_quantity(event.parameters)} parameters on {where}{passes}"
    )


def result_page(out: str, row: Mapping[str, Any]) -> str:
    """Write the result of a run in a few lines.

    >>> row = {"val_loss": 2.25, "val_bits_per_byte": 1.5, "recurrence": 4, "n_once": 98752,
    ...        "n_rec": 57472, "tokens": 122880, "flops": 2.9e11, "seconds": 6.5}
    >>> print(result_page("runs/tiny", row))
    validation loss  2.2500 nats per token, 1.5000 bits per byte
    model            r = 4, N_once 98,752, N_rec 57,472
    training         122,880 tokens, 2.9e11 FLOPs, 6.5 s
    folder           runs/tiny
    """
    loss, bits = row["val_loss"], row["val_bits_per_byte"]
    counts = f"N_once {format_count(row['n_once'])}, N_rec {format_count(row['n_rec'])}"
    spent = f"{format_flops(row['flops'])} FLOPs, {format_duration(row['seconds'])}"
    return "\n".join(
        (
            f"validation loss  {loss:.4f} nats per token, {bits:.4f} bits per byte",
            f"model            r = {format_quantity(row['recurrence'])}, {counts}",
            f"training         {format_count(row['tokens'])} tokens, {spent}",
            f"folder           {out}",
        )
    )
