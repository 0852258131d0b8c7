"""The manners of the command line: exit codes, errors in one message, quantities as options."""

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click

EXIT_REFUSED = 1  # the data or the question does not allow an answer, or a file cannot be used
EXIT_INTERRUPTED = 130  # what a shell reports for Ctrl-C


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
            sys.exit(_exit_code(run))
        return run()


def _exit_code(run: Callable[[], Any]) -> int:
    """Run a command and report what went wrong, in one message on stderr."""
    try:
        result = run()
        if sys.stdout is not None:  # None under `>&-`
            sys.stdout.flush()  # a closed pipe must show here, not while the interpreter shuts down
    except click.ClickException as problem:
        problem.show()
        return problem.exit_code
    except click.Abort:  # Ctrl-C, or "no" to a question
        click.echo("interrupted", err=True)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough: `loopworth fit | head`
        _drop_stdout()
        return EXIT_REFUSED
    except Exception as problem:
        if os.environ.get("LOOPWORTH_DEBUG") == "1":
            import traceback

            traceback.print_exc()
        click.echo(f"error: {_in_words(problem)}", err=True)
        return EXIT_REFUSED
    return result if isinstance(result, int) else 0  # click hands back the code of `ctx.exit(code)`


def _in_words(problem: Exception) -> str:
    """Say what went wrong without a traceback."""
    if isinstance(problem, OSError) and problem.strerror:
        return f"{problem.filename}: {problem.strerror}" if problem.filename else problem.strerror
    if isinstance(problem, (ValueError, OSError)) and str(problem):
        return str(problem)
    return (
        f"{type(problem).__name__}: {problem}\n"
        "This is a defect in loopworth. Please report it with the command you ran and the output "
        "of the same command under LOOPWORTH_DEBUG=1."
    )


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
