"""A plan: named runs, in the order in which they should be done."""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from loopworth.ledger import Horizon, ledger
from loopworth.quantities import format_flops
from loopworth.reach import reach
from loopworth.spec import RunSpec

# What a run is for: a cell of the grid; plain, the model without a loop; untied, the loop's layers
# unrolled with weights of their own.
Role = Literal["cell", "plain", "untied"]


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of a plan; `study` is the label under which a run table will hold it."""

    run: RunSpec
    study: str
    role: Role = "cell"

    @property
    def name(self) -> str:
        """A name that is also a folder: budget, width, recurrence, seed, and 8 digits of the hash.

        >>> from loopworth.spec import ModelSpec
        >>> PlannedRun(RunSpec(ModelSpec(640), budget_flops=1e18), "baseline").name
        'baseline-1e18-d640-r4-seed42-...'
        """
        return self.named(self.run.content_hash())

    def named(self, spec_hash: str) -> str:
        """Return the name where the content hash is known, which takes longer than all else."""
        run = self.run
        horizon = (
            format_flops(run.budget_flops)
            if run.budget_flops is not None
            else f"{run.tokens}tokens"
            if run.tokens is not None
            else f"{run.steps}steps"
        )
        return (
            f"{self.study}-{horizon}-d{run.model.d_model}-r{run.model.recurrence:g}-"
            f"seed{run.seed}-{spec_hash[:8]}"
        )

    @property
    def train_flops_per_token(self) -> float:
        """FLOPs per training token, the mean over the steps where recurrences are drawn."""
        return self.horizon.flops / self.horizon.tokens

    @property
    def horizon(self) -> Horizon:
        """Steps, tokens and FLOPs of the run."""
        return reach(self.run)

    def to_json(self) -> dict[str, Any]:
        """Return the run, its counts and its horizon as plain values."""
        account = ledger(self.run.model).count()
        there = self.horizon
        return {
            "name": self.name,
            "study": self.study,
            "role": self.role,
            "budget_flops": self.run.budget_flops,
            "d_model": self.run.model.d_model,
            "n_prelude": self.run.model.n_prelude,
            "n_recur": self.run.model.n_recur,
            "n_coda": self.run.model.n_coda,
            "recurrence": self.run.model.recurrence,
            "injection": self.run.model.injection,
            "bptt_window": self.run.model.bptt_window,
            "seed": self.run.seed,
            "n_once": account.n_once,
            "n_rec": account.n_rec,
            "n_unique": account.n_unique,
            "train_flops_per_token": there.flops / there.tokens,
            "steps": there.steps,
            "tokens": there.tokens,
            "flops": there.flops,
            "spec_hash": self.run.content_hash(),
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """Runs with names of their own; a run that stands in two studies is done once.

    >>> from loopworth.spec import ModelSpec
    >>> plan = Plan("one", [PlannedRun(RunSpec(ModelSpec(640), budget_flops=1e18), "baseline")])
    >>> len(plan.runs), format_flops(plan.flops)
    (1, '1e18')
    """

    name: str
    runs: tuple[PlannedRun, ...]
    purpose: str = ""

    def __init__(self, name: str, runs: Iterable[PlannedRun], purpose: str = "") -> None:
        """Refuse a plan without runs and drop the second of two equal ones."""
        unique = {planned.run.content_hash(): planned for planned in reversed(list(runs))}
        if not unique:
            raise ValueError(f"the plan {name!r} has no runs; let its recipe return at least one")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "runs", tuple(reversed(unique.values())))
        object.__setattr__(self, "purpose", purpose)

    @property
    def flops(self) -> float:
        """Training FLOPs of all runs."""
        return sum(planned.horizon.flops for planned in self.runs)

    def select(self, names: Iterable[str]) -> Self:
        """Return the plan with only the runs of these names."""
        wanted = set(names)
        return replace(self, runs=tuple(run for run in self.runs if run.name in wanted))

    def to_csv(self) -> str:
        """Return a header line and one line a run."""
        out = io.StringIO()
        rows = [planned.to_json() for planned in self.runs]
        writer = csv.DictWriter(out, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return out.getvalue()

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        return {
            "name": self.name,
            "purpose": self.purpose,
            "n_runs": len(self.runs),
            "flops": self.flops,
            "runs": [planned.to_json() for planned in self.runs],
        }
