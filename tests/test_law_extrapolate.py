"""Predictions beyond the grid, against the measured pair of the paper and plain arithmetic."""

import json
import math

import numpy as np
import pytest

from loopworth import Convention, fit, load_runs
from loopworth.datasets import published
from loopworth.law.extrapolate import (
    Prediction,
    against,
    extrapolate,
    extrapolation_findings,
    published_points,
    read_law,
)
from loopworth.law.leaveout import rms
from loopworth.report.fit_report import FitReport


@pytest.fixture(scope="module")
def result():
    return fit("schwethelm2026", bootstrap=200)


@pytest.fixture(scope="module")
def pair(result):
    return extrapolate(result, published_points(result.convention))


def test_the_published_pair_lies_inside_the_widened_interval_only(pair):
    assert [x.predicted for x in pair] == pytest.approx([2.11, 2.16], abs=0.01)
    assert [x.observed for x in pair] == [2.047, 2.108]
    for x in pair:
        assert x.inside
        assert x.wide95[0] < x.observed < x.ci95[0]


def test_the_widening_is_what_it_says(result, pair):
    budgets = sorted(set(result.runs.budgets.tolist()))
    step = np.median(np.diff(np.log(budgets)))
    cost = 8.3071e9 * 47e9  # FLOPs per token of s = 34, r = 1 (the published table), times tokens
    steps = math.log(cost / budgets[-1]) / step
    assert pair[0].steps == pytest.approx(steps, rel=1e-3)
    spread = (pair[0].ci95[1] - pair[0].ci95[0]) / 3.92
    half = 1.96 * math.hypot(spread, steps * rms(result.held_out, "rolling", "power"))
    low, high = pair[0].wide95
    assert (high - low) / 2 == pytest.approx(half, rel=1e-3)


def test_the_bootstrap_interval_is_that_of_the_predictions_of_the_draws(result, pair):
    point = published_points(result.convention)[1]
    a, alpha, b, beta, e, phi = result.bootstrap.theta.T
    n = point.n_once + 4**phi * point.n_rec
    draws = np.exp(e) + np.exp(a) * n**-alpha + np.exp(b) * point.tokens**-beta
    assert pair[1].ci95 == pytest.approx(np.quantile(draws, [0.025, 0.975]), abs=1e-9)


def test_points_are_counted_under_the_convention():
    for place, extra in (("recurrent", 0), ("once", 1)):
        (_, looped) = published_points(Convention(place))
        # s = 34: width 2176; layers of 12 d^2 + 2 d, an injection of 2 d^2, three global norms.
        d = 2176
        assert looped.n_once == 4 * (12 * d * d + 2 * d) + 3 * d + extra * 2 * d * d


def test_the_recipe_is_said_to_differ(result, pair):
    points = published_points(result.convention)
    codes = {x.code: x for x in extrapolation_findings(pair, points)}
    assert "524,288" in codes["recipe_differs"].message
    missed = Prediction("far", 1.0, 1e9, 2.0, 2.5, None, 1.0, (2.4, 2.6), False)
    codes = {x.code for x in extrapolation_findings([missed], points)}
    assert "extrapolation_missed" in codes


def test_only_the_plain_method_has_published_points():
    assert len(FitReport.of(fit("schwethelm2026", bootstrap=0)).extrapolation) == 2
    assert FitReport.of(fit("schwethelm2026:hyperconnections", bootstrap=0)).extrapolation == ()


class TestAgainst:
    def test_published_constants_under_their_own_convention(self):
        table = load_runs("schwethelm2026")
        found = against("published", table)
        assert found.convention.injection == "once"
        printed = {row["r"]: row for row in published()["joint_residuals"]}
        for row in found.misses:
            assert row["rmse"] == pytest.approx(printed[row["recurrence"]]["rmse"], abs=0.0015)

    def test_a_fit_json_of_ours(self, result, tmp_path):
        path = tmp_path / "fit.json"
        path.write_text(FitReport.of(result).dumps())
        law, convention = read_law(str(path))
        assert law == result.law
        assert convention == result.convention

    def test_plain_constants(self, tmp_path):
        path = tmp_path / "law.json"
        constants = {"A": 28.4, "alpha": 0.2, "B": 911, "beta": 0.368, "E": 1.57, "phi": 0.458}
        path.write_text(json.dumps(constants | {"injection": "excluded"}))
        law, convention = read_law(str(path))
        assert (law.A, law.phi(4), convention.injection) == (28.4, pytest.approx(0.458), "excluded")

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("{", "is not JSON"),
            ("[]", "holds no JSON object"),
            ('{"A": 1, "alpha": "x"}', "lacks the number alpha, B, beta, E, phi"),
        ],
    )
    def test_broken_files_are_refused_in_words(self, tmp_path, text, words):
        path = tmp_path / "law.json"
        path.write_text(text)
        with pytest.raises(ValueError, match=words) as error:
            read_law(str(path))
        assert "give 'published'" in str(error.value)
