"""The page of a sweep at work: one file that a browser shows and that refreshes itself."""

from __future__ import annotations

import html
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from loopworth.measure import PhiPoint
from loopworth.quantities import format_flops
from loopworth.report.board import MARKS, spending
from loopworth.report.page import interval
from loopworth.sweep.files import write_whole
from loopworth.sweep.status import RunStatus, SweepStatus

PAGE = "live.html"
_REFRESH_SECONDS = 5
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 220, 44, 28  # of the drawing, in pixels

_FRAME = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">{refresh}<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto }}
table {{ border-collapse: collapse; margin: 1rem 0 }}
th, td {{ text-align: left; padding: .2rem 1.2rem .2rem 0; border-bottom: 1px solid #ddd }}
.complete {{ color: #216e39 }} .running {{ color: #b58900 }} .stopped {{ color: #b58900 }}
.failed {{ color: #c00 }} .waiting {{ color: #aaa }} .dim {{ color: #666 }}
svg text {{ font: 12px system-ui, sans-serif; fill: #444 }}
</style></head><body>
<h1>{title}</h1>
<p>{counts}<br><span class="dim">{spending}</span></p>
{phi}
{boards}
{failed}
</body></html>
"""


def write_live(status: SweepStatus, points: Sequence[PhiPoint], *, ended: bool = False) -> Path:
    """Write the page into the folder of the sweep; it refreshes itself until the sweep has ended.

    Nothing in it comes from elsewhere. Raises ValueError where it cannot be written.
    """
    place = status.path / PAGE
    write_whole(place, live_page(status, points, ended=ended).encode(), sync=False)
    return place


def live_page(status: SweepStatus, points: Sequence[PhiPoint], *, ended: bool = False) -> str:
    """Return the page as HTML."""
    boards: dict[str, list[RunStatus]] = defaultdict(list)
    for run in status.runs:
        boards[run.cell.study].append(run)
    refresh = "" if ended else f'<meta http-equiv="refresh" content="{_REFRESH_SECONDS}">'
    counts = ", ".join(f"{count} {state}" for state, count in status.counts.items() if count)
    return _FRAME.format(
        refresh=refresh,
        title=html.escape(f"{status.name}: {len(status.runs)} runs"),
        counts=html.escape(counts),
        spending=html.escape(spending(status)),
        phi=_phi(points),
        boards="\n".join(_board(study, runs) for study, runs in boards.items()),
        failed=_failed(status),
    )


def _phi(points: Sequence[PhiPoint]) -> str:
    if not points:
        return '<p class="dim">phi: too few runs have ended to fit a law</p>'
    last = points[-1]
    words = html.escape(interval(last.estimate))
    drawn = _drawing(points) if len(points) > 1 else ""
    return f"<p><b>phi = {words}</b> from {last.runs} runs, 95 % interval</p>\n{drawn}"


def _drawing(points: Sequence[PhiPoint]) -> str:
    """Draw phi and its interval against the runs that it is from."""
    ends = [value for point in points for value in (point.ci95 or (point.phi, point.phi))]
    low, high = min(0.0, *ends), max(1.0, *ends)
    low, high = max(low, -1.0), min(high, 2.0)
    first, last = points[0].runs, max(points[-1].runs, points[0].runs + 1)

    def x(runs: int) -> float:
        return _LEFT + (runs - first) / (last - first) * (_WIDTH - _LEFT - 20)

    def y(phi: float) -> float:
        share = (min(max(phi, low), high) - low) / (high - low)
        return 8 + (1 - share) * (_HEIGHT - _BOTTOM - 8)

    parts = [
        f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="#ccc"/>'
        f'<text x="4" y="{y(v) + 4:.1f}">phi {v:g}</text>'
        for v in (0.0, 1.0)
    ]
    for point in points:
        at = x(point.runs)
        if point.ci95 is not None:
            parts.append(
                f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{y(point.ci95[0]):.1f}" '
                f'y2="{y(point.ci95[1]):.1f}" stroke="#31688e" stroke-width="2"/>'
            )
        parts.append(f'<circle cx="{at:.1f}" cy="{y(point.phi):.1f}" r="4" fill="#440154"/>')
    parts += [
        f'<text x="{x(n):.1f}" y="{_HEIGHT - 6}" text-anchor="middle">{n}</text>'
        for n in (first, last)
    ]
    return (
        f'<svg role="img" aria-label="phi against runs" width="{_WIDTH}" height="{_HEIGHT}">'
        f"{''.join(parts)}</svg>"
    )


def _board(study: str, runs: Sequence[RunStatus]) -> str:
    """Return the board of one study: a line a budget, a column a recurrence, a mark a run."""
    cells: dict[tuple[float, float], list[RunStatus]] = defaultdict(list)
    for run in runs:
        cells[run.cell.budget, run.cell.recurrence].append(run)
    levels = sorted({r for _, r in cells})
    head = "".join(f"<th>r = {r:g}</th>" for r in levels)
    lines = [
        f"<tr><th>{format_flops(budget)} FLOPs</th>"
        + "".join(f"<td>{_cell(cells.get((budget, r), []))}</td>" for r in levels)
        + "</tr>"
        for budget in sorted({budget for budget, _ in cells})
    ]
    return f"<table><tr><th>{html.escape(study)}</th>{head}</tr>\n" + "\n".join(lines) + "</table>"


def _cell(runs: Sequence[RunStatus]) -> str:
    ordered = sorted(runs, key=lambda run: (run.cell.width, run.cell.seed))
    marks = "".join(
        f'<span class="{x.state}" title="{html.escape(x.cell.name)}">{MARKS[x.state][0]}</span>'
        for x in ordered
    )
    losses = [run.loss for run in runs if run.state == "complete" and run.loss is not None]
    return f"{marks} {min(losses):.3f}" if losses else marks


def _failed(status: SweepStatus) -> str:
    failed = [run for run in status.runs if run.state == "failed"]
    return "\n".join(
        f'<p class="failed">{html.escape(run.cell.name)}: {html.escape(run.look.error or "")}</p>'
        for run in failed
    )
