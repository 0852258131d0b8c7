"""Asked to stop: SIGTERM, SIGUSR1 and the first Ctrl-C are remembered until a step is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGUSR1", "SIGINT") if hasattr(signal, name)
)


class StopRequest:
    """The signal that came, if any; 0 is none."""

    def __init__(self) -> None:
        self.signal = 0

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        """Remember a signal. A second Ctrl-C does not wait for the step."""
        if number == signal.SIGINT and self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number

    @staticmethod
    def name(number: int) -> str:
        """Return the name of a signal.

        >>> StopRequest.name(15)
        'SIGTERM'
        """
        return signal.Signals(number).name


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Listen for signals until the end; only the main thread of a program can."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
