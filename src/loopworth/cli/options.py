"""Options that several commands share, and the words they choose from.

The words are those of the library, written again here: importing it would slow down `--help`.
"""

import click

INJECTIONS = ["none", "passthrough", "linear", "additive", "diagonal", "hyperconnections"]
LAWS = ["none", "unrolled", "power", "bounded", "log", "affine", "free"]

count_injection = click.option(
    "--injection",
    type=click.Choice(["recurrent", "once", "excluded"]),
    default="recurrent",
    help="Count the injection in N_rec, in N_once or not at all [recurrent].",
)
huber_delta = click.option(
    "--huber-delta",
    type=click.FloatRange(min=0, min_open=True),
    metavar="X",
    help="Log residual from which a run counts linearly [0.001].",
)
as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
quiet = click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
