"""The rules that carry learning rates from the reference to another run."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopworth.ledger import horizon, ledger
from loopworth.spec import ModelSpec, OptimSpec
from loopworth.train.transfer import (
    GROUPS,
    multiplier,
    peak_rates,
    recurrence_factors,
    reference_tokens,
)

BATCH = 2**18
PLAIN = {"n_prelude": 0, "n_recur": 20, "n_coda": 0, "recurrence": 1, "injection": "passthrough"}
LOOPED = {1: PLAIN, 4: {}, 8: {"n_recur": 2, "recurrence": 8}}


@pytest.mark.parametrize(
    ("budget", "scale", "recurrence", "rate"),
    [(1e18, 10, 1, 0.01405), (1e18, 10, 4, 0.01428), (2.15e19, 34, 8, 0.01056)],
)
def test_the_matrix_rate_of_published_runs(budget, scale, recurrence, rate):
    model = ModelSpec.from_scale(scale, **LOOPED[recurrence])
    tokens = horizon(budget, ledger(model).train_flops_per_token).tokens
    rates = peak_rates(OptimSpec(), model, batch_tokens=BATCH, tokens=tokens)
    assert rates["matrix_once"] == rates["matrix_loop"] == pytest.approx(rate, abs=5e-6)


def test_twice_the_batch_raises_matrix_embedding_and_head_by_1_472():
    once, twice = (
        peak_rates(OptimSpec(), ModelSpec(640), batch_tokens=size, tokens=1e9)
        for size in (BATCH, 2 * BATCH)
    )
    ratios = {name: twice[name] / once[name] for name in GROUPS}
    assert ratios.pop("norm") == ratios.pop("injection") == 1
    assert all(ratio == pytest.approx(1.472, abs=5e-4) for ratio in ratios.values())


def test_four_times_the_width_halves_adamw_and_leaves_the_matrices():
    narrow, wide = (
        peak_rates(OptimSpec(), ModelSpec(width), batch_tokens=BATCH, tokens=1e9)
        for width in (640, 2560)
    )
    ratios = {name: wide[name] / narrow[name] for name in GROUPS}
    assert ratios == pytest.approx(
        {name: 1.0 if name.startswith("matrix") else 0.5 for name in GROUPS}
    )


def test_at_the_reference_every_rate_is_the_specs():
    optim = OptimSpec()
    for kind, tokens in (
        (PLAIN, 983_315_200),
        ({}, 1_016_083_200),
        ({"recurrence": 2}, 1_016_083_200),
    ):
        model = ModelSpec(640, **kind)
        assert reference_tokens(optim, model) == tokens
        rates = peak_rates(optim, model, batch_tokens=BATCH, tokens=tokens)
        assert rates == {
            "matrix_once": 0.014, "matrix_loop": 0.014, "embedding": 0.3, "head": 0.004,
            "norm": 0.005, "injection": 0.01,
        }  # fmt: skip


def test_only_the_matrix_rate_follows_the_tokens():
    optim = OptimSpec(reference_tokens=1e6)
    near, far = (
        peak_rates(optim, ModelSpec(640), batch_tokens=BATCH, tokens=tokens)
        for tokens in (1e6, 3.2e7)
    )
    assert far["matrix_loop"] / near["matrix_loop"] == pytest.approx(32**-0.32)
    assert all(far[name] == near[name] for name in ("embedding", "head", "norm", "injection"))


@pytest.mark.parametrize(
    ("rule", "once", "loop"),
    [
        ("none", 1, 1),
        ("inverse_sqrt", 1, 1 / math.sqrt(8)),
        ("inverse", 1, 1 / 8),
        ("hyperp", 1, 1),
    ],
)
def test_rules_by_recurrence_at_the_references_depth(rule, once, loop):
    model = ModelSpec(640, **LOOPED[8])  # 20 effective layers
    assert recurrence_factors(OptimSpec(recurrence_rule=rule), model) == pytest.approx((once, loop))


def test_hyperp_follows_the_effective_depth_of_the_whole_model():
    deep = ModelSpec(640, n_prelude=8, n_recur=8, n_coda=8, recurrence=7)  # 72 layers
    assert deep.effective_layers == 72
    factors = recurrence_factors(OptimSpec(recurrence_rule="hyperp"), deep)
    assert factors == pytest.approx((math.sqrt(20 / 72),) * 2)


def test_rules_take_the_mean_of_a_sampled_recurrence():
    model = ModelSpec(640, recurrence=2.5)
    assert recurrence_factors(OptimSpec(recurrence_rule="inverse"), model) == (1, 0.4)


@given(st.integers(1, 500), st.data())
def test_by_default_the_rate_falls_on_a_straight_line_to_a_tenth(steps, data):
    step = data.draw(st.integers(0, steps))
    assert multiplier(OptimSpec(), step, steps) == pytest.approx(1 - 0.9 * step / steps)


def test_warmup_plateau_and_warmdown():
    optim = OptimSpec(warmup=0.1, warmdown=0.4, final_fraction=0.0)
    values = [multiplier(optim, step, 100) for step in range(102)]
    assert values[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert set(values[10:61]) == {1.0}
    assert values[61] == pytest.approx(39 / 40)
    assert values[100] == values[101] == 0.0


def test_without_warmdown_the_rate_stays():
    assert {multiplier(OptimSpec(warmdown=0), step, 9) for step in range(10)} == {1.0}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((-1, 10), "step=-1"), ((0, 0), "steps=0"), ((1.5, 10), "step=1.5")],
)
def test_refuses_steps_that_are_none(arguments, words):
    with pytest.raises(ValueError, match=words):
        multiplier(OptimSpec(), *arguments)


@pytest.mark.parametrize("name", ["batch_tokens", "tokens"])
def test_refuses_counts_that_are_not_positive(name):
    counts = {"batch_tokens": BATCH, "tokens": 1e9} | {name: 0}
    with pytest.raises(ValueError, match=f"{name}=0"):
        peak_rates(OptimSpec(), ModelSpec(640), **counts)
