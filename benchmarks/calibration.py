"""How often the 95 % intervals of phi and Delta-phi hold a known truth, on simulated sweeps.

Every sweep takes the grid of real runs and the law fitted to them, and adds what real sweeps have:
seed noise, and a misfit of its own for each (budget, recurrence) cell (level, slope and bend in
ln N), as large as the residuals of the table of arXiv 2604.21106 show it. Prints Markdown.

    .venv/bin/python benchmarks/calibration.py --sweeps 400 --processes 2
"""

import argparse
import dataclasses
import math
import multiprocessing
import os
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from loopworth import RunTable, load_runs
from loopworth.compare.pairing import pair
from loopworth.law.intervals import Bootstrap, resample_cells
from loopworth.law.joint import GAIN
from loopworth.law.rivals import make_problem
from loopworth.law.solve import optimise, polish
from loopworth.law.valley import valley_bootstrap

SEED_NATS = 0.7e-3  # reruns of one configuration in the OLMo ladder differ by 0.5 to 1.0 mnats
# Misfit by cell, from the residuals of the built-in table: standard deviations of the cells' means,
# of their slopes times the spread of ln N in a cell, and of their bends per unit of (ln N)^2.
LEVEL_NATS, SLOPE_NATS, BEND_NATS = 6e-3, 5e-3, 7e-3
RESAMPLES = 400
METHOD_PHI = 0.2  # what the simulated method adds to phi

# 20 runs: four recurrences, two budgets, five widths.
SMALL = {1e18: (6, 10, 14), 4.64e18: (12, 18)}


def small(table: RunTable) -> RunTable:
    """The 20-run grid out of a larger one."""
    chosen = [
        spec is not None and spec.d_model // 64 in SMALL.get(budget, ())
        for spec, budget in zip(table.specs, table.budgets.tolist(), strict=True)
    ]
    return table.select(np.array(chosen))


def noise(table: RunTable, misfit: float, rng: np.random.Generator) -> np.ndarray:
    """Residuals in nats for one sweep; `misfit` scales what cells have of their own."""
    log_n = np.log(table.n_once + table.n_rec)
    cells = table.cells
    count = int(cells.max()) + 1
    x = np.zeros(len(table))
    for cell in range(count):
        x[cells == cell] = log_n[cells == cell] - log_n[cells == cell].mean()
    spread = math.sqrt(float((x**2).mean()))
    level, slope, bend = rng.standard_normal((3, count))
    own = LEVEL_NATS * level[cells] + SLOPE_NATS * slope[cells] * x / spread
    own += BEND_NATS * bend[cells] * (x**2 - spread**2)
    return misfit * own + SEED_NATS * rng.standard_normal(len(table))


def simulate(table: RunTable, theta: np.ndarray, residual: np.ndarray) -> RunTable:
    """The table with losses from the law plus a residual."""
    loss = np.exp(make_problem(table).log_prediction(theta[None])[0])
    return dataclasses.replace(table, val_loss=loss + residual)


def single(job: tuple[str, float, int]) -> list[tuple[float, float]]:
    """One sweep: the ends of the block interval and of the iid interval, minus the true phi."""
    grid, misfit, seed = job
    full = load_runs("schwethelm2026")
    theta = optimise(make_problem(full)).theta
    table = small(full) if grid == "20 runs" else full
    rng = np.random.default_rng([seed, 1])
    sweep = simulate(table, theta, noise(table, misfit, rng))
    problem = make_problem(sweep)
    start = polish(problem, theta).theta[0]
    truth = theta[GAIN]
    ends = []
    for cells in (sweep.cells, np.arange(len(sweep))):
        boot, _ = valley_bootstrap(problem, start, resample_cells(cells, RESAMPLES, seed))
        ends.append(_ends(boot, boot.theta[:, GAIN] - truth, start[GAIN] - truth))
    return ends


