"""How every figure looks: one mark for one r, axes left and bottom, findings as titles.

Importing this module imports matplotlib, so it is imported only where a figure is drawn. Figures
are built without pyplot: no global state, no display, and the same bytes for the same data.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from loopworth.quantities import format_flops, format_quantity

INK, MUTED, FAINT, BAND = "#1f1f1f", "#666666", "#b4b4b4", "#f0f0f0"
ACCENT, PALE = "#2c6e8f", "#b9d0db"
FONT, SMALL, TITLE = 8.5, 7.5, 11.0  # points

RC = {
    # One font, shipped with matplotlib: the layout is the same on every machine.
    "font.family": ["DejaVu Sans"],
    "font.size": FONT,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.labelsize": FONT,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "axes.formatter.useoffset": False,
    "grid.color": "#e8e8e8",
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.major.size": 3.0,
    "ytick.major.size": 3.0,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "lines.solid_capstyle": "round",
    "savefig.dpi": 200,  # of what is drawn as pixels, in large tables
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "loopworth",
}

# The counts that nearly all tables hold keep their shape everywhere. The star is the minimum's.
_SHAPES = {1.0: "o", 2.0: "s", 4.0: "^", 8.0: "D", 16.0: "v", 32.0: "P"}
_SPARE_SHAPES = ("X", "<", "p", ">", "h", "d")
_DARKEST, _LIGHTEST = 0.0, 0.78  # of viridis: beyond lies yellow, which is lost on white
_LEAST_TOP = 8.0  # tables up to r = 8 share their colours

_SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


@dataclass(frozen=True, slots=True)
class Mark:
    """The colour and the marker of one recurrence."""

    colour: str
    marker: str


def marks(levels: Iterable[float]) -> dict[float, Mark]:
    """Return the mark of each recurrence: its colour by ln r, darker where r is smaller.

    >>> marks([1, 2, 8])[2.0] == marks([1, 2, 4, 6.5])[2.0]
    True
    """
    ordered = sorted({float(r) for r in levels})
    top = math.log(max([_LEAST_TOP, *ordered]))
    spare = itertools.cycle(_SPARE_SHAPES)
    viridis = mpl.colormaps["viridis"]
    return {
        r: Mark(
            to_hex(viridis(_DARKEST + (_LIGHTEST - _DARKEST) * math.log(r) / top)),
            _SHAPES[r] if r in _SHAPES else next(spare),
        )
        for r in ordered
    }


@contextmanager
def house_style() -> Iterator[None]:
    """Draw and save in this style, whatever matplotlibrc says; the settings come back after."""
    with matplotlib.style.context(["default", RC]):
        yield


def power_of_ten(value: float) -> str:
    """Write FLOPs as print does.

    >>> power_of_ten(4.64e17), power_of_ten(1e19)
    ('4.64×10¹⁷', '10¹⁹')
    """
    mantissa, mark, exponent = format_flops(value).partition("e")
    if not mark:
        return mantissa
    tens = "10" + exponent.translate(_SUPERSCRIPTS)
    return tens if mantissa == "1" else f"{mantissa}×{tens}"


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of one line in inches, at a size in points."""
    font = FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal", size=size)
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return float(width) / 72.0


