"""The fit against the numbers of arXiv 2604.21106, and on tables that cannot carry it."""

import json

import numpy as np
import pytest

from loopworth import Convention, fit, load_runs
from loopworth.datasets import published
from loopworth.law import FittedLaw
from loopworth.report.fit_report import FitReport

ONCE = Convention("once")


@pytest.fixture(scope="module")
def default():
    return fit("schwethelm2026")


@pytest.fixture(scope="module")
def once():
    return fit("schwethelm2026", convention=ONCE)


@pytest.fixture(scope="module")
def table():
    return load_runs("schwethelm2026")


def direct(table, **changes):
    """The table in its direct form, without architectures."""
    names = ("n_once", "n_rec", "recurrence", "tokens", "val_loss")
    return {name: getattr(table, name) for name in names} | changes


class TestPaper:
    def test_phi_by_convention(self, default):
        phi = {row.injection: row.phi for row in default.conventions}
        assert phi["recurrent"] == default.phi.estimate
        assert phi["recurrent"] == pytest.approx(0.4335, abs=0.005)
        assert phi["once"] == pytest.approx(0.458, abs=0.005)
        assert phi["excluded"] == pytest.approx(0.4725, abs=0.005)

    def test_embeddings_in_move_phi_most(self):
        counted = Convention("once", embeddings=True)
        result = fit("schwethelm2026", convention=counted, bootstrap=0)
        assert result.phi.estimate == pytest.approx(0.29, abs=0.01)

    def test_objectives(self, default, once):
        assert default.goodness.objective == pytest.approx(2.882e-4, abs=1e-7)
        assert once.goodness.objective == pytest.approx(2.865e-4, abs=1e-7)

    def test_all_seeds_agree(self, default):
        assert default.seeds_agreeing == default.seeds >= 48

    def test_block_intervals(self, default, once):
        assert default.phi.ci95 == pytest.approx((0.39, 0.48), abs=0.02)
        assert once.phi.ci95 == pytest.approx((0.41, 0.50), abs=0.02)
        assert default.bootstrap.converged.mean() > 0.99

    def test_profile_lies_around_the_estimate(self, default):
        low, high = default.phi.profile95
        assert 0.37 < low < default.phi.estimate < high < 0.50

    @pytest.mark.parametrize(
        ("study", "phi"),
        [("baseline_lower", 0.452), ("truncated_bptt", 0.387), ("hyperconnections", 0.647)],
    )
    def test_studies(self, study, phi):
        result = fit(f"schwethelm2026:{study}", convention=ONCE, bootstrap=0)
        assert result.phi.estimate == pytest.approx(phi, abs=0.01)

    def test_truncation_without_two(self):
        table = load_runs("schwethelm2026:truncated_bptt")
        result = fit(table.select(table.recurrence != 2), convention=ONCE, bootstrap=0)
        assert result.phi.estimate == pytest.approx(0.371, abs=0.01)

    def test_halves(self, once):
        assert [row.phi for row in once.halves] == pytest.approx([0.441, 0.487], abs=0.005)
        assert [row.n_runs for row in once.halves] == [56, 60]

    def test_restricted_laws(self, default):
        r2 = {row.key: row.goodness.r2 for row in default.laws}
        assert r2["none"] == pytest.approx(0.986, abs=0.003)
        assert r2["unrolled"] < 0.956
        assert default.goodness.r2 == pytest.approx(published()["joint"]["r2"], abs=0.0003)

    def test_chinchilla_of_each_recurrence(self, default):
        printed = {row["r"]: row for row in published()["per_recurrence"]}
        assert [row.recurrence for row in default.per_recurrence] == [1, 2, 4, 8]
        for row in default.per_recurrence:
            paper = printed[row.recurrence]
            assert row.parameters["alpha"] == pytest.approx(paper["alpha"], rel=0.03)
            assert row.parameters["beta"] == pytest.approx(paper["beta"], rel=0.03)
            assert 1e5 * row.goodness.objective == pytest.approx(paper["huber_e5"], abs=0.15)
            assert row.goodness.r2 == pytest.approx(paper["r2"], abs=0.0003)

    def test_free_gain(self, default):
        phi = {row.recurrence: row.phi for row in default.phi_by_recurrence}
        assert phi == pytest.approx({2: 0.38, 4: 0.48, 8: 0.42}, abs=0.02)
        for row in default.phi_by_recurrence:
            assert row.ci95[0] < row.phi < row.ci95[1]

    def test_rival_laws_are_judged_by_free(self):
        result = fit("schwethelm2026:hyperconnections", bootstrap=0)
        aicc = {row.key: row.delta_aicc for row in result.laws}
        assert aicc["power"] - aicc["free"] > 30
        assert "phi_depends_on_recurrence" in {finding.code for finding in result.findings}

    def test_residual_table(self, once):
        printed = {row["r"]: row for row in published()["joint_residuals"]}
        for row in once.residuals:
            assert row.mean == pytest.approx(printed[row.recurrence]["mean"], abs=0.0015)
            assert row.rmse == pytest.approx(printed[row.recurrence]["rmse"], abs=0.0015)
            assert row.max_abs == pytest.approx(printed[row.recurrence]["max_abs"], abs=0.0025)


