"""Progress on stderr: a bar on a terminal, one plain line a stage elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Tell = Callable[[str, int, int], None]


@contextmanager
def progress(quiet: bool = False) -> Iterator[Tell]:
    """Yield a function to be told (stage, done, total); nothing is ever written to stdout."""
    if quiet or sys.stderr is None:  # None where it is closed, as under `2>&-`
        yield lambda _stage, _done, _total: None
    elif sys.stderr.isatty():
        yield from _bar()
    else:
        yield _plain()


def _plain() -> Tell:
    said: set[str] = set()

    def tell(stage: str, _done: int, _total: int) -> None:
        if stage not in said:
            said.add(stage)
            with suppress(OSError):  # a reader of stderr that left must not end the work
                print(f"... {stage}", file=sys.stderr, flush=True)  # noqa: T201

    return tell


def _bar() -> Iterator[Tell]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<22}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def tell(stage: str, done: int, total: int) -> None:
            # A stage that is told only its start has no measure of its own.
            bar.update(task, description=stage, completed=done, total=total if done else None)

        yield tell