def wrap(text: str, width: float, size: float, *, bold: bool = False) -> list[str]:
    """Break a text into lines of at most `width` inches."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size, bold=bold) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


@dataclass(frozen=True, slots=True)
class Sheet:
    """A figure with its title set, and a grid of equal panels measured in inches."""

    figure: Figure
    axes: tuple[Axes, ...]
    panel: tuple[float, float]


def sheet(
    title: str,
    note: str,
    panels: int,
    *,
    columns: int,
    panel: tuple[float, float],
    heights: Sequence[float] | None = None,
    gaps: tuple[float, float] = (0.35, 0.5),
    margins: tuple[float, float] = (0.65, 0.25),
    share: Literal["", "x", "y", "xy"] = "",
) -> Sheet:
    """Lay out `panels` axes of `panel` inches below a title that says the finding.

    `heights` replaces the panel's height row by row; `gaps` lie between columns and rows, `margins`
    left and right. Every length is in inches, so the text never has to shrink.
    """
    rows = math.ceil(panels / columns)
    tall = list(heights or [panel[1]] * rows)
    width = margins[0] + columns * panel[0] + (columns - 1) * gaps[0] + margins[1]
    room = 0.95 * (width - 0.3)  # renderers differ by some per cent in the width of a text
    head = wrap(title, room, TITLE, bold=True)
    small = wrap(note, room, SMALL)
    top = 0.16 + 0.2 * len(head) + 0.05 + 0.15 * len(small) + 0.3
    height = top + sum(tall) + (rows - 1) * gaps[1] + 0.5
    figure = Figure(figsize=(width, height))
    place: dict[str, Any] = {"x": 0.15 / width, "ha": "left", "va": "top"}
    figure.text(
        y=1 - 0.14 / height, s="\n".join(head), size=TITLE, weight="bold", linespacing=1.25, **place
    )
    figure.text(
        y=1 - (0.14 + 0.2 * len(head) + 0.05) / height,
        s="\n".join(small), size=SMALL, color=MUTED, linespacing=1.4, **place,
    )  # fmt: skip
    axes: list[Axes] = []
    for k in range(panels):
        row, column = divmod(k, columns)
        left = margins[0] + column * (panel[0] + gaps[0])
        bottom = height - top - sum(tall[: row + 1]) - row * gaps[1]
        first = axes[0] if axes else None
        axes.append(
            figure.add_axes(
                (left / width, bottom / height, panel[0] / width, tall[row] / height),
                sharex=first if "x" in share else None,
                sharey=first if "y" in share else None,
            )
        )
    return Sheet(figure, tuple(axes), panel)


def log_axis(axes: Axes, low: float, high: float, *, flops: bool = False) -> None:
    """Make x logarithmic from `low` to `high`, with ticks that read 30M or 10¹⁸."""
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    decades = math.log10(high / low)
    if decades > 5.0:
        steps: tuple[float, ...] = (1.0,)
    elif decades > 2.2 or (flops and decades > 1.2):
        steps = (1.0,)
    else:
        steps = (1.0, 3.0) if decades > 0.9 else (1.0, 2.0, 5.0)
    axes.xaxis.set_major_locator(LogLocator(subs=steps, numticks=7))
    write = power_of_ten if flops else format_quantity
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move labels apart to at least `gap`, as little as possible, within [low, high].

    >>> spread([0.0, 0.1, 5.0], 1.0, -1.0, 9.0)
    [-0.45, 0.55, 5.0]
    """
    order = sorted(range(len(positions)), key=lambda k: positions[k])
    # Blocks of labels that touch: their centre and how many there are.
    blocks: list[tuple[float, list[int]]] = []

    def half(members: list[int]) -> float:
        return 0.5 * gap * (len(members) - 1)

    for k in order:
        centre, members = min(max(positions[k], low), high), [k]
        while blocks and blocks[-1][0] + half(blocks[-1][1]) + gap > centre - half(members):
            before, others = blocks.pop()
            total = len(others) + len(members)
            centre = (before * len(others) + centre * len(members)) / total
            members = others + members
            centre = max(min(centre, high - half(members)), low + half(members))
        blocks.append((centre, members))
    placed = [0.0] * len(positions)
    for centre, members in blocks:
        for place, k in enumerate(members):
            placed[k] = centre - half(members) + gap * place
    return placed


def render(figure: Figure, kind: str, title: str) -> bytes:
    """Return the file of a figure: `pdf`, `svg` or `png`, without a date in it."""
    dated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    target = io.BytesIO()
    figure.savefig(target, format=kind, metadata={"Title": title, **dated})
    return target.getvalue()