class TestJson:
    def test_round_trip_predicts_bit_for_bit(self, default):
        table = default.runs
        law = FittedLaw.from_json(json.loads(FitReport.of(default).dumps())["fitted_law"])
        where = (table.n_once, table.n_rec, table.recurrence, table.tokens)
        assert law.predict(*where).tobytes() == default.law.predict(*where).tobytes()

    def test_the_law_predicts_what_the_residuals_say(self, default):
        table = default.runs
        predicted = default.law.predict(table.n_once, table.n_rec, table.recurrence, table.tokens)
        assert table.val_loss - predicted == pytest.approx(default.residual, abs=1e-12)

    def test_same_seed_same_numbers(self):
        one, two = (FitReport.of(fit("schwethelm2026", bootstrap=50, seed=3)) for _ in range(2))
        assert one.dumps() == two.dumps()

    def test_another_seed_moves_only_the_intervals(self):
        one, two = (fit("schwethelm2026", bootstrap=50, seed=seed) for seed in (1, 2))
        assert one.phi.estimate == two.phi.estimate
        assert one.phi.ci95 != two.phi.ci95

    def test_tables_hold_the_numbers_of_the_json(self, default):
        tables = FitReport.of(default).tables
        assert tables["bootstrap"].count("\n") == 1001
        assert tables["conventions"].splitlines()[0] == "injection,phi,ci95,objective,r2"
        assert str(default.phi.estimate) in tables["conventions"]


class TestInvariance:
    def test_row_order(self, table):
        columns = direct(table)
        order = np.random.default_rng(0).permutation(len(table))
        one = fit(load_runs(columns), bootstrap=0)
        two = fit(load_runs({k: v[order] for k, v in columns.items()}), bootstrap=0)
        assert two.phi.estimate == pytest.approx(one.phi.estimate, abs=1e-8)
        assert two.law.predict(1e7, 3e7, 4, 1e9) == pytest.approx(
            one.law.predict(1e7, 3e7, 4, 1e9), rel=1e-9
        )

    def test_the_direct_form_is_the_same_fit(self, default):
        result = fit(load_runs(direct(default.runs)), bootstrap=0)
        assert result.phi.estimate == pytest.approx(default.phi.estimate, abs=1e-9)
        # Without an architecture nobody knows which parameters are the injection's.
        assert [row.injection for row in result.conventions] == ["recurrent"]