def paired(job: tuple[str, float, int]) -> list[tuple[float, float]]:
    """A base and a method that share their r = 1 runs: ends of the intervals of Delta-phi."""
    grid, misfit, seed = job
    tables = [load_runs(f"schwethelm2026:{x}") for x in ("baseline_lower", "hyperconnections")]
    theta = optimise(make_problem(tables[0])).theta
    if grid == "20 runs":
        tables = [small(table) for table in tables]
    thetas = [theta, theta + METHOD_PHI * (np.arange(len(theta)) == GAIN)]
    rng = np.random.default_rng([seed, 2])
    residuals = [noise(table, misfit, rng) for table in tables]
    shared = [table.recurrence == 1 for table in tables]
    residuals[1][shared[1]] = residuals[0][shared[0]]  # the same runs, in the same order
    sweeps = [simulate(*each) for each in zip(tables, thetas, residuals, strict=True)]
    pairing = pair(sweeps, law="power")
    blocks = pairing.resample(RESAMPLES, seed)
    rows = [table.rows for table in pairing.tables]
    ids = {row: k for k, row in enumerate(sorted(set(np.concatenate(rows).tolist())))}
    drawn = resample_cells(np.arange(len(ids)), RESAMPLES, seed)
    iid = [drawn[:, [ids[row] for row in each.tolist()]] for each in rows]
    ends = []
    for weights in (blocks, iid):
        boots, phis = [], []
        for sweep, at, weight in zip(pairing.tables, thetas, weights, strict=True):
            problem = make_problem(sweep)
            start = polish(problem, at).theta[0]
            boots.append(valley_bootstrap(problem, start, weight)[0])
            phis.append(start[GAIN])
        both = dataclasses.replace(boots[0], converged=boots[0].converged & boots[1].converged)
        change = boots[1].theta[:, GAIN] - boots[0].theta[:, GAIN]
        ends.append(_ends(both, change - METHOD_PHI, phis[1] - phis[0] - METHOD_PHI))
    return ends


def _ends(boot: Bootstrap, values: np.ndarray, estimate: float) -> tuple[float, float]:
    return boot.interval(values, float(estimate)) or (-math.inf, math.inf)


def row(name: str, task, grid: str, misfit: float, sweeps: int, pool) -> str:
    """Run one setting and return its line of the table."""
    begin = time.perf_counter()
    jobs = [(grid, misfit, seed) for seed in range(sweeps)]
    ends = np.array(pool.map(task, jobs, chunksize=4))  # (sweeps, 2, 2)
    covered = (ends[..., 0] <= 0) & (ends[..., 1] >= 0)
    share = covered.mean(axis=0)
    error = np.sqrt(share * (1 - share) / sweeps)
    width = np.median(ends[..., 1] - ends[..., 0], axis=0)
    cells = " | ".join(
        f"{100 * share[k]:.1f} ± {100 * error[k]:.1f} % | {width[k]:.3g}" for k in (0, 1)
    )
    own = "seed and misfit" if misfit else "seed only"
    seconds = time.perf_counter() - begin
    return f"| {name} | {grid} | {own} | {sweeps} | {cells} | {seconds:.0f} s |"


SETTINGS = (
    ("phi", single, "116 runs", 1.0),
    ("phi", single, "20 runs", 1.0),
    ("phi", single, "116 runs", 0.0),
    ("Delta-phi", paired, "80 + 83 runs", 1.0),
    ("Delta-phi", paired, "20 runs", 1.0),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweeps", type=int, default=400)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--only", type=int, nargs="*", help="settings by number, from 0")
    options = parser.parse_args()
    print("| of | grid | noise | sweeps | block covers | width | iid covers | width | time |")
    print("|---|---|---|---|---|---|---|---|---|")
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for number, (name, task, grid, misfit) in enumerate(SETTINGS):
            if not options.only or number in options.only:
                print(row(name, task, grid, misfit, options.sweeps, pool), flush=True)


if __name__ == "__main__":
    main()
