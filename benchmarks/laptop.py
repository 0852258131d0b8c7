"""Measure the laptop sweep: CPU seconds of its stacks against runs trained alone. Markdown.

Of every width some steps are trained, stacked and alone in turns, so that a busy machine slows
both; the time of a step is a median, free of start-up. What a stack takes follows from its steps.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from loopworth.data import open_data
from loopworth.plan.stacking import stacks
from loopworth.recipes import load_plan
from loopworth.spec import RunSpec
from loopworth.train import Machine, Stepped, train
from loopworth.train.environment import cpu_name
from loopworth.train.stack import StackWatch, train_stack

ALONE = Machine(device="cpu", threads=1, peak_flops=1e12, save_seconds=None)
STACKED = replace(ALONE, log_every=5)  # by default 20, which costs a little less


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="laptop")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--widths", type=int, nargs="*", help="default: all of the recipe")
    options = parser.parse_args()
    torch.set_num_threads(1)
    plan = load_plan(options.recipe)
    groups = [[plan.runs[i] for i in places] for places in stacks([p.run for p in plan.runs])]
    open_data(plan.runs[0].run.data)
    print(
        f"{cpu_name()}, 1 thread, Python {platform.python_version()}, torch {torch.__version__}\n"
    )
    print("| width | stacked, ms a step | alone, ms a step of all | ratio |")
    print("|---|---|---|---|")
    rates: dict[int, tuple[float, float]] = {}
    for group in groups:
        width = group[0].run.model.d_model
        if width in rates or (options.widths and width not in options.widths):
            continue
        rates[width] = _rates([planned.run for planned in group], options)
        stacked, alone = rates[width]
        print(f"| {width} | {stacked * 1e3:.1f} | {alone * 1e3:.1f} | {alone / stacked:.1f} |")
    print("\n| budget | width | steps | stacked, CPU s | alone, CPU s |\n|---|---|---|---|---|")
    totals = [0.0, 0.0]
    for group in groups:
        run = group[0].run
        if run.model.d_model not in rates:
            continue
        steps = [planned.horizon.steps for planned in group]
        stacked, alone = rates[run.model.d_model]
        found = max(steps) * stacked, sum(steps) / len(steps) * alone
        totals = [total + part for total, part in zip(totals, found, strict=True)]
        print(
            f"| {run.budget_flops:.3g} | {run.model.d_model} | {max(steps):,} | {found[0]:.0f} | "
            f"{found[1]:.0f} |"
        )
    print(f"| all | | | {totals[0]:.0f} | {totals[1]:.0f} |")


def _rates(runs: Sequence[RunSpec], options: argparse.Namespace) -> tuple[float, float]:
    """Return CPU seconds of a step of all runs, stacked and alone."""
    stacked: list[float] = []
    alone: list[list[float]] = [[] for _ in runs]
    short = [replace(run.replace(steps=options.steps), validation_tokens=4096) for run in runs]
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as place:
            folder, marks = Path(place), Marks()
            outs = [folder / str(k) for k in range(len(runs))]
            train_stack(short, outs, STACKED, marks.stack(outs[0]))
            stacked += marks.per_step()
            for k, run in enumerate(short):
                marks = Marks()
                train(run, folder / f"alone{k}", ALONE, marks)
                alone[k] += marks.per_step()
    return statistics.median(stacked), sum(statistics.median(each) for each in alone)


class Marks:
    """CPU time at each report of a run."""

    def __init__(self) -> None:
        self.marks: list[tuple[int, float]] = []

    def stack(self, first: Path) -> StackWatch:
        """Return a watch of a stack that listens to its first run."""
        return lambda out, event: self(event) if out == first else None

    def __call__(self, event: object) -> None:
        """Note a report."""
        if isinstance(event, Stepped):
            self.marks.append((event.step, time.process_time()))

    def per_step(self) -> list[float]:
        """Return seconds a step between reports; the first are the warm-up."""
        pairs = zip(self.marks[1:], self.marks[2:], strict=False)
        return [(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairs]


if __name__ == "__main__":
    main()
