"""The commands that read runs: check, fit, compare."""

from pathlib import Path
from typing import Any

import click

from loopworth.cli.options import LAWS, count_injection, huber_delta
from loopworth.policy import EXIT_REFUSED, print_page


@click.command()
@click.argument("runs", default="schwethelm2026")
@count_injection
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.pass_context
def check(ctx: click.Context, runs: str, injection: Any, as_json: bool) -> None:
    """Find what is wrong with a table of runs, and name its rows.

    RUNS is what `fit` takes (see `loopworth fit --help`); a table that `fit` refuses is read as
    far as it can be. Looked for: values that cannot be, duplicates and conflicts, other units of
    tokens, parameters and loss, FLOPs that disagree with the architecture, budgets off target,
    diverged and badly tuned runs, holes in the grid, checkpoints of one run, mixed recipes, and
    designs that identify nothing.

    Each finding has a code, a severity, rows and a remedy; --json adds the numbers that prove it
    and lists all rows, counted from 1 below the header. Errors: no law should be fitted.
    Warnings: a result would be doubtful. Notes: nothing to mend. The file is only read.

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
        from loopworth.report.check_text import check_page

        print_page(check_page(report))
    if not report.clean:
        ctx.exit(EXIT_REFUSED)


@click.command()
@click.argument("runs", default="schwethelm2026")
@click.option(
    "--law",
    type=click.Choice(LAWS),
    default="power",
    help="The gain g(r) that is fitted: r^phi, or a rival [power].",
)
@count_injection
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
@huber_delta
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
    runs: str, law: str, injection: Any, bootstrap: int, seed: int, huber_delta: float | None,
    against_law: str | None, as_json: bool, out: Path | None, quiet: bool,
) -> None:  # fmt: skip
    """Fit the recurrence-equivalence law to training runs.

    RUNS is a CSV, JSON, JSON lines or Parquet file, - for standard input, or a built-in table.
    Each row is a run: n_once, n_rec (parameters), recurrence, tokens, val_loss (nats per token),
    or an architecture with a budget in FLOPs.

    \b
    Built-in tables:
      schwethelm2026                   116 runs, the default
      schwethelm2026:baseline          the same
      schwethelm2026:baseline_lower    its 80 runs at the four lower budgets
      schwethelm2026:truncated_bptt    gradient through r / 2 passes, 83 runs
      schwethelm2026:hyperconnections  a loop state in two lanes, 83 runs

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
    from loopworth.law.pasted import read_law
    from loopworth.ledger import Convention
    from loopworth.report.fit_report import FitReport
    from loopworth.report.folder import refuse_folder, write_folder
    from loopworth.report.progress import progress
    from loopworth.runs import load_runs

    # What would fail at the end is looked at before the work.
    if out is not None:
        try:
            refuse_folder(out)
        except ValueError as problem:
            raise click.BadParameter(str(problem), param_hint="--out") from None
    if against_law is not None:
        read_law(against_law)
    table = load_runs(runs, convention=Convention(injection))
    with progress(quiet) as tell:
        result = fit_law(
            table, law, bootstrap=bootstrap, seed=seed, huber_delta=huber_delta, on_progress=tell
        )
        report = FitReport.of(result, against_law)
        if out is not None:
            tell("figures", 0, 1)
            write_folder(report, out)
    if as_json:
        click.echo(report.dumps(), nl=False)
        return
    from loopworth.report.fit_text import fit_page

    print_page(fit_page(report))
    if out is not None:
        click.echo(f"Written to {out}: fit.json, tables (CSV), figures (PDF, SVG).")


@click.command(short_help="Compare methods with a base: change of phi, g and loss.")
@click.argument("base", required=False, metavar="BASE")
@click.argument("methods", nargs=-1, metavar="METHOD...")
@click.option(
    "--law",
    type=click.Choice(LAWS[2:]),
    default="power",
    help="The gain g(r) whose constants are compared [power].",
)
@count_injection
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
@huber_delta
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
def compare(
    base: str | None, methods: tuple[str, ...], law: str, injection: Any,
    without_recurrence: tuple[float, ...], all_budgets: bool, bootstrap: int, seed: int,
    huber_delta: float | None, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Compare methods with a base: the paired change of phi, of g(r) and of the loss.

    BASE and each METHOD are tables of runs as `loopworth fit` takes them, built-in names included
    (see `loopworth fit --help`). They are cut to the budgets that all share, and their (budget,
    recurrence) cells are resampled together, so that what they share cancels in the difference.

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
            huber_delta=huber_delta,
            on_progress=tell,
        )
    if as_json:
        import json

        click.echo(json.dumps(found.to_json(), indent=2, allow_nan=False))
        return
    from loopworth.report.compare_text import compare_page

    print_page(compare_page(found))
