"""Norms of gradients and states, and the alarm on them."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from loopworth.train.health import HealthLimits, HealthWatch, gradient_norms, state_norms

torch.set_num_threads(1)


def _group(*gradients):
    named = []
    for i, gradient in enumerate(gradients):
        weight = nn.Parameter(torch.zeros(3, 4))
        weight.grad = gradient
        named.append((f"w{i}", weight))
    return named


def test_gradient_norms_by_group_and_of_everything():
    torch.manual_seed(0)
    a, b, c = (torch.randn(3, 4) for _ in range(3))
    groups = {
        "matrix_loop": _group(a, None, b),
        "norm": _group(c),
        "head": [],
        "injection": _group(None),
    }
    norms = {name: norm.item() for name, norm in gradient_norms(groups).items()}
    flat = {
        "matrix_loop": torch.cat([a, b]), "norm": c, "all": torch.cat([a, b, c]),
        "head": torch.zeros(1), "injection": torch.zeros(1),
    }  # fmt: skip
    wanted = {name: float(np.linalg.norm(each.numpy())) for name, each in flat.items()}
    assert norms == pytest.approx(wanted, rel=1e-6)


def test_without_any_gradient_norms_are_zero():
    assert gradient_norms({"norm": _group(None)}) == {"norm": torch.tensor(0.0), "all": 0}


def test_state_norms_are_root_mean_squares_of_tokens():
    torch.manual_seed(0)
    states = [scale * torch.randn(2, 5, 16) for scale in (1.0, 3.0)]
    found = state_norms([states[0], states[1].bfloat16()])
    for row, state in zip(found.tolist(), states, strict=True):
        sizes = np.sqrt((state.numpy() ** 2).mean(axis=-1))
        assert row == pytest.approx([sizes.mean(), sizes.max()], rel=3e-3)
    assert not found.requires_grad


def _calm(watch, records=30):
    generator = np.random.default_rng(0)
    for step in range(records):
        noise = generator.uniform(0.5, 2, size=3)
        states = [[noise[0], 2 * noise[0]], [noise[1], 2 * noise[1]]]
        assert watch.check(step, {"all": noise[2], "head": 0.01 * noise[2]}, states) == ()


def test_a_calm_run_gives_no_alarm_and_a_jump_does_once():
    watch = HealthWatch()
    _calm(watch)
    (alarm,) = watch.check(30, {"all": 40.0, "head": 0.01})
    assert alarm.code == "norm_grows"
    assert alarm.message.startswith("Step 30: the gradient of all is 40")
    assert alarm.evidence["name"] == "the gradient of all"
    assert watch.check(31, {"all": 41.0}) == ()
    assert watch.check(32, {"all": 1.0}) == ()
    assert len(watch.check(33, {"all": 60.0})) == 1


def test_a_growing_state_is_seen_though_the_gradient_is_calm():
    watch = HealthWatch()
    _calm(watch)
    found = watch.check(30, {"all": 1.0}, [[1.0, 2.0], [39.0, 390.0]])
    assert {each.code for each in found} == {"norm_grows", "state_large", "state_grows_over_loops"}
    assert all(each.severity == "warning" and each.remedy for each in found)


def test_the_start_of_a_run_is_not_usual():
    watch = HealthWatch(HealthLimits(settle=5))
    assert [len(watch.check(i, {"all": 100.0**i})) for i in range(5)] == [0] * 5


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_norm_that_is_no_number_is_an_error_at_once(value):
    watch = HealthWatch()
    (alarm,) = watch.check(0, {"all": value})
    assert (alarm.code, alarm.severity) == ("norm_not_finite", "error")
    assert [each.code for each in watch.check(1, {}, [[value, value]])] == ["norm_not_finite"]


def test_goes_on_from_a_saved_state():
    watch, other = HealthWatch(), HealthWatch()
    _calm(watch)
    other.load_state_dict(watch.state_dict())
    for step, norm in enumerate((50.0, 51.0, 1.0, 70.0), start=30):
        assert watch.check(step, {"all": norm}) == other.check(step, {"all": norm})


@pytest.mark.parametrize("limits", [{"state": 0.0}, {"growth": 1.0}, {"settle": 0}])
def test_refuses_limits_that_are_none(limits):
    with pytest.raises(ValueError, match=f"limits.{next(iter(limits))}"):
        HealthLimits(**limits)
