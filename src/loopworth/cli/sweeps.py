"""The commands of a sweep: start, status, watch, retry, stop, collect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loopworth.cli.options import as_json, quiet
from loopworth.cli.training import EXIT_STOPPED, saving
from loopworth.policy import EXIT_INTERRUPTED, EXIT_REFUSED, print_page

if TYPE_CHECKING:
    from loopworth.sweep.folder import SweepFolder

_WHOLE = click.IntRange(min=1)
FOLDER = click.Path(file_okay=False, path_type=Path)


@click.group(short_help="Do all runs of a plan: start, status, watch, retry, stop, collect.")
def sweep() -> None:
    """Do all runs of a plan, on this machine or a cluster.

    The folder of a sweep is the only truth: it can be killed at any moment and started again, and
    what is done is never done twice.

    \b
    Examples:
      loopworth sweep start recipe.py --out sweeps/mine
      loopworth sweep status sweeps/mine
      loopworth sweep collect sweeps/mine && loopworth fit sweeps/mine/runs.csv
    """


def how_to_run(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a command that starts runs."""
    options = (
        click.option("--engine", default="local", metavar="NAME",
                     help="What does them: local, slurm or ray [local]."),
        click.option("--set", "options", multiple=True, metavar="NAME=VALUE",
                     help="Of the cluster, as pack=16."),
        click.option("--workers", type=_WHOLE, metavar="N", help="Runs at once [cores, or GPUs]."),
        click.option("--threads", type=_WHOLE, default=1, metavar="N", help="CPU threads [1]."),
        click.option("--gpus", type=click.IntRange(min=0), default=0, metavar="N",
                     help="GPUs a run [1, where there are any]."),
        click.option("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or mps."),
        click.option("--memory", metavar="SIZE", help="Of a run, asked of a cluster, as 16GB."),
        click.option("--time", metavar="TIME", help="Limit of a Slurm job, as 12h."),
        click.option("--save-every", metavar="STEPS|TIME", default="1min",
                     help="Checkpoint [1min; also 500, 1h]."),
        click.option("--stack/--no-stack", default=True,
                     help="Train runs of one width together on a CPU [on]."),
        click.option("--attempts", type=_WHOLE, default=3, metavar="N",
                     help="Deaths in a row that a run may have [3]."),
    )  # fmt: skip
    command = quiet(as_json(command))
    for option in reversed(options):
        command = option(command)
    return command


@sweep.command(short_help="Do the runs of a plan, or what is left of them.")
@click.argument("recipe", required=False)
@click.option("--out", type=FOLDER, metavar="DIR", help="The folder of the sweep [sweeps/NAME].")
@click.option("--data", metavar="SOURCE", help="A prepared folder, or docstrings [docstrings].")
@click.option("--add", is_flag=True, help="Also where none of the runs is in DIR yet.")
@click.option("--print", "only_print", is_flag=True, help="Print Slurm's script; start nothing.")
@how_to_run
def start(
    recipe: str | None, out: Path | None, data: str | None, add: bool, only_print: bool,
    as_json: bool, quiet: bool, **how: Any,
) -> None:  # fmt: skip
    """Do the runs of RECIPE, or what is left of them; without RECIPE, of the sweep in DIR.

    RECIPE is as in `loopworth plan`. Started again with more budgets, widths or seeds, a sweep
    keeps what it has and does the rest. A run that fails does not stop the others. Ctrl-C saves
    every run and stops; a second one does not wait. At the end the run table is in DIR/runs.csv.

    On Slurm each run is a job of an array, which saves and is queued again where it is preempted or
    its time is up. --set pack=16 gives a job 16 runs, one after another, and --set at-once=4 four
    of them at a time; any other name is an option of sbatch: --set partition=gpu. On Ray each run
    is a task; --set address=HOST:PORT names the cluster. DIR must be seen by all machines.

    \b
    Examples:
      loopworth sweep start recipe.py --out sweeps/mine --workers 2
      loopworth sweep start --out sweeps/mine
      loopworth sweep start paper --engine slurm --gpus 8 --time 24h --print

    \b
    Exit codes: 0 all runs are complete, 1 some failed or it was refused,
    75 stopped (SIGTERM, `sweep stop`), 130 stopped by Ctrl-C.
    """
    from loopworth.sweep.folder import SweepFolder

    if recipe is not None:
        from loopworth.recipes import load_plan
        from loopworth.spec import DataSpec

        plan = load_plan(recipe, DataSpec(source=data) if data else None)
        folder = SweepFolder(out or Path("sweeps") / plan.name)
    elif out is not None:
        plan, folder = None, SweepFolder(out)
        folder.require()
    else:
        raise click.UsageError("Name a RECIPE, or with --out the folder of a sweep.")
    if only_print:
        from loopworth.sweep.slurm import script_of

        how["engine"] = "slurm" if how["engine"] == "local" else how["engine"]
        click.echo(script_of(folder, plan, *engine_of(folder.path, how)), nl=False)
        return
    _launch(folder, plan, add, how, as_json, quiet)


