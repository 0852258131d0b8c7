"""Loss against unique parameters, one panel a recurrence: the valleys, their minima, the law."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from numpy.polynomial import Polynomial
from numpy.typing import NDArray

from loopworth.isoflop import IsoflopMinimum
from loopworth.report.figures.runs import draw_runs, guessed_budgets, hollow_runs, unique_parameters
from loopworth.report.fit_report import FitReport
from loopworth.report.style import (
    FAINT,
    FONT,
    INK,
    MUTED,
    SMALL,
    Mark,
    Sheet,
    log_axis,
    marks,
    power_of_ten,
    sheet,
    text_width,
)

FloatArray = NDArray[np.float64]

_CUBIC_MISS = 5e-4  # nats by which the smooth line may miss the law at the runs
_LABEL_GAP = 0.12  # inches between the middles of two labels
_ROOMY = 2.2  # inches of a panel's height; lower panels label fewer curves


def draw_isoflop(report: FitReport) -> Figure:
    """Draw loss in nats against N (norms and injection in, embeddings out), shared axes."""
    runs = report.fit.runs
    levels = sorted(set(runs.recurrence.tolist()))
    style = marks(levels)
    columns = min(len(levels), 4 if len(levels) <= 8 else 5)
    panel = (2.45, 3.6) if len(levels) <= 4 else (2.45, 2.3) if len(levels) <= 8 else (2.2, 2.1)
    if len(levels) == 1:
        panel = (5.4, 3.6)
    page = sheet(
        _title(report), _note(report), len(levels), columns=columns, panel=panel,
        gaps=(0.25, 0.42), margins=(0.6, 0.2), share="xy",
    )  # fmt: skip
    size = 3.6 if len(levels) <= 4 else 2.8
    unique = unique_parameters(runs)
    _limits(page, report, unique)
    ghost = _unlooped(report)
    for k, (r, axes) in enumerate(zip(levels, page.axes, strict=True)):
        group = [x for x in report.minima if x.recurrence == r and x.center is not None]
        if r != 1.0:
            _path(axes, ghost, dotted=True)
        _curves(axes, group, style[r])
        _law(axes, report, group, unique)
        draw_runs(
            axes, unique, runs.val_loss, runs.recurrence == r, hollow_runs(runs), style[r], size
        )
        _minima(axes, report, group, unique)
        _labels(page, axes, group)
        _dress(axes, r, style[r], left=k % columns == 0, bottom=k + columns >= len(levels))
    return page.figure


def _dress(axes: Axes, r: float, mark: Mark, *, left: bool, bottom: bool) -> None:
    """Name the panel, and the axes where it stands at the rim."""
    axes.text(
        0.5, 1.0, f"r = {r:g}", transform=axes.transAxes, ha="center", va="bottom",
        weight="bold", color=mark.colour, size=FONT + 1, gid="recurrence",
    )  # fmt: skip
    axes.tick_params(left=left, labelleft=left, labelbottom=bottom)
    if left:
        axes.set_ylabel("loss, nats per token")
    if bottom:
        axes.set_xlabel("unique parameters N")


def _unlooped(report: FitReport) -> list[IsoflopMinimum]:
    """Return the minima at r = 1 that the other panels repeat, where they make a line."""
    found = [x for x in report.minima if x.recurrence == 1.0 and x.n_star is not None]
    looped = any(x.recurrence != 1.0 for x in report.minima)
    return found if looped and len({x.budget_flops for x in found}) > 1 else []


def _limits(page: Sheet, report: FitReport, unique: FloatArray) -> None:
    """Set the shared limits: runs and law inside, and room for the label of the longest curve."""
    groups = [x for x in report.minima if x.center is not None]
    labels = [_label(x, groups) for x in groups]
    label = max((text_width(text, SMALL) for text in labels), default=0.0) + 0.12
    low, high = float(unique.min()), float(unique.max())
    span = max(math.log(high / low), 0.2)
    left, right = 0.05 * span, 0.05 * span
    if labels:
        right = (span + left) * label / (page.panel[0] - label)
    log_axis(page.axes[0], low * math.exp(-left), high * math.exp(right))
    loss = report.fit.runs.val_loss
    both = np.concatenate([loss, loss - report.fit.residual]) if groups else loss
    bottom, top = float(both.min()), float(both.max())
    pad = 0.05 * max(top - bottom, 1e-3)
    page.axes[0].set_ylim(bottom - pad, top + pad)


def _curves(axes: Axes, group: Sequence[IsoflopMinimum], mark: Mark) -> None:
    lines = [Polynomial([x.level or 0.0, x.slope or 0.0, x.curvature or 0.0]) for x in group]
    curves = [_bezier(x, line) for x, line in zip(group, lines, strict=True)]
    _draw(axes, curves, gid="parabola", color=mark.colour, lw=1.3, alpha=0.9)


def _law(
    axes: Axes, report: FitReport, group: Sequence[IsoflopMinimum], unique: FloatArray
) -> None:
    """Draw what the law predicts at the runs of each group, as a smooth line through them.

    A cubic in ln N meets the law to far below the line's width where tokens follow from the budget;
    where it does not, a line would be an invention, and none is drawn.
    """
    predicted = report.fit.runs.val_loss - report.fit.residual
    curves = []
    for x in group:
        places = np.flatnonzero(np.isin(report.fit.runs.rows, x.rows))
        u = np.log(unique[places] / (x.center or 1.0))
        line = Polynomial.fit(u, predicted[places], min(3, x.n_widths - 1)).convert()
        if np.abs(line(u) - predicted[places]).max() <= _CUBIC_MISS:
            curves.append(_bezier(x, line))
    _draw(axes, curves, gid="law", color=INK, lw=0.7, ls=(0, (4, 2)), alpha=0.75)


def _bezier(x: IsoflopMinimum, line: Polynomial) -> FloatArray:
    """Return a polynomial of u = ln(N / center), up to a cubic, over the measured N, as (4, 2).

    On a logarithmic axis it is one Bezier curve, exactly: four points in the file, not hundreds.
    """
    center = x.center or 1.0
    first, last = (math.log(n / center) for n in x.n_measured)
    rise = line.deriv()([first, last]) * (last - first) / 3.0
    start, end = line([first, last])
    loss = [start, start + rise[0], end - rise[1], end]
    return np.column_stack([center * np.exp(np.linspace(first, last, 4)), loss])


def _draw(axes: Axes, curves: Sequence[FloatArray], **style: Any) -> None:
    """Draw Bezier curves as one path."""
    if curves:
        codes = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4] * len(curves)
        path = Path(np.concatenate(curves), codes)
        axes.add_patch(PathPatch(path, fill=False, capstyle="round", zorder=2, **style))


def _minima(
    axes: Axes, report: FitReport, group: Sequence[IsoflopMinimum], unique: FloatArray
) -> None:
    """Mark where each valley turns: filled inside the measured N, open at the best run if not."""
    turned = [x for x in group if x.n_star is not None and x.loss_star is not None]
    _path(axes, turned)
    open_runs = []
    for x in group:
        if x not in turned:
            places = np.flatnonzero(np.isin(report.fit.runs.rows, x.rows))
            open_runs.append(places[np.argmin(report.fit.runs.val_loss[places])])
    style: dict[str, Any] = {"marker": "*", "ls": "none", "ms": 8.5, "zorder": 5}
    if turned:
        axes.plot(
            [x.n_star or math.nan for x in turned], [x.loss_star or math.nan for x in turned],
            color=INK, mec="white", mew=0.6, gid="minimum", **style,
        )  # fmt: skip
    if open_runs:
        axes.plot(
            unique[open_runs], report.fit.runs.val_loss[open_runs],
            color="white", mec=INK, mew=0.9, gid="no minimum", **style,
        )  # fmt: skip


def _path(axes: Axes, minima: Sequence[IsoflopMinimum], *, dotted: bool = False) -> None:
    """Join minima over the budgets, study by study."""
    for study in dict.fromkeys(x.study for x in minima):
        points = sorted(
            (x.budget_flops, x.n_star or math.nan, x.loss_star or math.nan)
            for x in minima
            if x.study == study
        )
        axes.plot(
            [n for _, n, _ in points], [loss for _, _, loss in points],
            color=FAINT if dotted else MUTED, lw=1.1 if dotted else 0.6,
            ls=":" if dotted else "-", zorder=1.5, gid="r = 1" if dotted else "path",
        )  # fmt: skip


def _label(x: IsoflopMinimum, minima: Sequence[IsoflopMinimum]) -> str:
    """Return the budget, and the study where its recurrence has several."""
    several = len({other.study for other in minima if other.recurrence == x.recurrence}) > 1
    return power_of_ten(x.budget_flops) + (f" {x.study}" if several and x.study else "")


def _labels(page: Sheet, axes: Axes, group: Sequence[IsoflopMinimum]) -> None:
    """Write each curve's budget at its right end, leaving out what would lie on another label."""
    bottom, top = axes.get_ylim()
    few = 2.0 if page.panel[1] < _ROOMY else 1.0
    gap = few * _LABEL_GAP * (top - bottom) / page.panel[1]
    written: list[float] = []
    # From the outside in, so that the smallest and the largest budget keep theirs.
    ordered = sorted(group, key=lambda x: x.budget_flops)
    pairs = zip(ordered, reversed(ordered), strict=True)
    for x in list(dict.fromkeys(x for pair in pairs for x in pair)):
        y = x.loss_at(x.n_measured[1])
        if any(abs(y - other) < gap for other in written):
            continue
        written.append(y)
        axes.annotate(
            _label(x, group), (x.n_measured[1], y), xytext=(5 if x.status == "minimum" else 8, 0),
            textcoords="offset points", va="center", size=SMALL, color=INK, gid="budget",
        )  # fmt: skip


