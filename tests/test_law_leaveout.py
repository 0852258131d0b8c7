"""Influence and hold-outs against plain refits of the smaller table."""

import math

import numpy as np
import pytest
from scipy.stats import t as student

from loopworth import fit, load_runs
from loopworth.law.gain import GAINS
from loopworth.law.leaveout import (
    HeldOutRow,
    fit_without,
    held_out,
    influence,
    leaveout_findings,
    outlying_rows,
    rms,
)
from loopworth.law.rivals import make_problem
from loopworth.law.solve import optimise
from loopworth.law.student import t_quantile

TABLE = load_runs("schwethelm2026")
PROBLEM = make_problem(TABLE)
THETA = optimise(PROBLEM).theta


@pytest.fixture(scope="module")
def moved():
    return influence(TABLE, PROBLEM, THETA)


@pytest.fixture(scope="module")
def rows():
    return held_out(TABLE)


@pytest.mark.parametrize("place", [0, 40, 115])
def test_leaving_a_run_out_is_fitting_without_it(moved, place):
    rest = TABLE.select(np.arange(len(TABLE)) != place)
    phi = optimise(make_problem(rest)).theta[5]
    (entry,) = [x for x in moved.runs if x.rows == (int(TABLE.rows[place]),)]
    assert entry.change == pytest.approx(phi - THETA[5], abs=1e-6)


def test_leaving_a_cell_out_is_fitting_without_it(moved):
    entry = moved.cells[0]
    phi = optimise(make_problem(TABLE.select(~np.isin(TABLE.rows, entry.rows)))).theta[5]
    assert entry.change == pytest.approx(phi - THETA[5], abs=1e-6)
    assert len(moved.cells) == 24


def test_the_jackknife_is_the_textbook_one(moved):
    phis = np.array([x.change for x in moved.cells])
    assert moved.jackknife_se == pytest.approx(
        math.sqrt(23 / 24 * ((phis - phis.mean()) ** 2).sum())
    )


def test_the_jackknife_interval_is_that_of_student(moved):
    reach = student.ppf(0.975, 23) * moved.jackknife_se
    assert moved.jackknife95 == pytest.approx((moved.phi - reach, moved.phi + reach))


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 23, 100, 501])
@pytest.mark.parametrize("probability", [0.6, 0.9, 0.975, 0.9995])
def test_the_quantile_of_student(probability, degrees):
    expected = student.ppf(probability, degrees)
    assert t_quantile(probability, degrees) == pytest.approx(expected, rel=1e-9)


def test_changes_are_sorted_and_measured_in_the_given_error():
    table = influence(TABLE, PROBLEM, THETA, standard_error=0.01)
    sizes = [abs(x.change) for x in table.runs]
    assert sizes == sorted(sizes, reverse=True)
    assert table.runs[0].share == pytest.approx(table.runs[0].change / 0.01)


def test_influential_runs_are_named_and_the_fit_without_them_is_shown():
    table = influence(TABLE, PROBLEM, THETA, standard_error=0.008)
    named = [row for x in table.influential for row in x.rows]
    assert named == [x.rows[0] for x in table.runs if abs(x.share) > 0.25]
    phi = optimise(make_problem(TABLE.select(~np.isin(TABLE.rows, named)))).theta[5]
    assert table.phi_without == pytest.approx(phi, abs=1e-6)
    (finding,) = leaveout_findings(table, (), "power")
    assert finding.code == "influential_runs"
    assert sorted(finding.rows) == sorted(named)


def test_a_large_table_tries_the_runs_that_matter(moved, monkeypatch):
    monkeypatch.setattr("loopworth.law.leaveout._MOST_RUNS", 40)
    few = influence(TABLE, PROBLEM, THETA)
    assert len(few.runs) == 40
    assert few.n_runs == len(TABLE)
    assert {x.rows for x in moved.runs[:5]} <= {x.rows for x in few.runs}


def tampered(rows, factor):
    loss = TABLE.val_loss.copy()
    loss[np.isin(TABLE.rows, rows)] *= factor
    names = ("n_once", "n_rec", "recurrence", "tokens", "budget_flops")
    return load_runs({name: getattr(TABLE, name) for name in names} | {"val_loss": loss})


