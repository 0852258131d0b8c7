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
`ErrorPolicy` turns it into `error: ...` on stderr and exit code 1. Wrong usage is click's, exit
code 2: raise `click.BadParameter` or `click.UsageError`.
"""

from pathlib import Path
from typing import Any, TextIO

import click

from loopworth import __version__
from loopworth.policy import EXIT_REFUSED, ErrorPolicy, quantity

# The words of `loopworth.spec.Injection`; importing it here would slow down `--help`.
_INJECTIONS = ["none", "passthrough", "linear", "additive", "diagonal", "hyperconnections"]


@click.group(
    "loopworth",
    cls=ErrorPolicy,
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


_count_injection = click.option(
    "--injection",
    type=click.Choice(["recurrent", "once", "excluded"]),
    default="recurrent",
    help="Count the injection in N_rec, in N_once or not at all [recurrent].",
)

# The keys of `loopworth.law.GAINS`; importing them here would slow down `--help`.
_LAWS = ["none", "unrolled", "power", "bounded", "log", "affine", "free"]


@main.command()
@click.argument("runs", default="schwethelm2026")
@_count_injection
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.pass_context
def check(ctx: click.Context, runs: str, injection: Any, as_json: bool) -> None:
    """Find what is wrong with a table of runs, and name its rows.

    RUNS is what `fit` takes; a table that `fit` refuses is read as far as it can be. Looked for:
    values that cannot be, duplicates and conflicts, other units of tokens, parameters and loss,
    FLOPs that disagree with the architecture, budgets off target, diverged and under-tuned runs,
    holes in the grid, checkpoints of one run, mixed recipes, and designs that identify nothing.

    Each finding has a code, a severity, rows, evidence and a remedy. Errors: no law should be
    fitted. Warnings: a result would be doubtful. Notes: nothing to mend. The file is only read.

    \b
    Examples:
      loopworth check
      loopworth check my_runs.csv
      loopworth check - --json < my_runs.csv

    \b
    Exit codes: 0 clean or only notes, 1 warnings or errors, 2 wrong usage.
    """
    from loopworth.check import check as check_runs
    from loopworth.ledger import Convention

    report = check_runs(runs, convention=Convention(injection))
    if as_json:
        import json

        click.echo(json.dumps(report.to_json(), indent=2, allow_nan=False))
    else:
        from rich.console import Console

        from loopworth.report.check_text import check_page

        Console(highlight=False).print(check_page(report))
    if not report.clean:
        ctx.exit(EXIT_REFUSED)


@main.command()
@click.argument("runs", default="schwethelm2026")
@click.option(
    "--law",
    type=click.Choice(_LAWS),
    default="power",
    help="The gain g(r) that is fitted: r^phi, or a rival [power].",
)
@_count_injection
@click.option(
    "--bootstrap",
    type=click.IntRange(min=0),
    default=1000,
    metavar="N",
    help="Block resamples for the 95 % intervals; 0 leaves them out [1000].",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, metavar="N", help="Of the resamples [0]."
)
@click.option(
    "--against",
    "against_law",
    metavar="LAW",
    help="Hold another law against the runs: 'published', a fit.json, or constants as JSON.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Also write fit.json, tables as CSV and figures as PDF and SVG.",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
def fit(
    runs: str, law: str, injection: Any, bootstrap: int, seed: int, against_law: str | None,
    as_json: bool, out: Path | None, quiet: bool,
) -> None:  # fmt: skip
    """Fit the recurrence-equivalence law to training runs.

    RUNS is a CSV, JSON, JSON lines or Parquet file, - for standard input, or a built-in table:
    schwethelm2026 (116 runs, the default), schwethelm2026:truncated_bptt,
    schwethelm2026:hyperconnections. Each row is a run: n_once, n_rec (parameters), recurrence,
    tokens, val_loss (nats per token), or an architecture with a budget in FLOPs.

    Prints phi with its 95 % interval, what it means, rival laws, conventions, the runs of each
    recurrence and warnings that name rows. The file is only read.

    \b
    Examples:
      loopworth fit
      loopworth fit my_runs.csv --out report
      loopworth fit schwethelm2026:hyperconnections --law free
      loopworth fit my_runs.csv --against published
      loopworth fit - --json --bootstrap 0 < my_runs.csv
    """
    from loopworth.law import fit as fit_law
    from loopworth.ledger import Convention
    from loopworth.report.fit_report import FitReport
    from loopworth.report.progress import progress
    from loopworth.runs import load_runs

    if out is not None and out.exists() and any(out.iterdir()):
        raise click.BadParameter(f"{out} is not empty; name a new folder.", param_hint="--out")
    table = load_runs(runs, convention=Convention(injection))
    with progress(quiet) as tell:
        result = fit_law(table, law, bootstrap=bootstrap, seed=seed, on_progress=tell)
        report = FitReport.of(result, against_law)
        if out is not None:
            from loopworth.report.folder import write_folder

            tell("figures", 0, 1)
            write_folder(report, out)
    if as_json:
        click.echo(report.dumps(), nl=False)
        return
    from rich.console import Console

    from loopworth.report.fit_text import fit_page

    Console(highlight=False).print(fit_page(report))
    if out is not None:
        click.echo(f"Written to {out}: fit.json, tables (CSV), figures (PDF, SVG).")


@main.command()
@click.argument("base", required=False)
@click.argument("methods", nargs=-1, metavar="METHOD...")
@click.option(
    "--law",
    type=click.Choice(_LAWS[2:]),
    default="power",
    help="The gain g(r) whose constants are compared [power].",
)
@_count_injection
@click.option(
    "--without-recurrence",
    type=float,
    multiple=True,
    metavar="R",
    help="Leave the runs at R out of all tables; repeat for more.",
)
@click.option("--all-budgets", is_flag=True, help="Also use budgets that not all tables have.")
@click.option(
    "--bootstrap",
    type=click.IntRange(min=0),
    default=1000,
    metavar="N",
    help="Paired resamples for the 95 % intervals; 0 leaves them out [1000].",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, metavar="N", help="Of the resamples [0]."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
def compare(
    base: str | None, methods: tuple[str, ...], law: str, injection: Any,
    without_recurrence: tuple[float, ...], all_budgets: bool, bootstrap: int, seed: int,
    as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Compare methods with a base: the paired change of phi, of g(r) and of the loss.

    BASE and each METHOD are tables of runs as `loopworth fit` takes them, built-in names included.
    They are cut to the budgets that all share, and their (budget, recurrence) cells are resampled
    together, so that the runs they share cancel in the difference.

    Prints the change of phi with its 95 % interval and the probability of its sign, the change of g
    at each recurrence, whether the loop or the training changed, and where the change of loss at
    the largest budget comes from, in thousandths of a nat per token.

    \b
    Examples:
      loopworth compare schwethelm2026 schwethelm2026:hyperconnections
      loopworth compare mine.csv theirs.csv --without-recurrence 2 --json
    """
    if base is None or not methods:
        from loopworth.datasets import builtin_names

        raise click.UsageError(
            "Name a base and one method or more, such as: loopworth compare schwethelm2026 "
            f"schwethelm2026:hyperconnections. Built-in tables: {', '.join(builtin_names())}."
        )
    from loopworth.compare import compare as compare_tables
    from loopworth.ledger import Convention
    from loopworth.report.progress import progress

    with progress(quiet) as tell:
        found = compare_tables(
            base,
            methods,
            law=law,
            convention=Convention(injection),
            bootstrap=bootstrap,
            seed=seed,
            without_recurrence=without_recurrence,
            all_budgets=all_budgets,
            on_progress=tell,
        )
    if as_json:
        import json

        click.echo(json.dumps(found.to_json(), indent=2, allow_nan=False))
        return
    from rich.console import Console

    from loopworth.report.compare_text import compare_page

    Console(highlight=False).print(compare_page(found))


