"""What the law misses, run by run, against each thing that it may depend on."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from loopworth.report.figures.runs import draw_runs, guessed_budgets, hollow_runs, unique_parameters
from loopworth.report.fit_report import FitReport
from loopworth.report.style import (
    BAND,
    INK,
    MUTED,
    SMALL,
    Mark,
    Sheet,
    log_axis,
    marks,
    sheet,
    spread,
    text_width,
)
from loopworth.runs import RunTable

FloatArray = NDArray[np.float64]

_LEAST_REACH = 0.1  # mnats: an exact fit shows as a line at 0, not as its rounding
_MOST_LINES = 6
_LABEL_GAP = 0.13  # inches


def draw_residuals(report: FitReport) -> Figure:
    """Draw observed minus predicted loss in millinats against C, N, D/N and r."""
    runs = report.fit.runs
    y = 1e3 * report.fit.residual
    unique = unique_parameters(runs)
    page = sheet(
        _title(report), _note(report), 4, columns=2, panel=(4.1, 2.1),
        gaps=(0.35, 0.62), margins=(0.75, 0.3), share="y",
    )  # fmt: skip
    style = marks(runs.recurrence.tolist())
    reach = 1.1 * max(float(np.abs(y).max()), _LEAST_REACH)
    page.axes[0].set_ylim(-reach, reach)
    page.axes[0].yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    names = (
        "training FLOPs C" + (", taken as 6 (N_once + r N_rec) D" if guessed_budgets(runs) else ""),
        "unique parameters N",
        "tokens per unique parameter D / N",
        "recurrence r",
    )
    values = (runs.budgets, unique, runs.tokens / unique, runs.recurrence)
    rmse = 1e3 * report.fit.goodness.rmse
    for k, (axes, name, x) in enumerate(zip(page.axes, names, values, strict=True)):
        axes.axhspan(-rmse, rmse, color=BAND, lw=0, zorder=0.5)
        axes.axhline(0.0, color=MUTED, lw=0.8, zorder=1)
        for r, mark in reversed(style.items()):
            draw_runs(axes, x, y, runs.recurrence == r, hollow_runs(runs), mark, 3.2)
        axes.set_xlabel(name)
        if k % 2 == 0:
            axes.set_ylabel("observed − predicted, mnats")
        else:
            axes.tick_params(left=False, labelleft=False)
    _by_budget(page, runs, y, style)
    for axes, x in zip(page.axes[1:3], values[1:3], strict=True):
        low, high = _padded(x)
        log_axis(axes, low, high)
    _by_recurrence(page.axes[3], report, style)
    return page.figure


def _padded(x: FloatArray, share: float = 0.05) -> tuple[float, float]:
    low, high = float(x.min()), float(x.max())
    pad = math.exp(share * max(math.log(high / low), 1.0))
    return low / pad, high * pad


def _joined(runs: RunTable) -> bool:
    """Return whether lines over the budgets can be told apart, and are more than the runs."""
    cells = set(zip(runs.recurrence.tolist(), runs.budgets.tolist(), strict=True))
    return len(set(runs.recurrence.tolist())) <= _MOST_LINES and 2 * len(cells) <= len(runs)


def _by_budget(page: Sheet, runs: RunTable, y: FloatArray, style: dict[float, Mark]) -> None:
    """Join the mean of each (budget, r), and name r at the line's end: the key to the figure."""
    axes = page.axes[0]
    low, high = _padded(runs.budgets)
    if not _joined(runs):
        log_axis(axes, low, high, flops=True)
        return
    texts = {r: f"r = {r:g}" for r in style}
    label = max(text_width(text, SMALL, bold=True) for text in texts.values()) + 0.15
    high *= math.exp(math.log(high / low) * label / (page.panel[0] - label))
    log_axis(axes, low, high, flops=True)
    ends: dict[float, tuple[float, float]] = {}
    for r, mark in style.items():
        budgets = sorted(set(runs.budgets[runs.recurrence == r].tolist()))
        means = [
            float(y[(runs.budgets == budget) & (runs.recurrence == r)].mean()) for budget in budgets
        ]
        axes.plot(budgets, means, color=mark.colour, lw=1.3, alpha=0.9, zorder=2, gid="mean")
        ends[r] = (budgets[-1], means[-1])
    bottom, top = axes.get_ylim()
    gap = _LABEL_GAP * (top - bottom) / page.panel[1]
    places = spread([mean for _, mean in ends.values()], gap, bottom + gap / 2, top - gap / 2)
    for r, place in zip(ends, places, strict=True):
        axes.annotate(
            texts[r], (float(runs.budgets.max()), place), xytext=(6, 0),
            textcoords="offset points", va="center", size=SMALL, weight="bold",
            color=style[r].colour, gid="label",
        )  # fmt: skip


def _by_recurrence(axes: Axes, report: FitReport, style: dict[float, Mark]) -> None:
    """Space r by its logarithm, and write each mean above its column."""
    low, high = min(style), max(style)
    pad = 1.25 if high == low else (high / low) ** 0.08
    axes.set_xscale("log", base=2)
    axes.set_xlim(low / pad, high * pad)
    shown: list[float] = []
    width = math.log(high * pad * pad / low)
    for r in style:
        if not shown or math.log(r / shown[-1]) / width > 0.055:
            shown.append(r)
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    half = math.exp(0.02 * width)
    for row in report.fit.residuals:
        x = (row.recurrence / half, row.recurrence * half)
        axes.plot(x, [1e3 * row.mean] * 2, color=INK, lw=1.6, zorder=4, gid="mean")
        if len(style) <= 6:
            axes.annotate(
                f"mean {_signed(1e3 * row.mean)}", (row.recurrence, 1.0), xytext=(0, 1),
                xycoords=("data", "axes fraction"), textcoords="offset points",
                ha="center", va="bottom", size=SMALL, color=MUTED,
            )  # fmt: skip


def _title(report: FitReport) -> str:
    rmse = 1e3 * report.fit.goodness.rmse
    rows = report.fit.residuals
    if rmse < _LEAST_REACH:
        most = 1e3 * max(row.max_abs for row in rows)
        return f"The law meets every run to {_mnats(most)} mnats"
    start = f"The law misses by {_mnats(rmse)} mnats (RMSE)"
    if len(rows) < 2:
        return start
    worst = max(rows, key=lambda row: abs(row.mean))
    if abs(worst.mean) < 1e-3 * rmse / 4:
        return (
            f"{start}, and no r lies more than {_mnats(1e3 * abs(worst.mean))} mnats off on average"
        )
    side = "above" if worst.mean > 0 else "below"
    return (
        f"{start}; the runs at r = {worst.recurrence:g} lie {_mnats(1e3 * abs(worst.mean))} "
        f"mnats {side} it on average"
    )


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−") if abs(value) >= 0.05 else "0.0"


def _mnats(value: float) -> str:
    return f"{value:.1f}" if value >= 0.05 else f"{value:.1g}"


def _note(report: FitReport) -> str:
    words = ["Grey band: ± RMSE"]
    if _joined(report.fit.runs):
        words.append("coloured lines: mean of each budget and r")
    words.append("black: mean of each r, in whose panel its mark is named")
    if hollow_runs(report.fit.runs).any():
        words.append("hollow: loss inferred, not measured")
    return "; ".join(words) + "."
