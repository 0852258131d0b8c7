"""The run table: training runs as arrays, checked, with everything that a law needs.

`load_runs` reads a table from any source and screens it. Rows that cannot be used are set aside
with a warning, the rest goes on, and `RunTable.findings` says what happened. The columns and their
units are listed in `loopworth.table.columns`.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loopworth import datasets
from loopworth.arguments import as_huber_delta
from loopworth.findings import Finding, join_words
from loopworth.ledger import Convention, as_convention, ledger
from loopworth.spec import ModelSpec
from loopworth.table.architecture import all_conventions
from loopworth.table.blocks import group_budgets, make_cells, nominal_budgets
from loopworth.table.columns import match_columns
from loopworth.table.derive import derive
from loopworth.table.draft import Draft
from loopworth.table.reading import RawTable, read_object, read_path
from loopworth.table.screening import remarks, screen, set_aside
from loopworth.table.units import check_units
from loopworth.table.values import Floats, distinct

if TYPE_CHECKING:
    import pandas as pd

HUBER_DELTA = 1e-3
"""Where the loss on the log residual turns from quadratic to linear (arXiv 2604.21106)."""
_DEFAULT = Convention()
_SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Parts:
    """Parameters of each row under the default convention, from which the others follow.

    `injection` (contained in `rec`) and `embeddings` (not contained in `once`) are NaN where
    unknown.
    """

    once: Floats
    rec: Floats
    injection: Floats
    embeddings: Floats


@dataclass(frozen=True, eq=False, repr=False)
class RunTable:
    """Training runs that a law can be fitted to, one entry a run; all arrays are read-only.

    rows            number of the run in its source, from 1 at the first data line
    recurrence      times the block is executed, 1 or more, may be a mean
    tokens          training tokens                val_loss   nats per token
    n_once, n_rec   parameters used once a token, and of the recurrent block, under `convention`
    budget_flops    nominal budget as given, NaN where unknown
    train_flops_per_token, batch_tokens   NaN where unknown; tokens a step for the second
    cells           block that the bootstrap resamples: (budget group, recurrence), or the run where
                    several rows are one run's checkpoints; numbered from 0
    budgets         nominal budget of the row's budget group, in FLOPs
    digest          sha256 of the numbers; depends on the order of the rows, not on the convention
    huber_delta     log residual above which a run pulls at a law no harder than at it
    """

    name: str
    rows: NDArray[np.int64]
    recurrence: Floats
    tokens: Floats
    val_loss: Floats
    n_once: Floats
    n_rec: Floats
    budget_flops: Floats
    train_flops_per_token: Floats
    batch_tokens: Floats
    cells: NDArray[np.int64]
    budgets: Floats
    study: tuple[str, ...]
    specs: tuple[ModelSpec | None, ...]
    convention: Convention
    findings: tuple[Finding, ...]
    digest: str
    source: str
    citation: str | None
    parts: Parts
    labels: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    huber_delta: float = HUBER_DELTA

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        counts = ", ".join(f"{value:g}" for value in distinct(self.recurrence)[:8])
        budgets = len(distinct(self.budgets))
        return f"RunTable({self.name!r}, {len(self)} runs, r = {counts}, budgets: {budgets})"

    def under(self, convention: Convention) -> RunTable:
        """Return the same runs with n_once and n_rec counted under another convention.

        Raises ValueError that names the missing column where the parts are unknown.

        >>> table = load_runs("schwethelm2026").under(Convention("once"))
        >>> float(table.n_once[4]), float(table.n_rec[4])
        (7377024.0, 14161920.0)
        """
        missing = self._missing(as_convention(convention))
        if missing:
            raise ValueError(
                f"{self.source} cannot be counted with {convention.name}: it lacks "
                f"{join_words(missing)}. Add {'them' if len(missing) > 1 else 'it'}, give the "
                f"architecture instead, or use {_DEFAULT.name}."
            )
        once, rec = self.parts.once.copy(), self.parts.rec.copy()
        if convention.injection != "recurrent":
            rec -= self.parts.injection
        if convention.injection == "once":
            once += self.parts.injection
        if convention.embeddings:
            once += self.parts.embeddings
        if not convention.norms:
            counts = [ledger(spec).count(convention) for spec in self.specs if spec is not None]
            once = np.array([count.n_once for count in counts], dtype=float)
            rec = np.array([count.n_rec for count in counts], dtype=float)
        return replace(self, n_once=_frozen(once), n_rec=_frozen(rec), convention=convention)

    def with_huber_delta(self, delta: float) -> RunTable:
        """Return the same runs, to be fitted with another Huber threshold.

        The paper's 0.001 suits runs that scatter by millinats. Where runs scatter more it is a fit
        by absolute deviations, which wastes half of what the runs say; take a delta near the
        scatter of the log loss. Raises ValueError where it is not a number above 0.

        >>> load_runs("schwethelm2026").with_huber_delta(0.01).huber_delta
        0.01
        """
        return replace(self, huber_delta=as_huber_delta(delta))

    def conventions(self) -> tuple[Convention, ...]:
        """Return the conventions that can be derived, the three places of the injection first.

        >>> [convention.injection for convention in load_runs("schwethelm2026").conventions()[:3]]
        ['recurrent', 'once', 'excluded']
        """
        return tuple(each for each in all_conventions() if not self._missing(each))

    def _missing(self, convention: Convention) -> list[str]:
        missing = []
        if convention.injection != "recurrent" and np.isnan(self.parts.injection).any():
            missing.append("n_injection (the parameters of the injection, a part of n_rec)")
        if convention.embeddings and np.isnan(self.parts.embeddings).any():
            missing.append("n_embeddings (the parameters of token embeddings and head)")
        if not convention.norms and None in self.specs:
            missing.append("the architecture, which alone tells the norm vectors")
        return missing

    def select(self, mask: ArrayLike) -> RunTable:
        """Return the runs where a boolean mask of the table's length is true.

        >>> table = load_runs("schwethelm2026")
        >>> len(table.select(table.recurrence != 2))
        87
        """
        chosen = np.asarray(mask)
        if chosen.dtype != np.bool_ or chosen.shape != (len(self),):
            raise ValueError(
                f"A mask must hold {len(self)} booleans, one a run; this one is an array of "
                f"{chosen.dtype} with shape {chosen.shape}."
            )
        changes: dict[str, Any] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, np.ndarray):
                changes[entry.name] = _frozen(value[chosen])
        pick = np.flatnonzero(chosen)
        cells = self.cells[chosen]
        changes["cells"] = _frozen(np.searchsorted(distinct(cells), cells))
        changes["study"] = tuple(self.study[place] for place in pick)
        changes["specs"] = tuple(self.specs[place] for place in pick)
        changes["labels"] = {
            name: tuple(values[place] for place in pick) for name, values in self.labels.items()
        }
        parts = asdict(self.parts)
        changes["parts"] = Parts(**{name: _frozen(part[chosen]) for name, part in parts.items()})
        changes["digest"] = _digest(
            changes["recurrence"], changes["tokens"], changes["val_loss"], changes["parts"],
            changes["budget_flops"], changes["train_flops_per_token"],
        )  # fmt: skip
        return replace(self, **changes)

    def to_columns(self) -> dict[str, list[Any]]:
        """Return plain lists by column name, None where a value is unknown.

        n_once and n_rec are those of the table's convention, while `load_runs` reads them under the
        default one: write `table.under(Convention())` to read the table back. Fields of the
        architecture are added where every row has one.

        >>> load_runs("schwethelm2026").to_columns()["recurrence"][:2]
        [1.0, 1.0]
        """
        columns: dict[str, list[Any]] = {"row": self.rows.tolist()}
        if any(self.study):
            columns["study"] = [study or None for study in self.study]
        for name in ("recurrence", "tokens", "val_loss", "n_once", "n_rec"):
            columns[name] = getattr(self, name).tolist()
        optional = {
            "n_injection": self.parts.injection,
            "n_embeddings": self.parts.embeddings,
            "budget_flops": self.budget_flops,
            "train_flops_per_token": self.train_flops_per_token,
            "batch_tokens": self.batch_tokens,
        }
        for name, values in optional.items():
            if not np.isnan(values).all():
                columns[name] = [None if np.isnan(value) else value for value in values.tolist()]
        if self.specs and None not in self.specs:
            described = [spec.to_json() for spec in self.specs if spec is not None]
            for name in described[0]:
                if name != "recurrence":
                    columns[name] = [spec[name] for spec in described]
        return columns | {name: list(values) for name, values in self.labels.items()}

    def to_frame(self) -> pd.DataFrame:
        """Return the columns as a pandas frame; needs pandas (the extra `frames`)."""
        try:
            import pandas as pd
        except ImportError:
            raise ValueError("to_frame needs pandas: pip install 'loopworth[frames]'.") from None
        return pd.DataFrame(self.to_columns())


def load_runs(source: Any, *, convention: Convention = _DEFAULT) -> RunTable:
    """Load and check a table of training runs.

    `source` is a path (CSV, JSON, JSON lines or Parquet), `-` for standard input, a built-in name
    such as `schwethelm2026:hyperconnections`, a pandas or polars frame, a mapping of columns or a
    list of mappings. Columns and units: `loopworth.table.columns`. Raises OSError where a file
    cannot be opened, ValueError where the table cannot be used at all; anything less is a finding.

    >>> table = load_runs("schwethelm2026")
    >>> len(table), len(set(table.cells.tolist())), table.findings
    (116, 24, ())
    """
    convention = as_convention(convention)
    if isinstance(source, RunTable):
        return source.under(convention)
    raw = open_source(source)
    columns, _, findings = match_columns(raw)
    draft = derive(columns, raw.rows, raw.separator)
    keep, unusable = screen(draft)
    findings += unusable + draft.findings + check_units(draft, np.flatnonzero(keep))
    findings += set_aside(draft, keep)
    findings += remarks(draft, keep)
    table = assemble(raw, draft, keep, findings)
    return table if convention == _DEFAULT else table.under(convention)


def open_source(source: Any) -> RawTable:
    """Return the raw columns of anything that `load_runs` takes, before a number is read."""
    if not isinstance(source, str | Path):
        return read_object(source)
    name = str(source)
    if isinstance(source, str) and datasets.is_builtin(name):
        return datasets.read_builtin(name)
    try:
        return read_path(source)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{name!r} is neither a file nor a built-in table. {_closest(name)}"
        ) from None


def _closest(name: str) -> str:
    builtin = datasets.builtin_names()
    path = Path(name)
    try:
        there = {entry.name: entry for entry in path.parent.iterdir() if entry.is_file()}
    except OSError:
        there = {}
    near = [str(there[each]) for each in difflib.get_close_matches(path.name, there, n=3)]
    near += difflib.get_close_matches(name, builtin, n=2)
    closest = (
        f"The closest are {join_words(near)}. "
        if len(near) > 1
        else (f"Did you mean {near[0]}? " if near else "")
    )
    return f"{closest}The built-in tables are {join_words(builtin)}."


def assemble(
    raw: RawTable, draft: Draft, keep: NDArray[np.bool_], findings: list[Finding]
) -> RunTable:
    """Build the table of the rows to keep, under the default convention."""
    places = np.flatnonzero(keep)
    numbers = {name: _frozen(values[places]) for name, values in draft.numbers.items()}
    labels = {
        name: tuple(values[place] for place in places)
        for name, values in draft.texts.items()
        if name in ("run_id", "seed", "recipe", "loss_source")
    }
    budgets, guessed = nominal_budgets(numbers)
    groups, nominal, joined = group_budgets(budgets)
    run_ids = labels.get("run_id", (None,) * len(places))
    parts = Parts(
        numbers["n_once"], numbers["n_rec"], numbers["n_injection"], numbers["n_embeddings"]
    )
    budget, flops = numbers["budget_flops"], numbers["train_flops_per_token"]
    core = (numbers["recurrence"], numbers["tokens"], numbers["val_loss"])
    studies = draft.texts.get("study", [None] * len(draft))
    return RunTable(
        name=raw.name,
        rows=_frozen(draft.rows[places]),
        recurrence=numbers["recurrence"],
        tokens=numbers["tokens"],
        val_loss=numbers["val_loss"],
        n_once=numbers["n_once"],
        n_rec=numbers["n_rec"],
        budget_flops=budget,
        train_flops_per_token=flops,
        batch_tokens=numbers["batch_tokens"],
        cells=_frozen(make_cells(groups, numbers["recurrence"], run_ids)),
        budgets=_frozen(nominal),
        study=tuple(studies[place] or "" for place in places),
        specs=tuple(draft.specs[place] for place in places),
        convention=_DEFAULT,
        findings=tuple(
            sorted(findings + guessed + joined, key=lambda each: _SEVERITIES.index(each.severity))
        ),
        digest=_digest(*core, parts, budget, flops),
        source=raw.source,
        citation=raw.citation,
        parts=parts,
        labels=labels,
    )


def _digest(
    recurrence: Floats, tokens: Floats, loss: Floats, parts: Parts, budget: Floats, flops: Floats
) -> str:
    """Hash the numbers in row order, as little-endian float64 with one form of NaN."""
    total = hashlib.sha256()
    for values in (recurrence, tokens, loss, parts.once, parts.rec, parts.injection,
                   parts.embeddings, budget, flops):  # fmt: skip
        canonical = np.where(np.isnan(values), np.nan, values).astype("<f8")
        total.update(canonical.tobytes())
    return total.hexdigest()


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only copy, so that no caller can change a table behind its digest."""
    copy = np.array(array)
    copy.setflags(write=False)
    return copy