class TestOpen:
    """Tables that leave constants open: the open ones are refused by name, the others reported."""

    @pytest.mark.parametrize("r", [1, 4])
    def test_one_recurrence_has_no_phi(self, table, r):
        result = fit(table.select(table.recurrence == r), bootstrap=50)
        assert result.phi is None
        assert not result.gain
        assert "one_recurrence" in {finding.code for finding in result.findings}
        printed = {row["r"]: row for row in published()["per_recurrence"]}[r]
        assert result.parameters["alpha"] == pytest.approx(printed["alpha"], rel=0.03)

    def test_one_token_count_leaves_beta_open(self, table):
        result = fit(load_runs(direct(table, tokens=np.full(len(table), 1e9))), bootstrap=0)
        assert result.parameters["B"] is result.parameters["beta"] is result.parameters["E"] is None
        assert result.parameters["alpha"] is not None
        assert result.phi is not None
        (finding,) = [x for x in result.findings if x.code == "not_identified"]
        assert "B, beta and E" in finding.message

    def test_fixed_parameters_leave_phi_open(self, table):
        ones = np.ones(len(table))
        result = fit(load_runs(direct(table, n_once=1e7 * ones, n_rec=2e7 * ones)), bootstrap=0)
        assert result.phi is None
        assert result.parameters["alpha"] is None

    def test_tokens_proportional_to_parameters(self, table):
        tokens = 20 * (table.n_once + table.n_rec)
        result = fit(load_runs(direct(table, tokens=tokens)), bootstrap=0)
        assert set(result.parameters.values()) == {None}

    def test_fewer_runs_than_constants(self, table):
        with pytest.raises(ValueError, match=r"5 runs cannot fit the 6 constants"):
            fit(table.select(np.arange(len(table)) < 5))

    @pytest.mark.parametrize("law", ["none", "unrolled"])
    def test_too_few_runs_for_phi_but_not_for_the_law(self, table, law):
        result = fit(table.select(np.arange(len(table)) % 24 == 0), law, bootstrap=0)
        assert len(result.runs) == 5
        assert result.conventions == result.phi_by_recurrence == ()

    def test_few_cells_are_said(self, table):
        result = fit(table.select((table.budgets == 1e18) & (table.recurrence != 2)), bootstrap=100)
        assert "few_cells" in {finding.code for finding in result.findings}

    def test_a_report_of_open_constants_promises_no_optimum(self, table):
        one = FitReport.of(fit(table.select(table.recurrence == 1), bootstrap=0))
        assert json.loads(one.dumps())["phi"] is None

    def test_a_saturated_fit_has_no_interval(self, table):
        result = fit(table.select(np.arange(len(table)) % 15 == 0), bootstrap=50)
        assert len(result.runs) == 8
        assert result.phi.ci95 is result.phi.profile95 is None
        assert "saturated" in {finding.code for finding in result.findings}

    def test_equal_losses_say_nothing(self, table):
        flat = load_runs(direct(table, val_loss=np.full(len(table), 2.5)))
        with pytest.raises(ValueError, match="the same loss"):
            fit(flat)

    def test_unknown_law(self):
        with pytest.raises(ValueError, match=r"law='cubic' is unknown; use none"):
            fit("schwethelm2026", law="cubic")

    def test_negative_bootstrap(self):
        with pytest.raises(ValueError, match="bootstrap=-1"):
            fit("schwethelm2026", bootstrap=-1)


@pytest.mark.parametrize("law", ["none", "unrolled", "bounded", "log", "affine", "free"])
def test_every_law_makes_a_whole_report(law):
    report = FitReport.of(fit("schwethelm2026:hyperconnections", law=law, bootstrap=0))
    data = json.loads(report.dumps())
    assert data["phi"] is None
    assert set(data["gain"]) == set(report.fit.law.gain.parameters)
    assert data["laws"][law]["objective"] == data["objective"]
    # The conventions always show phi of `power`, and say the same whatever law was asked for.
    assert data["conventions"][0]["phi"] == pytest.approx(0.647, abs=0.001)
