"""`compare(base, methods)`: what each method changes in phi, in g(r) and in the loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loopworth import __version__
from loopworth.arguments import as_key, as_recurrences, as_resamples
from loopworth.compare.decomposition import Decomposition, decompose
from loopworth.compare.draws import (
    Difference,
    TableFit,
    change_of,
    difference,
    estimate_interval,
    fit_table,
)
from loopworth.compare.findings import method_findings, table_findings
from loopworth.compare.pairing import Pairing, pair
from loopworth.compare.variants import Variants, fit_variants
from loopworth.findings import Finding, join_words
from loopworth.law import Estimate
from loopworth.law.diagnose import open_constants
from loopworth.law.fitting import Progress
from loopworth.law.gain import GAINS
from loopworth.law.joint import GAIN
from loopworth.law.valley import LOOKS, resample_findings
from loopworth.ledger import Convention
from loopworth.runs import RunTable
from loopworth.spec.checks import as_seed
from loopworth.table.design import design_findings

_WITHOUT_CONSTANT = ("none", "unrolled")


@dataclass(frozen=True)
class GainChange:
    """g at one recurrence with a value of its own in each table, and how the method changes it.

    `phi_change` is that of phi(r) = ln g(r) / ln r.
    """

    recurrence: float
    base: float
    method: float
    change: Difference
    phi_change: Difference

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "recurrence": self.recurrence,
            "base": self.base,
            "method": self.method,
            **self.change.to_json(),
            "delta_phi": self.phi_change.to_json(),
        }


@dataclass(frozen=True)
class MethodComparison:
    """One method beside the base.

    gain, delta     each constant of g(r) in the method's table, and its change, by name
    delta_g         the change of g at each shared recurrence above 1, from the law `free`
    decomposition   where the change of loss at the largest shared budget comes from
    variants        whether the method changes the loop or the training; None where it has no runs
                    of its own at a shared recurrence
    """

    name: str
    base_name: str
    base_recurrences: tuple[float, ...]
    runs: RunTable
    gain: dict[str, Estimate]
    delta: dict[str, Difference]
    delta_g: tuple[GainChange, ...]
    decomposition: tuple[Decomposition, ...]
    variants: Variants | None
    findings: tuple[Finding, ...]

    @property
    def phi(self) -> Estimate | None:
        """Phi of the method, None under a law without it."""
        return self.gain.get("phi")

    @property
    def delta_phi(self) -> Difference | None:
        """Phi of the method minus that of the base, None under a law without it."""
        return self.delta.get("phi")

    @property
    def sentence(self) -> str:
        """What was found, in words."""
        if len(self.delta) > 1 and not self.delta_g:
            changes = [f"{name} by {change.words}" for name, change in self.delta.items()]
            return f"Against {self.base_name}, {self.name} changes {join_words(changes)}."
        if len(self.delta) > 1:
            changes = [f"g({row.recurrence:g}) by {row.change.words}" for row in self.delta_g]
            return f"Against {self.base_name}, {self.name} changes {join_words(changes)}."
        ((constant, change),) = self.delta.items()
        if change.estimate == 0 and change.ci95 in (None, (0.0, 0.0)):
            return f"With {self.name} {constant} is the same as in {self.base_name}."
        alike = self.base_recurrences == tuple(_recurrences(self.runs))
        return f"With {self.name} {constant} changes by {change.words}{_sign(change, alike)}."

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "name": self.name,
            "n_runs": len(self.runs),
            "recurrences": _recurrences(self.runs),
            "phi": self.phi.to_json() if self.phi else None,
            "delta_phi": self.delta_phi.to_json() if self.delta_phi else None,
            "gain": {name: value.to_json() for name, value in self.gain.items()},
            "delta_gain": {name: value.to_json() for name, value in self.delta.items()},
            "delta_g": [row.to_json() for row in self.delta_g],
            "decomposition": [row.to_json() for row in self.decomposition],
            "variants": self.variants.to_json() if self.variants else None,
            "sentence": self.sentence,
            "warnings": [finding.to_json() for finding in self.findings],
        }


@dataclass(frozen=True)
class Comparison:
    """A base and its methods under one law, one convention, and resamples drawn for all at once.

    base_gain   each constant of g(r) in the base's table by name
    budgets     nominal budgets of the runs compared, in FLOPs
    cells       how many (budget, recurrence) cells the resamples draw from
    findings    about the base and about all tables; those of a method are with it
    """

    base_name: str
    base: RunTable
    base_gain: dict[str, Estimate]
    methods: tuple[MethodComparison, ...]
    law: str
    convention: Convention
    budgets: tuple[float, ...]
    cells: int
    findings: tuple[Finding, ...]
    options: dict[str, Any]

    @property
    def recurrences(self) -> tuple[float, ...]:
        """Every recurrence of the runs compared."""
        tables = (self.base, *(method.runs for method in self.methods))
        return tuple(sorted({r for table in tables for r in table.recurrence.tolist()}))

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the numbers come from: data, package version and options."""
        tables = [(self.base_name, self.base), *((x.name, x.runs) for x in self.methods)]
        return {
            "tables": [
                {
                    "name": name,
                    "source": table.source,
                    "citation": table.citation,
                    "data_sha256": table.digest,
                }
                for name, table in tables
            ],
            "loopworth": __version__,
            **self.options,
        }

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, as `loopworth compare --json` prints them."""
        phi = self.base_gain.get("phi")
        return {
            "base": {
                "name": self.base_name,
                "n_runs": len(self.base),
                "recurrences": _recurrences(self.base),
                "phi": phi.to_json() if phi else None,
                "gain": {name: value.to_json() for name, value in self.base_gain.items()},
            },
            "methods": [method.to_json() for method in self.methods],
            "law": self.law,
            "convention": self.convention.name,
            "recurrences": list(self.recurrences),
            "budgets": list(self.budgets),
            "cells": self.cells,
            "warnings": [finding.to_json() for finding in self.findings],
            "provenance": self.provenance,
        }


def compare(
    base: Any,
    methods: Any,
    *,
    law: str = "power",
    convention: Convention | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
    without_recurrence: float | Sequence[float] = (),
    all_budgets: bool = False,
    huber_delta: float | None = None,
    on_progress: Progress | None = None,
) -> Comparison:
    """Compare methods with a base: the paired change of phi, of g(r) and of the loss.

    `base` and each of `methods` (one, or a list) is a RunTable, a Fit, or anything `load_runs`
    takes. Runs are those at the budgets that all tables share, unless `all_budgets`;
    `without_recurrence` leaves recurrences out of all tables. The (budget, recurrence) cells of all
    tables together are resampled once per resample, so that what the tables share, their r = 1 runs
    above all, cancels in the difference. With `bootstrap=0` there are no intervals. `huber_delta`
    is that of `fit`.

    Raises ValueError where conventions, laws or Huber thresholds differ, where tables share no
    budget, and where
    phi is not identified in one of them.

    >>> found = compare("schwethelm2026", "schwethelm2026:hyperconnections", bootstrap=0)
    >>> round(found.methods[0].delta_phi.estimate, 2), found.recurrences
    (0.22, (1.0, 2.0, 4.0, 8.0))
    """
    bootstrap, seed = as_resamples(bootstrap), as_seed("seed", seed)
    without = as_recurrences("without_recurrence", without_recurrence)
    if as_key("law", law, GAINS) in _WITHOUT_CONSTANT:
        usable = join_words([key for key in GAINS if key not in _WITHOUT_CONSTANT], "or")
        raise ValueError(f"law {law!r} has no constant that a method could change; use {usable}")
    listed = _listed(methods)
    if not listed:
        raise ValueError("There is no method to compare with the base; name one table or more")
    pairing = pair(
        [base, *listed],
        law=law,
        convention=convention,
        without=without,
        all_budgets=all_budgets,
        huber_delta=huber_delta,
    )
    fits = _fits(pairing, law, bootstrap, seed, on_progress)
    if on_progress is not None:
        on_progress("decomposition", 0, 1)
    return Comparison(
        base_name=pairing.names[0],
        base=pairing.tables[0],
        base_gain=_gain(fits[0]),
        methods=tuple(_method(fits[0], fit, pairing) for fit in fits[1:]),
        law=law,
        convention=pairing.tables[0].convention,
        budgets=pairing.budgets,
        cells=pairing.cell_count,
        findings=(
            *pairing.findings,
            *table_findings(fits[0]),
            *resample_findings([(fit.name, fit.law.bootstrap) for fit in fits], pairing.cell_count),
        ),
        options={
            "law": law,
            "convention": pairing.tables[0].convention.name,
            "bootstrap": bootstrap,
            "seed": seed,
            "without_recurrence": list(without),
            "all_budgets": all_budgets,
            "huber_delta": pairing.tables[0].huber_delta,
        },
    )


def _listed(methods: Any) -> list[Any]:
    """Return the methods as a list; one table, by name, path or value, is a list of one."""
    if isinstance(methods, list | tuple) and not _are_rows(methods):
        return list(methods)
    return [methods]


def _are_rows(methods: Sequence[Any]) -> bool:
    """Tell a list of runs, each a mapping with a loss, from a list of tables."""
    return bool(methods) and all(
        isinstance(x, dict) and not any(isinstance(v, list | np.ndarray) for v in x.values())
        for x in methods
    )


def _fits(
    pairing: Pairing, law: str, resamples: int, seed: int, on_progress: Progress | None
) -> list[TableFit]:
    weights: tuple[Any, ...] = (None,) * len(pairing.tables)
    if resamples:
        weights = pairing.resample(resamples, seed)
    fits = []
    for name, table, drawn in zip(pairing.names, pairing.tables, weights, strict=True):
        done = 0

        def count(more: int, name: str = name) -> None:
            nonlocal done
            done += more
            if on_progress is not None:
                on_progress(f"resamples of {name}", done, LOOKS * resamples)

        fit = fit_table(name, table, law, drawn, count)
        design = design_findings(table)
        known = open_constants(fit.law.problem, fit.law.optimum.theta, table, design)
        lost = [each for each in fit.law.problem.gain.parameters if each in known]
        if lost and law == "free" and not fit.anchored:
            raise ValueError(
                f"{name} has no runs at r = 1, so they do not identify {join_words(lost)}: a free "
                "g(r) has no unit without them. Keep the runs at r = 1, or compare under the law "
                "'power', whose form ties g to r = 1."
            )
        if lost:
            raise ValueError(
                f"The runs of {name} do not identify {join_words(lost)}, so it cannot be compared. "
                "Vary recurrence, parameters and tokens independently of each other; "
                "`loopworth fit` says what is missing."
            )
        fits.append(fit)
    return fits


def _gain(fit: TableFit) -> dict[str, Estimate]:
    return {
        name: Estimate(float(fit.law.optimum.theta[GAIN + k]), estimate_interval(fit.law, GAIN + k))
        for k, name in enumerate(fit.law.problem.gain.parameters)
    }


def _method(base: TableFit, method: TableFit, pairing: Pairing) -> MethodComparison:
    names = method.law.problem.gain.parameters
    delta = {
        name: change_of(name, base.law, method.law)
        for name in base.law.problem.gain.parameters
        if name in names
    }
    # Without runs at r = 1 a change of g and one of A are the same change.
    told_apart = base.anchored and method.anchored
    parts = decompose(base, method, pairing.largest) if told_apart else ()
    variants = fit_variants(base, method) if told_apart else None
    return MethodComparison(
        name=method.name,
        base_name=base.name,
        base_recurrences=tuple(_recurrences(base.runs)),
        runs=method.runs,
        gain=_gain(method),
        delta=delta,
        delta_g=tuple(_changes(base, method)),
        decomposition=parts,
        variants=variants,
        findings=(*table_findings(method), *method_findings(base, method, parts, variants)),
    )


def _changes(base: TableFit, method: TableFit) -> Iterator[GainChange]:
    """Yield the change of g at each recurrence that both tables have a value of their own for."""
    one, two = base.free, method.free
    if one is None or two is None or not (base.anchored and method.anchored):
        return
    for r in sorted(set(base.levels) & set(method.levels)):
        ours, theirs = one.column(f"g({r:g})"), two.column(f"g({r:g})")
        phi = (np.log(theirs) - np.log(ours)) / np.log(r)
        yield GainChange(
            r,
            float(ours[0]),
            float(theirs[0]),
            difference(one, two, theirs - ours),
            difference(one, two, phi),
        )


def _sign(change: Difference, alike: bool) -> str:
    if change.p_positive is None:
        return ""
    if change.established and not alike:
        return "; the interval leaves out 0, but the tables were run at different r"
    if change.established:
        return "; the sign is established"
    likely = ("<", 1 - change.p_positive) if change.estimate < 0 else (">", change.p_positive)
    return f"; the sign is not established: P({likely[0]}0) = {likely[1]:.2f}"


def _recurrences(runs: RunTable) -> list[float]:
    return sorted(set(runs.recurrence.tolist()))
