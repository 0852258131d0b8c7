"""Which constants can be read alone, on designs where the answer is known."""

import numpy as np
import pytest

from loopworth import fit, load_runs
from loopworth.law.identify import identify, identify_findings
from loopworth.law.profiles import profile
from loopworth.law.rivals import make_problem
from loopworth.law.solve import optimise

TABLE = load_runs("schwethelm2026")
PROBLEM = make_problem(TABLE)
THETA = optimise(PROBLEM).theta


@pytest.fixture(scope="module")
def found():
    return identify(PROBLEM, THETA, TABLE.cells, ())


def test_phi_is_identified_where_a_is_not(found):
    verdicts = {x.name: x.verdict for x in found.constants}
    assert verdicts["phi"] == "identified"
    assert verdicts["A"] == verdicts["alpha"] == verdicts["B"] == verdicts["beta"] == "weak"
    (finding,) = identify_findings(found)
    assert "phi can be read alone" in finding.message
    assert finding.severity == "note"


def test_trade_offs_are_mutual_and_named(found):
    by_name = {x.name: x for x in found.constants}
    for constant in found.constants:
        for other in constant.trades_with:
            assert constant.name in by_name[other].trades_with
    assert "alpha" in by_name["A"].trades_with


def test_profiles_hold_the_value_and_amplitudes_are_not_logs(found):
    for constant in found.constants:
        low, high = constant.profile95
        assert low < constant.value < high
    b = next(x for x in found.constants if x.name == "B")
    low, high = profile(PROBLEM, THETA, "b", TABLE.cells).interval
    assert np.log(b.profile95) == pytest.approx([low, high], abs=0.01 * (high - low))


@pytest.mark.parametrize("study", ["baseline", "hyperconnections", "truncated_bptt"])
def test_the_quick_profiles_end_where_the_thorough_ones_do(study):
    table = load_runs(f"schwethelm2026:{study}")
    problem = make_problem(table)
    theta = optimise(problem).theta
    for constant in identify(problem, theta, table.cells, ()).constants:
        name = constant.name.lower() if constant.name in "ABE" else constant.name
        low, high = profile(problem, theta, name, table.cells).interval
        ends = np.log(constant.profile95) if constant.name in "ABE" else constant.profile95
        assert ends == pytest.approx([low, high], abs=0.03 * (high - low))


def test_correlations_and_condition_against_plain_linear_algebra(found):
    jacobian = PROBLEM.jacobian(THETA[None])[0]
    unit = jacobian / np.linalg.norm(jacobian, axis=1, keepdims=True)
    assert found.condition == pytest.approx(np.linalg.cond(unit @ unit.T), rel=1e-4)
    covariance = np.linalg.inv(jacobian @ jacobian.T)
    sd = np.sqrt(np.diag(covariance))
    assert abs(covariance[0, 1] / sd[0] / sd[1]) > 0.95  # A and alpha


def test_an_open_constant_gets_no_number():
    names = ("n_once", "n_rec", "recurrence", "val_loss")
    columns = {name: getattr(TABLE, name) for name in names}
    result = fit(load_runs(columns | {"tokens": np.full(len(TABLE), 1e9)}), bootstrap=0)
    verdicts = {x.name: x for x in result.identification.constants}
    for name in ("B", "beta", "E"):
        assert verdicts[name].verdict == "open"
        assert verdicts[name].value is None
    assert verdicts["phi"].verdict == "identified"


def test_one_recurrence_has_the_constants_of_chinchilla_only():
    result = fit(TABLE.select(TABLE.recurrence == 1), bootstrap=0)
    assert [x.name for x in result.identification.constants] == ["A", "alpha", "B", "beta", "E"]


