"""Comparing tables: the parts of a change of loss, and a gain in the loop or everywhere."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from law_reference import run_columns
from loopworth.allocate import families, frontier
from loopworth.compare import Comparison, compare
from loopworth.compare.decomposition import PARTS, shapley
from loopworth.compare.draws import fit_table
from loopworth.compare.variants import VARIANTS, fit_variants, joint_gain, joint_problem
from loopworth.law import FittedLaw
from loopworth.law.gain import Gain, make_gain
from loopworth.law.joint import Problem
from loopworth.law.solve import optimise
from loopworth.runs import load_runs

NAMES = ("baseline_lower", "truncated_bptt", "hyperconnections")
BASE, TRUNCATED, HYPER = (load_runs(f"schwethelm2026:{name}") for name in NAMES)


@pytest.fixture(scope="module")
def studies() -> Comparison:
    return compare(BASE, [TRUNCATED, HYPER], bootstrap=60)


# The parts of a change


@given(st.integers(1, 4), st.integers(0, 1000))
def test_shapley_is_the_mean_over_all_orders(size: int, seed: int) -> None:
    players = "abcd"[:size]
    rng = np.random.default_rng(seed)
    values = {
        frozenset(taken): rng.normal(size=3)
        for k in range(size + 1)
        for taken in itertools.combinations(players, k)
    }
    expected = dict.fromkeys(players, np.zeros(3))
    orders = list(itertools.permutations(players))
    for order in orders:
        for k, player in enumerate(order):
            step = values[frozenset(order[: k + 1])] - values[frozenset(order[:k])]
            expected[player] = expected[player] + step / len(orders)
    for player, part in shapley(values).items():
        np.testing.assert_allclose(part, expected[player], atol=1e-12)


class TestDecomposition:
    def test_parts_add_up_exactly(self, studies: Comparison) -> None:
        for method in studies.methods:
            assert len(method.decomposition) == 6
            for row in method.decomposition:
                assert tuple(row.parts) == PARTS
                whole = sum(part.estimate for part in row.parts.values())
                assert whole == pytest.approx(row.change.estimate, abs=1e-12)
                assert row.method.loss - row.base.loss == pytest.approx(row.change.estimate)
                assert row.change.ci95[0] < row.change.ci95[1]

    def test_optima_are_those_of_the_frontier(self, studies: Comparison) -> None:
        for method in studies.methods:
            laws = []
            for runs in (BASE, method.runs):
                problem = Problem.of(make_gain("free", runs.recurrence), **run_columns(runs))
                theta = optimise(problem).theta
                law = FittedLaw.from_theta(problem.gain, runs.recurrence, theta)
                points = frontier(law, families(runs), [4.64e18])
                laws.append({point.recurrence: point for point in points})
            for row in method.decomposition:
                if row.view == "optimum":
                    for side, points in zip((row.base, row.method), laws, strict=True):
                        point = points[row.recurrence]
                        assert side.width == pytest.approx(point.width, rel=1e-6)
                        assert side.loss == pytest.approx(point.loss, rel=1e-9)
                        assert side.tokens == pytest.approx(point.tokens, rel=1e-6)

    def test_matched_compute_has_one_width_and_one_budget(self, studies: Comparison) -> None:
        for row in (row for method in studies.methods for row in method.decomposition):
            for side in (row.base, row.method):
                spent = side.tokens * side.train_flops_per_token
                assert spent == pytest.approx(row.budget_flops)
            if row.view == "matched":
                assert row.base.width == row.method.width
                assert row.parts["width"].estimate == pytest.approx(0.0, abs=1e-15)

    def test_what_the_methods_do(self, studies: Comparison) -> None:
        truncated, hyper = studies.methods
        for row in truncated.decomposition:
            # Fewer backward FLOPs buy tokens; the forward pass is the same at one width.
            assert row.parts["tokens"].estimate < -0.03
            assert row.parts["loop"].estimate > 0
            assert row.parts["parameters"].estimate == pytest.approx(0.0, abs=1e-15)
            assert row.inference_ratio == 1.0 or row.view == "optimum"
        for row in hyper.decomposition:
            assert row.parts["parameters"].estimate > 0  # it has no injection matrix
            assert row.parts["loop"].estimate < -0.02
            if row.measured is not None:
                assert row.change.estimate == pytest.approx(row.measured, abs=0.005)

    def test_a_table_without_architecture_has_none(self) -> None:
        columns = HYPER.to_columns()
        direct = ("n_once", "n_rec", "recurrence", "tokens", "val_loss", "budget_flops")
        (method,) = compare(
            BASE, load_runs({name: columns[name] for name in direct}), bootstrap=0
        ).methods
        assert method.decomposition == ()
        assert "no_decomposition" in {finding.code for finding in method.findings}


# A gain in the loop or a gain everywhere

PAIRS = np.array([[1.0, 0.0], [1.0, 1.0], [2.0, 0.0], [2.0, 1.0], [8.0, 0.0], [8.0, 1.0]])
VALUES = {"power": (0.43,), "bounded": (1.9, 4.6), "free": (1.3, 2.4)}


def joint(law: str, variant: str) -> tuple[Gain, np.ndarray]:
    gain = joint_gain(make_gain(law, PAIRS[:, 0]), PAIRS, variant)
    own = variant in ("gain in g", "both")
    theta = [*VALUES[law], *((1.1 * x for x in VALUES[law]) if own else ())]
    return gain, np.array(theta + [0.2] * (len(gain.parameters) - len(theta)))


@pytest.mark.parametrize("law", VALUES)
@pytest.mark.parametrize("variant", VARIANTS)
class TestJointLaws:
    def test_gain_has_exact_derivatives(self, law: str, variant: str) -> None:
        gain, theta = joint(law, variant)
        levels = np.arange(float(len(PAIRS)))
        functions = [gain.evaluate] + ([gain.once] if gain.once else [])
        assert len(functions) == 1 + (variant in ("gain in A", "both"))
        step = 1e-6 * np.eye(len(theta))
        for function in functions:
            _, gradient, hessian = function(theta[None], levels)
            up, down = function(theta + step, levels), function(theta - step, levels)
            slope = (up[0] - down[0]).T / 2e-6
            bend = (up[1] - down[1]).transpose(1, 2, 0) / 2e-6
            np.testing.assert_allclose(gradient[0], slope, rtol=1e-6, atol=1e-8)
            np.testing.assert_allclose(hessian[0], bend, rtol=1e-6, atol=1e-8)

    def test_objective_has_exact_derivatives(self, law: str, variant: str) -> None:
        rng = np.random.default_rng(3)
        gain, tail = joint(law, variant)
        problem = Problem.of(
            gain,
            n_once=rng.uniform(1e7, 1e8, 40),
            n_rec=rng.uniform(1e7, 1e8, 40),
            recurrence=rng.permutation(np.arange(40) % len(PAIRS)).astype(float),
            tokens=rng.uniform(1e9, 1e10, 40),
            val_loss=rng.uniform(2.2, 3.2, 40),
            delta=10.0,  # no run crosses it, so that differences are derivatives
        )
        theta = np.array([3.33, 0.2, 6.84, 0.37, 0.451, *tail])
        weights = rng.integers(0, 3, 40).astype(float)
        found = problem.evaluate(theta[None], weights[None])
        step = 1e-6 * np.eye(len(theta))
        tiled = np.tile(weights, (len(theta), 1))
        up, down = (problem.evaluate(theta + sign * step, tiled) for sign in (1, -1))
        slope = (up.objective - down.objective) / 2e-6
        bend = (up.gradient - down.gradient) / 2e-6
        atol = 1e-6 * np.abs(found.hessian).max()
        np.testing.assert_allclose(found.gradient[0], slope, rtol=1e-5, atol=atol)
        np.testing.assert_allclose(found.hessian[0], bend, rtol=1e-5, atol=atol)
        assert problem.objective(theta[None], weights)[0] == pytest.approx(found.objective[0])

    def test_own_a_is_a_factor_of_a(self, law: str, variant: str) -> None:
        problem = joint_problem(BASE, HYPER, law, variant)
        assert problem is not None
        values = [0.5] * len(problem.gain.parameters)
        theta = np.array([[3.33, 0.2, 6.84, 0.37, 0.451, *values]])
        if "ln lambda" not in problem.names:
            return
        other = theta.copy()
        other[0, -1] = 0.0  # the same law with the base's A
        loss, plain = (np.exp(problem.log_prediction(x)[0]) for x in (theta, other))
        rest = np.exp(6.84 - 0.37 * problem.log_tokens) + math.exp(0.451)
        ratio = (loss - rest) / (plain - rest)
        expected = np.repeat([1.0, math.exp(-0.2 * 0.5)], [len(BASE), 63])
        np.testing.assert_allclose(ratio, expected, rtol=1e-9)


def test_variants_are_global_optima() -> None:
    one, two = (
        fit_table(name, runs, "power", None)
        for name, runs in (("base", BASE), ("method", TRUNCATED))
    )
    found = fit_variants(one, two)
    assert found is not None
    assert [len(joint.rows) for joint in found.laws] == [4, 3]
    for joint_laws in found.laws:
        for row in joint_laws.rows:
            problem = joint_problem(BASE, TRUNCATED, joint_laws.law, row.key)
            assert problem is not None
            assert len(problem) == 143  # the 20 shared runs once
            assert row.objective <= optimise(problem).objective * (1 + 1e-9)
            assert row.n_constants == len(problem.names)
    # Laws disagree, since a truncated loop is worth less than nothing at r = 2.
    assert [joint_laws.verdict for joint_laws in found.laws] == ["training", "loop"]
    assert found.verdict == "open"
