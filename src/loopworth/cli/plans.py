"""The commands before and around a sweep: plan."""

import click

from loopworth.cli.options import as_json
from loopworth.policy import print_page


@click.command(short_help="Print the runs of a sweep and what they cost.")
@click.argument("recipe", default="paper")
@click.option("--device", "on", default="h100", metavar="NAME", help="What it runs on [h100].")
@click.option(
    "--utilisation",
    type=click.FloatRange(0, 1, min_open=True),
    metavar="SHARE",
    help="Of the device's peak, as you measured it [0.4, assumed].",
)
@click.option(
    "--price", type=click.FloatRange(min=0), metavar="USD", help="An hour [the device's, assumed]."
)
@click.option("--data", metavar="SOURCE", help="A prepared folder, or docstrings [docstrings].")
@click.option("--csv", "as_csv", is_flag=True, help="A header and one line a run on stdout.")
@as_json
def plan(
    recipe: str, on: str, utilisation: float | None, price: float | None, data: str | None,
    as_csv: bool, as_json: bool,
) -> None:  # fmt: skip
    """Print the runs of a sweep, and what they cost, before anything is spent.

    RECIPE is paper (116 runs), paper-truncated, paper-hyperconnections, paper-ablations,
    paper-extrapolation, laptop (48 runs of a 2-core machine), or a Python file that defines
    recipe(data) and returns runs.

    Parameters N_once and N_rec, tokens and FLOPs are exact (see `loopworth ledger`); hours and
    money (US dollars) rest on the utilisation and the price. Exit code 1 where a run cannot fit.

    \b
    Examples:
      loopworth plan paper
      loopworth plan paper-truncated --device h200 --utilisation 0.5
      loopworth plan paper --csv > plan.csv
    """
    if as_csv and as_json:
        raise click.UsageError("--csv and --json are two forms of the output; give one of them.")
    from loopworth.plan.cost import cost
    from loopworth.recipes import load_plan
    from loopworth.spec import DataSpec

    made = load_plan(recipe, DataSpec(source=data) if data else None)
    price_of = cost(made, on, utilisation=utilisation, price=price)
    if as_json:
        import json

        click.echo(json.dumps(made.to_json() | {"cost": price_of.to_json()}, indent=2))
    elif as_csv:
        click.echo(made.to_csv(), nl=False)
    else:
        from loopworth.report.plan_text import plan_page

        print_page(plan_page(made, price_of))
    if price_of.findings:
        click.get_current_context().exit(1)
