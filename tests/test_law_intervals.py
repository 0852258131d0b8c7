"""The block bootstrap, the sandwich and the profile against plain counterparts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from scipy.stats import t as student

from law_reference import DELTA, Reference, run_columns
from loopworth.law.gain import make_gain
from loopworth.law.intervals import (
    Bootstrap,
    block_bootstrap,
    bootstrap_interval,
    resample_cells,
)
from loopworth.law.joint import GAIN, Problem
from loopworth.law.profiles import profile, sandwich
from loopworth.law.solve import optimise, polish, seed_grid
from loopworth.ledger import Convention
from loopworth.runs import RunTable, load_runs

RUNS = load_runs("schwethelm2026")
ONES = np.ones(len(RUNS))
CHI_SQUARE = 1.959964**2


def problem_of(runs: RunTable, key: str = "power") -> Problem:
    return Problem.of(make_gain(key, runs.recurrence), **run_columns(runs))


PROBLEM = problem_of(RUNS)
OPTIMUM = optimise(PROBLEM)


def reference(weights: np.ndarray | None = None) -> Reference:
    return Reference("power", **run_columns(RUNS), weights=weights)


# Resampling

cells_of_runs = st.lists(st.integers(0, 5), min_size=1, max_size=30).map(
    lambda labels: np.unique(labels, return_inverse=True)[1]
)


@given(cells_of_runs, st.integers(1, 20), st.integers(0, 1000))
def test_cells_are_drawn_whole(cells: np.ndarray, resamples: int, seed: int) -> None:
    weights = resample_cells(cells, resamples, seed)
    count = int(cells.max()) + 1
    assert weights.shape == (resamples, len(cells))
    for cell in range(count):
        members = weights[:, cells == cell]
        assert (members == members[:, :1]).all()
    # As many cells as there are: one weight of each cell, summed over cells.
    first = [int(np.flatnonzero(cells == cell)[0]) for cell in range(count)]
    np.testing.assert_array_equal(weights[:, first].sum(axis=1), np.full(resamples, count))
    assert (weights >= 0).all()
    np.testing.assert_array_equal(weights, np.round(weights))


def test_the_seed_decides_the_draw() -> None:
    one, two = (resample_cells(RUNS.cells, 50, seed) for seed in (0, 1))
    np.testing.assert_array_equal(one, resample_cells(RUNS.cells, 50, 0))
    assert not np.array_equal(one, two)


def test_every_cell_is_drawn_equally_often() -> None:
    mean = resample_cells(RUNS.cells, 4000, seed=3).mean(axis=0)
    np.testing.assert_allclose(mean, 1.0, atol=5 / np.sqrt(4000))


# The interval of a bootstrap


def bootstrap_of(converged: np.ndarray, blocks: int = 24) -> Bootstrap:
    """Resamples of `blocks` blocks of three runs."""
    size = len(converged)
    weights = resample_cells(np.repeat(np.arange(blocks), 3), size, seed=0)
    return Bootstrap(np.zeros((size, 1)), np.zeros(size), converged, weights, 1.0)


def test_blocks_are_counted_from_the_weights() -> None:
    for blocks in (2, 9, 24):
        assert bootstrap_of(np.ones(60, dtype=bool), blocks).blocks == blocks


@pytest.mark.parametrize("blocks", [5, 24, 300])
@pytest.mark.parametrize("estimate", [-0.2, 0.0, 0.1])
def test_interval_is_that_of_efron_widened_for_few_blocks(blocks: int, estimate: float) -> None:
    """Against scipy, on what converged and is finite."""
    rng = np.random.default_rng(0)
    values, converged = rng.gamma(4.0, size=1000) / 4 - 1, rng.random(1000) > 0.1
    values[5] = np.nan
    kept = values[converged & ~np.isnan(values)]
    z0 = norm.ppf((kept < estimate).mean())
    plain = np.quantile(kept, norm.cdf([2 * z0 - 1.959964, 2 * z0 + 1.959964]))
    wide = estimate + (plain - estimate) * student.ppf(0.975, blocks - 1) / 1.959964
    found = bootstrap_of(converged, blocks).interval(values, estimate)
    np.testing.assert_allclose(found, np.clip(wide, kept.min(), kept.max()), rtol=1e-5)


def test_an_interval_holds_its_estimate_and_stays_within_the_draws() -> None:
    values = np.linspace(0.0, 1.0, 201)
    assert bootstrap_interval(values, 0.5, 2) == (0.0, 1.0)
    for estimate in (-1.0, 0.0, 1.0, 2.0):
        low, high = bootstrap_interval(values, estimate, 24) or (np.nan, np.nan)
        assert low <= estimate <= high
    assert bootstrap_interval(np.zeros(100), 0.0, 24) == (0.0, 0.0)
    # What is symmetric stays so.
    low, high = bootstrap_interval(values, 0.5, 24) or (np.nan, np.nan)
    assert low + high == pytest.approx(1.0)


@pytest.mark.parametrize(("resamples", "known"), [(0, False), (39, False), (40, True)])
def test_too_few_resamples_have_no_interval(resamples: int, known: bool) -> None:
    values = np.arange(resamples) * 1.0
    interval = bootstrap_of(np.ones(resamples, dtype=bool)).interval(values, 20.0)
    assert (interval is not None) == known


def test_one_block_has_no_interval() -> None:
    assert bootstrap_interval(np.linspace(0, 1, 100), 0.5, 1) is None


# The block bootstrap


def test_no_descent_ends_lower_on_a_resample() -> None:
    weights = resample_cells(RUNS.cells, 20, seed=1)
    boot = block_bootstrap(PROBLEM, weights, OPTIMUM.theta)
    assert boot.converged.all()
    rng = np.random.default_rng(2)
    for theta, objective, weight in zip(boot.theta, boot.objective, weights, strict=True):
        plain = reference(weight)
        assert objective == pytest.approx(plain.objective(theta), rel=1e-10)
        near = OPTIMUM.theta * (1 + 0.2 * rng.uniform(-1, 1, (2, len(theta))))
        found = plain.descend(np.concatenate([near, theta[None]]))
        assert objective <= found.objective.min() * (1 + 1e-9)


def test_starts_do_not_decide_the_solution() -> None:
    weights = resample_cells(RUNS.cells, 30, seed=4)
    one = block_bootstrap(PROBLEM, weights, OPTIMUM.theta)
    moved = np.tile(OPTIMUM.theta, (30, 1)) * np.random.default_rng(5).uniform(0.9, 1.1, (30, 6))
    two = block_bootstrap(PROBLEM, weights, moved)
    np.testing.assert_allclose(two.objective, one.objective, rtol=1e-6)
    np.testing.assert_array_equal(one.weights, weights)
    assert one.agreeing >= 0.9


def test_a_resample_equal_to_the_table_has_its_optimum() -> None:
    boot = block_bootstrap(PROBLEM, np.ones((1, len(RUNS))), OPTIMUM.theta * 1.05)
    np.testing.assert_allclose(boot.theta[0], OPTIMUM.theta, rtol=1e-5)


@pytest.mark.parametrize(
    ("injection", "low", "high"), [("recurrent", 0.39, 0.48), ("once", 0.41, 0.50)]
)
def test_the_block_interval_of_phi_is_the_published_one(
    injection: Any, low: float, high: float
) -> None:
    problem = problem_of(RUNS.under(Convention(injection)))
    weights = resample_cells(RUNS.cells, 400, seed=0)
    boot = block_bootstrap(problem, weights, optimise(problem).theta, second_look=False)
    phi = float(optimise(problem).theta[GAIN])
    found = boot.interval(boot.theta[:, GAIN], phi)
    np.testing.assert_allclose(found, (low, high), atol=0.02)


def test_an_iid_bootstrap_is_too_narrow() -> None:
    spread = []
    for cells in (RUNS.cells, np.arange(len(RUNS))):
        weights = resample_cells(cells, 300, seed=0)
        boot = block_bootstrap(PROBLEM, weights, OPTIMUM.theta, second_look=False)
        spread.append(boot.theta[:, GAIN].std())
    assert 1.3 < spread[0] / spread[1] < 1.9


def test_progress_counts_every_solution() -> None:
    told: list[int] = []
    weights = resample_cells(RUNS.cells, 10, seed=0)
    block_bootstrap(PROBLEM, weights, OPTIMUM.theta, on_progress=told.append)
    assert sum(told) == 30  # ten resamples, looked at three times


def simulated(rng: np.random.Generator) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return a sweep of 6 budgets by r = 1, 2, 4, 8 with errors that a cell shares, and cells."""
    budget, recurrence, width = (
        axis.ravel() for axis in np.meshgrid(np.geomspace(5e17, 2e19, 6), (1, 2, 4, 8), range(4))
    )
    unique = 1e8 * np.sqrt(budget / 1e18) * 1.6 ** (width - 1.5)
    columns = {
        "n_once": 0.4 * unique,
        "n_rec": 0.6 * unique,
        "recurrence": recurrence,
        "tokens": budget / (6 * unique),
        "val_loss": np.ones(len(unique)),
    }
    loss = Reference("power", **columns).predict(TRUTH)
    cells = np.unique(np.stack([budget, recurrence]), axis=1, return_inverse=True)[1]
    error = 0.004 * rng.normal(size=24)[cells] + 0.002 * rng.normal(size=len(unique))
    columns["val_loss"] = loss * np.exp(error)
    return columns, cells


