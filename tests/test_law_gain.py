"""The registry of gains: closed forms, exact derivatives, clear refusals."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from law_reference import gain as plain_gain
from loopworth.law.fitted import FittedLaw
from loopworth.law.gain import GAINS, Gain, make_gain

LEVELS = (2.0, 4.0, 8.0)
RECURRENCES = np.array([1.0, *LEVELS])


def in_box(gain: Gain) -> st.SearchStrategy[tuple[float, ...]]:
    """Draw parameters inside the box, a step away from its faces and of a size that matters."""
    return st.tuples(
        *(
            st.floats(max(low, -20.0) + 1e-3, min(high, 20.0) - 1e-3)
            for low, high in zip(gain.lower, gain.upper, strict=True)
        )
    )


def any_gain(key: str) -> st.SearchStrategy[tuple[Gain, tuple[float, ...]]]:
    gain = make_gain(key, RECURRENCES)
    return in_box(gain).map(lambda theta: (gain, theta))


every_gain = st.sampled_from(GAINS).flatmap(any_gain)


def values(gain: Gain, theta: tuple[float, ...], r: np.ndarray = RECURRENCES) -> np.ndarray:
    return gain.evaluate(np.array([theta], dtype=float).reshape(1, -1), r)[0][0]


@pytest.mark.parametrize(
    ("key", "theta", "r", "expected"),
    [
        ("none", (), 8.0, 1.0),
        ("unrolled", (), 8.0, 8.0),
        ("power", (0.5,), 4.0, 2.0),
        ("power", (-1.0,), 8.0, 0.125),
        ("bounded", (2.0, 3.0), 4.0, 1 + 2 * (1 - math.exp(-1))),
        ("log", (0.7,), 8.0, 1 + 0.7 * math.log(8)),
        ("affine", (0.2,), 8.0, 2.4),
        ("free", (1.3, 1.9, 2.4), 4.0, 1.9),
        # A mean recurrence, as models have it that sample r.
        ("none", (), 2.5, 1.0),
        ("unrolled", (), 2.5, 2.5),
        ("power", (0.5,), 6.25, 2.5),
        ("bounded", (2.0, 3.0), 2.5, 1 + 2 * (1 - math.exp(-0.5))),
        ("log", (0.7,), 2.5, 1 + 0.7 * math.log(2.5)),
        ("affine", (0.2,), 2.5, 1.3),
    ],
)
def test_closed_forms(key: str, theta: tuple[float, ...], r: float, expected: float) -> None:
    assert make_gain(key, RECURRENCES)(r, theta) == pytest.approx(expected, rel=1e-14)


def test_every_law_of_the_registry_is_there() -> None:
    assert GAINS == ("none", "unrolled", "power", "bounded", "log", "affine", "free")


@given(every_gain)
def test_one_pass_is_worth_one_block(drawn: tuple[Gain, tuple[float, ...]]) -> None:
    gain, theta = drawn
    assert gain(1.0, theta) == 1.0


@given(every_gain)
def test_values_equal_the_plain_ones(drawn: tuple[Gain, tuple[float, ...]]) -> None:
    gain, theta = drawn
    expected, slopes = plain_gain(gain.key, RECURRENCES, theta, LEVELS)
    g, gradient, _ = gain.evaluate(np.array([theta], dtype=float).reshape(1, -1), RECURRENCES)
    np.testing.assert_allclose(g[0], expected, rtol=1e-12)
    for k, slope in enumerate(slopes):
        np.testing.assert_allclose(gradient[0, :, k], slope, rtol=1e-10, atol=1e-13)


def central(gain: Gain, theta: tuple[float, ...], k: int, what: int) -> np.ndarray:
    """Return the central difference of g (0) or of its gradient (1) along parameter k."""
    step = 1e-5 * max(abs(theta[k]), 0.1)
    points = np.array([theta, theta], dtype=float)
    points[0, k] += step
    points[1, k] -= step
    up, down = gain.evaluate(points, RECURRENCES)[what]
    return np.asarray((up - down) / (points[0, k] - points[1, k]))


@given(every_gain)
def test_derivatives_equal_finite_differences(drawn: tuple[Gain, tuple[float, ...]]) -> None:
    gain, theta = drawn
    _, gradient, hessian = gain.evaluate(np.array([theta], dtype=float).reshape(1, -1), RECURRENCES)
    size = len(theta)
    assert gradient.shape == (1, len(RECURRENCES), size)
    assert hessian.shape == (1, len(RECURRENCES), size, size)
    for k in range(size):
        slope, bend = central(gain, theta, k, 0), central(gain, theta, k, 1)
        # Differences of doubles: exact to 1e-6 of the largest entry, no better.
        np.testing.assert_allclose(gradient[0, :, k], slope, rtol=1e-5, atol=1e-6 * _size(slope))
        np.testing.assert_allclose(hessian[0, :, :, k], bend, rtol=1e-5, atol=1e-6 * _size(bend))


def _size(values: np.ndarray) -> float:
    return max(float(np.abs(values).max()), 1e-3)


@given(every_gain)
def test_hessians_are_symmetric(drawn: tuple[Gain, tuple[float, ...]]) -> None:
    gain, theta = drawn
    _, _, hessian = gain.evaluate(np.array([theta], dtype=float).reshape(1, -1), RECURRENCES)
    np.testing.assert_array_equal(hessian, hessian.transpose(0, 1, 3, 2))


@pytest.mark.parametrize("key", GAINS)
def test_a_batch_equals_its_rows(key: str) -> None:
    gain = make_gain(key, RECURRENCES)
    theta = np.array(gain.seeds, dtype=float).reshape(len(gain.seeds), -1)
    batch = gain.evaluate(theta, RECURRENCES)
    for row, one in enumerate(theta):
        single = gain.evaluate(one[None], RECURRENCES)
        for many, alone in zip(batch, single, strict=True):
            np.testing.assert_array_equal(many[row], alone[0])


@pytest.mark.parametrize("key", GAINS)
@pytest.mark.parametrize("recurrences", [RECURRENCES, [1, 2.5, 16], [1, 64], [3]])
def test_seeds_and_corners_keep_the_gain_positive(key: str, recurrences: list[float]) -> None:
    gain = make_gain(key, recurrences)
    r = np.unique([1.0, *recurrences])
    for theta in (*gain.seeds, gain.lower):
        assert (values(gain, theta, r) > 0).all()
    for theta in gain.seeds:
        assert len(theta) == len(gain.parameters) == len(gain.lower) == len(gain.upper)
        low_high = zip(theta, gain.lower, gain.upper, strict=True)
        assert all(low < value < high for value, low, high in low_high)


@pytest.mark.parametrize("key", GAINS)
def test_a_table_without_loops_still_has_a_gain(key: str) -> None:
    gain = make_gain(key, [1, 1])
    assert gain(1.0, gain.seeds[0]) == 1.0


def test_free_takes_one_value_for_each_recurrence_of_the_table() -> None:
    gain = make_gain("free", [8, 1, 2.5, 8, 1])
    assert gain.parameters == ("g(2.5)", "g(8)")
    assert values(gain, (1.5, 3.0), np.array([8.0, 1.0, 2.5])).tolist() == [3.0, 1.0, 1.5]


def test_free_refuses_a_recurrence_that_was_not_run() -> None:
    gain = make_gain("free", RECURRENCES)
    with pytest.raises(ValueError, match=r"g\(16\) is unknown to the law 'free'") as refusal:
        gain(16.0, (1.3, 1.9, 2.4))
    message = str(refusal.value)
    assert "r = 2, 4, 8" in message  # what is allowed
    assert "law='power' or law='bounded'" in message  # the remedy


@pytest.mark.parametrize("key", ["phi", "", "Power"])
def test_an_unknown_law_is_named_with_the_laws_there_are(key: str) -> None:
    with pytest.raises(ValueError, match="is unknown") as refusal:
        make_gain(key, RECURRENCES)
    message = str(refusal.value)
    assert repr(key) in message
    assert all(known in message for known in GAINS)


def test_the_box_of_phi_is_that_of_the_paper() -> None:
    gain = make_gain("power", RECURRENCES)
    assert (gain.lower, gain.upper) == ((-3.0,), (3.0,))


def test_bounded_is_affine_where_it_cannot_saturate() -> None:
    bounded, affine = make_gain("bounded", RECURRENCES), make_gain("affine", RECURRENCES)
    np.testing.assert_allclose(
        values(bounded, (0.2 * 700, 700.0)), values(affine, (0.2,)), rtol=0.01
    )


# A fitted law: a gain with numbers in it


def fitted(key: str, theta: tuple[float, ...], levels: tuple[float, ...] = LEVELS) -> FittedLaw:
    return FittedLaw(key, levels, 28.4, 0.2, 911.0, 0.368, 1.57, theta)


@given(every_gain)
def test_a_law_survives_json_bit_for_bit(drawn: tuple[Gain, tuple[float, ...]]) -> None:
    gain, theta = drawn
    law = fitted(gain.key, theta)
    again = FittedLaw.from_json(json.loads(json.dumps(law.to_json())))
    assert again == law
    if (values(gain, theta) > 0).all():
        runs = (2e7, [1e7, 3e8, 1e9, 2e8], RECURRENCES, 1e10)
        np.testing.assert_array_equal(again.predict(*runs), law.predict(*runs))


def test_json_with_sorted_keys_keeps_each_gain_at_its_recurrence() -> None:
    # As text "g(16)" sorts before "g(2)".
    law = fitted("free", (1.3, 1.9, 2.9), (2.0, 4.0, 16.0))
    assert FittedLaw.from_json(json.loads(json.dumps(law.to_json(), sort_keys=True))) == law


def test_predictions_are_the_sum_of_three_terms() -> None:
    law = fitted("power", (0.5,))
    expected = 1.57 + 28.4 * (2e7 + 2 * 3e8) ** -0.2 + 911 * 1e10**-0.368
    assert float(law.predict(2e7, 3e8, 4, 1e10)) == pytest.approx(expected, rel=1e-14)
    assert law.predict(2e7, [[3e8], [1e8]], [1, 2, 4], 1e10).shape == (2, 3)
    assert law.phi(8) == pytest.approx(0.5)


@pytest.mark.parametrize("key", ["log", "affine"])
def test_a_line_that_falls_to_zero_is_not_extrapolated(key: str) -> None:
    law = fitted(key, (make_gain(key, RECURRENCES).lower[0] * 0.99,))
    assert law.g(8) > 0
    for ask in (law.g, law.phi, lambda r: law.predict(0, 1e8, r, 1e10)):
        with pytest.raises(ValueError, match=rf"the law '{key}' gives g\(16\) = -") as refusal:
            ask(16)
        assert "r = 2, 4, 8" in str(refusal.value)


@pytest.mark.parametrize("r", [1.0, 0.5])
def test_phi_needs_a_loop(r: float) -> None:
    with pytest.raises(ValueError, match="phi is undefined at recurrence"):
        fitted("power", (0.5,)).phi(r)


@pytest.mark.parametrize("r", [float("nan"), None, "4", -2.0])
def test_a_recurrence_that_is_none_is_refused_by_name(r: Any) -> None:
    law = fitted("power", (0.5,))
    for ask in (law.g, law.phi):
        with pytest.raises(ValueError, match=r"recurrence=.* must be a positive, finite number"):
            ask(r)
