"""Predictions beyond the grid, against the measured pair of the paper and plain arithmetic."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from loopworth import Convention, fit, load_runs
from loopworth.datasets import published
from loopworth.law.extrapolate import Prediction, extrapolate, extrapolation_findings, predict
from loopworth.law.intervals import bootstrap_interval
from loopworth.law.leaveout import rms
from loopworth.law.pasted import against, hold_against, published_law, read_law
from loopworth.law.points import Point, published_points, recipe_findings
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
    expected = bootstrap_interval(draws, pair[1].predicted, 24)
    assert pair[1].ci95 == pytest.approx(expected, abs=1e-9)


class TestSteps:
    """A law of round numbers at one point, its budgets a factor of 2 apart."""

    budgets = (1e18, 2e18, 4e18)

    def at(self, result, budget, loss=math.nan, **options):
        point = Point("x", 1.0, 1e8, 1e8, 1e10, budget, loss, 2**18)
        options = {"inside_rms": 0.012, "budgets": self.budgets} | options
        (found,) = predict(result.law, result.bootstrap, [point], 0.02, **options)
        return found

    @pytest.mark.parametrize(
        ("budget", "steps", "error"),
        [
            (3e18, 0.0, 0.012),  # inside: leave-one-budget-out
            (4e18, 0.0, 0.012),  # at the edge
            (4e18 * 2**0.5, 0.5, 0.012),  # half a step would be less than inside
            (8e18, 1.0, 0.02),
            (32e18, 3.0, 0.06),
        ],
    )
    def test_the_error_grows_with_the_steps_beyond(self, result, budget, steps, error):
        found = self.at(result, budget)
        assert found.steps == pytest.approx(steps)
        assert found.sd_held_out == pytest.approx(error)
        low, high = found.wide95
        spread = (found.ci95[1] - found.ci95[0]) / 3.92
        assert (high - low) / 2 == pytest.approx(1.96 * math.hypot(spread, error), rel=1e-4)
        assert (high + low) / 2 == pytest.approx(found.predicted)

    def test_a_point_without_a_loss_is_predicted_and_not_judged(self, result):
        assert self.at(result, 8e18).inside is None
        middle = self.at(result, 8e18).predicted
        assert self.at(result, 8e18, loss=middle).inside is True
        assert self.at(result, 8e18, loss=middle + 1).inside is False

    def test_without_hold_outs_or_draws_nothing_is_widened(self, result):
        point = Point("x", 1.0, 1e8, 1e8, 1e10, 8e18, 2.5, 2**18)
        (found,) = predict(result.law, result.bootstrap, [point], None, budgets=self.budgets)
        assert (found.wide95, found.inside) == (None, None)
        assert found.ci95 is not None
        (found,) = predict(result.law, None, [point], 0.02, budgets=self.budgets)
        assert (found.ci95, found.wide95, found.sd_bootstrap) == (None, None, None)

    def test_one_budget_counts_as_one_step(self, result):
        assert self.at(result, 8e18, budgets=[4e18]).steps == 1.0

    @pytest.mark.parametrize(
        ("recurrence", "steps"),
        [(1.0, 0.0), (4.0, 0.0), (4.0 + 1e-7, 0.0), (3.0, 1.0), (10.0, 1.0), (16.0, 1.0),
         (32.0, 2.0), (64.0, 3.0)],
    )  # fmt: skip
    def test_a_recurrence_that_was_not_run_costs_what_leaving_one_out_did(
        self, result, recurrence, steps
    ):
        point = Point("x", recurrence, 1e8, 1e8, 1e10, 8e18, math.nan)
        (found,) = predict(
            result.law, result.bootstrap, [point], 0.02, inside_rms=0.012, budgets=self.budgets,
            recurrence_rms=0.007, recurrences=[1, 2, 4, 8],
        )  # fmt: skip
        assert found.recurrence_steps == pytest.approx(steps)
        assert found.sd_held_out == pytest.approx(math.hypot(0.02, 0.007 * steps))

    def test_without_that_error_an_untested_recurrence_has_no_widened_interval(self, result):
        near, far = (
            predict(
                result.law, result.bootstrap, [Point("x", r, 1e8, 1e8, 1e10, 3e18, math.nan)],
                0.02, budgets=self.budgets, recurrences=[1, 2, 4, 8],
            )[0]
            for r in (8.0, 16.0)
        )  # fmt: skip
        assert near.wide95 is not None
        assert (far.wide95, far.sd_held_out) == (None, None)

    def test_the_fit_hands_over_its_own_error(self, result):
        point = Point("x", 16.0, 1e8, 1e8, 1e9, 4.64e18, math.nan)
        (found,) = extrapolate(result, [point])
        errors = [rms(result.held_out, kind, "power") for kind in ("budget", "recurrence")]
        assert errors[1] > 0.003
        assert found.sd_held_out == pytest.approx(math.hypot(*errors))

    def test_the_json_says_how_it_was_widened(self, result):
        data = self.at(result, 8e18).to_json()
        assert "sqrt(sd_bootstrap^2 + sd_held_out^2)" in data["rule"]
        half = 1.96 * math.hypot(data["sd_bootstrap"], data["sd_held_out"])
        assert data["wide95"][1] == pytest.approx(data["predicted"] + half, rel=1e-5)


def test_points_are_counted_under_the_convention():
    for place, extra in (("recurrent", 0), ("once", 1)):
        (_, looped) = published_points(Convention(place))
        # s = 34: width 2176; layers of 12 d^2 + 2 d, an injection of 2 d^2, three global norms.
        d = 2176
        assert looped.n_once == 4 * (12 * d * d + 2 * d) + 3 * d + extra * 2 * d * d


def test_the_recipe_is_said_to_differ(result, pair):
    points = published_points(result.convention)
    (finding,) = recipe_findings(points, result.runs)
    assert finding.code == "recipe_differs"
    assert "524,288" in finding.message
    assert "262,144" in finding.message
    assert not list(extrapolation_findings(pair))
    missed = Prediction("far", 1.0, 1e9, 2.0, 2.5, None, 1.0, (2.4, 2.6), False)
    assert [x.code for x in extrapolation_findings([missed])] == ["extrapolation_missed"]


def test_only_a_known_batch_can_differ(result):
    points = published_points(result.convention)
    for batch, differs in ((2**19, False), (np.nan, False), (2**17, True)):
        runs = replace(result.runs, batch_tokens=np.full(len(result.runs), float(batch)))
        assert bool(list(recipe_findings(points, runs))) == differs
    assert not list(recipe_findings([replace(points[0], batch_tokens=None)], result.runs))


def test_a_pasted_law_says_once_that_the_recipe_differs(result):
    for law in (None, "published"):
        codes = [x.code for x in FitReport.of(result, law).findings]
        assert codes.count("recipe_differs") == 1
    # Without the built-in runs there are no measured points beyond the grid.
    other = fit("schwethelm2026:hyperconnections", bootstrap=0)
    codes = [x.code for x in FitReport.of(other, "published").findings]
    assert "recipe_differs" not in codes


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

    def test_misses_of_runs_and_points_by_hand(self):
        table = load_runs("schwethelm2026")
        found = against("published", table)
        runs = table.under(Convention("once"))

        def law(n_once, n_rec, r, tokens):
            n = n_once + r**0.459 * n_rec
            return 1.56773 + 28.027 * n**-0.19924 + 915.82 * tokens**-0.36863

        miss = runs.val_loss - law(runs.n_once, runs.n_rec, runs.recurrence, runs.tokens)
        for row in found.misses:
            part = miss[runs.recurrence == row["recurrence"]]
            assert row["bias"] == pytest.approx(part.mean(), abs=1e-12)
            assert row["rmse"] == pytest.approx(np.sqrt(np.mean(part**2)), abs=1e-12)
        d, tokens = 2176, 524288 * (47_000_000_000 // 524288)
        layer = 12 * d * d + 2 * d
        by_hand = (
            law(3 * d, 20 * layer, 1, tokens),
            law(4 * layer + 3 * d + 2 * d * d, 4 * layer, 4, tokens),
        )
        assert found.predicted == pytest.approx(by_hand, abs=1e-9)
        data = found.to_json()["points"]
        assert [x["miss"] for x in data] == pytest.approx(
            [2.047 - by_hand[0], 2.108 - by_hand[1]], abs=1e-9
        )
        json.dumps(found.to_json(), allow_nan=False)

    def test_runs_of_other_methods_bring_no_points(self):
        found = against("published", load_runs("schwethelm2026:hyperconnections"))
        assert (found.points, found.predicted) == ((), ())

    def test_points_at_a_recurrence_that_a_law_does_not_know_are_left_out(self):
        table = load_runs("schwethelm2026")
        table = table.select(table.recurrence <= 2)
        law = fit(table, "free", bootstrap=0).law
        found = hold_against(law, table.convention, table, published_points(table.convention))
        assert [x.recurrence for x in found.points] == [1.0]

    def test_the_published_law(self):
        law = published_law()
        assert (law.A, law.alpha, law.B, law.beta, law.E) == (
            28.027, 0.19924, 915.82, 0.36863, 1.56773,
        )  # fmt: skip
        assert (law.recurrences, law.gain_parameters) == ((2.0, 4.0, 8.0), (0.459,))

    def test_a_fit_json_with_its_convention_in_the_provenance(self, result, tmp_path):
        path = tmp_path / "fit.json"
        law, name = result.law.to_json(), Convention("once", norms=False).name
        path.write_text(json.dumps({"fitted_law": law, "provenance": {"convention": name}}))
        assert read_law(path) == (result.law, Convention("once", norms=False))

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

    def test_constants_pasted_as_text_are_those_of_a_file(self, result, tmp_path):
        constants = {"A": 28.4, "alpha": 0.2, "B": 911, "beta": 0.368, "E": 1.57, "phi": 0.458}
        path = tmp_path / "law.json"
        path.write_text(json.dumps(constants))
        assert read_law(json.dumps(constants)) == read_law(path)
        assert against(json.dumps(constants), result.runs).source == "the law given"
        with pytest.raises(ValueError, match="The law given as JSON: A is -1"):
            read_law(json.dumps(constants | {"A": -1}))

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("{", "is not JSON"),
            ("[]", "holds no JSON object"),
            ('{"A": 1, "alpha": "x"}', "lacks the numbers alpha, B, beta, E, phi"),
            ('{"A": NaN, "alpha": true}', "lacks the numbers A, alpha, B, beta, E, phi"),
            ('{"fitted_law": {"law": "power", "recurrences": [2]}}', "it lacks 'A'"),
            ('{"fitted_law": {"law": "magic", "recurrences": [2]}}', "magic"),
            ('{"fitted_law": 3}', "fitted_law cannot be read"),
        ],
    )
    def test_broken_files_are_refused_in_words(self, tmp_path, text, words):
        path = tmp_path / "law.json"
        path.write_text(text)
        with pytest.raises(ValueError, match=words) as error:
            read_law(str(path))
        assert "give 'published'" in str(error.value)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"injection": "twice"}, "injection is 'twice'; use one of recurrent, once, excluded"),
            ({"injection": ["once"]}, "use one of recurrent"),
            ({"beta": -0.3}, "beta is -0.3, and must be above 0"),
        ],
    )
    def test_wrong_constants_are_named(self, tmp_path, change, words):
        path = tmp_path / "law.json"
        constants = {"A": 28.4, "alpha": 0.2, "B": 911, "beta": 0.368, "E": 1.57, "phi": 0.458}
        path.write_text(json.dumps(constants | change))
        with pytest.raises(ValueError, match=words) as error:
            read_law(path)
        assert "law.json" in str(error.value)

    @pytest.mark.parametrize("name", [None, "sideways", 3])
    def test_a_fit_json_without_a_known_convention_is_refused(self, result, tmp_path, name):
        path = tmp_path / "fit.json"
        path.write_text(json.dumps({"fitted_law": result.law.to_json(), "convention": name}))
        with pytest.raises(ValueError, match=r"fit\.json: convention is .*use a name such as"):
            read_law(path)