def test_a_wide_interval_is_weak_without_a_trade_off():
    """Tokens in proportion to parameters leave phi alone, but far from known."""
    rng = np.random.default_rng(0)
    unique = np.tile(np.geomspace(2e7, 1e9, 8), 4)
    r = np.repeat([1.0, 2.0, 4.0, 8.0], 8)
    rec = np.where(r == 1, unique, 0.6 * unique)
    loss = 1.57 + 28 * (unique - rec + r**0.45 * rec) ** -0.2 + 911 * (20 * unique) ** -0.368
    columns = {"n_once": unique - rec, "n_rec": rec, "recurrence": r, "tokens": 20 * unique}
    noisy = loss * np.exp(0.002 * rng.standard_normal(32))
    found = fit(load_runs(columns | {"val_loss": noisy}), bootstrap=0).identification
    verdicts = {x.name: x for x in found.constants}
    assert {name for name, x in verdicts.items() if x.verdict == "open"} == {
        *("A", "alpha", "B", "beta", "E")
    }
    low, high = verdicts["phi"].profile95
    assert high - low > 1
    assert verdicts["phi"].verdict == "weak"
    assert "wide" in verdicts["phi"].reason
    (finding,) = identify_findings(found)
    assert finding.severity == "warning"


# Noise, and what no run at r = 1 leaves open


def noisy(nats, seed=3):
    rng = np.random.default_rng(seed)
    loss = np.exp(PROBLEM.log_prediction(THETA[None])[0]) + nats * rng.standard_normal(len(TABLE))
    names = ("n_once", "n_rec", "recurrence", "tokens", "budget_flops")
    return load_runs({name: getattr(TABLE, name) for name in names} | {"val_loss": loss})


def test_noise_that_hides_phi_is_said_and_phi_is_not_read_alone():
    result = fit(noisy(0.15), bootstrap=100)
    verdicts = {x.name: x.verdict for x in result.identification.constants}
    assert verdicts["phi"] == "weak"
    (finding,) = (x for x in result.findings if x.code == "noise_hides_phi")
    assert finding.severity == "warning"
    assert "Do not quote phi" in finding.remedy
    assert finding.evidence["rmse"] > 0.1
    assert not any("phi can be read alone" in x.message for x in result.findings)


def test_little_noise_hides_nothing():
    codes = {x.code for x in fit(noisy(0.01), bootstrap=100).findings}
    assert not codes & {"noise_hides_phi", "phi_hardly_known"}


def test_a_bootstrap_interval_that_is_wide_makes_phi_weak():
    wide = identify(PROBLEM, THETA, TABLE.cells, (), {"phi": (-0.52, 0.43)})
    (phi,) = (x for x in wide.constants if x.name == "phi")
    assert phi.verdict == "weak"
    assert "-0.52 to 0.43" in phi.reason


def test_a_free_gain_without_unlooped_runs_is_refused_by_name():
    looped = TABLE.select(TABLE.recurrence > 1)
    result = fit(looped, "free", bootstrap=0)
    assert result.gain == {}
    assert result.parameters["A"] is None
    assert result.parameters["E"] is not None
    (finding,) = (x for x in result.findings if x.code == "not_identified")
    assert "A, g(2), g(4) and g(8)" in finding.message
    assert "predicts at these recurrences stand" in finding.message


def test_under_power_it_says_what_phi_rests_on():
    result = fit(TABLE.select(TABLE.recurrence > 1), bootstrap=0)
    assert result.phi is not None
    assert result.phi_by_recurrence == ()
    assert "free" not in {row.key for row in result.laws}
    (finding,) = (x for x in result.findings if x.code == "no_unlooped_runs")
    assert "rests on the form r^phi" in finding.message
    assert not any("phi(r) = " in x.message for x in result.findings)


def test_resamples_that_agree_at_the_edge_of_the_box_say_nothing():
    names = ("n_once", "n_rec", "recurrence", "tokens", "budget_flops")
    loss = np.where(TABLE.recurrence == 1, 2.7, 2.8)  # one loss a recurrence: phi runs to its edge
    columns = {name: getattr(TABLE, name) for name in names} | {"val_loss": loss}
    result = fit(load_runs(columns), bootstrap=40)
    assert result.phi.estimate == pytest.approx(-3)
    assert None in result.phi.profile95
    (finding,) = (x for x in result.findings if x.code == "noise_hides_phi")
    assert "no end" in finding.message
