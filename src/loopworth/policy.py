"""The manners of the command line: exit codes, errors in one message, pages in 80 columns."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from rich.console import RenderableType

EXIT_REFUSED = 1  # the data or the question does not allow an answer, or a file cannot be used
EXIT_INTERRUPTED = 130  # what a shell reports for Ctrl-C
EXIT_UNREAD = 141  # what a shell reports for cat or grep when the reader of a pipe has left

_WIDTH = 80  # columns of every page and message
_WIDEST = 100  # lines longer than this are hard to read, however wide the terminal


class ErrorPolicy(click.Group):
    """A group whose user never sees a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Show the commands in the order of this file."""
        return list(self.commands)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line and exit: 0 done, 1 refused, 2 wrong usage, 130 interrupted."""
        run = partial(super().main, args, prog_name, complete_var, standalone_mode=False, **extra)
        if standalone_mode:
            _leave(_exit_code(run))
        return run()


def _exit_code(run: Callable[[], Any]) -> int:
    """Run a command and report what went wrong, in one message on stderr."""
    for stream in (sys.stdout, sys.stderr):  # None where closed, as under `2>&-`
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a page must not fail on a character of a name
    stdout = sys.stdout
    try:
        result = run()
        if sys.stdout is not None:
            sys.stdout.flush()  # a closed pipe must show here, not while the interpreter shuts down
    except click.ClickException as problem:
        said = io.StringIO()
        problem.show(said)
        _say(said.getvalue().rstrip("\n"))
        return problem.exit_code
    except click.Abort:  # Ctrl-C, or "no" to a question
        _say("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough: `loopworth fit | head`
        _drop_stdout()
        return EXIT_UNREAD
    except SystemExit as stop:
        if sys.stdout is stdout:
            raise  # a command's own
        sys.stdout = stdout  # click met the broken pipe first: it swaps the stream and exits with 1
        _drop_stdout()
        return EXIT_UNREAD if stop.code else 0
    except Exception as problem:
        if os.environ.get("LOOPWORTH_DEBUG") == "1":
            import traceback

            traceback.print_exc()
        _say(f"error: {_in_words(problem)}")
        return EXIT_REFUSED
    return result if isinstance(result, int) else 0  # click hands back the code of `ctx.exit(code)`


def _leave(code: int) -> NoReturn:
    """Exit; one of several processes at work together without the end of the interpreter.

    DDP keeps the threads of gloo alive past the end of the group. One that lets go of a tensor
    while the interpreter ends aborts the process, and torchrun calls a finished run failed.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or nobody reads
            stream.flush()
    os._exit(code)


def _say(message: str) -> None:
    """Write a message to stderr in 80 columns; long words such as paths stay whole.

    Control characters, as in the name of a file or a column, are written out: they would move the
    cursor or colour what follows.
    """
    message = "".join(x if x.isprintable() or x == "\n" else ascii(x)[1:-1] for x in message)
    wrap = partial(textwrap.wrap, width=_WIDTH, break_long_words=False, break_on_hyphens=False)
    lines = [part for line in message.split("\n") for part in wrap(line) or [""]]
    try:
        click.echo("\n".join(lines), err=True)
    except OSError:  # nobody listens on stderr; the exit code still tells
        return


def _in_words(problem: Exception) -> str:
    """Say what went wrong without a traceback."""
    if isinstance(problem, OSError) and problem.strerror:
        return f"{problem.filename}: {problem.strerror}" if problem.filename else problem.strerror
    if isinstance(problem, (ValueError, OSError)) and str(problem):
        return str(problem)
    if isinstance(problem, MemoryError):
        return f"there is not enough memory for this ({problem}); ask for less at a time"
    if isinstance(problem, OverflowError):
        return f"a number is beyond what can be counted with ({problem}); use smaller ones"
    return (
        f"{type(problem).__name__}: {problem}\n"
        "This is a defect in loopworth. Please report it with the command you ran and the output "
        "of the same command under LOOPWORTH_DEBUG=1."
    )


def print_page(page: RenderableType) -> None:
    """Print a page: in colour on a terminal, else as 80 columns of text without trailing blanks."""
    from rich.console import Console

    console = Console(highlight=False)
    if console.is_terminal:
        console.width = max(_WIDTH, min(console.width, _WIDEST))
        console.print(page)
        return
    console.width = _WIDTH
    with console.capture() as written:
        console.print(page)
    click.echo("\n".join(line.rstrip() for line in written.get().split("\n")), nl=False)


def _drop_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush stays silent."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def quantity(text: str | float) -> float:
    """Read an option such as 2e9, 1.3B or 4.64e18; use it as `type=quantity`."""
    from loopworth.quantities import parse_quantity

    try:
        return parse_quantity(str(text))
    except ValueError as problem:
        raise click.BadParameter(str(problem)) from None
