"""The figures of a report: iso-FLOP curves, residuals, bootstrap; each as PDF and as SVG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from loopworth.report.fit_report import FitReport

KINDS = ("pdf", "svg")


def write_figures(report: FitReport, folder: Path) -> tuple[Path, ...]:
    """Write each figure that the report has something to show in, and return the files.

    The same report gives the same bytes. Raises FileExistsError rather than write over a file.

    >>> import tempfile
    >>> from loopworth import fit
    >>> from loopworth.report.fit_report import FitReport
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = write_figures(FitReport.of(fit("schwethelm2026", bootstrap=0)), Path(folder))
    ...     [file.name for file in files]
    ['isoflop.pdf', 'isoflop.svg', 'residuals.pdf', 'residuals.svg']
    """
    # Matplotlib takes a second to import, so nobody pays for it who asks for no figure.
    from loopworth.report.style import house_style, render

    folder.mkdir(parents=True, exist_ok=True)
    files = []
    with house_style():
        for name, figure in make_figures(report).items():
            for kind in KINDS:
                path = folder / f"{name}.{kind}"
                with path.open("xb") as file:
                    file.write(render(figure, kind, f"{report.fit.runs.name}: {name}"))
                files.append(path)
    return tuple(files)


def make_figures(report: FitReport) -> dict[str, Figure]:
    """Return the figures by name; without a bootstrap, or a constant in g, there is no third."""
    from loopworth.report.figures.bootstrap import draw_bootstrap
    from loopworth.report.figures.isoflop import draw_isoflop
    from loopworth.report.figures.residuals import draw_residuals
    from loopworth.report.style import house_style

    with house_style():
        figures = {
            "isoflop": draw_isoflop(report),
            "residuals": draw_residuals(report),
            "bootstrap": draw_bootstrap(report),
        }
    return {name: figure for name, figure in figures.items() if figure is not None}