@sweep.command(short_help="Do the runs that failed again.")
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.argument("names", metavar="[RUN]...", nargs=-1)
@how_to_run
def retry(
    folder: Path, names: tuple[str, ...], as_json: bool, quiet: bool, **how: Any
) -> None:  # fmt: skip
    """Do the runs of DIR that failed again, or those named, from their last checkpoints.

    Where a launcher is at work it takes them; else one is started, as by `sweep start`.

    \b
    Examples:
      loopworth sweep retry sweeps/mine
    """
    from loopworth.sweep.folder import SweepFolder
    from loopworth.sweep.launch import forgive_failed

    sweep_folder = SweepFolder(folder).require()
    forgiven = forgive_failed(sweep_folder, names)
    if not quiet:
        click.echo(f"{len(forgiven)} runs to do again", err=True)
    if sweep_folder.launcher() is None:
        _launch(sweep_folder, None, False, how, as_json, quiet)


def _launch(
    folder: SweepFolder, plan: Any, add: bool, how: dict[str, Any], as_json: bool, quiet: bool
) -> None:
    """Start what is to be done in a sweep, show it, and exit with how it ended."""
    from loopworth.report.board import SweepProgress
    from loopworth.sweep.launch import run_sweep

    attempts = how["attempts"]
    engine, resources = engine_of(folder.path, how)
    progress = None if quiet else SweepProgress()
    shown: dict[str, Any] = {}
    if progress is not None:
        shown = {"tell": teller(progress), "idle": _drawer(progress, folder)}
    try:
        ended = run_sweep(
            folder, engine, resources, plan=plan, foreign=add, attempts=attempts, **shown
        )
    finally:
        if progress is not None:
            progress.close()
    if ended.grown is not None and ended.grown.added and ended.grown.reused and not quiet:
        click.echo(
            f"{ended.grown.added} runs were added, {ended.grown.reused} were there", err=True
        )
    _show_end(folder, as_json)
    click.get_current_context().exit(exit_code(folder, ended.to_the_end, ended.signal))


def engine_of(folder: Path, how: dict[str, Any]) -> tuple[Any, Any]:
    """Return the engine that the options ask for, and what it gives to each run."""
    from loopworth.quantities import parse_bytes, parse_duration
    from loopworth.sweep.engines import Resources
    from loopworth.sweep.registry import open_engine

    saving(how["save_every"])  # refused here, not by every worker
    memory, time = how["memory"], how["time"]
    resources = Resources(
        **{name: how[name] for name in ("threads", "gpus", "device", "save_every", "stack")},
        memory_bytes=None if memory is None else parse_bytes(memory),
        seconds=None if time is None else parse_duration(time),
    )
    options = dict(pair.partition("=")[::2] for pair in how["options"])
    return open_engine(how["engine"], folder, how["workers"], resources, options), resources


def teller(progress: Any) -> Callable[[Any], None]:
    """Return what tells the news of a sweep, a line each."""
    from loopworth.report.board import happening_line

    def tell(happening: Any) -> None:
        line = happening_line(happening)
        if line is not None:
            progress.line(line)

    return tell


def _drawer(progress: Any, folder: SweepFolder) -> Callable[[], None]:
    import time

    from loopworth.sweep.status import read_status

    def draw() -> None:
        if progress.due:
            start = time.monotonic()
            status = read_status(folder)
            progress.draw(status, time.monotonic() - start)

    return draw


def _show_end(folder: SweepFolder, as_json: bool) -> None:
    """Print how a sweep is after its launcher; write the table of what there is."""
    import json

    from loopworth.report.board import board, collected_text
    from loopworth.sweep.collect import collect as collect_runs
    from loopworth.sweep.status import read_status

    status = read_status(folder)
    table = collect_runs(folder) if status.counts["complete"] else None
    if as_json:
        shown = status.to_json() | {"table": None if table is None else str(table.path)}
        click.echo(json.dumps(shown, indent=2))
        return
    print_page(board(status))
    if table is not None:
        click.echo("\n" + collected_text(table))


