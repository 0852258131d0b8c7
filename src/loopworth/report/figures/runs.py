"""What the figures show of the runs themselves: their size, and their points."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from loopworth.ledger import Convention
from loopworth.report.style import Mark
from loopworth.runs import RunTable

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

# Past this many points an SVG carries them as one image, or it would grow beyond all use.
_DRAWN_AS_VECTORS = 250


def unique_parameters(runs: RunTable) -> FloatArray:
    """Return N as `loopworth.isoflop` counts it: norms and injection in, embeddings out."""
    published = Convention()
    counted = runs.under(published) if published in runs.conventions() else runs
    return counted.n_once + counted.n_rec


def hollow_runs(runs: RunTable) -> BoolArray:
    """Return where a label says that the loss was inferred, not measured."""
    source = runs.labels.get("loss_source", (None,) * len(runs))
    return np.array([str(label).strip().lower() == "inferred" for label in source], dtype=bool)


def guessed_budgets(runs: RunTable) -> bool:
    """Return whether some budgets are no more than 6 (N_once + r N_rec) D."""
    return any(finding.code == "budgets_from_6nd" for finding in runs.findings)


def draw_runs(
    axes: Axes,
    x: FloatArray,
    y: FloatArray,
    chosen: BoolArray,
    hollow: BoolArray,
    mark: Mark,
    size: float = 3.6,
) -> None:
    """Draw the chosen runs in the mark of their recurrence, hollow ones with a white face."""
    for name, part in (("inferred", chosen & hollow), ("runs", chosen & ~hollow)):
        if part.any():
            axes.plot(
                x[part], y[part], ls="none", marker=mark.marker, ms=size, mew=0.8,
                mec=mark.colour, mfc="white" if name == "inferred" else mark.colour,
                zorder=3, gid=name, rasterized=len(x) > _DRAWN_AS_VECTORS,
            )  # fmt: skip
