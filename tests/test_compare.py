"""Comparing tables: pairing, differences, the parts of a change, the variants, the refusals."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from law_reference import Reference, run_columns
from loopworth.allocate import families, frontier
from loopworth.compare import Comparison, Difference, compare
from loopworth.compare.decomposition import PARTS, shapley
from loopworth.compare.draws import LawFit, difference, fit_table
from loopworth.compare.pairing import Pairing, pair, shared_rows
from loopworth.compare.variants import VARIANTS, fit_variants, joint_gain, joint_problem
from loopworth.law import FittedLaw, fit
from loopworth.law.gain import Gain, make_gain
from loopworth.law.joint import GAIN, Problem
from loopworth.law.solve import optimise
from loopworth.ledger import Convention
from loopworth.runs import RunTable, load_runs

NAMES = ("baseline_lower", "truncated_bptt", "hyperconnections")
BASE, TRUNCATED, HYPER = (load_runs(f"schwethelm2026:{name}") for name in NAMES)
RESAMPLES = 200


@pytest.fixture(scope="module")
def studies() -> Comparison:
    return compare(BASE, [TRUNCATED, HYPER], bootstrap=RESAMPLES)


def codes(found: Any) -> list[str]:
    return [finding.code for finding in found]


def with_loss(runs: RunTable, loss: np.ndarray, **labels: Any) -> RunTable:
    """Return the same runs with other losses."""
    columns = {**runs.to_columns(), "val_loss": loss.tolist(), **labels}
    columns.pop("row")
    return load_runs(columns)


# Pairing


class TestPairing:
    PAIRED: Pairing = pair([BASE, TRUNCATED, HYPER], law="power")

    def test_cells_of_one_budget_and_recurrence_are_drawn_together(self) -> None:
        weights = self.PAIRED.resample(20, seed=1)
        drawn: dict[tuple[float, float], np.ndarray] = {}
        for table, part in zip(self.PAIRED.tables, weights, strict=True):
            assert part.shape == (20, len(table))
            for k, key in enumerate(zip(table.budgets, table.recurrence, strict=True)):
                np.testing.assert_array_equal(part[:, k], drawn.setdefault(key, part[:, k]))
        assert len(drawn) == self.PAIRED.cell_count == 16
        np.testing.assert_array_equal(sum(drawn.values()), 16.0)

    def test_shared_rows_share_weights(self) -> None:
        weights = self.PAIRED.resample(20, seed=1)
        for k, method in ((1, TRUNCATED), (2, HYPER)):
            shared = shared_rows(BASE, method)
            np.testing.assert_array_equal(shared, method.recurrence == 1)
            for row in method.rows[shared]:
                ours, theirs = BASE.rows == row, method.rows == row
                np.testing.assert_array_equal(weights[0][:, ours], weights[k][:, theirs])

    def test_equal_cells_give_the_interval_of_fit(self) -> None:
        # One table with the cells of all: its resamples are those of `fit` at the same seed.
        alone = fit(BASE, bootstrap=60, seed=3)
        found = compare(BASE, HYPER, bootstrap=60, seed=3)
        assert alone.phi is not None
        np.testing.assert_allclose(found.base_gain["phi"].ci95, alone.phi.ci95, rtol=1e-9)

    def test_a_cell_that_one_table_lacks_counts_among_all(self) -> None:
        lacking = HYPER.select(~((HYPER.recurrence == 8) & (HYPER.budgets > 4e18)))
        paired = pair([BASE, lacking], law="power")
        assert paired.cell_count == 16
        assert len(set(paired.cells[1].tolist())) == 15
        # Drawing the lacking cell leaves that resample one block short.
        first = [int(np.flatnonzero(paired.cells[1] == c)[0]) for c in set(paired.cells[1])]
        sums = paired.resample(200, 0)[1][:, first].sum(axis=1)
        assert sums.max() == 16
        assert sums.min() < 15

    def test_only_shared_budgets_are_kept_unless_asked(self) -> None:
        whole = load_runs("schwethelm2026")
        paired = pair([whole, HYPER], law="power")
        np.testing.assert_array_equal(paired.tables[0].rows, BASE.rows)
        assert codes(paired.findings) == ["budgets_left_out"]
        assert "36 runs of schwethelm2026 at 1e19 and 2.15e19" in paired.findings[0].message
        every = pair([whole, HYPER], law="power", all_budgets=True)
        assert len(every.tables[0]) == 116
        assert every.largest == paired.largest == 4.64e18

    def test_budgets_a_little_off_are_the_same_budget(self) -> None:
        columns = HYPER.to_columns()
        columns["budget_flops"] = [1.02 * x for x in columns["budget_flops"]]
        paired = pair([BASE, load_runs(columns)], law="power")
        assert paired.cell_count == 16
        assert paired.findings == ()

    def test_checkpoints_of_a_run_are_one_cell(self) -> None:
        columns = BASE.to_columns()
        columns["run_id"] = ["a" if k < 3 else f"run {k}" for k in range(len(BASE))]
        paired = pair([load_runs(columns), HYPER], law="power")
        assert paired.cell_count == 17
        assert len(set(paired.cells[0][:3].tolist())) == 1

    def test_equal_names_are_told_apart(self) -> None:
        assert pair([BASE, BASE, BASE], law="power").names == (
            "baseline_lower",
            "baseline_lower (2)",
            "baseline_lower (3)",
        )


# Differences


class TestDifference:
    def test_equals_refits_of_resampled_tables(self) -> None:
        paired = pair([BASE, HYPER], law="power")
        weights = paired.resample(3, seed=5)
        fits = [
            fit_table(name, table, "power", drawn)
            for name, table, drawn in zip(paired.names, paired.tables, weights, strict=True)
        ]
        for k in range(3):
            phi = []
            for table, drawn in zip(paired.tables, weights, strict=True):
                rows = np.repeat(np.arange(len(table)), drawn[k].astype(int))
                columns = run_columns(table, rows)
                phi.append(optimise(Problem.of(make_gain("power", [1, 2]), **columns)).theta[GAIN])
            draws = [found.law.all_theta[1 + k, GAIN] for found in fits]
            np.testing.assert_allclose(draws, phi, atol=1e-5)

    def test_estimate_equals_the_plain_reference(self, studies: Comparison) -> None:
        phi = []
        for runs in (BASE, HYPER):
            start = optimise(Problem.of(make_gain("power", [1, 2]), **run_columns(runs))).theta
            found = Reference("power", **run_columns(runs)).descend(start[None] * 1.01)
            phi.append(found.theta[0, GAIN])
        delta = studies.methods[1].delta_phi
        assert delta is not None
        assert delta.estimate == pytest.approx(phi[1] - phi[0], abs=1e-3)

    def test_interval_and_sign_are_those_of_the_paired_draws(self) -> None:
        problem = Problem.of(make_gain("power", [1, 2]), **run_columns(BASE))
        rng = np.random.default_rng(0)
        values = np.concatenate([[0.3], rng.normal(0.2, 0.3, 400)])
        boot = fit(BASE, bootstrap=2).bootstrap
        assert boot is not None
        one, two = (
            LawFit(
                problem,
                optimise(problem),
                None,  # type: ignore[arg-type]
                replace(boot, converged=rng.random(400) > 0.1),
            )
            for _ in range(2)
        )
        found = difference(one, two, values)
        assert one.bootstrap is not None
        assert two.bootstrap is not None
        kept = values[1:][one.bootstrap.converged & two.bootstrap.converged]
        assert found.estimate == 0.3
        assert found.ci95 is not None
        np.testing.assert_allclose(found.ci95, np.quantile(kept, [0.025, 0.975]))
        assert found.p_positive == pytest.approx((kept > 0).mean())

    def test_a_method_that_is_the_base_changes_nothing(self) -> None:
        (method,) = compare(BASE, BASE, bootstrap=50).methods
        nothing = Difference(0.0, (0.0, 0.0), 0.5)
        assert method.delta_phi == nothing
        assert not nothing.established
        assert [row.change for row in method.delta_g] == [nothing] * 3
        assert all(row.change == nothing for row in method.decomposition)
        assert all(part == nothing for row in method.decomposition for part in row.parts.values())
        assert method.variants is None
        assert method.sentence.endswith("phi is the same as in baseline_lower.")

    def test_without_resamples_there_are_no_intervals(self) -> None:
        found = compare(BASE, HYPER, bootstrap=0)
        (method,) = found.methods
        assert method.delta_phi is not None
        assert method.delta_phi.ci95 is None
        assert method.delta_phi.p_positive is None
        assert found.base_gain["phi"].ci95 is None
        assert all(row.change.ci95 is None for row in method.decomposition)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (Difference(0.2178, (0.0367, 0.3248)), "+0.22 [+0.04, +0.32]"),
            (Difference(-0.0443, (-0.1919, 0.2151)), "-0.04 [-0.19, +0.22]"),
            (Difference(1.474, (1.296, 1.942)), "+1.47 [+1.30, +1.94]"),
            (Difference(-0.0003, (-0.2, 0.2)), "+0.00 [-0.20, +0.20]"),
            (Difference(0.25), "+0.250"),
        ],
    )
    def test_in_words(self, change: Difference, words: str) -> None:
        assert change.words == words


class TestPublished:
    """The numbers of the built-in studies; intervals of 200 resamples, so ends to 0.05."""

    def test_phi(self, studies: Comparison) -> None:
        truncated, hyper = studies.methods
        assert truncated.delta_phi is not None
        assert hyper.delta_phi is not None
        assert hyper.delta_phi.estimate == pytest.approx(0.218, abs=0.01)
        assert hyper.delta_phi.ci95 == pytest.approx((0.04, 0.33), abs=0.05)
        assert hyper.delta_phi.ci95[0] > 0
        assert hyper.delta_phi.established
        assert truncated.delta_phi.estimate == pytest.approx(-0.044, abs=0.01)
        # Warm starts alone end at -0.19; the global optimum of some resamples has a negative phi.
        low, high = truncated.delta_phi.ci95
        assert low < -0.19
        assert high == pytest.approx(0.22, abs=0.05)
        assert not truncated.delta_phi.established
        assert "the sign is established" in hyper.sentence
        assert "the sign is not established: P(<0) = 0." in truncated.sentence

    def test_truncation_without_r_2(self) -> None:
        found = compare(BASE, TRUNCATED, bootstrap=RESAMPLES, without_recurrence=[2])
        (method,) = found.methods
        assert found.recurrences == (1.0, 4.0, 8.0)
        assert method.delta_phi is not None
        assert method.delta_phi.estimate == pytest.approx(-0.070, abs=0.01)
        assert method.delta_phi.ci95 == pytest.approx((-0.17, 0.02), abs=0.05)
        assert 0.02 <= method.delta_phi.p_positive <= 0.08

    def test_with_the_injection_once(self) -> None:
        found = compare(BASE, [TRUNCATED, HYPER], convention=Convention("once"), bootstrap=0)
        delta = [method.delta_phi.estimate for method in found.methods]
        assert delta == pytest.approx([-0.065, 0.195], abs=0.01)
        assert found.convention.injection == "once"

    def test_gain_by_recurrence(self, studies: Comparison) -> None:
        expected = {"truncated_bptt": (-0.19, 0.30, 0.37), "hyperconnections": (0.93, 0.77, 0.66)}
        for method in studies.methods:
            phi = [math.log(row.method) / math.log(row.recurrence) for row in method.delta_g]
            assert phi == pytest.approx(expected[method.name], abs=0.035)
            for row in method.delta_g:
                assert row.change.estimate == pytest.approx(row.method - row.base)
                assert row.change.established

    def test_one_phi_is_flagged_where_it_does_not_describe_a_table(
        self, studies: Comparison
    ) -> None:
        for findings in (studies.findings, *(x.findings for x in studies.methods)):
            assert "phi_depends_on_recurrence" in codes(findings)
        assert not {"recipes_differ", "recurrences_differ"} & set(codes(studies.findings))


# A known truth

TRUTH = FittedLaw("power", (2.0, 4.0, 8.0), 30.0, 0.2, 900.0, 0.37, 1.57, (0.45,))
BETTER = replace(TRUTH, gain_parameters=(0.65,))


def simulated(runs: RunTable, law: FittedLaw, seed: int, scale_a: float = 1.0) -> RunTable:
    """Return a table of a law with noise of runs and of cells; A is scaled for all runs."""
    law = replace(law, A=law.A * scale_a)
    loss = law.predict(runs.n_once, runs.n_rec, runs.recurrence, runs.tokens)
    rng = np.random.default_rng(seed)
    noise = rng.normal(0, 5e-4, len(runs)) + rng.normal(0, 5e-4, 99)[runs.cells]
    return with_loss(runs, loss * np.exp(noise))


class TestSimulated:
    def test_the_interval_covers_a_known_change(self) -> None:
        found = compare(simulated(BASE, TRUTH, 1), simulated(HYPER, BETTER, 2), bootstrap=RESAMPLES)
        delta = found.methods[0].delta_phi
        assert delta is not None
        assert delta.ci95[0] < 0.2 < delta.ci95[1]
        assert delta.established
        assert delta.ci95[1] - delta.ci95[0] < 0.2
        assert "unlooped_runs_differ" in codes(found.findings)
        assert "phi_depends_on_recurrence" not in codes(found.methods[0].findings)

    @pytest.mark.parametrize(
        ("law", "scale_a", "verdict"), [(BETTER, 1.0, "loop"), (TRUTH, 0.93, "training")]
    )
    def test_loop_and_training_are_told_apart(
        self, law: FittedLaw, scale_a: float, verdict: str
    ) -> None:
        base, method = simulated(BASE, TRUTH, 1), simulated(HYPER, law, 2, scale_a)
        (found,) = compare(base, method, bootstrap=0).methods
        assert found.variants is not None
        assert found.variants.verdict == verdict
        assert found.variants.n_runs == len(base) + len(method)
        assert ("training_side_gain" in codes(found.findings)) == (verdict == "training")
        rows = {row.key: row for row in found.variants.laws[0].rows}
        if verdict == "training":
            assert rows["gain in A"].constants["A ratio"] == pytest.approx(0.93, abs=0.01)
        else:
            constants = rows["gain in g"].constants
            assert constants["phi (method)"] - constants["phi (base)"] == pytest.approx(
                0.2, abs=0.03
            )

    def test_a_change_of_g_is_a_change_of_the_part_loop(self) -> None:
        # Without noise, and with the base's own architecture, nothing else changes.
        base, method = (
            with_loss(BASE, x.predict(BASE.n_once, BASE.n_rec, BASE.recurrence, BASE.tokens))
            for x in (TRUTH, BETTER)
        )
        (found,) = compare(base, method, bootstrap=0).methods
        for row in found.decomposition:
            if row.view == "matched":
                assert row.parts["loop"].estimate == pytest.approx(row.change.estimate, rel=1e-3)
            else:  # the width that is better now costs or saves nothing to first order
                assert abs(row.parts["width"].estimate) < 0.02 * abs(row.change.estimate)


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
        assert "no_decomposition" in codes(method.findings)


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


# What is refused, and what is said


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ((BASE, HYPER.under(Convention("once"))), "injection recurrent.* injection once"),
            ((BASE, HYPER.under(Convention("once"))), "baseline_lower counts.*hyperconnections"),
            ((BASE, []), "no method"),
            ((BASE.select(BASE.budgets < 1e18), HYPER.select(HYPER.budgets > 1e18)), "no budget"),
            ((BASE, HYPER.select(HYPER.recurrence == 1)), "too few|do not identify"),
            ((BASE.select(BASE.recurrence == 4), HYPER), "do not identify phi"),
            (("schwethelm2062", HYPER), "schwethelm2026"),
        ],
    )
    def test_tables(self, arguments: tuple[Any, Any], words: str) -> None:
        with pytest.raises((ValueError, OSError), match=words):
            compare(*arguments, bootstrap=0)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"law": "none"}, "no constant.*power"),
            ({"law": "cubic"}, "'cubic'"),
            ({"bootstrap": -1}, "bootstrap=-1"),
            ({"without_recurrence": [3]}, "r = 3.*1, 2, 4 and 8"),
        ],
    )
    def test_options(self, options: dict[str, Any], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            compare(BASE, HYPER, **({"bootstrap": 0} | options))

    def test_laws_that_differ(self) -> None:
        fitted = fit(HYPER, "log", bootstrap=0)
        with pytest.raises(ValueError, match=r"'log'.*'power'"):
            compare(BASE, fitted, bootstrap=0)
        found = compare(BASE, fitted, law="log", bootstrap=0)
        assert set(found.methods[0].delta) == {"k"}
        assert found.methods[0].delta_phi is None


class TestFindings:
    def test_other_recurrences_are_named_on_both_sides(self) -> None:
        fewer = HYPER.select(HYPER.recurrence != 2)
        found = compare(BASE, fewer, bootstrap=0)
        (finding,) = (x for x in found.findings if x.code == "recurrences_differ")
        assert "r = 1, 2, 4 and 8" in finding.message
        assert "r = 1, 4 and 8" in finding.message
        assert [row.recurrence for row in found.methods[0].delta_g] == [4.0, 8.0]

    @pytest.mark.parametrize(
        ("column", "value", "words"),
        [("vocab_size", 65536, "32064 against 65536"), ("recipe", "muon", "adamw against muon")],
    )
    def test_other_recipes_warn(self, column: str, value: Any, words: str) -> None:
        tables = []
        for runs, label in ((BASE, "adamw"), (HYPER, value)):
            columns = runs.to_columns()
            if column == "recipe" or runs is HYPER:
                columns[column] = [label] * len(runs)
            tables.append(load_runs(columns))
        (finding,) = (x for x in pair(tables, law="power").findings if x.severity == "warning")
        assert finding.code == "recipes_differ"
        assert words in finding.message

    def test_few_cells_warn(self) -> None:
        small = [runs.select(runs.budgets < 2e18) for runs in (BASE, HYPER)]
        found = compare(*small, bootstrap=40, without_recurrence=[4])
        assert found.cells == 6
        assert "few_cells" in codes(found.findings)
