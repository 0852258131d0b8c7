"""The folder of a report: fit.json, tables as CSV, figures as PDF and SVG."""

from __future__ import annotations

from pathlib import Path

from loopworth.report.figures import write_figures
from loopworth.report.fit_report import FitReport


def write_folder(report: FitReport, folder: Path) -> tuple[Path, ...]:
    """Write a report into a folder, made if need be, and return the files.

    Raises FileExistsError rather than write over anything.
    """
    texts = {"fit.json": report.dumps()}
    texts |= {f"{name}.csv": text for name, text in report.tables.items()}
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, text in texts.items():
        path = folder / name
        with path.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
        files.append(path)
    return (*files, *write_figures(report, folder))