def test_outliers_are_named_and_the_fit_without_them_is_shown():
    bad = (3, 30, 55, 80, 110)
    table = tampered(bad, 1.05)
    found = fit(table, bootstrap=0)
    assert found.without_outliers.rows == bad
    clean = optimise(make_problem(TABLE.select(~np.isin(TABLE.rows, bad)))).theta
    assert found.without_outliers.law.phi(4) == pytest.approx(clean[5], abs=1e-6)
    assert math.log(found.without_outliers.law.B) == pytest.approx(clean[2], abs=1e-5)
    assert found.to_json()["without_outliers"]["rows"] == list(bad)
    (finding,) = [x for x in found.findings if x.code == "outlying_runs"]
    assert finding.rows == bad
    assert f"phi is {clean[5]:.3f} instead of {found.phi.estimate:.3f}" in finding.message
    assert f"B {math.exp(clean[2]):.4g}" in finding.message


@pytest.mark.parametrize("law", ["none", "bounded", "free"])
def test_a_law_without_phi_names_its_outliers_too(law):
    bad = (3, 55, 110)
    found = fit(tampered(bad, 1.15), law, bootstrap=0)
    (finding,) = [x for x in found.findings if x.code == "outlying_runs"]
    assert finding.rows == bad
    assert f"B {found.without_outliers.law.B:.4g}" in finding.message
    assert ("k2 is " in finding.message) == (law == "bounded")


def test_runs_at_one_recurrence_are_held_out_too():
    found = fit(TABLE.select(TABLE.recurrence == 1), bootstrap=0)
    assert {row.law for row in found.held_out} == {"none"}
    assert {row.kind for row in found.held_out} == {"rolling", "budget"}


def test_every_law_that_was_fitted_is_held_out():
    found = fit(TABLE, bootstrap=0)
    assert {row.law for row in found.held_out} == {row.key for row in found.laws} == set(GAINS)
    again = held_out(TABLE, ["affine"])
    mine = [row for row in found.held_out if row.law == "affine"]
    assert [row.rmse for row in mine] == pytest.approx([row.rmse for row in again], abs=1e-7)


@pytest.mark.parametrize("study", ["baseline", "truncated_bptt", "hyperconnections"])
def test_sound_tables_have_no_outliers(study):
    table = load_runs(f"schwethelm2026:{study}")
    problem = make_problem(table)
    assert outlying_rows(table, problem, optimise(problem).theta) == ()


def test_a_fit_without_rows_needs_enough_of_them():
    assert fit_without(TABLE, PROBLEM, THETA, ()) is None
    assert fit_without(TABLE, PROBLEM, THETA, TABLE.rows[6:].tolist()) is None
    looped = TABLE.rows[TABLE.recurrence > 1].tolist()
    assert fit_without(TABLE, PROBLEM, THETA, looped) is None


def test_outliers_of_a_plain_chinchilla_table_move_its_constants():
    """Five of 245, as in the published data that two groups fitted to B 2,143 and 12,846."""
    rng = np.random.default_rng(1)
    n, d = np.exp(rng.uniform(np.log(6e7), np.log(1.6e10), 245)), 10 ** rng.uniform(9.5, 11.5, 245)
    loss = (1.8 + 480 * n**-0.35 + 2100 * d**-0.37) * np.exp(0.003 * rng.standard_normal(245))
    bad = np.argsort(d)[:5]
    loss[bad] *= 1.1
    one = np.ones(245)
    columns = {"n_once": n * 0.5, "n_rec": n * 0.5, "recurrence": one, "tokens": d}
    table = load_runs(columns | {"val_loss": loss})
    problem = make_problem(table, "none")
    theta = optimise(problem).theta
    rows = outlying_rows(table, problem, theta)
    assert set(rows) == {int(table.rows[k]) for k in bad}
    left = fit_without(table, problem, theta, rows)
    again = optimise(make_problem(table.select(~np.isin(table.rows, rows)), "none")).theta
    assert math.log(left.law.B) == pytest.approx(again[2], abs=1e-4)
    assert left.n_runs == 240
    assert left.rmse < 0.02


def test_a_law_without_phi_has_no_influence_table():
    problem = make_problem(TABLE, "none")
    assert influence(TABLE, problem, optimise(problem).theta) is None


