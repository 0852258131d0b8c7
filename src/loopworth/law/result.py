"""The result of a fit as a value, with its JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loopworth import __version__
from loopworth.findings import Finding
from loopworth.law.diagnose import Goodness, ResidualRow
from loopworth.law.fitted import FittedLaw
from loopworth.law.gain import FloatArray
from loopworth.law.heldout import HeldOutRow
from loopworth.law.identify import Identification
from loopworth.law.intervals import Bootstrap, Interval
from loopworth.law.leaveout import FitWithout, InfluenceTable
from loopworth.law.profiles import Profile
from loopworth.law.rivals import ConventionRow, GainRow, HalfRow, LawRow, RecurrenceRow
from loopworth.law.untested import UntestedRow
from loopworth.ledger import Convention
from loopworth.runs import RunTable


@dataclass(frozen=True)
class Estimate:
    """A constant with its 95 % block-bootstrap and profile intervals, None where unknown."""

    estimate: float
    ci95: Interval | None = None
    profile95: tuple[float | None, float | None] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "estimate": self.estimate,
            "ci95": list(self.ci95) if self.ci95 else None,
            "profile95": list(self.profile95) if self.profile95 else None,
        }


@dataclass(frozen=True)
class Fit:
    """A fitted law with its intervals, its rivals and its warnings.

    law               the law as a value; `fit.law.predict(...)` gives nats per token
    phi               the equivalence exponent, None where the law or the runs have none
    gain              every constant of g(r) by name
    parameters        A, alpha, B, beta, E; None where the runs do not identify the constant
    goodness          objective, R2, RMSE in nats, AICc
    seeds, seeds_agreeing    independent starts, and how many reached this optimum
    laws              every g(r) of the registry on the same runs
    conventions       phi wherever the injection can be counted
    phi_by_recurrence g and phi(r) = ln g / ln r at each recurrence, each with a value of its own
    per_recurrence    the plain Chinchilla law of each recurrence
    halves            phi of the lower and of the upper budgets
    residuals         observed minus predicted loss in nats by recurrence; `residual` by run
    identification    which constants can be read alone, with profile intervals
    influence         how phi moves without each run and each cell, None for a law without phi
    without_outliers  the law without runs more than 8 robust standard deviations off; None without
                      such runs
    held_out          errors on budgets and recurrences that the law was not fitted to
    untested          g beyond the recurrences that were run, under `power` and under `bounded`
    findings          of the table, its design and the fit
    bootstrap, profile, runs    what figures draw
    draws             the same resamples under `power` and `bounded`, by key, for their differences
    """

    law: FittedLaw
    convention: Convention
    goodness: Goodness
    seeds: int
    seeds_agreeing: int
    phi: Estimate | None
    gain: dict[str, Estimate]
    parameters: dict[str, float | None]
    laws: tuple[LawRow, ...]
    conventions: tuple[ConventionRow, ...]
    phi_by_recurrence: tuple[GainRow, ...]
    per_recurrence: tuple[RecurrenceRow, ...]
    halves: tuple[HalfRow, ...]
    residuals: tuple[ResidualRow, ...]
    residual: FloatArray
    identification: Identification
    influence: InfluenceTable | None
    without_outliers: FitWithout | None
    held_out: tuple[HeldOutRow, ...]
    untested: tuple[UntestedRow, ...]
    findings: tuple[Finding, ...]
    options: dict[str, Any]
    runs: RunTable
    bootstrap: Bootstrap | None = field(repr=False, default=None)
    profile: Profile | None = field(repr=False, default=None)
    draws: Mapping[str, Bootstrap] = field(repr=False, default_factory=dict)

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the numbers come from: data, package version and options."""
        return {
            "source": self.runs.source,
            "citation": self.runs.citation,
            "data_sha256": self.runs.digest,
            "loopworth": __version__,
            **self.options,
        }

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; `FittedLaw.from_json` reads the law back bit for bit."""
        return {
            "phi": self.phi.to_json() if self.phi else None,
            "gain": {name: estimate.to_json() for name, estimate in self.gain.items()},
            "parameters": dict(self.parameters),
            "fitted_law": self.law.to_json(),
            "objective": self.goodness.objective,
            "r2": self.goodness.r2,
            "rmse": self.goodness.rmse,
            "aicc": self.goodness.aicc,
            "n_runs": len(self.runs),
            "seeds": self.seeds,
            "seeds_agreeing": self.seeds_agreeing,
            "convention": self.convention.name,
            "recurrences": sorted(set(self.runs.recurrence.tolist())),
            "laws": {row.key: row.to_json() for row in self.laws},
            "conventions": [row.to_json() for row in self.conventions],
            "phi_by_recurrence": [row.to_json() for row in self.phi_by_recurrence],
            "per_recurrence": [row.to_json() for row in self.per_recurrence],
            "budget_halves": {row.half: row.to_json() for row in self.halves},
            "residuals": {
                "by_recurrence": [row.to_json() for row in self.residuals],
                "runs": [
                    {"row": int(row), "val_loss": float(loss), "residual": float(residual)}
                    for row, loss, residual in zip(
                        self.runs.rows, self.runs.val_loss, self.residual, strict=True
                    )
                ],
            },
            "identification": self.identification.to_json(),
            "influence": self.influence.to_json() if self.influence else None,
            "without_outliers": self.without_outliers.to_json() if self.without_outliers else None,
            "held_out": [row.to_json() for row in self.held_out],
            "untested": [row.to_json() for row in self.untested],
            "bootstrap": None
            if self.bootstrap is None
            else {
                "resamples": len(self.bootstrap.theta),
                "converged": float(self.bootstrap.converged.mean()),
                "starts_agreeing": self.bootstrap.agreeing,
            },
            "warnings": [finding.to_json() for finding in self.findings],
            "provenance": self.provenance,
        }
