"""All that one `loopworth fit` has to say, as data: the fit and what follows from it.

Text, figures, JSON and CSV are written from a FitReport and compute nothing of their own.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from loopworth.allocate import (
    DecidingRun,
    Equivalent,
    FrontierPoint,
    deciding_run,
    equivalents,
    families,
    family_findings,
    frontier,
    frontier_findings,
    minima_findings,
)
from loopworth.check import check
from loopworth.findings import Finding
from loopworth.isoflop import (
    IsoflopMinimum,
    LossGap,
    OptimalExponents,
    isoflop_findings,
    isoflop_minima,
    loss_gaps,
    optimal_exponents,
)
from loopworth.law import Fit
from loopworth.law.extrapolate import Prediction, extrapolate, extrapolation_findings
from loopworth.law.joint import GAIN
from loopworth.law.pasted import Against, against
from loopworth.law.points import published_points, recipe_findings

_SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True)
class FitReport:
    """A fit with the measured optima beside it, the frontier of its law, and equivalents.

    >>> from loopworth import fit
    >>> report = FitReport.of(fit("schwethelm2026", bootstrap=0))
    >>> len(report.minima), len(report.frontier), [x.recurrence for x in report.equivalents]
    (24, 24, [2.0, 4.0, 8.0])
    """

    fit: Fit
    minima: tuple[IsoflopMinimum, ...]
    exponents: tuple[OptimalExponents, ...]
    gaps: tuple[LossGap, ...]
    frontier: tuple[FrontierPoint, ...]
    equivalents: tuple[Equivalent, ...]
    extrapolation: tuple[Prediction, ...]
    against: Against | None
    deciding: DecidingRun | None
    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, fit: Fit, against_law: str | None = None) -> FitReport:
        """Derive everything that follows from a fit; takes some 30 ms on the built-in table.

        A law with constants that the runs leave open predicts only where it was measured, so it
        has no frontier and no equivalents. `against_law` is a law from elsewhere (`read_law`).
        """
        minima = isoflop_minima(fit.runs)
        known = families(fit.runs)
        whole = None not in fit.parameters.values() and (fit.gain or fit.law.key != "power")
        points = frontier(fit.law, known) if whole else ()
        outside = published_points(fit.convention) if whole and _has_published_points(fit) else ()
        predictions = extrapolate(fit, outside)
        other = against(against_law, fit.runs) if against_law else None
        findings = (
            *fit.findings,
            *isoflop_findings(fit.runs, minima),
            *family_findings(fit.runs),
            *(frontier_findings(points, known) if whole else ()),
            *minima_findings(points, minima),
            *extrapolation_findings(predictions),
            *recipe_findings((*outside, *(other.points if other else ())), fit.runs),
        )
        return cls(
            fit,
            minima,
            optimal_exponents(minima),
            loss_gaps(minima),
            points,
            equivalents(fit.law, known) if whole else (),
            predictions,
            other,
            deciding_run(fit) if whole else None,
            tuple(sorted(_checked(fit, findings), key=lambda x: _SEVERITIES.index(x.severity))),
        )

    def to_json(self) -> dict[str, Any]:
        """Return one object of plain JSON values, as `loopworth fit --json` prints it."""
        return self.fit.to_json() | {
            "isoflop_minima": [x.to_json() for x in self.minima],
            "optimal_exponents": [x.to_json() for x in self.exponents],
            "loss_gaps": [x.to_json() for x in self.gaps],
            "frontier": [x.to_json() for x in self.frontier],
            "equivalents": [x.to_json() for x in self.equivalents],
            "extrapolation": [x.to_json() for x in self.extrapolation],
            "deciding_run": self.deciding.to_json() if self.deciding else None,
            "against": self.against.to_json() if self.against else None,
            "warnings": [x.to_json() for x in self.findings],
        }

    def dumps(self) -> str:
        """Return the JSON text: every bit of every float, no NaN, a line at the end."""
        return json.dumps(_finite(self.to_json()), indent=2, allow_nan=False) + "\n"

    @cached_property
    def tables(self) -> dict[str, str]:
        """The tables as CSV text by name: what `--out` writes beside fit.json."""
        data = self.to_json()
        laws = [{"law": key, **row} for key, row in data["laws"].items()]
        rows: dict[str, Sequence[Mapping[str, Any]]] = {
            "laws": laws,
            "residuals": data["residuals"]["runs"],
            "constants": data["identification"]["constants"],
            "influence": data["influence"]["runs"] if data["influence"] else [],
        }
        for name in (
            "conventions",
            "phi_by_recurrence",
            "per_recurrence",
            "isoflop_minima",
            "optimal_exponents",
            "loss_gaps",
            "frontier",
            "held_out",
            "untested",
            "extrapolation",
            "equivalents",
            "warnings",
        ):
            rows[name] = data[name]
        if self.fit.bootstrap is not None:
            names, draws = self.fit.law.gain.parameters, self.fit.bootstrap.theta[:, GAIN:]
            rows["bootstrap"] = [dict(zip(names, x, strict=True)) for x in draws.tolist()]
        return {name: _csv(part) for name, part in rows.items() if part}


def _has_published_points(fit: Fit) -> bool:
    """Tell whether the paper measured beyond the grid of these runs: with its plain method only."""
    return fit.runs.citation is not None and set(fit.runs.study) == {"baseline"}


def _checked(fit: Fit, found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings with what a check of the table adds to them, notes left out."""
    own = tuple(found)
    known = {finding.code for finding in own}
    seen = check(fit.runs).findings
    return (*own, *(x for x in seen if x.severity != "note" and x.code not in known))


def _csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Write rows as CSV: one level of nesting becomes dotted columns, deeper values JSON."""
    flat = [dict(_flatten(row)) for row in rows]
    header = list(dict.fromkeys(name for row in flat for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, header, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _flatten(row: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            yield prefix + name, " ".join(str(x) for x in value)
        else:
            yield prefix + name, value


def _finite(value: Any) -> Any:
    """Replace what JSON cannot hold (NaN, infinity) by null."""
    if isinstance(value, Mapping):
        return {key: _finite(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(x) for x in value]
    if isinstance(value, float) and value - value != 0.0:
        return None
    return value
