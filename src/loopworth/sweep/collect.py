"""The run table of a sweep: one row a complete run, as `loopworth fit` reads it.

The table depends on the plan and on the results alone: not on the order in which runs were done, on
the workers, or on interruptions. So what a clock measured is left out; result.json keeps it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopworth.sweep.files import write_whole
from loopworth.sweep.folder import TABLE, SweepFolder
from loopworth.sweep.status import RunStatus, read_status

_TIMED = ("seconds",)


@dataclass(frozen=True, slots=True)
class Collected:
    """The table of a sweep, and the runs that are not in it yet.

    columns   its names, in order        rows   the complete runs, in the order of the plan
    """

    path: Path
    columns: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]
    missing: tuple[RunStatus, ...]

    def to_csv(self) -> str:
        """Return a header line and one line a run; an empty field is None."""
        out = io.StringIO()
        writer = csv.DictWriter(out, self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return out.getvalue()

    def to_json(self) -> dict[str, Any]:
        """Return what was collected as plain values, without the table itself."""
        return {
            "table": str(self.path),
            "n_runs": len(self.rows),
            "missing": [
                {key: run.to_json()[key] for key in ("name", "state", "error")}
                for run in self.missing
            ],
        }


def collect(sweep: SweepFolder, to: Path | None = None) -> Collected:
    """Write the run table of a sweep, to its runs.csv or to a file; return it.

    Raises ValueError where no run is complete, or the file cannot be written.
    """
    status = read_status(sweep)
    rows = [_row(run) for run in status.runs if run.look.row is not None]
    missing = tuple(run for run in status.runs if run.look.row is None)
    if not rows:
        raise ValueError(
            f"no run of {sweep.path} is complete yet; see `loopworth sweep status {sweep.path}`"
        )
    columns = dict.fromkeys(name for row in rows for name in row)
    place = to or sweep.path / TABLE
    table = Collected(place, tuple(columns), tuple(rows), missing)
    write_whole(place, table.to_csv().encode())
    return table


def _row(run: RunStatus) -> dict[str, Any]:
    """Return the row of a complete run: where it stands in the sweep, then what came of it."""
    assert run.look.row is not None
    place = {"study": run.cell.study, "role": run.cell.role}
    return place | {name: value for name, value in run.look.row.items() if name not in _TIMED}
