"""What the runs of a sweep say, once they are done or as far as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopworth.check import CheckReport, check
from loopworth.compare import Comparison, compare
from loopworth.law import Fit, fit
from loopworth.law.threshold import suitable_huber_delta
from loopworth.runs import load_runs
from loopworth.sweep.collect import Collected, collect, csv_of
from loopworth.sweep.files import write_whole
from loopworth.sweep.folder import SweepFolder

TABLES = "tables"  # in the sweep's folder: one run table a study


@dataclass(frozen=True)
class Measured:
    """What a sweep measured.

    collected     the table of all its runs      checked   of the base study
    huber_delta   log residual from which a run counts linearly, chosen by the runs' own scatter
    fit           of the base study; None where the runs do not allow one
    comparison    of the other studies with the base; None without others, or where impossible
    refused       why there is no fit, or no comparison; empty where there is all that was wanted
    tables        the file of each study, the base first
    """

    name: str
    collected: Collected
    checked: CheckReport
    huber_delta: float | None
    fit: Fit | None
    comparison: Comparison | None
    refused: str
    tables: Mapping[str, Path]

    @property
    def base(self) -> str:
        """The study that the others are compared with."""
        return next(iter(self.tables))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values: the fit as `loopworth fit --json` has it, and so on."""
        return {
            "name": self.name,
            "tables": {study: str(path) for study, path in self.tables.items()},
            "collected": self.collected.to_json(),
            "check": self.checked.to_json(),
            "huber_delta": self.huber_delta,
            "fit": None if self.fit is None else self.fit.to_json(),
            "comparison": None if self.comparison is None else self.comparison.to_json(),
            "refused": self.refused or None,
        }


def measured(sweep: SweepFolder, *, bootstrap: int = 1000, seed: int = 0) -> Measured:
    """Collect a sweep, check its table, fit the law, and compare its studies with the first.

    Writes runs.csv and a table of each study into the folder of the sweep. Where the runs allow no
    fit or no comparison, `refused` says why. Raises ValueError where no run is complete.
    """
    collected = collect(sweep)
    tables = write_tables(sweep.path / TABLES, by_study(collected.table))
    base, *others = tables.values()
    checked = check(base)
    found: Fit | None = None
    comparison: Comparison | None = None
    delta: float | None = None
    refused = ""
    try:
        runs = load_runs(base)
        delta = suitable_huber_delta(runs)
        found = fit(runs, bootstrap=bootstrap, seed=seed, huber_delta=delta)
        if others:
            comparison = compare(
                base, list(others), bootstrap=bootstrap, seed=seed, huber_delta=delta
            )
    except ValueError as problem:
        refused = str(problem)
    return Measured(sweep.name, collected, checked, delta, found, comparison, refused, tables)


def by_study(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the rows of each study; runs without a loop, done once, are those of all studies.

    >>> rows = [{"study": "a", "role": "plain"}, {"study": "b", "role": "cell"}]
    >>> {study: len(found) for study, found in by_study(rows).items()}
    {'a': 1, 'b': 2}
    """
    studies = dict.fromkeys(row["study"] for row in rows)
    base = next(iter(studies))
    shared = [row for row in rows if row["study"] == base and row["role"] == "plain"]
    return {
        study: ([] if study == base else shared) + [row for row in rows if row["study"] == study]
        for study in studies
    }


def write_tables(
    folder: Path, studies: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, Path]:
    """Write a run table for each study, as STUDY.csv; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for study, rows in studies.items():
        files[study] = folder / f"{study}.csv"
        write_whole(files[study], csv_of(rows).encode())
    return files
