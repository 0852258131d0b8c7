"""The frontier against scipy and closed forms; families against the ledger; the worth of a loop."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

from loopworth.allocate import (
    Family,
    Quadratic,
    equivalents,
    families,
    family_findings,
    frontier,
    frontier_findings,
    minima_findings,
)
from loopworth.datasets import published
from loopworth.isoflop import NEAR_OPTIMAL_NATS, isoflop_minima
from loopworth.law.fitted import FittedLaw
from loopworth.ledger import Convention, ledger
from loopworth.runs import load_runs
from loopworth.spec import ModelSpec

PUBLISHED = published()
MINIMA = PUBLISHED["isoflop_minima"]
# Near the fit of arXiv 2604.21106 with the injection counted once, at the phi of its headline.
LAW = FittedLaw("power", (2.0, 4.0, 8.0), 28.4, 0.2, 911.0, 0.368, 1.57, (0.46,))
ONCE = Convention("once")
TABLE = load_runs("schwethelm2026:baseline", convention=ONCE)
FAMILIES = families(TABLE)

SPECS = [
    ModelSpec(640),
    ModelSpec(1280, 0, 20, 0, 1, "none"),
    ModelSpec(1280, recurrence=8, injection="hyperconnections", n_lanes=3),
    ModelSpec(1280, recurrence=8, bptt_window=3, injection="diagonal"),
    ModelSpec(1024, n_kv_heads=2, mlp_kind="swiglu", tied_embeddings=True),
    ModelSpec(1536, mlp_ratio=8 / 3, recurrence=4.5, injection="additive"),
]


def pure(coefficient=12.0, flops=72.0, recurrence=1.0):
    """A family of d^2 terms only: F = 6 N where flops is six times the coefficient."""
    zero, square = Quadratic(0.0, 0.0, 0.0), Quadratic(0.0, 0.0, coefficient)
    cost = Quadratic(0.0, 0.0, flops)
    return Family(recurrence, zero, square, square, cost, cost, square, square)


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"{s.injection}-{s.mlp_kind}-r{s.recurrence}")
@pytest.mark.parametrize(
    "convention", [Convention(), ONCE, Convention("excluded", embeddings=True)]
)
def test_a_family_is_the_ledger(spec, convention):
    family = Family.of(spec, convention)
    step = math.lcm(spec.head_dim * (spec.n_kv_heads or 1), 3 if spec.mlp_ratio != 4.0 else 1)
    for width in (spec.d_model, 5 * step, 31 * step):
        account = ledger(replace(spec, d_model=width))
        count = account.count(convention)
        assert family.n_once(width) == pytest.approx(count.n_once, rel=1e-12)
        assert family.n_rec(width) == pytest.approx(count.n_rec, rel=1e-12)
        assert family.n_unique(width) == pytest.approx(account.count().n_unique, rel=1e-12)
        assert family.train_flops(width) == pytest.approx(account.train_flops_per_token, rel=1e-12)
        assert family.inference_flops(width) == pytest.approx(account.inference_flops_per_token)
        assert 2 * family.stored(width) == pytest.approx(account.weight_bytes(), rel=1e-12)
        assert 2 * family.kv_values(width) == pytest.approx(account.kv_bytes_per_token(), rel=1e-12)


@given(
    constant=st.floats(0.0, 1e6), linear=st.floats(0.0, 1e6), square=st.floats(0.1, 1e4),
    width=st.floats(1.0, 1e6),
)  # fmt: skip
def test_the_width_of_a_value(constant, linear, square, width):
    line = Quadratic(constant, linear, square)
    assert line.width(line(width)) == pytest.approx(width, rel=1e-6)


def test_a_value_below_the_smallest_is_refused():
    with pytest.raises(ValueError, match="out of reach"):
        Quadratic(100.0, 1.0, 1.0).width(50.0)


def test_families_of_the_built_in_table():
    assert [(f.recurrence, f.layout) for f in FAMILIES] == [
        (1.0, "0-20-0"), (2.0, "2-8-2"), (4.0, "2-4-2"), (8.0, "2-2-2"),
    ]  # fmt: skip
    assert all(len(f.budgets) == 6 and f.convention == ONCE for f in FAMILIES)
    widths = (384, 2176)  # s = 6 and s = 34
    assert FAMILIES[2].n_measured == tuple(FAMILIES[2].n_unique(d) for d in widths)
    assert family_findings(TABLE) == ()


@given(
    alpha=st.floats(0.1, 0.8),
    beta=st.floats(0.1, 0.8),
    log_a=st.floats(2.0, 8.0),
    log_b=st.floats(2.0, 8.0),
    budget=st.floats(1e18, 1e24),
)
def test_closed_form_where_flops_are_6_n(alpha, beta, log_a, log_b, budget):
    # Hoffmann et al. (arXiv 2203.15556), equation 4: N* = G (C/6)^(beta / (alpha + beta)).
    law = FittedLaw("none", (), math.exp(log_a), alpha, math.exp(log_b), beta, 1.7, ())
    scale = (alpha * law.A / (beta * law.B)) ** (1.0 / (alpha + beta))
    expected = scale * (budget / 6.0) ** (beta / (alpha + beta))
    points = frontier(law, [pure()], [budget])
    if not 12.0 * 8.0**2 < expected < 12.0 * 1e18:
        assert points == ()
        return
    (point,) = points
    assert point.n_star == pytest.approx(expected, rel=1e-6)
    assert point.tokens == pytest.approx(budget / 6.0 / expected, rel=1e-6)
    assert point.n_exponent == pytest.approx(beta / (alpha + beta), rel=1e-9)
    assert point.d_exponent == pytest.approx(alpha / (alpha + beta), rel=1e-9)


@given(
    alpha=st.floats(0.1, 0.6), beta=st.floats(0.2, 0.6), phi=st.floats(-0.5, 1.2),
    budget=st.floats(1e17, 1e22), which=st.integers(0, len(SPECS) - 1),
)  # fmt: skip
def test_the_optimum_is_that_of_scipy_and_beats_a_grid(alpha, beta, phi, budget, which):
    law = FittedLaw("power", (2.0,), 300.0, alpha, 700.0, beta, 1.6, (phi,))
    family = Family.of(SPECS[which])

    def loss(x):
        d = np.exp(x)
        tokens = budget / family.train_flops(d)
        return law.predict(family.n_once(d), family.n_rec(d), family.recurrence, tokens)

    (point,) = frontier(law, [family], [budget])
    grid = np.linspace(math.log(10.0), math.log(1e7), 4000)
    assert point.loss <= float(loss(grid).min()) + 1e-12
    near = math.log(point.width)
    found = optimize.minimize_scalar(
        lambda x: float(loss(x)), bounds=(near - 3.0, near + 3.0), method="bounded",
        options={"xatol": 1e-10},
    )  # fmt: skip
    assert point.loss == pytest.approx(found.fun, abs=1e-12)
    assert point.width == pytest.approx(math.exp(found.x), rel=1e-4)
    assert point.tokens * point.train_flops_per_token == pytest.approx(budget)
    for end in (point.n_low, point.n_high):
        x = math.log(family.n_unique.width(end))
        assert float(loss(x)) == pytest.approx(point.loss + 0.001, abs=1e-9)


def test_local_exponents_are_derivatives():
    h = 1e-4
    low, high = (frontier(LAW, FAMILIES, [1e19 * math.exp(s)]) for s in (-h, h))
    for point, a, b in zip(frontier(LAW, FAMILIES, [1e19]), low, high, strict=True):
        n_slope = math.log(b.n_star / a.n_star) / (2 * h)
        d_slope = math.log(b.tokens / a.tokens) / (2 * h)
        assert (point.n_exponent, point.d_exponent) == pytest.approx((n_slope, d_slope), abs=1e-6)


@pytest.mark.parametrize("printed", PUBLISHED["per_recurrence"], ids=lambda p: f"r{p['r']}")
def test_published_exponents_take_flops_as_a_power_of_n(printed):
    """The printed exponents are b / (a + k b) with F ~ N^k; with the true F(N) they are lower."""
    family = next(f for f in FAMILIES if f.recurrence == printed["r"])
    widths = [s.d_model for s in {*TABLE.specs} if s.recurrence == printed["r"]]
    log_n, log_f = (
        np.log([value(d) for d in widths]) for value in (family.counted, family.train_flops)
    )
    k, _ = np.polyfit(log_n, log_f, 1)
    closed = printed["beta"] / (printed["alpha"] + k * printed["beta"])
    (expected,) = [x for x in PUBLISHED["optimal_exponents"] if x["r"] == printed["r"]]
    assert (round(closed, 2), round(1.0 - k * closed, 2)) == (expected["N"], expected["D"])

    constants = (printed[name] for name in ("A", "alpha", "B", "beta", "E"))
    points = frontier(FittedLaw("none", (), *constants, ()), [family])
    log_c, log_star = (
        np.log([getattr(p, name) for p in points]) for name in ("budget_flops", "n_star")
    )
    true, _ = np.polyfit(log_c, log_star, 1)
    assert 0.05 < closed - true < 0.1  # F bends upwards in ln N, which slows N* down


def test_the_frontier_meets_the_measured_minima():
    page = PUBLISHED["joint"]["page"]
    constants = (page[name] for name in ("A", "alpha", "B", "beta", "E"))
    law = FittedLaw("power", (2.0, 4.0, 8.0), *constants, (page["phi"],))
    points = {(p.recurrence, p.budget_flops): p for p in frontier(law, TABLE)}
    assert len(points) == 24
    for minimum in MINIMA:
        point = points[minimum["r"], minimum["C"]]
        assert point.loss == pytest.approx(minimum["L_star"], abs=0.025)
        assert point.n_star == pytest.approx(minimum["N_star"], rel=0.6)  # valleys are flat
        assert point.inside
        assert not point.extrapolated
        assert (point.gap_to_r1 == 0.0) == (point.recurrence == 1.0)
    gaps = [p.gap_to_r1 for p in points.values() if p.budget_flops == 1e19]
    assert gaps == sorted(gaps)


def test_a_law_that_misses_the_measured_minima_is_told():
    """Against the printed minima and the parabolas themselves, not their ranges of N."""
    measured = isoflop_minima(TABLE)
    points = frontier(LAW, TABLE)
    (finding,) = minima_findings(points, measured)
    assert (finding.code, finding.severity) == ("law_misses_minima", "note")
    by_group = {(x.recurrence, x.budget_flops): x for x in measured}
    costs = {}
    for p in points:
        x = by_group[p.recurrence, p.budget_flops]
        costs[p.recurrence, p.budget_flops] = x.loss_at(p.n_star) - x.loss_star
    missed = {group: nats for group, nats in costs.items() if nats > NEAR_OPTIMAL_NATS}
    assert f"in {len(missed)} of 24 groups of runs, all too large" in finding.message
    assert finding.rows == tuple(sorted(row for group in missed for row in by_group[group].rows))
    worst = max(missed, key=missed.__getitem__)
    (printed,) = [x for x in MINIMA if (x["r"], x["C"]) == worst]
    said = re.search(r"the runs (\d+)M", finding.message)
    assert float(said[1]) * 1e6 == pytest.approx(printed["N_star"], rel=0.01)
    assert f"The worst is r = {worst[0]:g} at" in finding.message
    assert f"costs {missed[worst]:.4f} nats" in finding.message


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ((1.0, 1.0), None),
        ((1.001, 0.999), None),
        ((2.0, 1.5), "in 2 of 2 groups of runs, all too large"),
        ((0.5, 1.0), "in 1 of 2 groups of runs, all too small"),
        ((0.5, 2.0), "in 2 of 2 groups of runs, 1 too large, 1 too small"),
    ],
)
def test_only_an_optimum_outside_the_flat_range_is_a_miss(factors, expected):
    measured = isoflop_minima(TABLE)[:2]
    points = [
        replace(p, n_star=factor * x.n_star)
        for p, x, factor in zip(frontier(LAW, TABLE), measured, factors, strict=False)
    ]
    found = minima_findings(points, measured)
    assert len(found) == (expected is not None)
    assert all(expected in finding.message for finding in found)


def test_what_has_no_measured_minimum_is_no_miss():
    points = frontier(LAW, TABLE)
    edges = [
        replace(x, status="edge", n_star=None, n_low=None, n_high=None)
        for x in isoflop_minima(TABLE)
    ]
    elsewhere = frontier(LAW, TABLE, [3e18])
    assert minima_findings(points, edges) == minima_findings(points, ()) == ()
    assert minima_findings(elsewhere, isoflop_minima(TABLE)) == ()


def test_beyond_the_measurements_is_said():
    points = frontier(LAW, FAMILIES, [1e19, 1e23])
    assert [p.extrapolated for p in points[:2]] == [False, True]
    assert not points[1].inside
    assert [f.code for f in frontier_findings(points, FAMILIES)] == ["frontier_extrapolated"]


@pytest.mark.parametrize("change", [{"A": 0.0}, {"B": 0.0}, {"alpha": 0.0}, {"beta": 0.0}])
def test_a_law_without_a_trade_off_has_no_optimum(change):
    points = frontier(replace(LAW, **change), FAMILIES)
    assert points == ()
    (finding,) = frontier_findings(points, FAMILIES)
    assert finding.code == "frontier_no_optimum"


@pytest.mark.parametrize("budget", [0.0, -1e18, math.nan, math.inf])
def test_a_budget_must_be_positive(budget):
    with pytest.raises(ValueError, match="must be a positive"):
        frontier(LAW, FAMILIES, [budget])


def test_a_table_without_architectures_has_no_frontier_and_says_so():
    runs = load_runs(
        {
            "n_once": [1e7, 2e7, 4e7],
            "n_rec": [3e7, 6e7, 9e7],
            "recurrence": [2, 2, 4],
            "tokens": [1e9, 2e9, 3e9],
            "val_loss": [3.1, 2.9, 2.8],
        }
    )
    assert families(runs) == frontier(LAW, runs) == equivalents(LAW, runs) == ()
    (finding,) = family_findings(runs)
    assert finding.code == "frontier_without_architecture"
    assert finding.rows == (1, 2, 3)


def test_two_layouts_at_one_recurrence_are_told():
    rows = [
        {
            "d_model": d, "n_prelude": p, "n_recur": 4, "n_coda": 2, "recurrence": 4,
            "injection": "linear", "budget_flops": 1e18, "val_loss": loss,
        }
        for d, p, loss in [(640, 2, 2.9), (768, 2, 2.85), (640, 4, 2.95), (896, 4, 2.88)]
    ]  # fmt: skip
    runs = load_runs(rows)
    assert families(runs) == ()
    assert [f.code for f in family_findings(runs)] == ["frontier_several_layouts"]


@pytest.mark.parametrize(
    ("injection", "worth", "unrolled"),
    # Layers are 12 d^2 and the injection is 2 d^2 of 98 d^2, so at 410M and phi = 0.46:
    [
        ("recurrent", 596.6e6, 1037.6e6),
        ("once", 589.1e6, 1012.4e6),
        ("excluded", 580.7e6, 1004.1e6),
    ],
)
def test_the_headline_in_every_convention(injection, worth, unrolled):
    (x,) = equivalents(LAW, ModelSpec(640), n_unique=410e6, convention=Convention(injection))
    assert x.n_unique == pytest.approx(410e6)
    assert x.worth == pytest.approx(worth, rel=1e-3)
    assert x.unrolled == pytest.approx(unrolled, rel=1e-3)
    assert x.unlooped == "0-20-0"
    assert x.cost == pytest.approx(1.03e9, rel=0.02)
    assert f"410M unique parameters are worth {round(x.worth / 1e6)}M" in x.sentence


def test_the_printed_ratio_drops_the_injection_from_both():
    args = {"n_unique": 410e6}
    (dropped,) = equivalents(LAW, ModelSpec(640), convention=Convention("excluded"), **args)
    (counted,) = equivalents(LAW, ModelSpec(640), **args)
    assert dropped.worth_per_cost == pytest.approx(0.578, abs=5e-4)
    assert counted.worth / dropped.unrolled == pytest.approx(0.594, abs=5e-4)


def test_equal_worth_is_equal_loss_and_equal_cost_is_equal_flops():
    unlooped = next(f for f in FAMILIES if f.recurrence == 1.0)
    for x in equivalents(LAW, TABLE):
        loss = LAW.predict(x.n_once, x.n_rec, x.recurrence, 1e10)
        assert float(loss) == pytest.approx(float(LAW.predict(0.0, x.worth, 1.0, 1e10)))
        width = unlooped.n_unique.width(x.cost)
        assert unlooped.train_flops(width) == pytest.approx(x.train_flops_per_token)
        assert x.over_cost.train_flops == pytest.approx(1.0)
        assert x.over_cost.weight_bytes < x.over_worth.weight_bytes < 1.0
        assert x.over_worth.train_flops > x.over_worth.inference_flops * 0.99 > 1.0


def test_truncation_makes_the_same_worth_cheaper():
    full, cut = (
        equivalents(LAW, ModelSpec(640, bptt_window=window), n_unique=410e6)[0]
        for window in (None, 2)
    )
    assert cut.worth == full.worth
    assert cut.cost < 0.8 * full.cost
    assert cut.inference_flops_per_token == full.inference_flops_per_token


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"{s.injection}-{s.mlp_kind}-r{s.recurrence}")
def test_any_spec_has_an_equivalent_at_its_own_width(spec):
    (x,) = equivalents(LAW, spec)
    account = ledger(spec)
    assert x.width == spec.d_model
    assert x.n_unique == pytest.approx(account.count().n_unique, rel=1e-3)
    assert x.worth == pytest.approx(account.n_eff(LAW.g(float(spec.recurrence))), rel=1e-3)


def test_everything_is_plain_json():
    results = [*frontier(LAW, FAMILIES), *equivalents(LAW, FAMILIES)]
    again = json.loads(json.dumps([x.to_json() for x in results]))
    assert again[0]["recurrence"] == 1.0
    assert again[-1]["over_worth"]["train_flops"] > 1.0
