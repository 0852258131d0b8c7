"""Time the solver beside the protocol of arXiv 2604.21106, and compare what both find.

Both run in this process on the same table. The reference is 500 L-BFGS-B descents from uniform
draws in the box, with an analytic gradient (tests/law_reference.py). Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

# One BLAS thread for both sides: their matrices are tiny, and threads only make times erratic.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import numpy as np

import law_reference
from law_reference import Reference, run_columns
from loopworth.law.gain import make_gain
from loopworth.law.intervals import block_bootstrap, resample_cells
from loopworth.law.joint import GAIN, Problem
from loopworth.law.solve import Optimum, optimise
from loopworth.runs import RunTable, load_runs

STARTS = 500
TABLES = ("baseline", "truncated_bptt", "hyperconnections")
SHORT = 20  # starts a resample and table without --full
SAME = 1e-4  # relative distance of objectives that count as the same optimum
ROUNDING = 1e-9  # below this relative difference two sums of 116 terms are equal


def main() -> None:
    options = parse_arguments()
    tables = {name: load_runs(f"schwethelm2026:{name}") for name in options.tables}
    if not options.resamples_only:
        print_rows("Point fit, law `power`, 116 runs", point_fit(load_runs("schwethelm2026")))
        print_rows("Bootstrap", bootstrap(load_runs("schwethelm2026")))
        print_rows("Commands, start-up included", commands())
    starts = STARTS if options.full else SHORT
    print(f"\n### {options.resamples} block resamples, {starts} random starts each\n")
    print(
        "| table | resamples where a start ended lower | largest gain of a start | "
        "resamples where the starts missed our optimum | starts that reached it |"
    )
    print("|---|---|---|---|---|")
    for name, runs in tables.items():
        print(compare_resamples(name, runs, options.resamples, starts), flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--full", action="store_true", help=f"{STARTS} starts a resample (8 min a table), not 20"
    )
    parser.add_argument("--resamples", type=int, default=20, help="block resamples [20]")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES, help="studies [all]")
    parser.add_argument("--resamples-only", action="store_true", help="leave the timings out")
    return parser.parse_args()


def print_rows(title: str, rows: Iterator[tuple[str, str]]) -> None:
    print(f"\n### {title}\n\n| measure | value |\n|---|---|")
    for name, value in rows:
        print(f"| {name} | {value} |", flush=True)


def make_problem(runs: RunTable) -> Problem:
    return Problem.of(make_gain("power", runs.recurrence), **run_columns(runs))


def make_reference(runs: RunTable, weights: np.ndarray | None = None) -> Reference:
    return Reference("power", **run_columns(runs), weights=weights)


def timed_optimum(problem: Problem) -> tuple[Optimum, float]:
    """Return the optimum and the median of seven times, the first (cold) one left out."""
    optimum = optimise(problem)
    seconds = []
    for _ in range(7):
        start = time.perf_counter()
        optimise(problem)
        seconds.append(time.perf_counter() - start)
    return optimum, float(np.median(seconds))


def point_fit(runs: RunTable) -> Iterator[tuple[str, str]]:
    optimum, ours = timed_optimum(make_problem(runs))
    yield "ours: seconds", f"{ours:.3f}"
    yield "ours: objective", f"{optimum.objective:.10e}"
    yield "ours: phi", f"{optimum.theta[GAIN]:.4f}"
    yield "ours: seeds that agree", f"{optimum.seeds_agreeing} of {optimum.seeds}"
    exact = dict(law_reference.OPTIONS)
    for name, settings in (
        ("until no decrease", exact),
        ("scipy's own tolerances", {"maxiter": 20_000, "maxfun": 100_000}),
    ):
        law_reference.OPTIONS.clear()
        law_reference.OPTIONS.update(settings)
        start = time.perf_counter()
        found = make_reference(runs).best_of_random_starts(STARTS, seed=0)
        seconds = time.perf_counter() - start
        best = found.objective.min()
        share = found.share_reaching(optimum.objective, SAME)
        label = f"{STARTS} L-BFGS-B starts, {name}"
        yield f"{label}: seconds", f"{seconds:.1f} ({seconds / ours:.0f} times ours)"
        yield f"{label}: best objective", f"{best:.10e} ({best / optimum.objective - 1:+.1e} to us)"
        yield f"{label}: share that reaches the optimum", f"{share:.1%}"
    law_reference.OPTIONS.update(exact)


def bootstrap(runs: RunTable, resamples: int = 1000) -> Iterator[tuple[str, str]]:
    problem = make_problem(runs)
    theta = optimise(problem).theta
    weights = resample_cells(runs.cells, resamples, seed=0)
    start = time.perf_counter()
    boot = block_bootstrap(problem, weights, theta)
    seconds = time.perf_counter() - start
    low, high = boot.interval(boot.theta[:, GAIN], float(theta[GAIN])) or (np.nan, np.nan)
    yield f"{resamples} block resamples, three starts each: seconds", f"{seconds:.2f}"
    yield "converged", f"{boot.converged.mean():.1%}"
    yield "second start agrees", f"{boot.agreeing:.1%}"
    yield "95 % interval of phi", f"{low:.3f} to {high:.3f}"


def compare_resamples(name: str, runs: RunTable, resamples: int, starts: int) -> str:
    """Return a row: our warm solutions against the best of random starts on the same weights."""
    problem = make_problem(runs)
    weights = resample_cells(runs.cells, resamples, seed=0)
    boot = block_bootstrap(problem, weights, optimise(problem).theta)
    lower, missed, gains, shares = 0, 0, [], []
    for row, (ours, weight) in enumerate(zip(boot.objective, weights, strict=True)):
        found = make_reference(runs, weight).best_of_random_starts(starts, seed=row)
        best = found.objective.min()
        lower += best < ours * (1 - ROUNDING)
        missed += best > ours * (1 + SAME)
        gains.append(max(0.0, 1 - best / ours))
        shares.append(found.share_reaching(ours, SAME))
    return (
        f"| {name} | {lower} of {resamples} | {max(gains):.1e} | {missed} of {resamples} | "
        f"{np.mean(shares):.1%} ({min(shares):.1%} to {max(shares):.1%}) |"
    )


def commands() -> Iterator[tuple[str, str]]:
    seconds, _ = run_command("--help")
    yield "`loopworth --help`: seconds", f"{seconds:.2f}"
    seconds, output = run_command("fit", "--json")
    result = json.loads(output)
    yield "`loopworth fit --json`, 1,000 resamples: seconds", f"{seconds:.2f}"
    # The largest child so far: `--help` before it is far smaller.
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    yield "`loopworth fit --json`: peak memory", f"{peak:.0f} MB"
    low, high = result["phi"]["ci95"]
    yield "`loopworth fit --json`: phi", f"{result['phi']['estimate']:.4f}, {low:.3f} to {high:.3f}"


def run_command(*arguments: str) -> tuple[float, str]:
    """Return the median seconds of five runs, after one that warms the file cache, and stdout."""
    environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    seconds = []
    for _ in range(6):
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "loopworth", *arguments],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds[1:])), done.stdout


if __name__ == "__main__":
    main()
