"""Influence and hold-outs against plain refits of the smaller table."""

import math

import numpy as np
import pytest

from loopworth import load_runs
from loopworth.law.leaveout import HeldOutRow, held_out, influence, leaveout_findings, rms
from loopworth.law.rivals import make_problem
from loopworth.law.solve import optimise

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
