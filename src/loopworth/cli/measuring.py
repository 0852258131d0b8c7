"""The command from a recipe to phi: measure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loopworth.cli.sweeps import FOLDER, engine_of, exit_code, how_to_run, teller
from loopworth.policy import EXIT_REFUSED, print_page

if TYPE_CHECKING:
    from loopworth.plan import Plan
    from loopworth.sweep.folder import SweepFolder

PROBES = ["truncated_bptt", "hyperconnections", "additive", "diagonal", "passthrough"]


@click.command(short_help="Train a sweep here and measure phi from it.")
@click.argument("recipe", default="laptop")
@click.option("--preview", "size", flag_value="preview", help="36 runs of laptop, half the time.")
@click.option("--thorough", "size", flag_value="thorough", help="64 runs of laptop, to 6e11 FLOPs.")
@click.option(
    "--probe",
    "probes",
    multiple=True,
    type=click.Choice(PROBES),
    help="Also run a method on the same grid, and compare; repeat for more.",
)
@click.option("--out", type=FOLDER, metavar="DIR", help="The folder of the sweep [sweeps/RECIPE].")
@click.option("--data", metavar="SOURCE", help="A prepared folder, or docstrings [docstrings].")
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
@how_to_run
@click.pass_context
def measure(
    ctx: click.Context, /, recipe: str, size: str | None, probes: tuple[str, ...],
    out: Path | None, data: str | None, bootstrap: int, seed: int, as_json: bool, quiet: bool,
    **how: Any,
) -> None:  # fmt: skip
    """Train the runs of RECIPE, then check, fit and, with a probe, compare: from nothing to phi.

    The default, laptop, trains 48 models of 2 to 100 thousand parameters on the text that is
    installed anyway, in minutes on two cores, with no download: three budgets, four widths, r = 1,
    2, 4, 8. It shows the method at work; its phi is that of tiny models. RECIPE is as in
    `loopworth plan`, engines are as in `loopworth sweep start`.

    While runs are at work, phi is fitted again as they end, on the board and in DIR/live.html.
    Killed or stopped, the same command goes on. All tables are in DIR for fit and compare.

    \b
    Examples:
      loopworth measure
      loopworth measure --preview
      loopworth measure --probe hyperconnections
      loopworth measure my_recipe.py --engine slurm --gpus 8 --out sweeps/mine

    \b
    Exit codes: 0 measured from all runs, 1 runs are missing or phi cannot be had,
    75 stopped (SIGTERM, `sweep stop`), 130 stopped by Ctrl-C.
    """
    from loopworth.sweep.folder import SweepFolder
    from loopworth.sweep.launch import run_sweep

    plan = _plan(recipe, size, data, probes)
    folder = SweepFolder(out or Path("sweeps") / Path(recipe).stem)
    attempts = how["attempts"]
    engine, resources = engine_of(folder.path, how)
    show = _Show(folder, quiet)
    try:
        ended = run_sweep(
            folder, engine, resources, plan=plan, attempts=attempts, tell=show.tell, idle=show.idle
        )
        show.idle(ended=True)
    finally:
        show.close()
    code = exit_code(folder, ended.to_the_end, ended.signal)
    if not ended.to_the_end:
        click.echo(f"stopped; the same command goes on with {folder.path}", err=True)
        ctx.exit(code)
    ctx.exit(max(code, _report(folder, bootstrap, seed, as_json)))


def _plan(recipe: str, size: str | None, data: str | None, probes: tuple[str, ...]) -> Plan:
    """Return the runs of a recipe and of the probes on its grid."""
    from loopworth.plan import Plan
    from loopworth.recipes import load_plan
    from loopworth.recipes.probes import probe
    from loopworth.spec import DataSpec

    if size is not None:
        if recipe != "laptop":
            raise click.UsageError(f"--{size} is a size of the recipe laptop, not of {recipe}.")
        recipe = f"laptop-{size}"
    base = load_plan(recipe, DataSpec(source=data) if data else None)
    runs = [run for plan in (base, *(probe(base, name) for name in probes)) for run in plan.runs]
    return Plan(base.name, runs, base.purpose)


class _Show:
    """Shows a sweep and phi so far: on stderr, and as a page in its folder."""

    def __init__(self, folder: SweepFolder, quiet: bool) -> None:
        from loopworth.measure import PhiTrack
        from loopworth.report.board import SweepProgress

        self._folder, self._track = folder, PhiTrack(folder.path)
        self._progress = None if quiet else SweepProgress()
        self._due = 0.0
        self._named = quiet
        self.tell = (lambda _happening: None) if self._progress is None else teller(self._progress)

    def idle(self, ended: bool = False) -> None:
        """Draw what there is, where it is time."""
        import time

        from loopworth.report.live import write_live
        from loopworth.sweep.status import read_status

        start = time.monotonic()
        if start < self._due and not ended:
            return
        status = read_status(self._folder)
        point = self._track.update(status)
        page = write_live(status, self._track.points, ended=ended)
        if self._progress is not None:
            if not self._named:
                self._progress.line(f"page: {page}")
                self._named = True
            self._progress.show_phi(self._track.points, new=point is not None)
            self._progress.draw(status)
        self._due = time.monotonic() + max(1.0, 20 * (time.monotonic() - start))

    def close(self) -> None:
        """Take the board away."""
        if self._progress is not None:
            self._progress.close()


def _report(folder: SweepFolder, bootstrap: int, seed: int, as_json: bool) -> int:
    """Print what the sweep measured; return the exit code that this asks for."""
    from loopworth.measure import measured

    found = measured(folder, bootstrap=bootstrap, seed=seed)
    if as_json:
        import json

        click.echo(json.dumps(found.to_json(), indent=2, allow_nan=False))
    else:
        from loopworth.report.measure_text import measure_page, next_steps

        print_page(measure_page(found))
        click.echo(next_steps(found))
    return EXIT_REFUSED if found.refused or found.fit is None or found.fit.phi is None else 0