def _title(report: FitReport) -> str:
    """Say what looping costs at equal training FLOPs, or what keeps the runs from saying it."""
    gaps = report.gaps
    if gaps:
        r = max(x.recurrence for x in gaps)
        nats = [1e3 * x.nats for x in gaps if x.recurrence == r]
        low, high = min(nats), max(nats)
        span = f"{abs(low):.0f}"
        if f"{abs(high):.0f}" != span:
            span = f"{min(abs(low), abs(high)):.0f} to {max(abs(low), abs(high)):.0f}"
        if low > 0:
            return f"At equal training FLOPs, the best r = {r:g} model loses {span} mnats to r = 1"
        if high < 0:
            return f"At equal training FLOPs, the best r = {r:g} model beats r = 1 by {span} mnats"
        return (
            f"At equal training FLOPs, the best r = {r:g} model lies {low:+.0f} to {high:+.0f} "
            "mnats from r = 1"
        )
    known = [x for x in report.minima if x.center is not None]
    found = sum(x.status == "minimum" for x in known)
    if found:
        return f"The runs enclose the optimal size in {found} of {len(known)} groups of equal FLOPs"
    if known:
        return "No group of equal FLOPs encloses its optimal size"
    return "No budget has three sizes at one r, so there is no iso-FLOP curve"


def _note(report: FitReport) -> str:
    """Say how to read the figure, and only about what is in it."""
    known = [x for x in report.minima if x.center is not None]
    words = ["Points: runs"]
    if hollow_runs(report.fit.runs).any():
        words[0] += ", hollow where the loss is inferred, not measured"
    if known:
        guess = ", taken as 6 (N_once + r N_rec) D" if guessed_budgets(report.fit.runs) else ""
        words.append(f"curves: a parabola for each budget (training FLOPs at its end{guess})")
    if any(x.status == "minimum" for x in known):
        words.append("stars: its minimum")
    if any(x.status != "minimum" for x in known):
        words.append("open stars: the best run where the parabola has no minimum inside")
    if known:
        words.append("dashed: the law")
    if _unlooped(report):
        words.append("dotted: the minima of r = 1")
    return "; ".join(words) + "."
