"""From a run at work to a checkpoint and back, whatever number of processes there is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from loopworth.data import TokenData
from loopworth.spec import RunSpec
from loopworth.train.checkpoint import BackgroundWriter, Checkpoint
from loopworth.train.events import Noted, Saved, Watch
from loopworth.train.folder import RunFolder
from loopworth.train.machine import Place
from loopworth.train.optim import LoopOptimizer
from loopworth.train.parallel import Replica, World, gathered, load_weights

# Parameters up to which a checkpoint on a CPU is written at once: it takes less than a copy and a
# thread that competes for the cores.
_AT_ONCE = 20_000_000


class Diverged(ValueError):
    """The loss or the weights are no numbers any more."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a run is.

    step, flops, seconds   steps done, FLOPs spent on them, seconds in them
    train_loss             of the last step
    validation             the last validation and its step, as plain values; empty before the first
    health                 what the norms of the run usually are
    exact                  what must be the same for the next step to be equal bit for bit
    """

    step: int = 0
    flops: float = 0.0
    seconds: float = 0.0
    train_loss: float | None = None
    validation: Mapping[str, Any] = field(default_factory=dict)
    health: Mapping[str, Any] = field(default_factory=dict)
    exact: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Saver:
    """Saves and resumes one run."""

    run: RunSpec
    folder: RunFolder
    data: TokenData
    replica: Replica
    optimiser: LoopOptimizer
    place: Place
    world: World
    tell: Watch
    writer: BackgroundWriter = field(default_factory=BackgroundWriter)
    saved_at: float = field(default_factory=time.monotonic)
    _written: list[Saved] = field(default_factory=list)

    def save(self, position: Position) -> None:
        """Write a checkpoint: at once where it is small, else beside the training.

        Raises CheckpointError on every process where it cannot be written at once, and Diverged
        where a weight is no number; a failure beside the training is found by `failed`.
        """
        beside = self.place.device.type != "cpu" or self.replica.parameters > _AT_ONCE
        keep = self.world.is_first
        model = gathered(self.replica.model.state_dict(), keep=keep, copy=beside)
        state = {
            "optimiser": gathered(self.optimiser.state_dict(), keep=keep, copy=beside),
            "random": random_states(self.place),
        }
        meta = self._belongs_to() | asdict(position)

        def write() -> None:
            broken = [name for name, tensor in model.items() if not tensor.isfinite().all()]
            if broken:
                raise Diverged(f"after step {position.step}, {broken[0]} is not finite")
            path = self.folder.checkpoints.write(position.step, model, state, meta)
            self._written.append(Saved(position.step, path))

        if not beside:
            self.world.first(write)
        elif keep:
            self.writer.submit(write)
        self.saved_at = time.monotonic()
        self.tell_saved()

    def _belongs_to(self) -> dict[str, Any]:
        return {
            "spec_hash": self.run.content_hash(),
            "data_digest": self.data.digest,
            "tokenizer": dict(self.data.tokenizer.to_json()),
        }

    def tell_saved(self) -> None:
        """Tell which checkpoints are on disk since it was last told."""
        while self._written:
            self.tell(self._written.pop(0))

    @property
    def failed(self) -> bool:
        """Whether a write beside the training has gone wrong; `wait` raises what it was."""
        return self.writer.failure is not None

    def wait(self) -> None:
        """Wait until the last checkpoint is on disk; raises what prevented it."""
        self.world.first(self.writer.wait)
        self.tell_saved()

    def resume(self) -> Position:
        """Bring model and optimiser to the newest whole checkpoint; return where that is.

        Raises CheckpointError where there are checkpoints but none is whole, and ValueError where
        it belongs to another run, to other data or to another model.
        """
        found, problems = self.world.first(self._find)
        for problem in problems:
            self.tell(Noted(f"{problem}; going on from an earlier checkpoint"))
        if found is None:
            return Position()
        self._refuse_other(found)
        load_weights(self.replica.model, found.model())
        state = found.state()
        self.optimiser.load_state_dict(state["optimiser"])
        _restore_random(state["random"], self.place)
        names = Position.__slots__
        return replace(Position(), **{name: found.meta[name] for name in names})

    def _find(self) -> tuple[Checkpoint | None, list[str]]:
        self.folder.checkpoints.sweep()
        return self.folder.checkpoints.newest()

    def _refuse_other(self, found: Checkpoint) -> None:
        meta, here = found.meta, self._belongs_to()
        if meta["spec_hash"] != here["spec_hash"]:
            raise ValueError(f"{found.path} is a checkpoint of another run; name another folder")
        if meta["data_digest"] != here["data_digest"]:
            raise ValueError(
                f"{found.path} was trained on data with digest {meta['data_digest'][:16]}..., and "
                f"{self.run.data.source} now has {here['data_digest'][:16]}...: the text, its "
                "split or its tokenizer has changed. Bring the old data back, or train in a new "
                "folder"
            )

    def note_changes(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Say what is no longer the same, where a resumed run is equal to rounding only."""
        changed = [
            f"{name} {value} -> {now.get(name)}"
            for name, value in before.items()
            if value != now.get(name)
        ]
        if changed:
            self.tell(
                Noted(
                    "what follows equals an undisturbed run to rounding, not bit for bit: "
                    + ", ".join(changed)
                )
            )


def random_states(place: Place) -> dict[str, torch.Tensor]:
    """Return torch's random states. Nothing in training draws from them; a plug-in may."""
    states = {"cpu": torch.get_rng_state()}
    if place.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(place.device)
    return states


def _restore_random(states: Mapping[str, torch.Tensor], place: Place) -> None:
    torch.set_rng_state(states["cpu"].clone())
    if "cuda" in states and place.device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"].clone(), place.device)
