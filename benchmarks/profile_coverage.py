"""How often the 95 % profile interval of phi holds a known truth, on simulated sweeps.

Every sweep is the law fitted to the built-in table, on its grid or on 36 of its runs, plus noise of
its own in each run. The Huber threshold is 1e-3 of the loss, 2 to 4 mnats, so that at 100 mnats
next to no residual lies within it. Prints Markdown.

    .venv/bin/python benchmarks/profile_coverage.py --sweeps 400     # 4 minutes
"""

import argparse
import dataclasses
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from loopworth import RunTable, load_runs
from loopworth.law.intervals import NORMAL
from loopworth.law.joint import GAIN, Problem
from loopworth.law.profiles import sandwich
from loopworth.law.rivals import make_problem
from loopworth.law.solve import optimise, polish, seed_grid

_SPARE = 7  # every seventh seed of the grid: at 100 mnats a start at the truth is not enough
_NOISY = 0.05


def thin(table: RunTable) -> RunTable:
    """The smallest, the middle and the largest model of each cell at every other budget."""
    keep = np.zeros(len(table), dtype=bool)
    for budget in np.unique(table.budgets)[::2]:
        for r in np.unique(table.recurrence):
            cell = np.flatnonzero((table.budgets == budget) & (table.recurrence == r))
            keep[cell[[0, len(cell) // 2, -1]]] = True
    return table.select(keep)


def miss(problem: Problem, truth: np.ndarray, cells: np.ndarray, noisy: bool) -> tuple[float, ...]:
    """Return the deviance of the true phi, and the width that the standard error implies."""
    starts = truth[None]
    if noisy:
        starts = np.concatenate([starts, seed_grid(problem)[::_SPARE]])
    found = polish(problem, starts)
    best = int(np.argmin(found.objective))
    theta = found.theta[best]
    held = np.concatenate([starts, theta[None]])
    held[:, GAIN] = truth[GAIN]
    least = polish(problem, held, fixed=[GAIN]).objective.min()
    spread = sandwich(problem, theta, cells, np.ones(len(problem)))
    deviance = 2 * max(least - found.objective[best], 0.0) * spread.deviance_scale[GAIN]
    return float(deviance), 2 * NORMAL * float(spread.standard_error[GAIN]), float(theta[GAIN])


def coverage(table: RunTable, truth: np.ndarray, noise: float, sweeps: int) -> tuple[float, ...]:
    """Return the share of sweeps covered, the median width and the spread of phi."""
    problem = make_problem(table)
    loss = np.exp(problem.log_prediction(truth[None])[0])
    rng = np.random.default_rng([round(1e6 * noise), len(table)])
    rows = []
    for _ in range(sweeps):
        log_loss = np.log(loss + noise * rng.standard_normal(len(loss)))
        sweep = dataclasses.replace(problem, log_loss=log_loss)
        rows.append(miss(sweep, truth, table.cells, noise > _NOISY))
    deviance, width, phi = np.array(rows).T
    low, high = np.quantile(phi, [0.025, 0.975])
    return float((deviance < NORMAL**2).mean()), float(np.median(width)), float(high - low)


def main() -> None:
    """Print one line a grid and noise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=400)
    sweeps = parser.parse_args().sweeps
    full = load_runs("schwethelm2026")
    truth = optimise(make_problem(full)).theta
    print("| grid | noise of a run, mnats | sweeps | covered | width | 95 % of the phi span |")
    print("|---|--:|--:|--:|--:|--:|")
    for table in (full, thin(full)):
        for noise in (0.001, 0.005, 0.01, 0.1):
            share, width, span = coverage(table, truth, noise, sweeps)
            error = np.sqrt(share * (1 - share) / sweeps)
            print(
                f"| {len(table)} runs | {1e3 * noise:g} | {sweeps} | {100 * share:.1f} ± "
                f"{100 * error:.1f} % | {width:.3g} | {span:.3g} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
