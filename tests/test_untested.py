"""g beyond the recurrences that were run, and the run that decides between two laws."""

import dataclasses
import json
import math

import numpy as np
import pytest
from scipy.stats import norm

from loopworth import Convention, fit, load_runs
from loopworth.allocate import deciding_run, runs_needed
from loopworth.ledger import ledger
from loopworth.report.fit_report import FitReport

TABLE = load_runs("schwethelm2026")


@pytest.fixture(scope="module")
def result():
    return fit(TABLE, bootstrap=200)


@pytest.fixture(scope="module")
def decision(result):
    return deciding_run(result)


def by_law(result):
    return {row.key: row.law for row in result.laws}


class TestUntested:
    def test_the_dispute_of_the_two_laws(self):
        """Fits that count the injection once: r^0.458 against a law that saturates."""
        row = fit(TABLE.under(Convention("once")), bootstrap=0).untested[0]
        assert (row.recurrence, row.power, row.bounded) == (
            16, pytest.approx(3.56, abs=0.02), pytest.approx(3.03, abs=0.03),
        )  # fmt: skip

    def test_intervals_are_those_of_the_draws_of_each_law(self, result):
        row = result.untested[0]
        phi = result.draws["power"].theta[:, 5]
        assert row.power_ci95[0] < row.power < row.power_ci95[1]
        inside = (16**phi >= row.power_ci95[0]) & (16**phi <= row.power_ci95[1])
        assert inside.mean() == pytest.approx(0.95, abs=0.03)
        k1, k2 = result.draws["bounded"].theta[:, 5:].T
        bounded = 1 + k1 * (1 - np.exp(-15 / k2))
        inside = (bounded >= row.bounded_ci95[0]) & (bounded <= row.bounded_ci95[1])
        assert inside.mean() == pytest.approx(0.95, abs=0.03)

    def test_the_difference_is_paired(self, result):
        """Both laws see the same resample, so the difference is known better than either."""
        row = result.untested[0]
        widths = [b - a for a, b in (row.power_ci95, row.bounded_ci95, row.difference_ci95)]
        assert widths[2] < math.hypot(*widths[:2])
        assert row.difference == pytest.approx(row.power - row.bounded)
        same = result.draws["power"].weights is result.draws["bounded"].weights
        assert same

    def test_without_resamples_there_are_no_intervals(self):
        row = fit(TABLE, bootstrap=0).untested[1]
        assert (row.recurrence, row.power_ci95, row.bounded_ci95, row.difference_ci95) == (
            32, None, None, None,
        )  # fmt: skip

    def test_another_law_has_them_as_well(self, result):
        other = fit(TABLE, "free", bootstrap=50)
        assert other.untested[0].power == pytest.approx(result.untested[0].power)
        assert other.untested[0].bounded_ci95 is not None

    def test_one_recurrence_has_nothing_beyond(self):
        alone = fit(TABLE.select(TABLE.recurrence == 1), bootstrap=0)
        assert alone.untested == ()
        assert deciding_run(alone) is None

    def test_laws_that_agree_raise_no_doubt(self):
        """With g = 1 both laws say that a pass adds nothing at any r."""
        law = by_law(fit(TABLE, "none", bootstrap=0))["none"]
        loss = law.predict(TABLE.n_once, TABLE.n_rec, TABLE.recurrence, TABLE.tokens)
        noise = 1 + 1e-3 * np.random.default_rng(0).standard_normal(len(TABLE))
        columns = {
            name: getattr(TABLE, name)
            for name in ("n_once", "n_rec", "recurrence", "tokens", "budget_flops")
        }
        found = fit(columns | {"val_loss": loss * noise}, bootstrap=0)
        assert "untested_recurrence" not in {x.code for x in found.findings}
        codes = {x.code for x in fit(TABLE, bootstrap=0).findings}
        assert "untested_recurrence" in codes


class TestDecision:
    def test_the_number_of_runs_has_the_power_it_claims(self):
        """Against scipy: n runs of error sigma find Delta in 80 % of the cases, n - 1 do not."""
        for gap, sigma in ((0.01, 0.009), (0.003, 0.009), (0.02, 0.03)):
            n = runs_needed(gap, sigma)
            power = [norm.sf(norm.ppf(0.975) - gap / sigma * math.sqrt(m)) for m in (n, n - 1)]
            assert power[0] >= 0.8 > power[1]
        assert runs_needed(1.0, 1e-3) == 1
        assert runs_needed(-0.01, 0.009) == runs_needed(0.01, 0.009)
        assert runs_needed(1e-9, 0.009) is None

    def test_the_losses_are_those_of_both_laws_at_the_place(self, result, decision):
        at = decision.place
        place = (at.n_once, at.n_rec, at.recurrence, at.tokens)
        losses = [float(by_law(result)[key].predict(*place)) for key in ("power", "bounded")]
        assert (decision.power.predicted, decision.bounded.predicted) == pytest.approx(losses)
        assert decision.gap == pytest.approx(losses[1] - losses[0])
        assert decision.gap_ci95[0] < decision.gap < decision.gap_ci95[1]
        assert decision.runs == runs_needed(decision.gap, decision.rmse)
        assert decision.budgets <= min(decision.runs, 6)

    def test_the_place_is_the_optimum_of_the_largest_budget_at_twice_the_largest_r(
        self, result, decision
    ):
        at, law = decision.place, by_law(result)["power"]
        assert (at.recurrence, at.budget_flops) == (16.0, TABLE.budgets.max())
        spec = next(s for s in TABLE.specs if s.recurrence == 8)

        def loss(width):

            account = ledger(dataclasses.replace(spec, d_model=width, recurrence=16))
            count = account.count()
            tokens = at.budget_flops / account.train_flops_per_token
            return float(law.predict(count.n_once, count.n_rec, 16, tokens))

        best = min(loss(width) for width in range(256, 4096, 128))
        assert decision.power.predicted == pytest.approx(best, abs=2e-4)
        assert decision.power.predicted <= best

    def test_predictions_there_are_widened_for_the_recurrence(self, decision):
        for found in (decision.power, decision.bounded):
            assert found.recurrence_steps == 1.0
            low, high = found.wide95
            assert high - low > found.ci95[1] - found.ci95[0]

    def test_a_table_without_architectures_takes_its_best_run(self):
        names = ("n_once", "n_rec", "recurrence", "tokens", "val_loss", "budget_flops")
        found = deciding_run(fit({name: getattr(TABLE, name) for name in names}, bootstrap=0))
        last = (TABLE.recurrence == 8) & (TABLE.budgets == TABLE.budgets.max())
        best = np.flatnonzero(last)[np.argmin(TABLE.val_loss[last])]
        assert found.n_unique is None
        assert (found.place.n_rec, found.place.tokens) == (TABLE.n_rec[best], TABLE.tokens[best])
        assert "best run at the largest r" in found.sentence

    def test_text_and_json_tell_it(self, result, decision):
        report = FitReport.of(result)
        data = json.loads(report.dumps())
        assert data["untested"][0]["recurrence"] == 16
        assert data["untested"][0]["difference_ci95"][0] < data["untested"][0]["difference"]
        assert data["deciding_run"]["runs"] == decision.runs
        assert data["deciding_run"]["sentence"] == decision.sentence
        assert f"{decision.runs} runs" in decision.sentence
        assert report.tables["untested"].startswith("recurrence,power")
