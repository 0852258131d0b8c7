"""Iso-FLOP valleys that give no minimum, as far as noise does not explain it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from loopworth.findings import Finding
from loopworth.isoflop import IsoflopMinimum, isoflop_findings, isoflop_minima
from loopworth.runs import RunTable

_CLEAR_BOW = 0.008  # nats by which a valley must bend over before it can be called turned
_CLEAR_NOISES = 5.0


def valley_findings(
    table: RunTable, explained: NDArray[np.bool_], off: NDArray[np.bool_], noise: float
) -> list[Finding]:
    """Return what the parabolas of the sound runs have to say.

    `explained` runs are left out; so are those that lie `off` the law, unless they are half of
    their cell, since then they are the valley. `noise` of a run is in nats. A minimum beyond the
    measured widths is a gap of the design, not a fault of a row, so it is a note.

    >>> from loopworth.runs import load_runs
    >>> runs = load_runs("schwethelm2026")
    >>> none = np.zeros(len(runs), dtype=bool)
    >>> valley_findings(runs, none, none, 0.004)
    []
    """
    out = off.copy()
    for cell in set(table.cells[off].tolist()):
        members = table.cells == cell
        if 1 < (off & members).sum() >= members.sum() / 2:
            out &= ~members
    sound = table.select(~explained & ~out)
    limit = max(_CLEAR_BOW, _CLEAR_NOISES * noise)
    minima = [
        replace(each, status="flat")
        if each.status == "opens downwards" and _bow(each) < limit
        else each
        for each in isoflop_minima(sound)
    ]
    return [
        replace(each, severity="note") if each.code == "isoflop_edge" else each
        for each in isoflop_findings(sound, minima)
    ]


def _bow(minimum: IsoflopMinimum) -> float:
    """Return by how much the middle of a parabola lies off the line between its ends, in nats."""
    low, high = minimum.n_measured
    return abs(minimum.curvature or 0.0) * (math.log(high / low) / 2) ** 2
