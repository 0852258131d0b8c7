"""Iso-FLOP parabolas against the published minima, exact parabolas and scipy."""

import json
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import optimize, stats

from loopworth.datasets import published
from loopworth.isoflop import (
    NEAR_OPTIMAL_NATS,
    isoflop_findings,
    isoflop_minima,
    loss_gaps,
    optimal_exponents,
)
from loopworth.ledger import Convention
from loopworth.runs import load_runs

PUBLISHED = published()
BASELINE = load_runs("schwethelm2026:baseline")
MINIMA = isoflop_minima(BASELINE)


def table(parameters, loss, *, budget=1e19, recurrence=1.0, tokens=None):
    parameters = np.asarray(parameters, dtype=float)
    tokens = budget / (6.0 * parameters) if tokens is None else tokens
    return load_runs(
        {
            "n_once": (0.25 * parameters).tolist(),
            "n_rec": (0.75 * parameters).tolist(),
            "recurrence": recurrence,
            "tokens": np.broadcast_to(tokens, parameters.shape).tolist(),
            "val_loss": np.asarray(loss).tolist(),
            "budget_flops": budget,
        }
    )


def test_only_a_run_table_has_minima():
    with pytest.raises(ValueError, match="runs is of type int; give a RunTable"):
        isoflop_minima(5)


def valley(parameters, vertex=1e8, depth=2.6, curvature=0.05):
    return depth + curvature * np.log(np.asarray(parameters) / vertex) ** 2


GRID = 1e8 * np.exp(np.linspace(-1.0, 1.0, 5))


@pytest.mark.parametrize(
    "printed", PUBLISHED["isoflop_minima"], ids=lambda p: f"r{p['r']}-C{p['C']:g}"
)
def test_published_minima(printed):
    (ours,) = [x for x in MINIMA if (x.recurrence, x.budget_flops) == (printed["r"], printed["C"])]
    assert ours.status == "minimum"
    assert ours.loss_star == pytest.approx(printed["L_star"], abs=6e-4)
    assert ours.n_star == pytest.approx(printed["N_star"], rel=0.01)
    assert ours.n_low < ours.n_star < ours.n_high


def test_published_loss_gaps():
    gaps = loss_gaps(MINIMA)
    for printed in PUBLISHED["loss_gap_to_r1"]:
        nats = [x.nats for x in gaps if x.recurrence == printed["r"]]
        assert len(nats) == 6
        assert [round(min(nats), 2), round(max(nats), 2)] == printed["nats"]


@pytest.mark.parametrize("injection", ["recurrent", "once", "excluded"])
def test_minima_do_not_move_with_the_convention(injection):
    assert isoflop_minima(BASELINE.under(Convention(injection))) == MINIMA


def test_case_studies_share_the_unlooped_minima():
    gaps = loss_gaps(isoflop_minima(load_runs("schwethelm2026:hyperconnections")))
    assert {x.recurrence for x in gaps} == {2.0, 4.0, 8.0}
    assert max(abs(x.nats) for x in gaps if x.recurrence == 2.0) < 0.01  # about free at r = 2


def test_a_minimum_at_the_edge_is_refused_and_named():
    runs = load_runs("schwethelm2026:truncated_bptt")
    minima = isoflop_minima(runs)
    (edge,) = [x for x in minima if x.status != "minimum"]
    assert (edge.status, edge.recurrence, edge.budget_flops) == ("edge", 8.0, 4.64e18)
    assert edge.opens_upwards
    assert not edge.inside
    assert edge.n_star is edge.loss_star is edge.tokens_star is edge.n_low is None
    (finding,) = isoflop_findings(runs, minima)
    assert finding.code == "isoflop_edge"
    assert finding.rows == edge.rows
    assert "r = 8 at 4.64e18" in finding.message


@given(
    vertex=st.floats(-0.9, 0.9),
    curvature=st.floats(0.005, 2.0),
    depth=st.floats(1.5, 4.0),
    widths=st.integers(3, 8),
)
def test_an_exact_parabola_gives_its_vertex(vertex, curvature, depth, widths):
    n = 1e8 * np.exp(np.linspace(-1.0, 1.0, widths))
    star = 1e8 * math.exp(vertex)
    (x,) = isoflop_minima(table(n, valley(n, star, depth, curvature)))
    assert x.status == "minimum"
    assert x.curvature == pytest.approx(curvature, rel=1e-6)
    assert x.n_star == pytest.approx(star, rel=1e-6)
    assert x.loss_star == pytest.approx(depth, abs=1e-9)
    assert x.tokens_star == pytest.approx(1e19 / (6.0 * star), rel=1e-6)
    assert x.rmse < 1e-9
    for end in (x.n_low, x.n_high):
        assert x.loss_at(end) - x.loss_star == pytest.approx(NEAR_OPTIMAL_NATS, abs=1e-9)


