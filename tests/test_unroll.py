import dataclasses
import math

import numpy as np
import pytest

from loopworth.ledger import ledger
from loopworth.spec import ModelSpec, UnrollSpec
from loopworth.unroll import Unroll, draw, flops_per_token, mean_flops_per_token, trained

SMALL = {"head_dim": 16, "vocab_size": 64, "context": 32}


def many(model: ModelSpec, spec: UnrollSpec, steps: int = 3000, seed: int = 5) -> list[Unroll]:
    return [draw(model, spec, seed=seed, step=step, steps=steps) for step in range(steps)]


def moments(kind: str, mean: float, spread: float) -> tuple[float, float]:
    """Return mean and variance of a distribution, from its definition."""
    rate = mean - 1
    if kind == "uniform":
        last = 2 * mean - 1
        return mean, (last**2 - 1) / 12
    if kind == "poisson":
        return mean, rate
    return mean, rate + rate**2 * (math.exp(spread**2) - 1)


@pytest.mark.parametrize("kind", ["uniform", "poisson", "lognormal_poisson"])
@pytest.mark.parametrize("mean", [2, 4, 8])
def test_a_sampled_recurrence_has_the_stated_mean_and_variance(kind: str, mean: int) -> None:
    steps = 3000
    drawn = many(ModelSpec(32, recurrence=mean, **SMALL), UnrollSpec(kind), steps)  # type: ignore[arg-type]
    r = np.array([one.recurrence for one in drawn])
    expected, variance = moments(kind, mean, 0.5)
    assert r.min() >= 1
    assert r.mean() == pytest.approx(expected, abs=4 * math.sqrt(variance / steps))
    assert r.var() == pytest.approx(variance, rel=0.2)
    assert all(one.window == one.recurrence for one in drawn)
    if kind == "uniform":
        assert set(r) == set(range(1, 2 * mean))


@pytest.mark.parametrize("mean", [1.25, 2.3, 3.5])
def test_a_mean_between_whole_numbers_is_met(mean: float) -> None:
    model = ModelSpec(32, recurrence=mean, **SMALL)
    for kind in ("uniform", "poisson"):
        r = np.array([one.recurrence for one in many(model, UnrollSpec(kind), 4000)])  # type: ignore[arg-type]
        assert r.mean() == pytest.approx(mean, abs=4 * r.std() / math.sqrt(4000))


def test_a_draw_depends_on_seed_and_step_alone() -> None:
    model = ModelSpec(32, recurrence=4, bptt_window=2, **SMALL)
    spec = UnrollSpec("poisson", window="random")
    forward = many(model, spec, 50)
    backward = [draw(model, spec, seed=5, step=step, steps=900) for step in reversed(range(50))]
    assert forward == backward[::-1]
    assert forward != many(model, spec, 50, seed=6)
    lags = np.corrcoef([one.recurrence for one in many(model, spec)][:-1],
                       [one.recurrence for one in many(model, spec)][1:])  # fmt: skip
    assert abs(lags[0, 1]) < 0.08


def test_the_window_and_the_recurrence_are_drawn_apart() -> None:
    model = ModelSpec(32, recurrence=4, bptt_window=2, **SMALL)
    both = many(model, UnrollSpec("poisson", window="random"), 300)
    fixed = many(model, UnrollSpec("poisson"), 300)
    assert [one.recurrence for one in both] == [one.recurrence for one in fixed]
    window_only = many(model, UnrollSpec(window="random"), 300)
    assert [min(a.window, b.recurrence) for a, b in zip(window_only, both, strict=True)] == [
        one.window for one in both
    ]


def test_random_windows_have_the_stated_mean() -> None:
    model = ModelSpec(32, recurrence=8, bptt_window=3, **SMALL)
    k = np.array([one.window for one in many(model, UnrollSpec(window="random"))])
    assert set(k) == {1, 2, 3, 4, 5}
    assert k.mean() == pytest.approx(3, abs=4 * k.std() / math.sqrt(len(k)))


