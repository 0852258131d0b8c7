"""The command line: one function a command, flat flags, no logic.

Only click is imported at the top. Every command imports what it needs inside its function, so that
`loopworth --help` does not wait for numpy. A command is written like this:

    @click.command()
    @click.argument("runs", default="schwethelm2026")
    def fit(runs: str) -> None:
        '''One sentence. Then units and an example.'''
        from loopworth.law import fit as fit_law
        ...

and named in the list of commands below, in the order of `--help`.

A page goes to `loopworth.policy.print_page`, which knows pipes and closed streams; JSON goes to
`click.echo`. Help has 80 columns, and a sentence that the list of commands would cut gets a
`short_help`.

Errors need no code in a command: the library raises ValueError with a message for the user, and
`ErrorPolicy` turns it into `error: ...` on stderr and exit code 1. Wrong usage is click's, exit
code 2: raise `click.BadParameter` or `click.UsageError`.
"""

import click

from loopworth import __version__
from loopworth.cli.account import ledger
from loopworth.cli.data import data
from loopworth.cli.laws import check, compare, fit
from loopworth.cli.measuring import measure
from loopworth.cli.plans import plan
from loopworth.cli.running import run
from loopworth.cli.sweeps import sweep
from loopworth.cli.training import train
from loopworth.policy import ErrorPolicy


@click.group(
    "loopworth",
    cls=ErrorPolicy,
    context_settings={
        "help_option_names": ["-h", "--help"],
    },
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
      loopworth fit                      the 116 published runs in the package
      loopworth fit my_runs.csv --json   your own runs, one JSON object on stdout
      loopworth measure                  train a sweep here and measure its phi

    \b
    Exit codes: 0 done, 1 refused (the message says why), 2 wrong usage,
    130 interrupted, 141 the reader of the output left before its end.
    """


for command in (fit, measure, check, compare, ledger, plan, data, train, run, sweep):
    main.add_command(command)


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