def exit_code(folder: SweepFolder, ended: bool, signalled: int) -> int:
    """Return the exit code of a launcher: how it ended, and whether every run is complete."""
    import signal

    from loopworth.sweep.status import read_status

    if not ended:
        return EXIT_INTERRUPTED if signalled == signal.SIGINT else EXIT_STOPPED
    return 0 if read_status(folder).complete else EXIT_REFUSED


@sweep.command(short_help="Print a task file for SkyPilot: the sweep on a machine in a cloud.")
@click.argument("recipe")
@click.option("--bucket", required=True, metavar="NAME", help="Keeps the sweep: mine, s3://mine.")
@click.option("--accelerators", metavar="NAME:N", help="As H100:8 [a machine without].")
@click.option("--spot/--no-spot", default=True, help="May be taken away, and costs less [spot].")
@click.option("--threads", type=_WHOLE, default=1, metavar="N", help="CPU threads a run [1].")
@click.option("--gpus", type=click.IntRange(min=0), default=0, metavar="N",
              help="GPUs a run [1, where there are any].")  # fmt: skip
def skypilot(
    recipe: str, bucket: str, accelerators: str | None, spot: bool, threads: int, gpus: int
) -> None:
    """Print a task file for SkyPilot that does the runs of RECIPE on a machine in a cloud.

    The folder of the sweep is kept in a bucket; a machine that is taken away is replaced, and goes
    on from there.

    \b
    Examples:
      loopworth sweep skypilot paper --bucket s3://mine > task.yaml
      sky jobs launch task.yaml
    """
    from loopworth.sweep.engines import Resources
    from loopworth.sweep.skypilot import task_file

    resources = Resources(threads=threads, gpus=gpus)
    click.echo(task_file(recipe, bucket, resources, accelerators=accelerators, spot=spot), nl=False)


@sweep.command(short_help="Print how a sweep is, from its folder.")
@click.argument("folder", metavar="DIR", type=FOLDER)
@as_json
def status(folder: Path, as_json: bool) -> None:
    """Print how the sweep in DIR is: a board of budgets by recurrences, and what is spent and left.

    It is read from the folder alone, so it works on any machine that sees it.

    \b
    Examples:
      loopworth sweep status sweeps/mine
      loopworth sweep status sweeps/mine --json
    """
    import json

    from loopworth.sweep.folder import SweepFolder
    from loopworth.sweep.status import read_status

    found = read_status(SweepFolder(folder))
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
        return
    from loopworth.report.board import board

    print_page(board(found))


@sweep.command(short_help="Watch a sweep until its launcher ends.")
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("--every", type=click.FloatRange(min=0.1), default=2.0, help="Seconds [2].")
def watch(folder: Path, every: float) -> None:
    """Watch the sweep in DIR until its launcher ends; in a pipe, a line for each run that ends.

    It only reads: Ctrl-C ends the watching, not the sweep.

    \b
    Examples:
      loopworth sweep watch sweeps/mine
    """
    from loopworth.report.board import watch as watch_board
    from loopworth.sweep.folder import SweepFolder

    SweepFolder(folder).require()
    watch_board(folder, every)


@sweep.command(short_help="Save every run of a sweep and stop its launcher.")
@click.argument("folder", metavar="DIR", type=FOLDER)
def stop(folder: Path) -> None:
    """Ask the launcher of DIR, on whatever machine, to save every run and stop; wait for it.

    \b
    Examples:
      loopworth sweep stop sweeps/mine
    """
    from loopworth.sweep.folder import SweepFolder
    from loopworth.sweep.launch import stop_launcher

    if stop_launcher(SweepFolder(folder).require()):
        click.echo(f"stopped; go on with `loopworth sweep start --out {folder}`")
    else:
        click.echo(f"no launcher is at work on {folder}")


@sweep.command(short_help="Write the run table of a sweep, for fit.")
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("--to", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Another file than DIR/runs.csv.")  # fmt: skip
@as_json
def collect(folder: Path, to: Path | None, as_json: bool) -> None:
    """Write the run table of DIR, one row a complete run, and list the runs that are missing.

    The table does not depend on the order in which runs were done, on workers or interruptions.

    \b
    Examples:
      loopworth sweep collect sweeps/mine
      loopworth fit sweeps/mine/runs.csv
    """
    import json

    from loopworth.report.board import collected_text
    from loopworth.sweep.collect import collect as collect_runs
    from loopworth.sweep.folder import SweepFolder

    table = collect_runs(SweepFolder(folder).require(), to)
    if as_json:
        click.echo(json.dumps(table.to_json(), indent=2))
    else:
        click.echo(collected_text(table))
