"""The Huber threshold: a fit held against scipy, and the threshold that suits a table."""

import numpy as np
import pytest
from scipy.optimize import least_squares

from loopworth import fit, load_runs
from loopworth.compare import compare
from loopworth.law.joint import GAIN
from loopworth.law.threshold import suitable_huber_delta

STUDY = "schwethelm2026"


def residual(theta, runs):
    a, alpha, b, beta, e, phi = theta
    size = runs.n_once + runs.recurrence**phi * runs.n_rec
    predicted = np.exp(a) * size**-alpha + np.exp(b) * runs.tokens**-beta + np.exp(e)
    return np.log(predicted) - np.log(runs.val_loss)


@pytest.mark.parametrize(("delta", "loss"), [(10.0, "linear"), (0.004, "huber")])
def test_the_fit_is_that_of_scipy_at_every_threshold(delta, loss):
    runs = load_runs(STUDY)
    ours = fit(runs, bootstrap=0, huber_delta=delta)
    # scipy's loss is twice ours; where no residual reaches delta it is least squares.
    start = np.array([3.0, 0.2, 7.0, 0.35, 0.4, 0.4])
    theirs = least_squares(
        residual, start, args=(runs,), loss=loss, f_scale=delta, x_scale="jac", max_nfev=2000,
        ftol=1e-14, xtol=1e-14, gtol=1e-14,
    )  # fmt: skip
    assert ours.goodness.objective == pytest.approx(theirs.cost, rel=1e-6)
    assert ours.phi.estimate == pytest.approx(theirs.x[GAIN], abs=1e-3)
    assert ours.options["huber_delta"] == delta


def test_the_default_is_the_threshold_of_the_table():
    runs = load_runs(STUDY)
    plain, set_before = fit(runs, bootstrap=0), fit(runs.with_huber_delta(0.02), bootstrap=0)
    given = fit(runs, bootstrap=0, huber_delta=0.02)
    assert plain.options["huber_delta"] == 0.001
    assert set_before.to_json() == given.to_json() != plain.to_json()
    assert fit(set_before.runs.select(runs.recurrence < 8), bootstrap=0).options[
        "huber_delta"
    ] == pytest.approx(0.02)


@pytest.mark.parametrize("noise", [0.003, 0.01, 0.03])
def test_the_suitable_threshold_follows_the_scatter(noise):
    runs = load_runs(STUDY)
    law = fit(runs, bootstrap=0).law
    exact = law.predict(
        n_once=runs.n_once, n_rec=runs.n_rec, recurrence=runs.recurrence, tokens=runs.tokens
    )
    error = np.random.default_rng(1).normal(0.0, noise, len(runs))
    columns = runs.to_columns() | {"val_loss": (exact * np.exp(error)).tolist()}
    assert suitable_huber_delta(load_runs(columns)) == pytest.approx(1.345 * noise, rel=0.3)
    outlier = columns | {"val_loss": [9.0, *columns["val_loss"][1:]]}
    assert suitable_huber_delta(load_runs(outlier)) == pytest.approx(1.345 * noise, rel=0.5)


def test_one_threshold_for_all_tables_of_a_comparison():
    base = load_runs(STUDY)
    method = load_runs(f"{STUDY}:hyperconnections").with_huber_delta(0.01)
    with pytest.raises(ValueError, match=r"Huber threshold 0\.001, hyperconnections 0\.01"):
        compare(base, method, bootstrap=0)
    found = compare(base, method, bootstrap=0, huber_delta=0.01)
    assert found.options["huber_delta"] == 0.01


@pytest.mark.parametrize("delta", [0, -1.0, float("nan"), float("inf"), "0.1", True])
def test_what_is_no_threshold_is_refused(delta):
    with pytest.raises(ValueError, match="huber_delta="):
        fit(STUDY, bootstrap=0, huber_delta=delta)


def test_too_few_runs_tell_no_scatter():
    runs = load_runs(STUDY)
    few = runs.select(np.arange(len(runs)) < 5)
    with pytest.raises(ValueError, match="5 runs do not tell how far runs scatter"):
        suitable_huber_delta(few)
