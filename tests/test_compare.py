"""Comparing tables: pairing, differences, the parts of a change, the variants, the refusals."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from law_reference import Reference, run_columns
from loopworth.compare import Comparison, Difference, compare
from loopworth.compare.draws import LawFit, difference, fit_table
from loopworth.compare.pairing import pair
from loopworth.law import FittedLaw, fit
from loopworth.law.gain import make_gain
from loopworth.law.intervals import bootstrap_interval, probability_positive
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
        blocks = one.bootstrap.blocks
        np.testing.assert_allclose(found.ci95, bootstrap_interval(kept, 0.3, blocks))
        # 0.3 lies above most of the values, so the interval leans upwards, and so does its level.
        assert (kept > 0).mean() < found.p_positive < 0.975
        assert found.ci95[0] < 0

    @given(st.floats(-1.0, 1.0), st.floats(0.02, 2.0), st.integers(40, 400), st.integers(0, 50))
    def test_the_sign_is_sure_exactly_where_the_interval_leaves_out_0(
        self, centre: float, spread: float, count: int, seed: int
    ) -> None:
        rng = np.random.default_rng(seed)
        values = centre + spread * rng.standard_normal(count)
        estimate = centre + 0.5 * spread * rng.standard_normal()
        for blocks in (4, 24):
            low, high = bootstrap_interval(values, estimate, blocks) or (0.0, 0.0)
            sure = probability_positive(values, estimate, blocks)
            assert sure is not None
            assert (sure >= 0.975) == (low > 0)
            assert (sure <= 0.025) == (high < 0)
            assert probability_positive(-values, -estimate, blocks) == pytest.approx(1 - sure)

    def test_values_that_are_all_0_favour_neither_sign(self) -> None:
        assert probability_positive(np.zeros(50), 0.0, 10) == pytest.approx(0.5)
        assert probability_positive(np.zeros(39), 0.0, 10) is None

    def test_draws_follow_the_valley_of_the_estimate(self) -> None:
        paired = pair([BASE, TRUNCATED], law="power")
        weights = paired.resample(60, seed=0)[1]
        found = fit_table("truncated", TRUNCATED, "power", weights).law
        assert found.bootstrap is not None
        assert found.lowest is not None
        away = found.elsewhere
        near, lowest = found.bootstrap, found.lowest
        # Two of these resamples have a lower point at phi < -2.
        np.testing.assert_array_equal(np.flatnonzero(away), [4, 53])
        assert (lowest.theta[away, GAIN] < -2).all()
        assert (lowest.objective[away] < near.objective[away]).all()
        np.testing.assert_array_equal(lowest.theta[~away], near.theta[~away])
        assert near.theta[:, GAIN].min() > 0.1
        assert found.anywhere().bootstrap is lowest

    def test_another_valley_is_reported_with_what_it_would_change(self) -> None:
        found = compare(BASE, TRUNCATED, bootstrap=RESAMPLES, convention=Convention("once"))
        (method,) = found.methods
        (finding,) = (x for x in method.findings if x.code == "another_valley")
        assert 0.01 < finding.evidence["share"] < 0.06
        assert method.delta_phi is not None
        assert finding.evidence["phi"]["estimate"] == method.delta_phi.estimate
        assert finding.evidence["phi"]["ci95"][0] <= method.delta_phi.ci95[0]

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
        low, high = truncated.delta_phi.ci95
        assert low == pytest.approx(-0.19, abs=0.03)
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


# What no run at r = 1 leaves open


class TestUnanchored:
    @pytest.mark.parametrize("law", ["power", "log", "bounded"])
    def test_only_what_the_form_of_the_law_identifies_is_given(self, law: str) -> None:
        found = compare(BASE, HYPER, law=law, bootstrap=0, without_recurrence=1)
        (method,) = found.methods
        assert method.delta
        assert method.delta_g == method.decomposition == ()
        assert method.variants is None
        (finding,) = (x for x in method.findings if x.code == "no_unlooped_runs")
        assert finding.severity == "warning"
        assert "baseline_lower and hyperconnections have no runs at r = 1" in finding.message
        assert not any("g(" in x.message for x in (*found.findings, *method.findings))
        assert "by" in method.sentence

    def test_a_free_gain_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"no runs at r = 1.*g\(2\), g\(4\) and g\(8\)"):
            compare(BASE, HYPER, law="free", bootstrap=0, without_recurrence=1)

    def test_one_table_without_them_is_enough(self) -> None:
        (method,) = compare(BASE, HYPER.select(HYPER.recurrence > 1), bootstrap=0).methods
        assert method.variants is None
        (finding,) = (x for x in method.findings if x.code == "no_unlooped_runs")
        assert finding.message.startswith("hyperconnections has no runs at r = 1")


class TestUnlooped:
    def test_another_loss_of_one_unlooped_model_is_said(self) -> None:
        shift = np.where(BASE.recurrence == 1, 0.02, 0.0)
        found = compare(BASE, with_loss(BASE, BASE.val_loss + shift), bootstrap=0)
        (finding,) = (x for x in found.findings if x.code == "unlooped_runs_differ")
        assert "differ by 20.0 mnats (+20.0 on average over 20 runs)" in finding.message
        assert finding.evidence["mean"] == pytest.approx(0.02)

    def test_another_unlooped_model_and_shared_runs_are_not(self) -> None:
        columns = BASE.to_columns()
        columns.pop("row")
        wider = np.where(BASE.recurrence == 1, 1.3, 1.0)
        plain = {name: columns[name] for name in ("recurrence", "tokens", "val_loss", "n_once")}
        other = load_runs({**plain, "n_rec": BASE.n_rec * wider, "budget_flops": BASE.budget_flops})
        assert "unlooped_runs_differ" not in codes(compare(BASE, other, bootstrap=0).findings)
        assert "unlooped_runs_differ" not in codes(compare(BASE, HYPER, bootstrap=0).findings)


class TestOddTables:
    def test_the_same_runs_are_no_method(self) -> None:
        found = compare(BASE, BASE.select(BASE.budgets < 2e18), bootstrap=0)
        assert "same_runs" in codes(found.findings)
        assert "same_runs" not in codes(compare(BASE, HYPER, bootstrap=0).findings)

    def test_another_count_of_the_same_runs_is_seen(self) -> None:
        columns = BASE.to_columns()
        names = ("recurrence", "tokens", "val_loss", "budget_flops")
        all_in_loop = {"n_once": np.zeros(len(BASE)), "n_rec": BASE.n_once + BASE.n_rec}
        other = load_runs({name: columns[name] for name in names} | all_in_loop)
        (finding,) = (
            x for x in compare(BASE, other, bootstrap=0).findings if x.code == "counts_differ"
        )
        assert finding.message.startswith("80 runs have the same recurrence")

    def test_noise_that_hides_phi_is_said_of_its_table(self) -> None:
        rng = np.random.default_rng(0)
        other = with_loss(HYPER, HYPER.val_loss + 0.15 * rng.standard_normal(len(HYPER)))
        (method,) = compare(BASE, other, bootstrap=60).methods
        (finding,) = (x for x in method.findings if x.code == "noise_hides_phi")
        assert finding.message.startswith("The runs of ")

    def test_no_sign_is_established_between_different_recurrences(self) -> None:
        (method,) = compare(BASE, HYPER.select(HYPER.recurrence < 8), bootstrap=60).methods
        assert method.delta_phi is not None
        assert method.delta_phi.established
        assert "the tables were run at different r" in method.sentence


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
            ((BASE, with_loss(HYPER, np.full(len(HYPER), 2.7))), "83 runs of .* the same loss"),
            ((with_loss(BASE, np.full(len(BASE), 2.7)), HYPER), "80 runs of .* the same loss"),
            ((BASE, HYPER.select(HYPER.rows < 3)), "2 runs at r = "),
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
