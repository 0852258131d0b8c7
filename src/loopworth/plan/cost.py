"""What a plan costs on a device: hours, money, memory and disk, and the cells that cannot run.

FLOPs are exact (the ledger's), hours follow from a utilisation that is assumed unless it was
measured; memory and disk follow from the parameters and the optimiser's state.
"""

from dataclasses import asdict, dataclass
from typing import Any

from loopworth.findings import Finding
from loopworth.ledger import ledger
from loopworth.plan.devices import Device, device
from loopworth.plan.plan import Plan, PlannedRun
from loopworth.quantities import format_bytes
from loopworth.reach import activation_bytes
from loopworth.spec import ModelSpec
from loopworth.unroll import trained

ASSUMED_UTILISATION = 0.4
_WEIGHT, _GRADIENT = 4, 4  # bytes a parameter, float32 master weights
_MOMENTUM, _ADAM = 4, 8  # MuonH keeps one buffer a matrix, AdamW two moments
_LOGITS_ROWS = 4096  # rows of the head whose logits exist at once, float32
_EMBEDDINGS = ("embedding", "head", "norm")


@dataclass(frozen=True, slots=True)
class RunCost:
    """One run on one device: hours at the utilisation, bytes in memory for one row, bytes on disk.

    state_bytes are weights, gradients and the optimiser's state; activation_bytes those of one
    sequence with every differentiated layer kept; checkpoint_bytes one checkpoint.
    """

    name: str
    hours: float
    state_bytes: float
    activation_bytes: float
    checkpoint_bytes: float


@dataclass(frozen=True, slots=True)
class PlanCost:
    """All runs of a plan on one device; money is hours times the price, in US dollars."""

    device: Device
    utilisation: float
    measured: bool
    runs: tuple[RunCost, ...]
    hours: float
    money: float
    disk_bytes: float
    findings: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the costs as plain values."""
        return asdict(self) | {"findings": [finding.to_json() for finding in self.findings]}


def cost(
    plan: Plan,
    on: str | Device = "h100",
    *,
    utilisation: float | None = None,
    price: float | None = None,
) -> PlanCost:
    """Return what a plan costs on a device.

    utilisation is the share of the device's peak that training reaches, 0 to 1: as measured, or
    None for 0.4, which is an assumption. price is US dollars an hour; None takes the device's.

    >>> from loopworth.recipes import load_plan
    >>> round(cost(load_plan("paper")).hours)
    510
    """
    target = device(on) if isinstance(on, str) else on
    share = ASSUMED_UTILISATION if utilisation is None else utilisation
    if not 0 < share <= 1:
        raise ValueError(f"utilisation={share} must be above 0 and at most 1, such as 0.4")
    if price is not None and not 0 <= price < float("inf"):
        raise ValueError(f"price={price} must be 0 or more US dollars an hour")
    runs = tuple(_run_cost(planned, target.peak_flops * share) for planned in plan.runs)
    hours = sum(run.hours for run in runs)
    return PlanCost(
        device=target,
        utilisation=share,
        measured=utilisation is not None,
        runs=runs,
        hours=hours,
        money=hours * (target.price_per_hour if price is None else price),
        disk_bytes=sum(run.checkpoint_bytes for run in runs),
        findings=tuple(_impossible(runs, target)),
    )


def _run_cost(planned: PlannedRun, rate: float) -> RunCost:
    state, stored = _state(planned.run.model)
    return RunCost(
        name=planned.name,
        hours=planned.horizon.flops / rate / 3600,
        state_bytes=state,
        activation_bytes=_activations(planned.run.model),
        checkpoint_bytes=stored,
    )


def _state(model: ModelSpec) -> tuple[float, float]:
    """Return the bytes of weights, gradients and optimiser in memory, and of a checkpoint."""
    account = ledger(model)
    adam = sum(row.parameters for row in account.rows if row.group in _EMBEDDINGS)
    moments = _MOMENTUM * (account.parameters - adam) + _ADAM * adam
    stored = _WEIGHT * account.parameters + moments
    return stored + _GRADIENT * account.parameters, stored


def _activations(model: ModelSpec) -> float:
    """Return the bytes that one sequence keeps for the backward pass, with a block of logits."""
    logits = min(model.context, _LOGITS_ROWS) * model.vocab_size * 4
    return activation_bytes(model, trained(model), 2, checkpoint=False) + logits


def _impossible(runs: tuple[RunCost, ...], target: Device) -> list[Finding]:
    """Name the runs whose state and one sequence do not fit into the device."""
    large = [run for run in runs if run.state_bytes + run.activation_bytes > target.memory_bytes]
    if not large:
        return []
    worst = max(large, key=lambda run: run.state_bytes + run.activation_bytes)
    need = format_bytes(worst.state_bytes + worst.activation_bytes)
    return [
        Finding(
            "does_not_fit",
            "error",
            f"{len(large)} of {len(runs)} runs do not fit one {target.title}: {worst.name} needs "
            f"{need} for its state and one sequence, and there are "
            f"{format_bytes(target.memory_bytes)}",
            remedy="shard the state over several devices (FSDP2), or take a larger device",
            evidence={"runs": [run.name for run in large]},
        )
    ]
