"""Read and write quantities: the only place where numbers become text, and text numbers.

Counts are written with a suffix (1.3B), FLOPs as a power of ten (4.64e18), sizes in powers of 1024
(768 KiB), durations in the unit that fits, and estimates with the digits that their standard error
supports. What a `format_` function writes, the `parse_` function beside it reads back.
"""

import math
import re

_SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_WRITTEN = (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3))
_SECONDS = {
    **dict.fromkeys(("ms",), 1e-3),
    **dict.fromkeys(("s", "sec"), 1.0),
    **dict.fromkeys(("m", "min"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
_BYTES = {"": 1.0, "B": 1.0} | {
    f"{prefix}{ending}": float(base**power)
    for power, prefix in enumerate("KMGTP", start=1)
    for ending, base in (("B", 1000), ("iB", 1024))
}

_DECIMALS = 4  # of a number with an interval: a phi to 0.0001 is finer than any table gives

_NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d[\d_]*\.?\d*|\.\d+)(?:e[+-]?\d+)?"
_QUANTITY = re.compile(rf"([+-]?{_NUMBER})\s*([a-z]*)", re.IGNORECASE | re.ASCII)
_DURATION_PART = re.compile(rf"({_NUMBER})\s*([a-z]+)\s*", re.IGNORECASE | re.ASCII)


def parse_quantity(text: str) -> float:
    """Read a number with an optional suffix K, M, B (or G) or T, in either case.

    Commas may group thousands. Raises ValueError for anything else, infinities and NaN included.

    >>> [parse_quantity(text) for text in ("2e9", "1.3B", "410M", "1,000,000")]
    [2000000000.0, 1300000000.0, 410000000.0, 1000000.0]
    """
    match = _QUANTITY.fullmatch(text.strip())
    number = _finite(match[1]) if match else None
    if match and number is not None and match[2] == "":
        return number
    if match and number is not None and match[2].upper() in _SUFFIXES:
        # Shifting the exponent in the text keeps 1.1B the float that 1.1e9 is.
        scaled = _scaled(match[1], round(math.log10(_SUFFIXES[match[2].upper()])))
        if scaled is not None:
            return scaled
    raise ValueError(
        f"{text!r} is not a quantity: use a number with an optional suffix K, M, B or T, "
        "such as 2e9, 1.3B, 4.64e18 or 1,000,000"
    )


def parse_duration(text: str) -> float:
    """Read a duration such as 12h, 90min, 1.5 d or 1h 30min and return seconds.

    Units: ms, s, min (or m), h, d. A bare number is refused, since its unit would be a guess.

    >>> parse_duration("12h"), parse_duration("1h 30min")
    (43200.0, 5400.0)
    """
    rest, seconds = text.strip(), 0.0
    while rest:
        part = _DURATION_PART.match(rest)
        number = _finite(part[1]) if part else None
        if not part or number is None or part[2].lower() not in _SECONDS:
            break
        seconds += number * _SECONDS[part[2].lower()]
        rest = rest[part.end() :]
    if rest or not text.strip() or not math.isfinite(seconds):
        raise ValueError(
            f"{text!r} is not a duration: use numbers with a unit ms, s, min, h or d, "
            "such as 12h, 90min or 1h 30min"
        )
    return seconds


def parse_bytes(text: str) -> float:
    """Read a size in bytes: 80GB counts in thousands, 768KiB in 1024s.

    >>> parse_bytes("80GB"), parse_bytes("768 KiB")
    (80000000000.0, 786432.0)
    """
    match = _QUANTITY.fullmatch(text.strip())
    units = {unit.lower(): size for unit, size in _BYTES.items()}
    number = _finite(match[1]) if match else None
    if match and number is not None and number >= 0 and match[2].lower() in units:
        size = number * units[match[2].lower()]
        if math.isfinite(size):
            return size
    raise ValueError(
        f"{text!r} is not a size: use a number of bytes with an optional unit KB, MB, GB, TB "
        "(thousands) or KiB, MiB, GiB, TiB (1024s), such as 80GB or 768KiB"
    )


def format_quantity(value: float, digits: int = 3) -> str:
    """Write a number with `digits` significant digits: a suffix from 1,000 on, e-notation at 1e15.

    >>> [format_quantity(value) for value in (1.3e9, 999_999, 64, 4.64e18)]
    ['1.3B', '1M', '64', '4.64e18']
    """
    if not math.isfinite(value):
        return str(float(value))
    rounded = float(f"{value:.{digits - 1}e}")
    size = abs(rounded)
    if size >= 1e15 or 0 < size < 1e-4:
        return format_flops(rounded, digits)
    for suffix, scale in _WRITTEN:
        if size >= scale:
            return _plain(rounded / scale, digits) + suffix
    return _plain(rounded, digits)


def format_flops(value: float, digits: int = 3) -> str:
    """Write a number of FLOPs as a power of ten.

    >>> format_flops(1047336960), format_flops(4.64e18)
    ('1.05e9', '4.64e18')
    """
    if not math.isfinite(value):
        return str(float(value))
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return mantissa if int(exponent) == 0 else f"{mantissa}e{int(exponent)}"


def format_count(value: float) -> str:
    """Write a count in full: whole where it is whole, else with two decimals.

    >>> format_count(98331520), format_count(6.5)
    ('98,331,520', '6.5')
    """
    if float(value).is_integer():
        return f"{int(value):,}"
    text = f"{value:,.2f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_share(value: float) -> str:
    """Write a share of one as a percentage.

    >>> format_share(0.731), format_share(0.0004)
    ('73.1 %', '0.0 %')
    """
    return f"{100 * value:.1f} %"


def format_bytes(value: float, digits: int = 3) -> str:
    """Write bytes in powers of 1024.

    >>> format_bytes(786432), format_bytes(80e9)
    ('768 KiB', '74.5 GiB')
    """
    for power, prefix in reversed(list(enumerate("KMGTP", start=1))):
        # 1023.9 KiB would be written 1024 KiB; it is 1 MiB.
        if round(abs(value) / 1024 ** (power - 1)) >= 1024:
            return f"{_plain(value / 1024**power, digits)} {prefix}iB"
    return f"{_plain(value, digits)} B"


def format_duration(seconds: float) -> str:
    """Write seconds in the unit that fits, with two units from a minute on.

    >>> [format_duration(value) for value in (0.35, 12.34, 5400, 100000)]
    ['350 ms', '12.3 s', '1 h 30 min', '1 d 4 h']
    """
    if not math.isfinite(seconds):
        return str(float(seconds))
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds < 0.9995:
        return f"{_plain(1e3 * seconds, 3)} ms"
    if seconds < 59.95:
        return f"{_plain(seconds, 3)} s"
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    first = next(i for i, (_, size) in enumerate(units) if round(seconds) >= size)
    small = units[first + 1][1] if first + 1 < len(units) else 1
    whole = round(seconds / small) * small
    # Rounding may have carried into the next unit up: 59 min 59.9 s is 1 h.
    first = next(i for i, (_, size) in enumerate(units) if whole >= size)
    name, size = units[first]
    count, rest = divmod(whole, size)
    text = f"{count} {name}"
    if first + 1 < len(units) and rest >= units[first + 1][1]:
        text += f" {rest // units[first + 1][1]} {units[first + 1][0]}"
    return text


def format_estimate(value: float, se: float) -> str:
    """Write an estimate and its standard error, to the first digit of the error.

    Without a finite positive error, three significant digits and no claim. No number gets more
    than four significant digits, nor more than four decimals: a smaller error is written as 0.

    >>> format_estimate(0.4335, 0.022), format_estimate(911.0, 430.0)
    ('0.43 ± 0.02', '900 ± 400')
    """
    if not (math.isfinite(value) and math.isfinite(se) and se > 0):
        return f"{format_quantity(value)} ± ?"
    largest = max(abs(value), se)
    scale, suffix = _common_scale(largest)
    decimals = min(_decimals(se / scale), _most_decimals(largest / scale))
    shown, error = (_fixed(x / scale, decimals) + suffix for x in (value, se))
    return f"{shown} ± {error}"


def format_interval(value: float, interval: tuple[float, float]) -> str:
    """Write an estimate and its 95 % interval, to the first digit of the implied standard error.

    The standard error is taken as the width over 3.92. An end may be infinite. A wide interval
    keeps three digits (1.24 [-3.10, 1.72]), a narrow one gets no more than four significant digits
    and no more than four decimals, so that a cell of a table has a width that is known.

    >>> format_interval(0.4335, (0.3903, 0.4812))
    '0.43 [0.39, 0.48]'
    """
    low, high = interval
    finite = [end for end in (low, high) if math.isfinite(end)]
    spread = (
        high - low if len(finite) == 2 else 2 * max((abs(e - value) for e in finite), default=0)
    )
    if not (math.isfinite(value) and spread > 0):
        return f"{format_quantity(value)} [{format_quantity(low)}, {format_quantity(high)}]"
    scale, suffix = _common_scale(max(abs(x) for x in (value, *finite)))
    largest = max(abs(x) for x in (value, *finite)) / scale
    least = 2 if largest < 10 else 1 if largest < 100 else 0
    decimals = min(max(_decimals(spread / 3.92 / scale), least), _most_decimals(largest))
    shown, left, right = (
        _fixed(x / scale, decimals) + suffix if math.isfinite(x) else str(x)
        for x in (value, low, high)
    )
    return f"{shown} [{left}, {right}]"


def format_change(value: float, interval: tuple[float, float] | None) -> str:
    """Write a difference and its 95 % interval with their signs, or three decimals without one.

    It has one digit more than an estimate would get, since the sign of a difference is what is
    asked; an end beside 0 keeps its sign. Digits are capped as by `format_interval`.

    >>> format_change(0.2178, (0.0367, 0.3248)), format_change(-0.4, None)
    ('+0.22 [+0.04, +0.32]', '-0.400')
    """
    if interval is None:
        return f"{value:+.3f}"
    largest = max(abs(value), *map(abs, interval))
    spread = (interval[1] - interval[0]) / 3.92
    if not (math.isfinite(spread) and largest > 0):
        return f"{value:+.2f} [{interval[0]:+.2f}, {interval[1]:+.2f}]"
    most = max(_most_decimals(largest), 0)
    # The implied standard error is 2 to 20 units of the last digit.
    fine = math.ceil(-math.log10(spread / 2)) if spread > 0 else 0
    least = 2 if largest < 10 else 1 if largest < 100 else 0
    decimals = min(max(fine, least), most)
    nearest = min(map(abs, interval))
    while 0 < nearest < 0.5 * 10.0**-decimals and decimals < _DECIMALS:
        decimals += 1
    shown, left, right = (f"{round(x, decimals) + 0.0:+.{decimals}f}" for x in (value, *interval))
    return f"{shown} [{left}, {right}]"


def _finite(number: str) -> float | None:
    """Read the digits of a number, or None where they are not one or overflow."""
    try:
        value = float(number.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _scaled(number: str, power: int) -> float | None:
    """Read a number times 10^power with a single rounding."""
    mantissa, _, exponent = number.lower().partition("e")
    return _finite(f"{mantissa}e{int(exponent or 0) + power}")


def _plain(value: float, digits: int) -> str:
    """Write significant digits without an exponent and without trailing zeros."""
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    text = f"{value:.{max(decimals, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _common_scale(size: float) -> tuple[float, str]:
    """Choose one suffix for numbers that stand side by side, from a million on."""
    for suffix, scale in _WRITTEN:
        if size >= scale and scale >= 1e6:
            return scale, suffix
    return 1.0, ""


def _decimals(se: float) -> int:
    """Return the decimal place of the first significant digit of a standard error."""
    return -int(f"{se:.0e}".split("e")[1])  # after rounding: 0.096 is 0.1


def _most_decimals(size: float) -> int:
    """Return the decimals of four significant digits, 4 at most: a table has 80 columns."""
    return min(_DECIMALS, 3 - math.floor(math.log10(size)))


def _fixed(value: float, decimals: int) -> str:
    """Write a fixed number of decimals, negative ones rounding to tens, never a -0.00."""
    rounded = round(value, decimals) + 0.0
    return f"{rounded:.{max(decimals, 0)}f}"
