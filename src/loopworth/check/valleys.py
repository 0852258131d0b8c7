"""Iso-FLOP valleys that give no minimum, as far as noise does not explain it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from loopworth.findings import Finding
from loopworth.isoflop import IsoflopMinimum, isoflop_findings, isoflop_minima
from loopworth.runs import RunTable
from loopworth.table.values import middle

# A valley is called turned over where it bends the wrong way by this much of a run's noise, and
# lies that much off the bend that the other valleys have. Three runs have none to spare.
_TURNED_NOISES = {3: 5.0}
_TURNED_BY_MANY = 1.5
_OFF_NOISES = 5.0
_LEAST_NOISE = 2e-3  # nats


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
    found = isoflop_minima(sound)
    noise = max(noise, _LEAST_NOISE)
    usual = middle(np.array([_bow(each) for each in found])) if found else 0.0
    minima = []
    for each in found:
        bow, turned = _bow(each), _TURNED_NOISES.get(each.n_widths, _TURNED_BY_MANY)
        unclear = -bow < turned * noise or usual - bow < _OFF_NOISES * noise
        flat = unclear and each.status == "opens downwards"
        minima.append(replace(each, status="flat") if flat else each)
    return [
        replace(each, severity="note") if each.code == "isoflop_edge" else each
        for each in isoflop_findings(sound, minima)
    ]


def _bow(minimum: IsoflopMinimum) -> float:
    """Return by how much the middle of a parabola lies below the line of its ends, in nats."""
    low, high = minimum.n_measured
    return (minimum.curvature or 0.0) * (math.log(high / low) / 2) ** 2