TRUTH = np.array([3.33, 0.2, 6.84, 0.37, 0.451, 0.45])


def test_blocks_cover_the_truth_where_single_runs_do_not() -> None:
    rng = np.random.default_rng(0)
    covered = {"block": 0, "iid": 0}
    tables = 14
    for table in range(tables):
        columns, cells = simulated(rng)
        problem = Problem.of(make_gain("power", columns["recurrence"]), **columns)
        for name, blocks in (("block", cells), ("iid", np.arange(len(cells)))):
            weights = resample_cells(blocks, 50, seed=table)
            start = polish(problem, TRUTH).theta[0]
            boot = block_bootstrap(problem, weights, start, second_look=False)
            ends = boot.interval(boot.theta[:, GAIN], float(start[GAIN]))
            low, high = ends or (np.nan, np.nan)
            covered[name] += low <= TRUTH[GAIN] <= high
    assert covered["block"] >= 0.8 * tables
    assert covered["block"] > covered["iid"] + 1


# The sandwich


def plain_slope(sizes: list[float], constants: int) -> float:
    """Return the mean of psi' of repeated residual sizes: the kernel integrated numerically."""
    kept = sorted(sizes)[constants:]
    width = 2.34 * 1.4826 * kept[(len(kept) - 1) // 2] * len(kept) ** -0.2
    share = 0.0
    for size in kept:
        u = np.linspace(-1, 1, 4001)
        inside = np.abs(size + width * u) <= DELTA
        share += float((0.75 * (1 - u**2) * inside).sum() * (u[1] - u[0]))
    return share / len(kept)


def plain_sandwich(problem: Problem, theta: np.ndarray, cells: np.ndarray, w: np.ndarray) -> Any:
    """Return the standard errors and the deviance scale, run by run."""
    jacobian = problem.jacobian(theta[None])[0].T
    residual = problem.log_prediction(theta[None])[0] - problem.log_loss
    size = jacobian.shape[1]
    bread = np.zeros((size, size))
    sizes: list[float] = []
    scores: dict[int, np.ndarray] = {}
    for run in range(len(residual)):
        if not w[run]:
            continue
        bread += w[run] * np.outer(jacobian[run], jacobian[run])
        sizes += [abs(float(residual[run]))] * int(w[run])
        score = max(-DELTA, min(DELTA, residual[run]))
        cell = int(cells[run])
        scores[cell] = scores.get(cell, np.zeros(size)) + w[run] * score * jacobian[run]
    inverse = np.linalg.inv(bread * plain_slope(sizes, size))
    blocks, runs = len(scores), len(sizes)
    meat = sum(np.outer(s, s) for s in scores.values())
    meat = meat * blocks / (blocks - 1) * (runs - 1) / (runs - size)
    variance = np.diag(inverse @ meat @ inverse)
    narrower = (norm.ppf(0.975) / student.ppf(0.975, blocks - 1)) ** 2
    return np.sqrt(variance), narrower * np.diag(inverse) / variance


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_the_sandwich_equals_plain_loops(seed: int | None) -> None:
    weights = ONES if seed is None else resample_cells(RUNS.cells, 1, seed)[0]
    spread = sandwich(PROBLEM, OPTIMUM.theta, RUNS.cells, weights)
    error, scale = plain_sandwich(PROBLEM, OPTIMUM.theta, RUNS.cells, weights)
    np.testing.assert_allclose(spread.standard_error, error, rtol=1e-3)
    np.testing.assert_allclose(spread.deviance_scale, scale, rtol=1e-3)


def test_the_sandwich_is_about_as_wide_as_the_bootstrap() -> None:
    boot = block_bootstrap(
        PROBLEM, resample_cells(RUNS.cells, 300, seed=0), OPTIMUM.theta, second_look=False
    )
    spread = sandwich(PROBLEM, OPTIMUM.theta, RUNS.cells, ONES)
    assert spread.standard_error[GAIN] == pytest.approx(boot.theta[:, GAIN].std(), rel=0.5)


def test_what_the_runs_do_not_identify_has_no_error() -> None:
    alone = RUNS.select(RUNS.recurrence == 1)
    problem = problem_of(alone)
    theta = optimise(problem).theta
    spread = sandwich(problem, theta, alone.cells, np.ones(len(alone)))
    assert np.isinf(spread.standard_error[GAIN])
    assert np.isfinite(spread.standard_error[:GAIN]).all()


# The profile


def test_the_profile_equals_a_brute_force_one() -> None:
    curve = profile(PROBLEM, OPTIMUM.theta, "phi", RUNS.cells)
    scale = sandwich(PROBLEM, OPTIMUM.theta, RUNS.cells, ONES).deviance_scale[GAIN]
    assert (np.diff(curve.values) > 0).all()
    near = np.argsort(np.abs(curve.values - OPTIMUM.theta[GAIN]))[1:30:6]
    for k in near:
        held = {GAIN: float(curve.values[k])}
        found = reference().descend(OPTIMUM.theta[None], held)
        expected = 2 * (found.objective[0] - OPTIMUM.objective) * scale
        assert curve.deviance[k] == pytest.approx(expected, rel=1e-3, abs=1e-6)
        assert curve.deviance[k] <= expected * (1 + 1e-6) + 1e-6


@pytest.mark.parametrize("parameter", ["phi", "alpha", "beta", "e"])
def test_the_profile_interval_ends_where_the_deviance_says(parameter: str) -> None:
    column = PROBLEM.names.index(parameter)
    curve = profile(PROBLEM, OPTIMUM.theta, parameter, RUNS.cells)
    scale = sandwich(PROBLEM, OPTIMUM.theta, RUNS.cells, ONES).deviance_scale[column]
    low, high = curve.interval
    assert low is not None
    assert high is not None
    assert low < OPTIMUM.theta[column] < high
    for end in (low, high):
        found = reference().descend(OPTIMUM.theta[None], {column: end})
        deviance = 2 * (found.objective[0] - OPTIMUM.objective) * scale
        assert deviance == pytest.approx(CHI_SQUARE, rel=0.05)


def test_the_profile_interval_of_phi_agrees_with_the_block_interval() -> None:
    low, high = profile(PROBLEM, OPTIMUM.theta, "phi", RUNS.cells).interval
    assert low == pytest.approx(0.39, abs=0.03)
    assert high == pytest.approx(0.48, abs=0.03)


@pytest.mark.parametrize(("noise", "sweeps"), [(0.001, 60), (0.005, 60), (0.01, 60), (0.1, 40)])
def test_the_profile_covers_the_truth_at_any_noise(noise: float, sweeps: int) -> None:
    # At 0.1 nats next to no residual is within delta; a scale from those that are covers 70 %.
    rng = np.random.default_rng([round(1e6 * noise), 116])
    truth = OPTIMUM.theta
    loss = np.exp(PROBLEM.log_prediction(truth[None])[0])
    covered = 0
    for _ in range(sweeps):
        log_loss = np.log(loss + noise * rng.standard_normal(len(loss)))
        problem = replace(PROBLEM, log_loss=log_loss)
        starts = truth[None]
        if noise > 0.05:
            starts = np.concatenate([starts, seed_grid(problem)[::8]])
        found = polish(problem, starts)
        theta = found.theta[int(np.argmin(found.objective))]
        held = np.concatenate([starts, theta[None]])
        held[:, GAIN] = truth[GAIN]
        rise = polish(problem, held, fixed=[GAIN]).objective.min() - found.objective.min()
        scale = sandwich(problem, theta, RUNS.cells, ONES).deviance_scale[GAIN]
        covered += 2 * rise * scale < CHI_SQUARE
    assert covered / sweeps >= 0.87


def test_an_exact_table_has_a_spread_of_nothing() -> None:
    loss = PROBLEM.log_prediction(OPTIMUM.theta[None])[0]
    exact = replace(PROBLEM, log_loss=loss)
    spread = sandwich(exact, OPTIMUM.theta, RUNS.cells, ONES)
    assert np.isfinite(spread.standard_error).all()
    assert (spread.standard_error < 1e-9).all()


def test_a_parameter_that_changes_nothing_has_an_open_interval() -> None:
    alone = RUNS.select(RUNS.recurrence == 1)
    problem = problem_of(alone)
    curve = profile(problem, optimise(problem).theta, "phi", alone.cells)
    assert curve.interval == (None, None)
    np.testing.assert_allclose(curve.deviance, 0, atol=1e-3)


def test_the_profile_of_a_weighted_table_counts_weights() -> None:
    weights = resample_cells(RUNS.cells, 1, seed=7)[0]
    rows = np.repeat(np.arange(len(RUNS)), weights.astype(int))
    columns = run_columns(RUNS, rows)
    repeated = Problem.of(make_gain("power", columns["recurrence"]), **columns)
    theta = optimise(PROBLEM, weights).theta
    one = profile(PROBLEM, theta, "phi", RUNS.cells, weights)
    two = profile(repeated, theta, "phi", RUNS.cells[rows])
    np.testing.assert_allclose(one.interval, two.interval, rtol=1e-5)
