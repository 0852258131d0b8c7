import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopworth.quantities import (
    format_bytes,
    format_change,
    format_count,
    format_duration,
    format_estimate,
    format_flops,
    format_interval,
    format_quantity,
    format_share,
    parse_bytes,
    parse_duration,
    parse_quantity,
)

finite = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e9", 2e9),
        ("1.3B", 1.3e9),
        ("1.1b", 1.1e9),
        ("410M", 410e6),
        ("0.5k", 500),
        ("2G", 2e9),
        ("4.64e18", 4.64e18),
        ("1,000,000", 1e6),
        ("1_000_000", 1e6),
        (" 1.3 B ", 1.3e9),
        ("-3M", -3e6),
        (".5", 0.5),
        ("5.", 5),
        ("1e3K", 1e6),
    ],
)
def test_a_quantity_is_read_as_the_float_it_stands_for(text: str, value: float) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "B", "1.3Q", "1,5", "1,00,000", "1__0", "nan", "inf", "1e999", "1e308T", "--3", "١"],
)
def test_what_is_not_a_quantity_is_refused_with_the_text_and_a_remedy(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity: use a number with an opt") as refused:
        parse_quantity(text)
    assert repr(text) in str(refused.value)
    assert "suffix K, M, B or T" in str(refused.value)


@given(finite, st.integers(1, 12))
def test_a_written_quantity_reads_back_to_its_digits(value: float, digits: int) -> None:
    for write in (format_quantity, format_flops):
        rounded = float(f"{value:.{digits - 1}e}")
        if math.isinf(rounded):  # rounding carried the largest floats over the edge
            continue
        assert parse_quantity(write(value, digits)) == pytest.approx(rounded, rel=1e-14, abs=5e-324)


@given(st.integers(-(10**12), 10**12))
def test_a_count_in_full_reads_back_exactly(value: int) -> None:
    assert parse_quantity(format_count(value)) == value


@given(finite.map(lambda x: f"{x:.3e}"), st.sampled_from("KMBT"))
def test_a_suffix_multiplies_with_a_single_rounding(number: str, suffix: str) -> None:
    power = {"K": 3, "M": 6, "B": 9, "T": 12}[suffix]
    mantissa, exponent = number.split("e")
    exact = float(f"{mantissa}e{int(exponent) + power}")
    if math.isfinite(exact) and math.isfinite(float(number)):
        assert parse_quantity(number + suffix) == exact


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (64, "64"), (999.6, "1K"), (999_999, "1M"), (1.3e9, "1.3B"), (9.996e11, "1T"),
     (9.99e14, "999T"), (9.999e14, "1e15"), (4.64e18, "4.64e18"), (-2.5e9, "-2.5B"),
     (1e-5, "1e-5"), (0.00123, "0.00123"), (math.inf, "inf"), (math.nan, "nan")],
)  # fmt: skip
def test_a_quantity_is_written_with_the_suffix_that_fits(value: float, text: str) -> None:
    assert format_quantity(value) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("12h", 43200), ("90min", 5400), ("90 m", 5400), ("1h30min", 5400), ("1 h 30 min", 5400),
     ("1.5 d", 129600), ("45s", 45), ("250ms", 0.25), ("2 hours", 7200), ("1,000 s", 1000)],
)  # fmt: skip
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-15)


@pytest.mark.parametrize("text", ["", "90", "h", "12x", "-1h", "1h 30", "1e400s", "1e308d"])
def test_a_duration_needs_its_units(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration: use numbers with a unit"):
        parse_duration(text)


@given(st.floats(1e-3, 1e9))
def test_a_written_duration_reads_back_within_half_of_its_last_unit(seconds: float) -> None:
    again = parse_duration(format_duration(seconds))
    unit = next(size for size in (86400, 3600, 60, 1, 1e-3) if again >= size)
    step = {86400: 3600, 3600: 60, 60: 1, 1: 0.1, 1e-3: 1e-3}[unit]
    assert again == pytest.approx(seconds, abs=0.5000001 * step)


def test_durations_carry_into_the_next_unit() -> None:
    shown = [format_duration(x) for x in (0, 59.96, 3599.9, 86399, -90, math.inf)]
    assert shown == ["0 ms", "1 min", "1 h", "1 d", "-1 min 30 s", "inf"]


@pytest.mark.parametrize(
    ("text", "size"),
    [("80GB", 80e9), ("768KiB", 786432), ("768 kib", 786432), ("1TiB", 2**40), ("5", 5), ("5B", 5)],
)
def test_sizes_tell_thousands_from_1024s(text: str, size: float) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "-1GB", "3 apples", "1e308PB", "1,2KB"])
def test_a_wrong_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size: use a number of bytes"):
        parse_bytes(text)