def test_schedules_rise_evenly_and_end_with_the_ramp() -> None:
    model = ModelSpec(32, recurrence=5, bptt_window=3, **SMALL)
    spec = UnrollSpec("grow", start=1, ramp=0.5, window="curriculum", window_start=1)
    drawn = many(model, spec, 80)
    assert [one.recurrence for one in drawn] == [1] * 10 + [2] * 10 + [3] * 10 + [4] * 10 + [5] * 40
    assert [one.window for one in drawn] == [1] * 20 + [2] * 20 + [3] * 40
    at_once = dataclasses.replace(spec, ramp=0.0)
    assert set(many(model, at_once, 5)) == {Unroll(5, 3)}


def test_no_draw_passes_the_maximum() -> None:
    model = ModelSpec(32, recurrence=4, **SMALL)
    wild = UnrollSpec("lognormal_poisson", spread=2.0)
    assert max(one.recurrence for one in many(model, wild)) == 16
    assert max(one.recurrence for one in many(model, dataclasses.replace(wild, maximum=6))) == 6
    for own in ({"injection": "hyperconnections"}, {"conditioning": ("loop_norm",)}):
        bound = dataclasses.replace(model, **own)  # type: ignore[arg-type]
        assert max(one.recurrence for one in many(bound, wild, 300)) == 4


def test_a_full_window_is_full_for_every_draw() -> None:
    written = ModelSpec(32, recurrence=4, bptt_window=4, **SMALL)
    spec = UnrollSpec("poisson")
    assert many(written, spec, 100) == many(written.canonical(), spec, 100)
    cut = dataclasses.replace(written, bptt_window=2)
    assert all(one.with_gradient == min(2, one.recurrence) for one in many(cut, spec, 100))
    assert trained(ModelSpec(32, recurrence=2.5, **SMALL)) == Unroll(3, 3)


@pytest.mark.parametrize("injection", ["linear", "hyperconnections", "diagonal"])
def test_flops_follow_the_unrolling(injection: str) -> None:
    model = ModelSpec(32, recurrence=4, injection=injection, **SMALL)  # type: ignore[arg-type]
    for r, k in ((1, 1), (4, 2), (7, 7)):
        alone = dataclasses.replace(model, recurrence=r, bptt_window=k)
        assert flops_per_token(model, Unroll(r, k)) == ledger(alone).train_flops_per_token
    assert flops_per_token(model, Unroll(2, 9)) == flops_per_token(model, Unroll(2, 2))


def test_mean_flops_integrate_the_ledger_over_the_draws() -> None:
    model = ModelSpec(32, recurrence=4, bptt_window=2, **SMALL)
    spec = UnrollSpec("lognormal_poisson", window="random")
    drawn = many(model, spec, 200, seed=3)
    by_hand = math.fsum(flops_per_token(model, one) for one in drawn) / 200
    assert mean_flops_per_token(model, spec, seed=3, steps=200) == pytest.approx(by_hand, rel=1e-12)
    fixed = mean_flops_per_token(model, UnrollSpec(), seed=3, steps=200)
    assert fixed == ledger(model).train_flops_per_token


def test_what_cannot_be_drawn_is_refused() -> None:
    model = ModelSpec(32, recurrence=4, **SMALL)
    with pytest.raises(ValueError, match=r"step=5 is outside 0\.\.4"):
        draw(model, UnrollSpec(), seed=0, step=5, steps=5)
    with pytest.raises(ValueError, match=r"needs model\.bptt_window"):
        draw(model, UnrollSpec(window="random"), seed=0, step=0, steps=5)
    with pytest.raises(ValueError, match=r"recurrence=2\.5 is not whole"):
        draw(dataclasses.replace(model, recurrence=2.5), UnrollSpec(), seed=0, step=0, steps=5)
    with pytest.raises(ValueError, match="window=0"):
        Unroll(2, 0)
    with pytest.raises(ValueError, match="steps=0"):
        mean_flops_per_token(model, UnrollSpec(), seed=0, steps=0)
    passing = dataclasses.replace(model, injection="passthrough")
    with pytest.raises(ValueError, match="without gradient"):
        flops_per_token(passing, Unroll(4, 2))
    own = dataclasses.replace(model, conditioning=("loop_norm",))
    with pytest.raises(ValueError, match=r"maximum=6 is above model\.recurrence=4"):
        draw(own, UnrollSpec("poisson", maximum=6), seed=0, step=0, steps=5)
