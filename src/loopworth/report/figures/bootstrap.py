"""How well the runs know each constant of g(r): bootstrap draws over the profile likelihood."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from loopworth.law.intervals import Interval
from loopworth.law.profiles import Profile
from loopworth.report.figures.constants import (
    Constant,
    constants_of,
    meaning_of,
    note_of,
    title_of,
    window,
)
from loopworth.report.fit_report import FitReport
from loopworth.report.style import (
    ACCENT,
    INK,
    MUTED,
    PALE,
    SMALL,
    Sheet,
    log_axis,
    sheet,
    text_width,
)

FloatArray = NDArray[np.float64]

_THRESHOLD = 3.841  # the deviance of a 95 % interval: chi-square, one degree of freedom
_HIGHEST = 12.0  # deviance shown
_MOST_BINS = 20  # within the 95 % interval
_WIDE = 6.4  # inches of the only panel


def draw_bootstrap(report: FitReport) -> Figure | None:
    """Draw the draws of each constant of g, the profile below where there is one constant."""
    fit = report.fit
    constants = constants_of(fit)
    if not constants or fit.bootstrap is None:
        return None
    title, note = title_of(fit, constants), note_of(fit, fit.bootstrap, constants)
    if len(constants) == 1:
        (constant,) = constants
        heights = (1.9, 1.7) if fit.profile else (2.4,)
        page = sheet(
            title, note, len(heights), columns=1, panel=(_WIDE, 0.0), heights=heights,
            gaps=(0.0, 0.2), share="x",
        )  # fmt: skip
        _histogram(page, page.axes[0], constant, fit.profile)
        if fit.profile:
            page.axes[0].tick_params(labelbottom=False)
            _deviance(page, page.axes[1], constant, fit.profile)
        page.axes[-1].set_xlabel(meaning_of(fit, constant))
        return page.figure
    columns = min(len(constants), 3 if len(constants) != 4 else 2)
    page = sheet(
        title, note, len(constants), columns=columns, panel=(3.0, 1.9), gaps=(0.3, 0.65)
    )  # fmt: skip
    for axes, constant in zip(page.axes, constants, strict=True):
        _histogram(page, axes, constant, None)
        axes.set_xlabel(f"{constant.symbol} = {constant.interval}")
        axes.tick_params(left=False, labelleft=False)
        axes.grid(False)
        axes.set_ylabel("resamples" if axes in page.axes[::columns] else "")
    return page.figure


def _histogram(page: Sheet, axes: Axes, constant: Constant, profile: Profile | None) -> None:
    """Draw the draws, darker within the 95 % interval, the estimate and the named values."""
    ci, draws = constant.estimate.ci95, constant.draws
    low, high, logarithmic = window(constant, profile)
    if logarithmic:
        log_axis(axes, low, high)
    else:
        axes.set_xlim(low, high)
    edges = _edges(draws, ci, low, high, logarithmic)
    heights, _ = np.histogram(draws, edges)
    slack = 1e-6 * np.diff(edges)
    low, high = ci or (math.inf, -math.inf)
    inside = (edges[1:] > low + slack) & (edges[:-1] < high - slack)
    axes.bar(
        edges[:-1], heights, np.diff(edges), align="edge", lw=0.4, ec="white",
        color=[ACCENT if x else PALE for x in inside], zorder=2,
    )  # fmt: skip
    tallest = float(heights.max(initial=1))
    axes.set_ylim(0, tallest * 1.45)
    axes.grid(False, axis="x")
    axes.plot(
        [constant.estimate.estimate] * 2, [0, tallest * 1.08],
        color=INK, lw=1.2, zorder=3, gid="estimate",
    )  # fmt: skip
    _name_values(page, axes, constant)
    axes.set_ylabel("resamples")
    if page.panel[0] == _WIDE:
        text = f"{constant.symbol} = {constant.estimate.estimate:.3g}"
        axes.annotate(
            text, (constant.estimate.estimate, tallest * 1.08), xytext=(0, 2),
            textcoords="offset points", ha="center", va="bottom", weight="bold",
        )  # fmt: skip
        if ci:
            text = f"bootstrap 95 %\n{_ends(ci)}"
            _beside(page, axes, ci, tallest * 0.5, text)


def _edges(
    draws: FloatArray, ci: Interval | None, low: float, high: float, logarithmic: bool
) -> FloatArray:
    """Return bins that have the ends of the interval among their edges, so that none straddles."""
    if logarithmic:
        bounds = (math.log(ci[0]), math.log(ci[1])) if ci else None
        inner = _edges(np.log(draws), bounds, math.log(low), math.log(high), False)
        return np.asarray(np.exp(inner), dtype=float)
    first, last = ci or (float(draws.min()), float(draws.max()))
    finest = (high - low) / 150
    if last - first < finest:  # all of it in one bin
        middle = 0.5 * (first + last)
        below, above = math.ceil((middle - low) / finest), math.ceil((high - middle) / finest)
        return np.asarray(middle + finest * (np.arange(-below, above + 2) - 0.5), dtype=float)
    most = float(np.clip(math.sqrt(len(draws)) / 1.6, 6, _MOST_BINS))
    count = max(round(min(most, (last - first) / finest)), 1)
    width = (last - first) / count
    below, above = math.ceil((first - low) / width), math.ceil((high - last) / width)
    return np.asarray(first + width * np.arange(-below, count + above + 1), dtype=float)


def _name_values(page: Sheet, axes: Axes, constant: Constant) -> None:
    """Draw a line at each value with a meaning, its name on the side where there is room."""
    low, high = axes.get_xlim()
    for value, meaning in constant.named:
        axes.axvline(value, color=MUTED, lw=0.9, ls=(0, (3, 2)), zorder=1, gid="named")
        left = value - low > high - value
        axes.annotate(
            f"{constant.symbol} = {value:g}\n{meaning}" if page.panel[0] == _WIDE else meaning,
            (value, 1.0), xytext=(-4 if left else 4, -1), xycoords=("data", "axes fraction"),
            textcoords="offset points", ha="right" if left else "left", va="top",
            size=SMALL, color=MUTED, gid="name", bbox={"fc": "white", "ec": "none", "pad": 0.8},
        )  # fmt: skip


def _deviance(page: Sheet, axes: Axes, constant: Constant, profile: Profile) -> None:
    """Draw the profile as its interval reads it: the root of the deviance straight between."""
    estimate = constant.estimate.estimate
    low, high = axes.get_xlim()
    order = np.argsort([*profile.values, estimate], kind="stable")
    x = np.append(profile.values, estimate)[order]
    root = np.append(np.sqrt(profile.deviance), 0.0)[order]
    at = np.unique(np.concatenate([np.linspace(max(low, x[0]), min(high, x[-1]), 301), [estimate]]))
    curve = np.interp(at, x, root) ** 2
    axes.set_ylim(0, _HIGHEST)
    axes.fill_between(at, curve, _THRESHOLD, where=curve <= _THRESHOLD, color=PALE, lw=0)
    axes.plot(at, curve, color=ACCENT, lw=1.5, gid="profile")
    solved = (profile.deviance <= _HIGHEST) & (profile.values >= low) & (profile.values <= high)
    axes.plot(
        profile.values[solved], profile.deviance[solved],
        ls="none", marker="o", ms=2.6, color=ACCENT, mew=0, gid="solved",
    )  # fmt: skip
    axes.axhline(_THRESHOLD, color=MUTED, lw=0.8)
    axes.axvline(estimate, color=INK, lw=1.2, gid="estimate")
    axes.grid(False, axis="x")
    axes.set_ylabel("deviance")
    for value, _ in constant.named:
        axes.axvline(value, color=MUTED, lw=0.9, ls=(0, (3, 2)), zorder=1)
    ends = profile.interval
    _beside(page, axes, ends, 0.5 * _THRESHOLD, f"profile 95 %\n{_ends(ends)}")


def _beside(
    page: Sheet, axes: Axes, ends: tuple[float | None, float | None], y: float, text: str
) -> None:
    """Write a label beside an interval, right of it where it fits, else left."""
    low, high = axes.get_xlim()
    first, last = (low if ends[0] is None else ends[0]), (high if ends[1] is None else ends[1])
    need = max(text_width(line, SMALL) for line in text.split("\n")) + 0.15
    right = (high - last) / (high - low) * page.panel[0] > need
    axes.annotate(
        text, (last if right else first, y), xytext=(7 if right else -7, 0),
        textcoords="offset points", ha="left" if right else "right", va="center",
        size=SMALL, color=ACCENT,
    )  # fmt: skip


def _ends(ends: tuple[float | None, float | None]) -> str:
    return "[{}, {}]".format(*("open" if x is None else f"{x:.2f}" for x in ends))