@main.command()
@click.option("--scale", type=float, metavar="S", help="Width scale: d_model = 64 S, up to 128s.")
@click.option("--width", "d_model", type=int, metavar="D", help="Width d_model, instead of S.")
@click.option(
    "--spec",
    "spec_file",
    type=click.File("r", encoding="utf-8"),
    metavar="FILE",
    help="A model spec as JSON; the other options change it.",
)
@click.option("--prelude", "n_prelude", type=int, metavar="LAYERS", help="Before the loop [2].")
@click.option("--recur", "n_recur", type=int, metavar="LAYERS", help="In the loop [4].")
@click.option("--coda", "n_coda", type=int, metavar="LAYERS", help="After the loop [2].")
@click.option("--recurrence", type=float, metavar="R", help="Passes, or their mean [4].")
@click.option(
    "--injection",
    type=click.Choice(_INJECTIONS),
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
    scale: float | None, spec_file: TextIO | None, count_injection: Any, exclude_norms: bool,
    include_embeddings: bool, budget: float | None, batch_tokens: int, as_json: bool,
    **architecture: Any,
) -> None:  # fmt: skip
    """Count parameters, FLOPs and bytes of a model, tensor by tensor.

    A visit is a pass of one token. FLOPs are per token: 6 a weight on a visit with gradient, 2 on
    one without; attention 12 d T and 4 d T. Memory is in bytes at bf16. [x] is the default.

    \b
    Examples:
      loopworth ledger --scale 10 --budget 1e18
      loopworth ledger --scale 10 --prelude 0 --recur 20 --coda 0 --recurrence 1 --injection none
      loopworth ledger --width 1280 --recurrence 8 --recur 2 --bptt-window 4 --json
    """
    from loopworth.ledger import Convention, horizon
    from loopworth.ledger import ledger as account_of
    from loopworth.spec import ModelSpec

    given = {name: value for name, value in architecture.items() if value is not None}
    if scale is not None and "d_model" in given:
        raise click.UsageError("--scale and --width both set the width; give one of them.")
    if scale is not None:
        given["d_model"] = ModelSpec.from_scale(scale).d_model
    base = ModelSpec.from_json(spec_file.read()).to_json() if spec_file else {}
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
    from rich.console import Console

    from loopworth.report.ledger_text import ledger_page

    Console(highlight=False).print(ledger_page(account, convention, reach))


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
