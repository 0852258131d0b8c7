"""The runs of a learning-rate sweep and the reading of their losses."""

import math

import numpy as np
import pytest

from loopworth.spec import ModelSpec, RunSpec
from loopworth.train.lr_sweep import MULTIPLES, lr_sweep, read_sweep

RUN = RunSpec(ModelSpec(640), steps=10)
RATES = [0.008, 0.010, 0.012, 0.014, 0.016, 0.018, 0.020, 0.024]


def _valley(rates, best, bend=0.05, floor=3.0):
    return [floor + bend * math.log(rate / best) ** 2 for rate in rates]


def test_by_default_five_multiples_of_the_matrix_rate():
    runs = lr_sweep(RUN)
    assert [run.optim.matrix_lr for run in runs] == pytest.approx([0.014 * m for m in MULTIPLES])
    for run in runs:
        assert run.replace(optim=RUN.optim) == RUN  # all else equal
    assert len({run.content_hash() for run in runs}) == len(runs)


def test_the_rates_of_the_reference():
    assert [run.optim.matrix_lr for run in lr_sweep(RUN, rates=RATES[::-1])] == RATES


def test_several_rates_move_together():
    runs = lr_sweep(RUN, multiples=[0.5, 2], which=["embedding_lr", "head_lr"])
    assert [(run.optim.embedding_lr, run.optim.head_lr) for run in runs] == [
        (0.15, 0.002), (0.6, 0.008),
    ]  # fmt: skip
    assert {run.optim.matrix_lr for run in runs} == {0.014}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"which": ["matrix"]}, "did you mean 'matrix_lr'"),
        ({"rates": [0.01, 0.01]}, "has a rate twice"),
        ({"rates": [0.0]}, "a rate of the sweep=0.0"),
        ({"rates": [0.1], "multiples": [1]}, "not both"),
        ({"rates": [0.1], "which": ["head_lr", "norm_lr"]}, "values of one rate"),
    ],
)
def test_refuses_a_sweep_that_is_none(arguments, words):
    with pytest.raises(ValueError, match=words):
        lr_sweep(RUN, **arguments)


def test_finds_the_optimum_of_an_exact_valley():
    reading = read_sweep(RATES, _valley(RATES, 0.0155))
    assert reading.status == "minimum"
    assert reading.best_rate == pytest.approx(0.0155)
    assert reading.loss == pytest.approx(3.0)
    assert reading.cost(0.0155 * math.e) == pytest.approx(0.05)
    low, high = reading.near
    assert low * high == pytest.approx(0.0155**2)
    assert reading.cost(high) == pytest.approx(0.001)
    assert reading.findings == ()


def test_the_interval_covers_the_optimum_as_often_as_it_says():
    generator = np.random.default_rng(0)
    rates, covered, trials = RATES, 0, 400
    for _ in range(trials):
        losses = np.array(_valley(rates, 0.0145)) + generator.normal(0, 0.001, len(rates))
        interval = read_sweep(rates, losses).interval
        covered += interval is None or interval[0] <= 0.0145 <= interval[1]
    assert 0.92 < covered / trials < 0.98


def test_known_noise_gives_three_runs_an_interval():
    rates = [0.007, 0.014, 0.028]
    losses = _valley(rates, 0.015)
    assert read_sweep(rates, losses).interval is None
    low, high = read_sweep(rates, losses, noise=0.001).interval
    assert low < 0.015 < high
    closer = read_sweep(rates, losses, noise=0.0005).interval
    assert low < closer[0] < closer[1] < high


def test_a_flat_valley_has_no_bounded_interval():
    rates = [0.007, 0.014, 0.028]
    assert read_sweep(rates, _valley(rates, 0.015, bend=0.002), noise=0.01).interval is None


def test_a_borrowed_rate_costs_nats():
    (finding,) = read_sweep(RATES, _valley(RATES, 0.0145), borrowed=0.024).findings
    assert finding.code == "borrowed_rate"
    assert finding.evidence["cost_nats"] == pytest.approx(0.05 * math.log(0.024 / 0.0145) ** 2)
    assert "0.0127" in finding.message
    assert "beyond" not in finding.message
    assert read_sweep(RATES, _valley(RATES, 0.0145), borrowed=0.014).findings == ()
    (far,) = read_sweep(RATES, _valley(RATES, 0.0145), borrowed=0.05).findings
    assert "beyond the rates that were run" in far.message


@pytest.mark.parametrize(
    ("losses", "status"),
    [
        ([3.0, 3.02, 3.06], "edge"),
        ([3.06, 3.02, 3.0], "edge"),
        ([3.0, 3.05, 3.0], "opens downwards"),
        ([3.0, 3.0, 3.0], "flat"),
        ([3.0, 3.05, math.nan], "too few rates"),
    ],
)
def test_says_why_there_is_no_optimum(losses, status):
    reading = read_sweep([0.01, 0.02, 0.04], losses, borrowed=0.02)
    assert reading.status == status
    assert reading.best_rate is None
    assert reading.findings[0].severity == "warning"
    with pytest.raises(ValueError, match="no minimum"):
        reading.cost(0.02)
    assert reading.to_json()["status"] == status


def test_diverged_runs_are_left_out_and_named():
    rates = [*RATES, 0.1, 0.4]
    losses = [*_valley(RATES, 0.0145), 5.1, math.nan]
    reading = read_sweep(rates, losses)
    assert reading.n_used == len(RATES)
    assert reading.best_rate == pytest.approx(0.0145)
    assert reading.findings[0].code == "sweep_beyond_valley"
    assert reading.findings[0].evidence["rates"] == [0.1, 0.4]


def test_refuses_lists_that_do_not_match():
    with pytest.raises(ValueError, match="2 rates and 1 losses"):
        read_sweep([1.0, 2.0], [3.0])
