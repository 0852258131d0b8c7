"""The result of a run: one row of a run table, which `load_runs` and `loopworth fit` read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loopworth.ledger import Convention, Horizon, ledger
from loopworth.spec import RunSpec


@dataclass(frozen=True, slots=True)
class TrainResult:
    """How a run ended, or where it was stopped.

    out        its folder          complete   whether all steps are done; if not, train again
    step       steps done          steps      of the run
    reason     why it was stopped, such as SIGTERM; None where it is complete
    row        the content of result.json; empty where it was stopped
    """

    out: Path
    complete: bool
    step: int
    steps: int
    row: Mapping[str, Any]
    reason: str | None = None

    @property
    def val_loss(self) -> float:
        """Validation loss in nats per token; raises ValueError where the run was stopped."""
        if not self.complete:
            raise ValueError(
                f"the run in {self.out} was stopped at step {self.step} of {self.steps}; train "
                "again to finish it"
            )
        return float(self.row["val_loss"])

    def to_json(self) -> dict[str, Any]:
        """Return the result as a dict that `json.dumps` writes."""
        return {
            "complete": self.complete,
            "reason": self.reason,
            "step": self.step,
            "steps": self.steps,
            "out": str(self.out),
            "result": dict(self.row) or None,
        }


def run_row(
    run: RunSpec,
    reach: Horizon,
    *,
    val_loss: float,
    val_bits_per_byte: float,
    **extras: Any,
) -> dict[str, Any]:
    """Return the row of a finished run: the columns of a run table, then `extras`.

    Parameters are counted under the default convention. `flops` is what the steps really cost;
    budget_flops is the budget that was given, or the same as `flops`.

    >>> from loopworth.spec import ModelSpec
    >>> run = RunSpec(ModelSpec(640), budget_flops=1e18)
    >>> row = run_row(run, Horizon(3642, 954728448, 9.999e17), val_loss=3.1, val_bits_per_byte=1.0)
    >>> row["n_once"], row["n_rec"], row["step"]
    (19667840, 20485120, 3642)
    """
    model, account = run.model, ledger(run.model)
    count = account.count()
    whole = account.count(Convention(embeddings=True))
    return {
        "run_id": run.content_hash()[:16],
        "recurrence": model.recurrence,
        "n_once": count.n_once,
        "n_rec": count.n_rec,
        "n_injection": count.n_injection,
        "n_embeddings": whole.n_unique - count.n_unique,
        "tokens": reach.tokens,
        "val_loss": val_loss,
        "budget_flops": reach.flops if run.budget_flops is None else run.budget_flops,
        "train_flops_per_token": reach.flops / reach.tokens,
        "d_model": model.d_model,
        "n_prelude": model.n_prelude,
        "n_recur": model.n_recur,
        "n_coda": model.n_coda,
        "injection": model.injection,
        "n_lanes": model.n_lanes,
        "bptt_window": model.bptt_window,
        "vocab_size": model.vocab_size,
        "context": model.context,
        "head_dim": model.head_dim,
        "n_kv_heads": model.n_kv_heads,
        "mlp_ratio": model.mlp_ratio,
        "mlp_kind": model.mlp_kind,
        "tied_embeddings": model.tied_embeddings,
        "batch_tokens": run.batch_tokens,
        "recipe": recipe_label(run),
        "seed": run.seed,
        "step": reach.steps,
        "loss_unit": "nats",
        "loss_source": "validation",
        "val_bits_per_byte": val_bits_per_byte,
        "flops": reach.flops,
        **extras,
    }


def recipe_label(run: RunSpec) -> str:
    """Return eight hex digits of how a run is trained: optimiser, data, unrolling and precision.

    Size, budget, batch and seed, which a sweep varies, are left out.
    """
    parts = [asdict(part) for part in (run.optim, run.data, run.unroll)]
    text = json.dumps([*parts, run.precision], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
