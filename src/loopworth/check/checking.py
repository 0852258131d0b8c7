"""`check(runs)`: what is wrong with a table of runs, row by row, before a law is fitted to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopworth.check import losses, units
from loopworth.check.bare import read_bare
from loopworth.check.flops import budget_findings, flops_findings
from loopworth.check.grid import grid_findings, is_grid
from loopworth.check.identity import (
    checkpoint_findings,
    methods_of,
    mixture_findings,
    rerun_findings,
    rows_of,
)
from loopworth.check.outliers import by_method, judge, outlier_findings
from loopworth.check.reference import FEWEST_RUNS
from loopworth.check.report import KINDS, CheckReport, SeedNoise, in_order, sort_kinds
from loopworth.check.scatter import equal_findings, scatter_findings
from loopworth.check.valleys import valley_findings
from loopworth.findings import Finding, RefusedTable
from loopworth.ledger import Convention, as_convention
from loopworth.runs import RunTable, assemble, open_source
from loopworth.table.columns import match_columns
from loopworth.table.derive import derive
from loopworth.table.design import design_findings
from loopworth.table.draft import Draft
from loopworth.table.reading import RawTable
from loopworth.table.screening import remarks, screen, set_aside
from loopworth.table.units import check_units
from loopworth.table.values import Floats, read_numbers

_DEFAULT = Convention()
_REFUSING = ("fixed_unique_parameters", "tokens_proportional_to_parameters")
_FLOPS = ("budget_flops", "train_flops_per_token")
_TRIES = 4
_THIN = 0.8
_TOO_THIN = "more than a fifth of the rows cannot be used yet"


def check(source: Any, *, convention: Convention = _DEFAULT) -> CheckReport:
    """Look for every kind of fault that breaks a fit, and name its rows.

    `source` is a RunTable or anything `load_runs` takes; a table that `load_runs` refuses is still
    read as far as possible. Errors mean that no law should be fitted, warnings that a result would
    be doubtful, notes that nothing needs to be done. The source is never changed.

    Raises OSError where a file cannot be opened and ValueError where it is no table.

    >>> report = check("schwethelm2026")
    >>> report.clean, [finding.code for finding in report.findings]
    (True, ['mixed_loss_sources'])
    """
    convention = as_convention(convention)
    raw, findings = _raw(source)
    desk = _Desk(raw, findings)
    try:
        desk.read()
    except RefusedTable as refusal:
        desk.findings += refusal.findings
        return desk.report(convention, None)
    desk.sizes_and_losses()
    table = desk.rows()
    if table is None:
        return desk.report(convention, None)
    if convention != table.convention:
        table = table.under(convention)
    desk.runs(table)
    return desk.report(convention, table)


def _raw(source: Any) -> tuple[RawTable, list[Finding]]:
    """Open a source; a RunTable keeps its row numbers and what loading said about lost rows."""
    if not isinstance(source, RunTable):
        return open_source(source), []
    columns = source.under(_DEFAULT).to_columns()
    rows = tuple(int(row) for row in source.rows)
    raw = RawTable(source.name, source.source, columns, rows, None, source.citation)
    return raw, [each for each in source.findings if not set(each.rows) <= set(rows)]


class _Desk:
    """One table on its way through the checks: rows that are explained leave, the rest goes on."""

    def __init__(self, raw: RawTable, findings: list[Finding]) -> None:
        self.raw = raw
        self.findings = findings
        self.not_checked: dict[str, str] = {}
        self.noise: SeedNoise | None = None
        self.draft: Draft
        self.keep: NDArray[np.bool_]
        self.given_flops: Floats

    def read(self) -> None:
        """Match the columns and read the numbers; raises RefusedTable where that fails."""
        try:
            columns, _, notes = match_columns(self.raw)
        except RefusedTable as refusal:
            self.raw, assumed = read_bare(self.raw, refusal)
            columns, _, notes = match_columns(self.raw)
            notes = [*assumed, *notes]
        self.findings += notes
        self.draft = derive(columns, self.raw.rows, self.raw.separator)
        given = columns.get("train_flops_per_token", [None] * len(self.raw))
        self.given_flops = read_numbers(
            "train_flops_per_token", given, counts=True, separator=self.raw.separator
        ).values
        self.keep, unusable = screen(self.draft)
        self.findings += [*unusable, *self.draft.findings]

    def _places(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.keep)

    def _leave(self, rows: Iterable[int]) -> None:
        """Take rows out of the further checks, unless nothing would be left to check."""
        out = np.isin(self.draft.rows, list(rows))
        if (self.keep & ~out).any():
            self.keep &= ~out

    def sizes_and_losses(self) -> None:
        """Find numbers in another unit: sizes first, since losses are judged by them."""
        found = units.unit_findings(self.draft, self._places())
        self.findings += found
        self._leave(rows_of(found, "mixed_units"))
        if not rows_of(self.findings, "loss_in_bits", "loss_is_perplexity"):
            self.findings += losses.whole_column(self.draft, self._places())
        explained = losses.explain_rows(self.draft, self._places())
        self.findings += explained.findings
        self.keep[explained.places] = False
        for _ in range(_TRIES):
            try:
                more = check_units(self.draft, self._places())
            except RefusedTable as refusal:
                self.findings += [each for each in refusal.findings if self._is_news(each)]
                rows = {row for each in refusal.findings for row in each.rows}
                if self.keep.sum() - len(rows) < FEWEST_RUNS:
                    break
                self._leave(rows)
            else:
                # Budgets are held against their rows below, in more detail.
                self.findings += [
                    each for each in more if each.code != "budget_disagrees" and self._is_news(each)
                ]
                break

    def _is_news(self, finding: Finding) -> bool:
        """Tell whether no earlier finding of the same code names the same column and rows."""
        if finding.code == "loss_below_one" and rows_of(self.findings, "loss_in_bits"):
            return False
        return not any(
            each.code == finding.code
            and str(finding.evidence.get("column", "")) in str(each.evidence.get("column", ""))
            and set(finding.rows) <= set(each.rows)
            for each in self.findings
        )

    def rows(self) -> RunTable | None:
        """Judge the rows one by one and build the table of those that stay."""
        found = set_aside(self.draft, self.keep)
        found += remarks(self.draft, self.keep)
        self.findings += found
        places = self._places()
        copies = rows_of(found, "near_duplicates", "exact_duplicates")
        fresh = places[~np.isin(self.draft.rows[places], list(copies))]
        self.noise, reruns = rerun_findings(self.draft, fresh)
        self.findings += reruns
        checkpoints = checkpoint_findings(self.draft, places)
        self.findings += checkpoints
        numbers = self.draft.numbers
        if rows_of(self.findings, "parameters_ambiguous"):
            self.not_checked |= {"flops": "the parameters are not split into n_once and n_rec"}
        else:
            self.findings += flops_findings(self.draft, places, self.given_flops)
        if all(np.isnan(numbers[name][places]).all() for name in _FLOPS):
            why = "no budget_flops, FLOPs or architecture given"
            self.not_checked |= {"flops": why, "budgets": why}
        same_run = rows_of(
            [*checkpoints, *found], "checkpoints_suspected", "checkpoints_of_one_run"
        )
        if not rows_of(self.findings, "unit_suspected"):
            self.findings += budget_findings(self.draft, places, same_run)
        return assemble(self.raw, self.draft, self.keep, []) if len(places) else None

    def runs(self, table: RunTable) -> None:
        """Judge the runs by one another: the law, the valleys, the grid, the labels."""
        grouped = table.findings  # of the budgets, which only the table groups
        self.findings += grouped
        self.findings += [
            replace(each, severity="error") if each.code in _REFUSING else each
            for each in design_findings(table)
        ]
        explained = np.isin(
            table.rows,
            list(rows_of(self.findings, "checkpoints_suspected", "checkpoints_of_one_run",
                         "replicates_disagree")),
        )  # fmt: skip
        equal = equal_findings(table)
        self.findings += equal
        local = None if equal else self._outliers(table, explained)
        if equal:
            self.not_checked |= {"tuning": "all losses are equal"}
        self.findings += mixture_findings(table, local)
        if not is_grid(table):
            why = "no cells of several runs at one known budget and recurrence"
            self.not_checked |= {"grid": why, "valleys": why}
            return
        self.findings += grid_findings(table, self._withheld())
        if local is None:
            self.not_checked |= {"valleys": self.not_checked["tuning"]}
            return
        disagree = rows_of(self.findings, "budget_disagrees")
        off = rows_of(self.findings, "diverged_runs", "under_tuned", "below_the_law")
        off |= disagree if 2 * len(disagree) < len(table) else set()
        noise = float(np.sort(np.abs(local * table.val_loss))[len(table) // 2])
        self.findings += valley_findings(
            table, explained, np.isin(table.rows, list(off)), 1.5 * noise
        )

    def _withheld(self) -> list[tuple[float, float]]:
        """Return budget and recurrence of the rows that were run, but are in another unit."""
        rows = rows_of(self.findings, "mixed_units", "loss_mixed_units")
        places = np.flatnonzero(~self.keep & np.isin(self.draft.rows, list(rows)))
        numbers = self.draft.numbers
        return list(
            zip(
                numbers["budget_flops"][places].tolist(),
                numbers["recurrence"][places].tolist(),
                strict=True,
            )
        )

    def _thin(self) -> bool:
        """Tell whether so many rows are out that good ones would be blamed for the holes."""
        return bool(self.keep.mean() < _THIN)

    def _outliers(self, table: RunTable, explained: NDArray[np.bool_]) -> Floats | None:
        """Judge the runs of each method; return local residuals, None where too few for a law."""
        if self._thin():
            self.not_checked |= {"tuning": _TOO_THIN}
            return None
        local = np.zeros(len(table))
        done = np.zeros(len(table), dtype=bool)
        for mask in by_method(table, methods_of(table)):
            part = table.select(mask)
            judged = judge(part)
            if judged is None:
                self.not_checked |= {"tuning": f"fewer than {FEWEST_RUNS} usable rows of a method"}
                continue
            local[mask] = judged[1]
            self.findings += outlier_findings(part, judged[0], (explained | done)[mask])
            if not self._has(*_REFUSING, "noise_hides_phi", "law_explains_little"):
                self.findings += scatter_findings(judged[2])
            done |= mask  # unlooped runs are judged once
        return local if done.all() else None

    def _has(self, *codes: str) -> bool:
        return any(each.code in codes for each in self.findings)

    def report(self, convention: Convention, table: RunTable | None) -> CheckReport:
        """Put the findings in order and say what else was looked at."""
        if table is None:
            done = {"columns"}
            self.not_checked |= {
                kind.key: "no row could be read" for kind in KINDS if kind.key not in done
            }
        findings = in_order(self.findings)
        passed, skipped = sort_kinds(findings, self.not_checked)
        return CheckReport(
            name=self.raw.name,
            source=self.raw.source,
            convention=convention.name,
            n_rows=len(self.raw),
            n_usable=len(table) if table is not None else 0,
            findings=findings,
            passed=passed,
            not_checked=skipped,
            seed_noise=self.noise,
            digest=table.digest if table is not None else "",
            citation=self.raw.citation,
        )
