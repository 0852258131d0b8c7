"""The command that counts: ledger."""

from typing import Any

import click

from loopworth.cli.options import INJECTIONS
from loopworth.policy import print_page, quantity


@click.command(short_help="Count parameters, FLOPs and bytes of a model by tensor.")
@click.option("--scale", type=float, metavar="S", help="Width scale: d_model = 64 S, up to 128s.")
@click.option("--width", "d_model", type=int, metavar="D", help="Width d_model, instead of S.")
@click.option(
    "--spec",
    "spec_file",
    metavar="FILE",
    help="A model spec as JSON, - for stdin; other options change it.",
)
@click.option("--prelude", "n_prelude", type=int, metavar="LAYERS", help="Before the loop [2].")
@click.option("--recur", "n_recur", type=int, metavar="LAYERS", help="In the loop [4].")
@click.option("--coda", "n_coda", type=int, metavar="LAYERS", help="After the loop [2].")
@click.option("--recurrence", type=float, metavar="R", help="Passes, or their mean [4].")
@click.option(
    "--injection",
    type=click.Choice(INJECTIONS),
    help="How the prelude's output enters each pass [linear].",
)
@click.option("--lanes", "n_lanes", type=int, metavar="N", help="For hyperconnections [2].")
@click.option("--bptt-window", type=int, metavar="K", help="Last passes with gradient [all].")
@click.option("--vocab", "vocab_size", type=int, metavar="TOKENS", help="Padded [32064].")
@click.option("--context", type=int, metavar="TOKENS", help="Sequence length [2048].")
@click.option("--head-dim", type=int, metavar="DIM", help="Width of a head [128].")
@click.option("--kv-heads", "n_kv_heads", type=int, metavar="N", help="GQA [as many as heads].")
@click.option("--mlp-ratio", type=float, metavar="X", help="Hidden width / d_model [4].")
@click.option(
    "--mlp-kind",
    type=click.Choice(["squared_relu", "swiglu"]),
    help="Two matrices or three [squared_relu].",
)
@click.option(
    "--tied/--untied",
    "tied_embeddings",
    default=None,
    help="The head shares the embedding's parameters [untied].",
)
@click.option(
    "--count-injection",
    type=click.Choice(["recurrent", "once", "excluded"]),
    default="recurrent",
    help="Count the injection in N_rec, N_once or not [recurrent].",
)
@click.option("--exclude-norms", is_flag=True, help="Leave norm vectors out of N.")
@click.option("--include-embeddings", is_flag=True, help="Add embedding and head to N_once.")
@click.option("--budget", type=quantity, metavar="FLOPS", help="Also print steps and tokens.")
@click.option(
    "--batch-tokens",
    type=click.IntRange(min=1),
    default=2**18,
    metavar="TOKENS",
    help="Tokens a step [262144].",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def ledger(
    scale: float | None, spec_file: str | None, count_injection: Any, exclude_norms: bool,
    include_embeddings: bool, budget: float | None, batch_tokens: int, as_json: bool,
    **architecture: Any,
) -> None:  # fmt: skip
    """Count parameters, FLOPs and bytes of a model, tensor by tensor.

    A visit is a pass of one token. FLOPs are per token: 6 a weight on a visit with gradient, 2 on
    one without; attention 12 d T and 4 d T. Memory is in bytes at bf16. [x] is the default.

    \b
    Examples:
      loopworth ledger --scale 10 --budget 1e18
      loopworth ledger --scale 10 --recur 20 --recurrence 1 --injection none
      loopworth ledger --width 1280 --recurrence 8 --bptt-window 4 --json
    """
    from loopworth.files import read_file, read_stdin
    from loopworth.ledger import Convention, horizon
    from loopworth.ledger import ledger as account_of
    from loopworth.spec import ModelSpec

    given = {name: value for name, value in architecture.items() if value is not None}
    if scale is not None and "d_model" in given:
        raise click.UsageError("--scale and --width both set the width; give one of them.")
    if scale is not None:
        given["d_model"] = ModelSpec.from_scale(scale).d_model
    base = {}
    if spec_file is not None:
        content = read_stdin() if spec_file == "-" else read_file(spec_file)
        base = ModelSpec.from_json(content.decode(errors="replace")).to_json()
    if "d_model" not in base | given:
        raise click.UsageError("The model has no width; give --scale S, --width D or --spec FILE.")
    account = account_of(ModelSpec.from_json(base | given))
    convention = Convention(count_injection, not exclude_norms, include_embeddings)
    flops = account.train_flops_per_token
    reach = None if budget is None else horizon(budget, flops, batch_tokens)
    if as_json:
        import json

        click.echo(json.dumps(account.to_json(convention, reach), indent=2))
        return
    from loopworth.report.ledger_text import ledger_page

    print_page(ledger_page(account, convention, reach))
