"""A plan: named runs, in the order in which they should be done."""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from loopworth.ledger import Horizon, horizon, ledger
from loopworth.quantities import format_flops
from loopworth.spec import RunSpec
from loopworth.unroll import mean_flops_per_token

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
        run = self.run
        reach = (
            format_flops(run.budget_flops)
            if run.budget_flops is not None
            else f"{run.tokens}tokens"
            if run.tokens is not None
            else f"{run.steps}steps"
        )
        return (
            f"{self.study}-{reach}-d{run.model.d_model}-r{run.model.recurrence:g}-"
            f"seed{run.seed}-{run.content_hash()[:8]}"
        )

    @property
    def train_flops_per_token(self) -> float:
        """FLOPs per training token, the mean over the steps where recurrences are drawn."""
        return reach_of(self.run)[1]

    @property
    def horizon(self) -> Horizon:
        """Steps, tokens and FLOPs of the run."""
        return reach_of(self.run)[0]

    def to_json(self) -> dict[str, Any]:
        """Return the run, its counts and its horizon as plain values."""
        account = ledger(self.run.model).count()
        reach, per_token = reach_of(self.run)
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
            "train_flops_per_token": per_token,
            "steps": reach.steps,
            "tokens": reach.tokens,
            "flops": reach.flops,
            "spec_hash": self.run.content_hash(),
        }


def reach_of(run: RunSpec) -> tuple[Horizon, float]:
    """Return the horizon of a run and its FLOPs per token.

    Raises ValueError where a budget buys less than half a step.
    """
    batch = run.batch_tokens
    fixed = run.unroll.recurrence == "fixed" and run.unroll.window == "last"
    per_token: float = ledger(run.model).train_flops_per_token
    if not fixed:  # the mean over the steps moves the number of steps: one more look settles it
        steps = run.steps or (run.tokens // batch if run.tokens else None)
        guess = steps or horizon(float(run.budget_flops or 0), per_token, batch).steps
        per_token = mean_flops_per_token(run.model, run.unroll, run.seed, guess)
    if run.budget_flops is not None:
        return horizon(run.budget_flops, per_token, batch), per_token
    steps = run.steps if run.steps is not None else max(1, round((run.tokens or 0) / batch))
    return Horizon(steps, steps * batch, steps * batch * per_token), per_token


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