@given(
    vertex=st.floats(-3.0, 3.0),
    curvature=st.floats(0.005, 0.3),
    sign=st.sampled_from([-1.0, 1.0]),
)
def test_a_minimum_is_reported_only_inside_and_upwards(vertex, curvature, sign):
    assume(abs(abs(vertex) - 1.0) > 1e-6)
    loss = valley(GRID, 1e8 * math.exp(vertex), 6.0, sign * curvature)
    runs = table(GRID, loss)
    (x,) = isoflop_minima(runs)
    expected = "opens downwards" if sign < 0 else "minimum" if abs(vertex) < 1.0 else "edge"
    assert x.status == expected
    assert (x.n_star is None) == (x.loss_star is None) == (expected != "minimum")
    codes = {finding.code for finding in isoflop_findings(runs, isoflop_minima(runs))}
    assert codes == (set() if expected == "minimum" else {f"isoflop_{expected.replace(' ', '_')}"})


def test_too_few_widths_counts_widths_not_runs():
    n = [1e8, 1e8, 2e8, 2e8]
    runs = table(n, [2.61, 2.62, 2.60, 2.63])
    (x,) = isoflop_minima(runs)
    assert (x.status, x.n_runs, x.n_widths) == ("too few widths", 4, 2)
    with pytest.raises(ValueError, match="3 are needed"):
        x.loss_at(1e8)
    (finding,) = isoflop_findings(runs, [x])
    assert finding.rows == (1, 2, 3, 4)


def test_equal_losses_are_flat():
    (x,) = isoflop_minima(table(GRID, np.full(5, 2.6)))
    assert x.status == "flat"


def test_the_standard_error_matches_scipy():
    rng = np.random.default_rng(7)
    n = 1e8 * np.exp(np.linspace(-1.0, 1.0, 9))
    loss = valley(n, 1.2e8) + rng.normal(0.0, 1e-3, n.size)
    (x,) = isoflop_minima(table(n, loss))

    def curve(u, turn, floor, bend):
        return floor + bend * (u - turn) ** 2

    best, covariance = optimize.curve_fit(curve, np.log(n / 1e8), loss, p0=(0.1, 2.6, 0.04))
    assert math.log(x.n_star / 1e8) == pytest.approx(best[0], abs=1e-6)
    assert x.log_n_star_se == pytest.approx(math.sqrt(covariance[0, 0]), rel=1e-3)


def test_exponents_match_scipy():
    budgets = sorted({x.budget_flops for x in MINIMA})
    for growth in optimal_exponents(MINIMA):
        group = [x for x in MINIMA if x.recurrence == growth.recurrence]
        n_line = stats.linregress(np.log(budgets), np.log([x.n_star for x in group]))
        d_line = stats.linregress(np.log(budgets), np.log([x.tokens_star for x in group]))
        assert growth.n_budgets == 6
        assert (growth.n_exponent, growth.n_se) == pytest.approx((n_line.slope, n_line.stderr))
        assert (growth.d_exponent, growth.d_se) == pytest.approx((d_line.slope, d_line.stderr))


def test_exponents_of_one_budget_do_not_exist():
    assert optimal_exponents(isoflop_minima(table(GRID, valley(GRID)))) == ()


def test_tokens_at_the_minimum_lie_on_the_true_flops():
    for x in MINIMA:
        group = [list(BASELINE.rows).index(row) for row in x.rows]
        n = BASELINE.n_once[group] + BASELINE.n_rec[group]
        order = np.argsort(n)
        flops = np.interp(
            math.log(x.n_star), np.log(n[order]), BASELINE.train_flops_per_token[group][order]
        )
        assert x.tokens_star == pytest.approx(x.budget_flops / flops, rel=0.02)


def test_json_is_plain():
    text = json.dumps([x.to_json() for x in (*MINIMA, *optimal_exponents(MINIMA))])
    assert json.loads(text)[0]["status"] == "minimum"
