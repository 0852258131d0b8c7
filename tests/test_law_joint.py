"""The objective, its derivatives and its curvatures against a plain reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from law_reference import DELTA, PHI_BOX, SCALE_BOX, Reference, run_columns
from loopworth.law.gain import GAINS, make_gain
from loopworth.law.joint import GAIN, HUBER_DELTA, Problem
from loopworth.runs import load_runs

# Near the optimum of the built-in table, where residuals lie on both sides of delta.
SCALE = (3.33, 0.2, 6.84, 0.37, 0.451)
GAIN_VALUES = {
    "none": (),
    "unrolled": (),
    "power": (0.43,),
    "bounded": (1.9, 4.6),
    "log": (0.67,),
    "affine": (0.2,),
    "free": (1.3, 1.95, 2.4),
}
RUNS = load_runs("schwethelm2026")


@dataclass(frozen=True)
class Pair:
    """The same runs as a problem of the package and as the reference."""

    problem: Problem
    reference: Reference
    weights: np.ndarray


def pair(key: str, weights: np.ndarray | None = None, rows: Any = slice(None)) -> Pair:
    columns = run_columns(RUNS, rows)
    gain = make_gain(key, columns["recurrence"])
    full = np.ones(len(columns["tokens"])) if weights is None else weights
    box = tuple(zip(gain.lower, gain.upper, strict=True))
    return Pair(
        Problem.of(gain, **columns), Reference(key, **columns, weights=full, gain_box=box), full
    )


def theta_of(key: str, shift: np.ndarray | float = 0.0) -> np.ndarray:
    theta = np.array([*SCALE, *GAIN_VALUES[key]])
    return theta * (1 + shift)


def random_weights(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 4, len(RUNS)).astype(float)


@st.composite
def points(draw: st.DrawFn) -> tuple[str, np.ndarray, np.ndarray]:
    """Draw a law, a point around the optimum (0.1 to 30 % away) and weights 0 to 3."""
    key = draw(st.sampled_from(GAINS))
    seed = draw(st.integers(0, 10_000))
    away = draw(st.sampled_from([0.001, 0.01, 0.1, 0.3]))
    theta = theta_of(key)
    theta = theta * (1 + away * np.random.default_rng(seed).uniform(-1, 1, len(theta)))
    return key, theta, random_weights(seed + 1)


@given(points())
def test_objective_and_gradient_equal_the_reference(
    drawn: tuple[str, np.ndarray, np.ndarray],
) -> None:
    key, theta, weights = drawn
    both = pair(key, weights)
    value, gradient = both.reference.objective_and_gradient(theta)
    found = both.problem.evaluate(theta[None], weights[None])
    assert found.objective[0] == pytest.approx(value, rel=1e-11)
    assert both.problem.objective(theta[None], weights)[0] == pytest.approx(value, rel=1e-11)
    np.testing.assert_allclose(
        found.gradient[0], gradient, rtol=1e-9, atol=1e-12 * np.abs(gradient).max()
    )
    np.testing.assert_allclose(
        np.exp(both.problem.log_prediction(theta[None])[0]),
        both.reference.predict(theta),
        rtol=1e-12,
    )


@given(points())
def test_gradient_and_hessian_equal_finite_differences(
    drawn: tuple[str, np.ndarray, np.ndarray],
) -> None:
    key, theta, weights = drawn
    problem = pair(key).problem
    residual = problem.log_prediction(theta[None])[0] - problem.log_loss
    step = 1e-6
    # Where a run crosses delta the gradient has a kink and no difference is a derivative.
    reach = step * np.abs(problem.jacobian(theta[None])[0]).max(axis=0)
    assume((np.abs(np.abs(residual) - DELTA) > 2 * reach).all())
    found = problem.evaluate(theta[None], weights[None])
    moves = step * np.eye(len(theta))
    tiled = np.tile(weights, (len(theta), 1))
    up = problem.evaluate(theta + moves, tiled)
    down = problem.evaluate(theta - moves, tiled)
    slope = (up.objective - down.objective) / (2 * step)
    bend = (up.gradient - down.gradient) / (2 * step)
    np.testing.assert_allclose(
        found.gradient[0], slope, rtol=1e-5, atol=1e-7 * np.abs(found.gradient).max()
    )
    np.testing.assert_allclose(
        found.hessian[0], bend, rtol=1e-5, atol=1e-7 * np.abs(found.hessian).max()
    )


@pytest.mark.parametrize("key", GAINS)
def test_jacobian_equals_finite_differences(key: str) -> None:
    problem, theta = pair(key).problem, theta_of(key)
    step = 1e-6
    moves = step * np.eye(len(theta))
    slope = problem.log_prediction(theta + moves) - problem.log_prediction(theta - moves)
    jacobian = problem.jacobian(theta[None])
    assert jacobian.shape == (1, len(theta), len(RUNS))
    np.testing.assert_allclose(jacobian[0], slope / (2 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("key", GAINS)
def test_a_batch_equals_its_rows(key: str) -> None:
    problem = pair(key).problem
    theta = np.stack([theta_of(key), theta_of(key, 0.02), theta_of(key, -0.05)])
    weights = np.stack([random_weights(seed) for seed in range(3)])
    batch = problem.evaluate(theta, weights)
    for row in range(3):
        alone = problem.evaluate(theta[row : row + 1], weights[row : row + 1])
        for name in ("objective", "gradient", "hessian", "majorant"):
            many, one = getattr(batch, name)[row], getattr(alone, name)[0]
            np.testing.assert_allclose(many, one, rtol=1e-11, atol=1e-13 * np.abs(one).max())


@pytest.mark.parametrize("key", GAINS)
def test_curvatures_are_symmetric_and_the_majorant_has_no_downhill(key: str) -> None:
    found = pair(key).problem.evaluate(theta_of(key)[None], random_weights(3)[None])
    for matrix in (found.hessian[0], found.majorant[0]):
        np.testing.assert_allclose(matrix, matrix.T, rtol=0, atol=1e-12 * np.abs(matrix).max())
    smallest = np.linalg.eigvalsh(found.majorant[0]).min()
    assert smallest > -1e-12 * np.abs(found.majorant).max()


@given(points())
def test_the_majorant_is_the_curvature_of_reweighted_least_squares(
    drawn: tuple[str, np.ndarray, np.ndarray],
) -> None:
    key, theta, weights = drawn
    problem = pair(key).problem
    majorant = problem.evaluate(theta[None], weights[None]).majorant[0]
    residual = problem.log_prediction(theta[None])[0] - problem.log_loss
    jacobian = problem.jacobian(theta[None])[0]
    expected = np.zeros_like(majorant)
    for run in range(len(RUNS)):
        share = 1.0 if abs(residual[run]) <= DELTA else DELTA / abs(residual[run])
        expected += weights[run] * share * np.outer(jacobian[:, run], jacobian[:, run])
    np.testing.assert_allclose(majorant, expected, rtol=1e-9, atol=1e-11 * np.abs(majorant).max())


@given(st.floats(-0.5, 1.5), st.floats(-1.0, 1.0))
def test_the_majorant_lies_above_the_objective_of_a_linear_model(e: float, move: float) -> None:
    # With A and B at nothing the log loss is e itself, so the model is linear in theta.
    problem = pair("none").problem
    theta = np.array([[-5.0, 2.5, -5.0, 2.5, e], [-5.0, 2.5, -5.0, 2.5, e + move]])
    here, there = problem.objective(theta, np.ones((2, len(RUNS))))
    found = problem.evaluate(theta[:1], np.ones((1, len(RUNS))))
    parabola = here + found.gradient[0, 4] * move + found.majorant[0, 4, 4] * move**2 / 2
    assert there <= parabola * (1 + 1e-12)


@pytest.mark.parametrize("key", ["power", "free"])
def test_a_weight_counts_how_often_a_run_enters(key: str) -> None:
    weights = random_weights(5)
    repeated = np.repeat(np.arange(len(RUNS)), weights.astype(int))
    theta = theta_of(key)[None]
    weighted = pair(key).problem.evaluate(theta, weights[None])
    spelled_out = pair(key, rows=repeated).problem.evaluate(theta, np.ones((1, len(repeated))))
    for name in ("objective", "gradient", "hessian", "majorant"):
        one, two = getattr(weighted, name), getattr(spelled_out, name)
        np.testing.assert_allclose(one, two, rtol=1e-10, atol=1e-12 * np.abs(one).max())


def test_the_objective_is_a_sum_not_a_mean() -> None:
    problem, theta = pair("power").problem, theta_of("power")[None]
    ones = np.ones((1, len(RUNS)))
    once = problem.objective(theta, ones)[0]
    assert problem.objective(theta, 2 * ones)[0] == pytest.approx(2 * once, rel=1e-14)
    size = np.abs(problem.log_prediction(theta)[0] - problem.log_loss)
    plain = sum(r * r / 2 if r <= DELTA else DELTA * (r - DELTA / 2) for r in size)
    assert once == pytest.approx(plain, rel=1e-12)


def test_the_box_and_the_threshold_are_those_of_the_paper() -> None:
    problem = pair("power").problem
    assert HUBER_DELTA == DELTA == problem.delta
    assert problem.names == ("a", "alpha", "b", "beta", "e", "phi")
    box = np.array([*SCALE_BOX, PHI_BOX])
    np.testing.assert_array_equal(problem.lower, box[:, 0])
    np.testing.assert_array_equal(problem.upper, box[:, 1])


def test_the_threshold_can_be_chosen() -> None:
    gain = make_gain("none", RUNS.recurrence)
    wide = Problem.of(gain, **run_columns(RUNS), delta=10.0)
    theta = theta_of("none")[None]
    residual = wide.log_prediction(theta)[0] - wide.log_loss
    squares = float((residual**2).sum()) / 2
    assert wide.objective(theta, np.ones(len(RUNS)))[0] == pytest.approx(squares, rel=1e-12)


def test_a_mean_recurrence_is_a_level_like_any_other() -> None:
    r = np.array([1.0, 2.5, 2.5, 7.25])
    n = np.array([5e7, 6e7, 7e7, 8e7])
    columns = {"n_once": 0.4 * n, "n_rec": 0.6 * n, "recurrence": r, "tokens": 20 * n}
    loss = np.array([3.1, 3.0, 2.9, 2.8])
    problem = Problem.of(make_gain("power", r), **columns, val_loss=loss)
    reference = Reference("power", **columns, val_loss=loss)
    theta = theta_of("power")
    np.testing.assert_allclose(
        np.exp(problem.log_prediction(theta[None])[0]), reference.predict(theta), rtol=1e-13
    )
    assert len(problem) == 4
    assert GAIN == 5