@given(st.floats(1, 1e18))
def test_a_written_size_reads_back_to_three_digits(size: float) -> None:
    assert parse_bytes(format_bytes(size)) == pytest.approx(size, rel=0.0051)


def test_sizes_are_written_in_powers_of_1024() -> None:
    shown = [format_bytes(x) for x in (0, 5, 1000, 1023.7, 786432, 2**20 - 1, 80e9)]
    assert shown == ["0 B", "5 B", "1000 B", "1 KiB", "768 KiB", "1 MiB", "74.5 GiB"]


@pytest.mark.parametrize(
    ("value", "se", "text"),
    [(0.4335, 0.022, "0.43 ± 0.02"), (0.43, 0.096, "0.4 ± 0.1"), (911, 430, "900 ± 400"),
     (1.57, 0.03, "1.57 ± 0.03"), (-0.001, 0.02, "0.00 ± 0.02"), (28.4, 0.0, "28.4 ± ?"),
     (1.234e9, 1e7, "1.23B ± 0.01B"), (0.2, math.nan, "0.2 ± ?"), (math.nan, 1.0, "nan ± ?")],
)  # fmt: skip
def test_an_estimate_has_the_digits_of_its_error(value: float, se: float, text: str) -> None:
    assert format_estimate(value, se) == text


@given(st.floats(-1e12, 1e12), st.floats(1e-6, 1e12))
def test_rounding_an_estimate_costs_less_than_its_error(value: float, se: float) -> None:
    shown, error = format_estimate(value, se).split(" ± ")
    capped = max(5e-5, 1e-3 * max(abs(value), se))  # no more than four digits, four decimals
    assert abs(parse_quantity(shown) - value) <= 0.51 * se + capped
    assert 0.5 * se - capped <= parse_quantity(error) <= 1.51 * se + capped


@pytest.mark.parametrize(
    ("value", "ends", "text"),
    [(0.4335, (0.3903, 0.4812), "0.43 [0.39, 0.48]"), (28.4, (3.0, 300.0), "28 [3, 300]"),
     (0.5, (0.5, 0.5), "0.5 [0.5, 0.5]"), (0.5, (-math.inf, 0.7), "0.50 [-inf, 0.70]"),
     (5.8e8, (5.4e8, 6.3e8), "580M [540M, 630M]"), (-0.001, (-0.19, 0.22), "0.00 [-0.19, 0.22]"),
     (1.2, (-3.1, 1.3), "1.20 [-3.10, 1.30]"), (12.0, (-3.1, 31.3), "12.0 [-3.1, 31.3]"),
     (1.6e6, (0.9e6, 2.4e6), "1.60M [0.90M, 2.40M]"),
     (0.43, (0.43 - 1e-11, 0.43 + 1e-11), "0.4300 [0.4300, 0.4300]"),
     (1e-12, (-1e-12, 1e-12), "0.0000 [0.0000, 0.0000]"),
     (12.3456789, (12.3456788, 12.345679), "12.35 [12.35, 12.35]")],
)  # fmt: skip
def test_an_interval_has_the_digits_of_its_width(
    value: float, ends: tuple[float, float], text: str
) -> None:
    assert format_interval(value, ends) == text


@pytest.mark.parametrize(
    ("value", "ends", "text"),
    [(0.2178, (0.0367, 0.3248), "+0.22 [+0.04, +0.32]"), (0.2, None, "+0.200"),
     (0.2, (0.2 - 1e-15, 0.2 + 1e-15), "+0.2000 [+0.2000, +0.2000]"),
     (0.0, (0.0, 0.0), "+0.00 [+0.00, +0.00]"), (-0.4, (-0.8, 0.2), "-0.40 [-0.80, +0.20]"),
     (0.3, (0.001, 0.9), "+0.300 [+0.001, +0.900]"), (-59, (-997, 7), "-59 [-997, +7]"),
     (1e-13, (-1e-13, 2e-13), "+0.0000 [+0.0000, +0.0000]")],
)  # fmt: skip
def test_a_change_keeps_its_signs(
    value: float, ends: tuple[float, float] | None, text: str
) -> None:
    assert format_change(value, ends) == text


@given(st.floats(-9e14, 9e14), st.floats(1e-15, 1e6), st.floats(1e-15, 1e6))
def test_an_interval_fits_a_column_however_narrow_or_wide(
    value: float, below: float, above: float
) -> None:
    ends = (value - below, value + above)
    assert len(format_interval(value, ends)) <= 30
    assert len(format_estimate(value, below)) <= 25
    if abs(value) < 1e5 and max(below, above) < 1e5:
        assert len(format_change(value, ends)) <= 30


def test_counts_and_shares() -> None:
    assert [format_count(x) for x in (98331520, 6.5, 2.333333, 4.0)] == [
        "98,331,520", "6.5", "2.33", "4",
    ]  # fmt: skip
    assert format_share(0.731) == "73.1 %"
