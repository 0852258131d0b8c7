"""The run table of a sweep: one row a complete run, as `loopworth fit` reads it.

The table depends on the plan and on the results alone: not on the order in which runs were done, on
the workers, or on interruptions. So what a clock measured is left out; result.json keeps it. A run
that is not complete has its row without a loss, and so `fit` says what is missing.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopworth.sweep.files import write_whole
from loopworth.sweep.folder import TABLE, SweepFolder
from loopworth.sweep.status import RunStatus, SweepStatus, read_status

_TIMED = ("seconds",)


@dataclass(frozen=True, slots=True)
class Collected:
    """The table of a sweep, in the order of the plan.

    rows    those of the complete runs        missing   the other runs
    table   the rows of all: for the others what is planned, and no loss
    """

    path: Path
    rows: tuple[Mapping[str, Any], ...]
    missing: tuple[RunStatus, ...]
    table: tuple[Mapping[str, Any], ...]

    def to_csv(self) -> str:
        """Return a header line and one line a run; an empty field is None."""
        return csv_of(self.table)

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


def csv_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a header line and one line a row; an empty field is None."""
    columns = dict.fromkeys(name for row in rows for name in row)
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def collected_rows(status: SweepStatus) -> list[dict[str, Any]]:
    """Return the rows of the complete runs, in the order of the plan."""
    return [_row(run) for run in status.runs if run.look.row is not None]


def collect(sweep: SweepFolder, to: Path | None = None) -> Collected:
    """Write the run table of a sweep, to its runs.csv or to a file; return it.

    Raises ValueError where no run is complete, or the file cannot be written.
    """
    status = read_status(sweep)
    results = {run.cell.name: _row(run) for run in status.runs if run.look.row is not None}
    rows = tuple(results.values())
    missing = tuple(run for run in status.runs if run.look.row is None)
    if not rows:
        raise ValueError(
            f"no run of {sweep.path} is complete yet; see `loopworth sweep status {sweep.path}`"
        )
    table = [results.get(run.cell.name) or _blank(run, rows[0]) for run in status.runs]
    collected = Collected(to or sweep.path / TABLE, rows, missing, tuple(table))
    write_whole(collected.path, collected.to_csv().encode())
    return collected


def _row(run: RunStatus) -> dict[str, Any]:
    """Return the row of a complete run: where it stands in the sweep, then what came of it."""
    assert run.look.row is not None
    row = {name: value for name, value in run.look.row.items() if name not in _TIMED}
    return _place(run) | row


def _blank(run: RunStatus, like: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a run that is not complete: what is known of it beforehand."""
    cell = run.cell
    known = {**cell.spec, **cell.spec["model"]} | {
        "run_id": cell.run_id, "tokens": cell.tokens, "budget_flops": cell.budget,
        "train_flops_per_token": cell.flops / cell.tokens,
    }  # fmt: skip
    return _place(run) | {name: known[name] for name in like if name in known}


def _place(run: RunStatus) -> dict[str, Any]:
    return {"study": run.cell.study, "role": run.cell.role, "state": run.state}
