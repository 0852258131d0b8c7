"""The command line: one function a command, flat flags, no logic.

Only click is imported at the top. Every command imports what it needs inside its function, so that
`loopworth --help` does not wait for numpy. A command is written like this:

    @main.command()
    @click.argument("runs", default="schwethelm2026")
    def fit(runs: str) -> None:
        '''One sentence. Then units and an example.'''
        from loopworth.law import fit as fit_law
        ...

Errors need no code in a command: the library raises ValueError with a message for the user, and
`_ErrorPolicy` turns it into `error: ...` on stderr and exit code 1. Wrong usage is click's, exit
code 2: raise `click.BadParameter` or `click.UsageError`.
"""

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click

from loopworth import __version__

EXIT_REFUSED = 1  # the data or the question does not allow an answer, or a file cannot be used
EXIT_INTERRUPTED = 130  # what a shell reports for Ctrl-C


class _ErrorPolicy(click.Group):
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


@click.group(
    "loopworth",
    cls=_ErrorPolicy,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="loopworth %(version)s")
def main() -> None:
    """Measure what a recurrence is worth in a looped language model.

    A looped model runs one block of layers r times. loopworth fits the law

      L = E + A * (N_once + r^phi * N_rec)^-alpha + B * D^-beta

    to training runs and reports phi with its interval: phi = 1 means that a recurrence is worth as
    much as a layer with weights of its own, phi = 0 that it adds nothing.

    Units: loss L in nats per token, D in training tokens, N in parameters, budgets in FLOPs.
    Quantities can be written 2e9, 1.3B or 4.64e18.

    \b
    Examples:
      loopworth fit                      the 116 published runs that come with the package
      loopworth fit my_runs.csv --json   your own runs, one JSON object on stdout

    \b
    Exit codes: 0 done, 1 refused (the message says why), 2 wrong usage, 130 interrupted.
    """


# `completion` stays the last command of the file, and of `--help`.
@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Examples:
      loopworth completion bash >> ~/.bashrc
      loopworth completion fish > ~/.config/fish/completions/loopworth.fish
    """
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    assert script is not None  # the choice above lists only shells that click knows
    click.echo(script(main, {}, "loopworth", "_LOOPWORTH_COMPLETE").source())