class TestHeldOut:
    """The paper's table: the next budget is predicted 12 to 13 mnats too high every time."""

    def test_rolling_origin(self, rows):
        rolling = [row for row in rows if row.kind == "rolling" and row.law == "power"]
        assert [row.left_out for row in rolling] == [4.64e18, 1e19, 2.15e19]
        assert [row.E for row in rolling] == pytest.approx([1.99, 1.86, 1.70], abs=0.005)
        assert [row.bias for row in rolling] == pytest.approx([-0.012] * 3, abs=0.0015)
        findings = {x.code: x for x in leaveout_findings(None, rows, "power")}
        assert "too high every time" in findings["extrapolation_drifts"].message

    def test_a_row_is_a_fit_to_the_rest(self, rows):
        (row,) = [x for x in rows if (x.kind, x.law, x.left_out) == ("recurrence", "power", 4)]
        rest, out = TABLE.select(TABLE.recurrence != 4), TABLE.select(TABLE.recurrence == 4)
        a, alpha, b, beta, e, phi = optimise(make_problem(rest)).theta
        n = out.n_once + out.recurrence**phi * out.n_rec
        miss = out.val_loss - (
            math.exp(e) + math.exp(a) * n**-alpha + math.exp(b) * out.tokens**-beta
        )
        assert (row.n_fitted, row.n_runs) == (87, 29)
        assert row.bias == pytest.approx(miss.mean(), abs=1e-7)
        assert row.rmse == pytest.approx(np.sqrt((miss**2).mean()), abs=1e-7)

    def test_every_law_is_fitted_to_its_global_optimum(self):
        """Leaving out 1e18 moves the law `affine` to another valley, which a warm start misses."""
        table = load_runs("schwethelm2026:hyperconnections")
        rows = held_out(table)
        assert {row.law for row in rows} == set(GAINS)
        for law in ("affine", "power", "free"):
            (row,) = [x for x in rows if (x.kind, x.law, x.left_out) == ("budget", law, 1e18)]
            rest, out = table.select(table.budgets != 1e18), table.select(table.budgets == 1e18)
            theta = optimise(make_problem(rest, law)).theta
            miss = out.val_loss - np.exp(make_problem(out, law).log_prediction(theta[None])[0])
            assert row.bias == pytest.approx(miss.mean(), abs=1e-6)
            assert math.log(row.E) == pytest.approx(theta[4], abs=1e-5)

    def test_known_optima_change_nothing(self, rows):
        given = held_out(TABLE, ["power"], {"power": THETA})
        mine = [row for row in rows if row.law == "power"]
        for one, two in zip(given, mine, strict=True):
            assert one.rmse == pytest.approx(two.rmse, abs=1e-9)

    def test_power_foretells_recurrence_8_on_the_baseline_and_bounded_on_hyperconnections(self):
        """The dispute of the two laws, settled by neither: each wins on one study."""
        errors = {}
        for study in ("baseline", "hyperconnections"):
            rows = held_out(load_runs(f"schwethelm2026:{study}"), ["power", "bounded"])
            for row in rows:
                if (row.kind, row.left_out) == ("recurrence", 8):
                    errors[study, row.law] = row.rmse
        assert errors["baseline", "power"] < 0.6 * errors["baseline", "bounded"]
        assert errors["hyperconnections", "bounded"] < 0.7 * errors["hyperconnections", "power"]

    def test_every_part_is_left_out_once(self, rows):
        parts = [(row.kind, row.left_out) for row in rows if row.law == "bounded"]
        assert len(parts) == len(set(parts)) == 3 + 6 + 3

    def test_free_cannot_predict_a_recurrence_it_has_not_seen(self):
        kinds = {row.kind for row in held_out(TABLE, ["free"])}
        assert kinds == {"rolling", "budget"}

    def test_small_tables_have_no_rows(self):
        assert held_out(TABLE.select(np.arange(len(TABLE)) < 6)) == ()

    def test_rms_pools_runs(self):
        made = [
            HeldOutRow("budget", "power", 1.0, 9, 1, 0.0, 0.3, 1.0),
            HeldOutRow("budget", "power", 2.0, 9, 3, 0.0, 0.1, 1.0),
            HeldOutRow("rolling", "power", 2.0, 9, 3, 0.0, 9.0, 1.0),
        ]
        assert rms(made, "budget", "power") == pytest.approx(math.sqrt((0.09 + 3 * 0.01) / 4))
        assert rms(made, "budget", "free") is None


def test_a_run_that_moves_phi_by_nothing_is_not_named():
    exact = np.exp(PROBLEM.log_prediction(THETA[None])[0]) + 1e-6 * np.sin(np.arange(len(TABLE)))
    names = ("n_once", "n_rec", "recurrence", "tokens", "budget_flops")
    result = fit(
        load_runs({x: getattr(TABLE, x) for x in names} | {"val_loss": exact}), bootstrap=0
    )
    assert result.influence.runs[0].share > 0.25  # a large share of nothing
    assert result.influence.influential == ()
    assert "influential_runs" not in {x.code for x in result.findings}


def test_a_bias_within_the_scatter_is_no_drift():
    def row(bias):
        return HeldOutRow("rolling", "power", 1e18, 60, 16, bias, 0.1, 1.5)

    (finding,) = leaveout_findings(None, [row(-0.08), row(-0.06)], "power")
    assert finding.code == "extrapolation_drifts"
    assert not list(leaveout_findings(None, [row(-0.08), row(-0.02)], "power"))
