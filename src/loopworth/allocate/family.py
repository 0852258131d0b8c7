"""A layout at a continuous width: its parameters and FLOPs as polynomials taken from the ledger."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from loopworth.findings import Finding, name_rows
from loopworth.ledger import Convention, Ledger, ledger
from loopworth.quantities import format_quantity
from loopworth.runs import RunTable
from loopworth.spec import ModelSpec

_DEFAULT = Convention()


class Quadratic(NamedTuple):
    """constant + linear d + square d^2 at width d.

    >>> Quadratic(0.0, 2.0, 12.0)(10.0)
    1220.0
    """

    constant: float
    linear: float
    square: float

    def __call__(self, width: float) -> float:
        """Return the value at one width."""
        return self.constant + width * (self.linear + width * self.square)

    def width(self, value: float) -> float:
        """Return the positive width at which the polynomial takes `value`.

        Raises ValueError where there is none.
        """
        rest = value - self.constant
        root = self.linear**2 + 4.0 * self.square * rest
        if rest > 0.0 and root >= 0.0:
            # The form that neither cancels nor divides by a square of zero.
            return 2.0 * rest / (self.linear + math.sqrt(root))
        raise ValueError(
            f"{format_quantity(value)} is out of reach: this layout starts at "
            f"{format_quantity(self.constant)} for width 0; use a larger value"
        )


@dataclass(frozen=True)
class Family:
    """One layout as a function of a continuous width d.

    Fields
      study, recurrence, spec   where it comes from; `spec` stands for all widths, or is None
      n_once, n_rec    parameters under `convention`, the one the law was fitted in
      n_unique         unique parameters, embeddings and head out, norms and injection in
      train_flops, inference_flops   FLOPs per token
      stored           all stored parameters, embeddings included: weight bytes are twice that
      kv_values        keys and values a token leaves in a full cache
      n_measured, budgets   the range of n_unique and the budgets of the runs it comes from

    >>> family = Family.of(ModelSpec(640))
    >>> family.n_unique(640), family.train_flops(640)
    (40152960.0, 1047336960.0)
    """

    recurrence: float
    n_once: Quadratic
    n_rec: Quadratic
    n_unique: Quadratic
    train_flops: Quadratic
    inference_flops: Quadratic
    stored: Quadratic
    kv_values: Quadratic
    study: str = ""
    spec: ModelSpec | None = None
    convention: Convention = _DEFAULT
    n_measured: tuple[float, float] | None = None
    budgets: tuple[float, ...] = ()

    @classmethod
    def of(cls, spec: ModelSpec, convention: Convention | None = None) -> Family:
        """Return the layout of one spec; all its fields but d_model stay.

        With n_kv_heads given, that number of key-value heads stays, not their share. The ledger is
        asked at three widths and must agree with the polynomials at a fourth.
        """
        convention = convention or _DEFAULT
        # Widths at which heads and MLP are whole, so that nothing is rounded between them.
        ratio = Fraction(spec.mlp_ratio).limit_denominator(10_000)
        step = math.lcm(spec.head_dim * (spec.n_kv_heads or 1), ratio.denominator)
        whole = replace(spec, mlp_ratio=float(ratio))
        accounts = [ledger(replace(whole, d_model=k * step)) for k in (1, 2, 3, 4)]

        def fit(value: Callable[[Ledger], float]) -> Quadratic:
            return _interpolate([value(account) for account in accounts], step)

        return cls(
            recurrence=float(spec.recurrence),
            n_once=fit(lambda account: account.count(convention).n_once),
            n_rec=fit(lambda account: account.count(convention).n_rec),
            n_unique=fit(lambda account: account.count().n_unique),
            train_flops=fit(lambda account: account.train_flops_per_token),
            inference_flops=fit(lambda account: account.inference_flops_per_token),
            stored=fit(lambda account: account.parameters),
            kv_values=fit(lambda account: account.kv_bytes_per_token(1)),
            spec=spec,
            convention=convention,
        )

    @property
    def counted(self) -> Quadratic:
        """n_once + n_rec: all parameters that the law sees in an unlooped model."""
        return Quadratic(*(a + b for a, b in zip(self.n_once, self.n_rec, strict=True)))

    @property
    def layout(self) -> str:
        """Prelude, recurrent and coda layers, such as 2-4-2."""
        spec = self.spec
        return "" if spec is None else f"{spec.n_prelude}-{spec.n_recur}-{spec.n_coda}"


def _interpolate(values: Sequence[float], step: int) -> Quadratic:
    """Return the quadratic through widths step, 2 step, 3 step, checked at 4 step."""
    f1, f2, f3, f4 = (Fraction(value) for value in values)
    second = f3 - 2 * f2 + f1
    first = f2 - f1
    fourth = f1 + 3 * first + 3 * second
    if abs(fourth - f4) > Fraction(1, 10**9) * abs(f4):
        raise ValueError(
            f"the ledger is not quadratic in the width: {float(f4):g} at d_model={4 * step}, where "
            f"the quadratic through three smaller widths gives {float(fourth):g}"
        )
    square = second / 2
    linear = first - 3 * square
    return Quadratic(
        float(f1 - linear - square), float(linear / step), float(square / (step * step))
    )


def families(runs: RunTable) -> tuple[Family, ...]:
    """Return one family for each study and recurrence whose rows carry an architecture.

    Parameters are counted as the table counts them. Rows without an architecture, and recurrences
    with more than one layout, have none: `family_findings` says so.

    >>> from loopworth.runs import load_runs
    >>> [x.layout for x in families(load_runs("schwethelm2026:baseline"))]
    ['0-20-0', '2-8-2', '2-4-2', '2-2-2']
    """
    found = []
    for (study, _), group in _grouped(runs).items():
        layouts = _layouts(runs, group)
        if len(layouts) != 1:
            continue
        (spec,) = layouts
        family = Family.of(spec, runs.convention)
        sizes = [ledger(s).count().n_unique for s in {runs.specs[i] for i in group} if s]
        budgets = {float(b) for b in runs.budgets[group] if math.isfinite(b)}
        found.append(
            replace(
                family,
                study=study,
                n_measured=(float(min(sizes)), float(max(sizes))),
                budgets=tuple(sorted(budgets)),
            )
        )
    return tuple(found)


def _grouped(runs: RunTable) -> dict[tuple[str, float], list[int]]:
    groups: dict[tuple[str, float], list[int]] = {}
    for i, study in enumerate(runs.study):
        if runs.specs[i] is not None:
            groups.setdefault((study, float(runs.recurrence[i])), []).append(i)
    return dict(sorted(groups.items()))


def _layouts(runs: RunTable, group: Sequence[int]) -> set[ModelSpec]:
    """Return the specs of a group with the width taken out."""
    layouts = set()
    for spec in {runs.specs[i] for i in group}:
        if spec is not None:
            plain = spec.canonical()
            layouts.add(replace(plain, d_model=plain.head_dim * (plain.n_kv_heads or 1)))
    return layouts


def family_findings(runs: RunTable) -> tuple[Finding, ...]:
    """Say which rows have no family, and so no compute-optimal frontier.

    >>> from loopworth.runs import load_runs
    >>> direct = {"n_once": [1e7, 2e7], "n_rec": [3e7, 6e7], "recurrence": [2, 4],
    ...     "tokens": [1e9, 2e9], "val_loss": [3.1, 2.9]}
    >>> family_findings(load_runs(direct))[0].code
    'frontier_without_architecture'
    """
    findings = []
    bare = tuple(int(runs.rows[i]) for i, spec in enumerate(runs.specs) if spec is None)
    if bare:
        everything = len(bare) == len(runs)
        findings.append(
            Finding(
                "frontier_without_architecture",
                "note",
                f"{'No row gives' if everything else name_rows(bare).capitalize() + ' give'} an "
                "architecture, so FLOPs per token at other widths are unknown and "
                f"{'there is no' if everything else 'they enter no'} compute-optimal frontier; "
                "6 N is not put in its place, since it is wrong for a loop.",
                bare,
                "Add d_model, n_prelude, n_recur and n_coda.",
            )
        )
    for (_, recurrence), group in _grouped(runs).items():
        layouts = _layouts(runs, group)
        if len(layouts) > 1:
            rows = tuple(int(row) for row in runs.rows[group])
            message = (
                f"The runs at r = {recurrence:g} ({name_rows(rows)}) have {len(layouts)} layouts "
                "besides their width, so no single frontier belongs to them."
            )
            remedy = "Name the layouts apart in the column study, or fit them one at a time."
            findings.append(Finding("frontier_several_layouts", "note", message, rows, remedy))
    return tuple(findings)
