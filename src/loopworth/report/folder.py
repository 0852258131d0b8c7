"""The folder of a report: fit.json, tables as CSV, figures as PDF and SVG."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # matplotlib waits until a figure is drawn
    from loopworth.report.fit_report import FitReport


def refuse_folder(folder: Path) -> None:
    """Raise ValueError where no new report can be written, before work is done for it.

    A folder may exist if it is empty; nothing is made here.
    """
    try:
        if folder.is_dir() and any(folder.iterdir()):
            raise ValueError(f"{folder} is not empty; name a new folder.")
    except PermissionError:
        raise ValueError(f"{folder} cannot be read; name another folder.") from None
    # os.path knows broken links and names of any length, where Path raises.
    there = os.path.abspath(folder)  # noqa: PTH100
    while not os.path.lexists(there):
        there = os.path.dirname(there)  # noqa: PTH120
    if not os.path.isdir(there):  # noqa: PTH112
        raise ValueError(f"{there} is a file, so there can be no folder {folder}.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"{there} cannot be written to; name another folder.")


def write_folder(report: FitReport, folder: Path) -> tuple[Path, ...]:
    """Write a report into a folder, made if need be, and return the files.

    Raises FileExistsError rather than write over anything.
    """
    from loopworth.report.figures import write_figures

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
