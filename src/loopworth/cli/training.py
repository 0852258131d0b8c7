"""The command that trains one run: train."""

from pathlib import Path
from typing import Any

import click

from loopworth.cli.options import as_json, quiet
from loopworth.policy import EXIT_INTERRUPTED

EXIT_STOPPED = 75  # EX_TEMPFAIL: nothing is wrong, do it again

_WHOLE = click.IntRange(min=1)


@click.command(short_help="Train one run: start it, resume it, or show its result.")
@click.argument("spec")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The folder of the run [runs/NAME-HASH].",
)
@click.option("--device", default="auto", metavar="NAME", help="auto, cpu, cuda, cuda:N or mps.")
@click.option(
    "--threads", type=_WHOLE, metavar="N", help="CPU threads [torch's; 1 below width 128]."
)
@click.option(
    "--micro-batch", "micro_batch_rows", type=_WHOLE, metavar="ROWS",
    help="Rows of a pass on one device [from the memory].",
)  # fmt: skip
@click.option(
    "--compile/--no-compile", "compiled", default=None, help="Compile the blocks [on a GPU]."
)
@click.option(
    "--checkpoint-activations", is_flag=True, help="Recompute each recurrence: less memory."
)
@click.option(
    "--parallel", type=click.Choice(["auto", "ddp", "fsdp2"]), default="auto",
    help="Under torchrun: copies or shards [copies, unless they do not fit].",
)  # fmt: skip
@click.option("--deterministic/--fast", default=None, help="Only deterministic kernels [on a CPU].")
@click.option("--log-every", type=_WHOLE, metavar="STEPS", help="Report [1; 10 on a GPU].")
@click.option("--eval-every", type=_WHOLE, metavar="STEPS", help="Validate [at the end only].")
@click.option(
    "--save-every", metavar="STEPS|TIME", default="10min", help="Checkpoint [10min; also 500, 1h]."
)
@click.option("--keep", type=_WHOLE, default=2, metavar="N", help="Checkpoints that stay [2].")
@click.option(
    "--track", "trackers", multiple=True, type=click.Choice(["tensorboard", "trackio", "wandb"]),
    help="Also send metrics there; may be repeated.",
)  # fmt: skip
@click.option("--print", "only_print", is_flag=True, help="Print the spec as JSON and stop.")
@as_json
@quiet
@click.pass_context
def train(
    ctx: click.Context, /, spec: str, out: Path | None, compiled: bool | None, save_every: str,
    only_print: bool, as_json: bool, quiet: bool, **machine: Any,
) -> None:  # fmt: skip
    """Train one run: start it, resume it, or show the result that is there.

    SPEC is a JSON or TOML file with the fields of a run, the folder of a run to go on with, or
    tiny: a minute on a laptop, bytes of the built-in text, 4 recurrences.

    All files of a run are in its folder: spec.json, metrics.jsonl, checkpoint/, environment.json
    and, at the end, result.json, a row for `loopworth fit`. A folder belongs to one spec. The same
    command goes on where the run was killed, on one process bit for bit. SIGTERM, SIGUSR1 and
    Ctrl-C save a checkpoint after the step.

    Several devices or machines, with one folder that all of them see:

      torchrun --nproc-per-node 8 -m loopworth train SPEC --out DIR

    \b
    Examples:
      loopworth train tiny
      loopworth train tiny --print > my.json
      loopworth train my.json --out runs/mine --eval-every 100

    \b
    Exit codes: 0 complete, 1 refused or failed (the message says why),
    2 wrong usage, 75 stopped by SIGTERM or SIGUSR1 with a checkpoint,
    130 the same by Ctrl-C.
    """
    import json
    import os

    from loopworth.recipes.single import load_run

    name, run, folder = load_run(spec)
    if only_print:
        click.echo(json.dumps(run.to_json(), indent=2))
        return
    place = out or folder or Path("runs") / f"{name}-{run.content_hash()[:8]}"
    result = _train(run, place, {"compile": compiled, **saving(save_every), **machine}, quiet)
    speaks = os.environ.get("RANK", "0") == "0"  # torchrun starts this command several times
    if as_json and speaks:
        click.echo(json.dumps(result.to_json(), indent=2))
    elif result.complete and speaks:
        from loopworth.report.train_text import result_page

        click.echo(result_page(str(result.out), result.row))
    if not result.complete:
        ctx.exit(EXIT_INTERRUPTED if result.reason == "SIGINT" else EXIT_STOPPED)


def _train(run: Any, out: Path, choices: dict[str, Any], quiet: bool) -> Any:
    from loopworth.report.train_text import TrainProgress
    from loopworth.train import Machine
    from loopworth.train import train as train_run

    progress = None if quiet else TrainProgress()
    try:
        return train_run(run, out, Machine(**choices), progress)
    finally:
        if progress is not None:
            progress.close()


def saving(text: str) -> dict[str, Any]:
    """Read steps, or a duration, into the two fields of a machine."""
    from loopworth.quantities import parse_duration

    if text.isdecimal():
        return {"save_every": int(text), "save_seconds": None}
    try:
        return {"save_seconds": parse_duration(text)}
    except ValueError as problem:
        raise click.BadParameter(
            f"{problem}; use steps, such as 500, or a duration, such as 10min",
            param_hint="--save-every",
        ) from None
