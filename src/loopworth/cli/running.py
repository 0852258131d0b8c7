"""The command that does the run in a folder, and the worker that does many: run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loopworth.cli.options import as_json, quiet
from loopworth.cli.training import EXIT_STOPPED, saving
from loopworth.policy import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from loopworth.spec import RunSpec
    from loopworth.sweep.run import Outcome

_WHOLE = click.IntRange(min=1)


@click.command(short_help="Do the run in a folder, or what is left of it.")
@click.argument(
    "folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path), required=False
)
@click.option("--worker", is_flag=True, help="Do many: jobs come in on stdin, as JSON lines.")
@click.option(
    "--threads", type=_WHOLE, metavar="N", help="CPU threads [torch's; 1 below width 128]."
)
@click.option("--device", default="auto", metavar="NAME", help="auto, cpu, cuda, cuda:N or mps.")
@click.option(
    "--save-every", metavar="STEPS|TIME", default="10min", help="Checkpoint [10min; also 500, 1h]."
)
@click.option(
    "--stack/--no-stack", default=True,
    help="Train small runs on a CPU as stacks, as sweeps do [on].",
)  # fmt: skip
@as_json
@quiet
@click.pass_context
def run(
    ctx: click.Context, /, folder: Path | None, worker: bool, threads: int | None, device: str,
    save_every: str, stack: bool, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Do the run in DIR, or what is left of it.

    DIR holds spec.json, as in a sweep. A complete run returns at once; an interrupted one goes on
    from its last checkpoint, on one process bit for bit; one that a living process works on is
    refused, also where that is on another machine. status.json says how it went. On a CPU a small
    run is trained as a stack of one, which gives the numbers that it has in a sweep.

    \b
    Examples:
      loopworth run sweeps/paper/runs/baseline-1e18-d640-r4-seed42-0a1b2c3d

    \b
    Exit codes: 0 complete, 1 refused or failed (the message says why),
    2 wrong usage, 75 stopped by SIGTERM or SIGUSR1 with a checkpoint,
    130 the same by Ctrl-C.
    """
    if worker == (folder is not None):
        raise click.UsageError("Give either DIR, or --worker.")
    machine = {"threads": threads, "device": device, **saving(save_every)}
    if worker:
        ctx.exit(_serve(machine, stack))
    assert folder is not None
    ctx.exit(_run_one(folder, machine, stack, as_json, quiet))


def _serve(machine: dict[str, Any], stack: bool) -> int:
    """Do the runs that a launcher hands in."""
    import faulthandler

    from loopworth.sweep.worker import Worker, private_streams

    faulthandler.enable()  # a crash leaves its place in the worker's log
    source, answers = private_streams()
    work = _Trainer(machine, stack, None)
    work.warm_up()  # before any run is claimed
    return Worker(source, answers, work, _lost).serve()


def _run_one(folder: Path, machine: dict[str, Any], stack: bool, as_json: bool, quiet: bool) -> int:
    import json
    import os

    from loopworth.report.train_text import TrainProgress, result_page
    from loopworth.sweep.files import read_object
    from loopworth.sweep.run import look, run_folder

    progress = None if quiet else TrainProgress()
    work = _Trainer(machine, stack, progress)
    if os.environ.get("RANK", "0") != "0":  # torchrun: the first process speaks for all
        from loopworth.spec import RunSpec

        spec = RunSpec.from_json((folder / "spec.json").read_text(encoding="utf-8"))
        complete = look(folder, spec.content_hash()[:16]).state == "complete"  # the first is gone
        return 0 if complete or work.alone(folder, spec) else EXIT_STOPPED
    try:
        state = run_folder(folder, work, _lost)
    finally:
        if progress is not None:
            progress.close()
    row = read_object(folder / "result.json") if state == "complete" else None
    if as_json:
        click.echo(json.dumps({"state": state, "out": str(folder), "result": row}, indent=2))
    elif row is not None:
        click.echo(result_page(str(folder), row))
    if state == "complete":
        return 0
    return EXIT_INTERRUPTED if work.reason == "SIGINT" else EXIT_STOPPED


class _Trainer:
    """Trains runs on a machine that is measured once.

    stack   small runs on a CPU go through `train_stack`, also one alone: its numbers are the same
            bit for bit whatever runs are beside it, so they do not depend on how a sweep went
    """

    def __init__(self, machine: dict[str, Any], stack: bool, watch: Any) -> None:
        self.machine, self.stack, self.watch = machine, stack, watch
        self.reason: str | None = None

    def __call__(
        self, runs: Mapping[Path, RunSpec], ended: Callable[[Path, Outcome], None]
    ) -> None:
        """Train runs in their folders; say of each how it ended."""
        if self._stacks(runs):
            self._together(runs, ended)
            return
        for path, run in runs.items():
            try:
                complete = self.alone(path, run)
            except (ValueError, OSError) as problem:
                ended(path, problem)
                continue
            ended(path, complete)
            if not complete:
                return

    def alone(self, path: Path, run: RunSpec) -> bool:
        """Train a run by itself; say whether it is complete."""
        from loopworth.train import Machine, train

        result = train(run, path, Machine(**self.machine), self.watch)
        self.reason = result.reason
        return result.complete

    def _together(
        self, runs: Mapping[Path, RunSpec], ended: Callable[[Path, Outcome], None]
    ) -> None:
        from loopworth.train import Finished, Machine, Stopped
        from loopworth.train.saving import Diverged
        from loopworth.train.stack import train_stack
        from loopworth.train.stopping import SIGNALS

        def tell(path: Path, event: Any) -> None:
            asked = isinstance(event, Stopped) and event.reason in [each.name for each in SIGNALS]
            if isinstance(event, Stopped) and not asked:
                ended(path, Diverged(event.reason))
                return
            if self.watch is not None:
                self.watch(event)
            if isinstance(event, Finished):
                ended(path, True)
            elif asked:
                self.reason = event.reason
                ended(path, False)

        threads = self.machine["threads"] or 1  # a second one would wait more than work
        machine = Machine(**self.machine | {"threads": threads})
        train_stack(list(runs.values()), list(runs), machine, tell)

    def _stacks(self, runs: Mapping[Path, RunSpec]) -> bool:
        """Return whether runs are trained by `train_stack`: not under torchrun, which sets RANK."""
        import os

        from loopworth.plan.stacking import stack_key

        fit = all(stack_key(run) is not None for run in runs.values())
        return self.stack and fit and "RANK" not in os.environ and self._on_cpu()

    def _on_cpu(self) -> bool:
        import torch

        device = self.machine["device"]
        return device == "cpu" or (device == "auto" and not torch.cuda.is_available())

    def warm_up(self) -> None:
        """Import what training needs, and measure a CPU, which every run would else do anew."""
        from loopworth.train import train

        assert train is not None  # imported when it is named
        if self.stack:
            import loopworth.train.stack  # noqa: F401
        self.machine["peak_flops"] = self._peak()

    def _peak(self) -> float | None:
        import torch

        from loopworth.train.machine import measured_gemm

        accelerated = torch.cuda.is_available() or torch.backends.mps.is_available()
        if self.machine["device"] not in (("cpu",) if accelerated else ("auto", "cpu")):
            return None
        if self.machine["threads"]:
            torch.set_num_threads(self.machine["threads"])
        return measured_gemm()


def _lost(message: str) -> None:
    """End at once where another process has taken the folder: two must not write to it."""
    import os

    click.echo(f"error: {message}; this one ends", err=True)
    os._exit(EXIT_STOPPED)
