"""One run of a stack: its folder, its plain model and optimiser, and what it records.

Between checkpoints its weights live in the banks of the stack. Whenever it saves or validates they
are copied into the plain model, so its files are those of a run that was trained alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch

from loopworth.data import Batches, TokenData
from loopworth.model import build
from loopworth.reach import reach
from loopworth.train.events import Finished, Started, Watch
from loopworth.train.folder import RunFolder
from loopworth.train.machine import Machine, Place
from loopworth.train.optim import build_optimizer
from loopworth.train.parallel import Replica, World
from loopworth.train.recorder import Measured, Recorder
from loopworth.train.result import TrainResult, run_row
from loopworth.train.saving import Saver
from loopworth.train.transfer import multiplier
from loopworth.train.validate import validate
from loopworth.unroll import trained


class Member:
    """A run of a stack, at the stack's step.

    seconds   of the stack's time, this run's share
    """

    def __init__(
        self, folder: RunFolder, machine: Machine, place: Place, data: TokenData, tell: Watch
    ) -> None:
        run = folder.run
        self.run, self.folder, self.machine, self.place = run, folder, machine, place
        self.data, self.tell, self.seconds = data, tell, 0.0
        self.reach, self.unroll = reach(run), trained(run.model)
        self.model = build(run.model, seed=run.seed, n_tokens=data.vocab_size)
        groups = self.model.parameter_groups()
        self.groups = {name: members for name, members in groups.items() if members}
        self.optimiser = build_optimizer(
            self.groups, run.optim, model=run.model, batch_tokens=run.batch_tokens,
            tokens=self.reach.tokens, steps=self.reach.steps,
        )  # fmt: skip
        self.world = World()
        self.replica = Replica(self.model, "alone", self.world, place)
        self.saver = Saver(run, folder, data, self.replica, self.optimiser, place, self.world, tell)
        self.position = self.saver.resume()
        self.step, self.validation = self.position.step, dict(self.position.validation)
        self.recorder: Recorder | None = None

    @property
    def name(self) -> str:
        """Eight digits that say which run it is."""
        return self.run.content_hash()[:8]

    @property
    def done(self) -> bool:
        """Whether all steps are done."""
        return self.step >= self.reach.steps

    def start(self, found: Mapping[str, Any], batches: Batches) -> None:
        """Open the metrics, and say where the run is trained."""
        rows = self.run.batch_tokens // self.run.model.context
        self.folder.started({"peak_rates": self.optimiser.peaks, **found}, self.step)
        self.saver.note_changes(self.position.exact, self.exact())
        self.recorder = Recorder(
            self.run, self.reach, self.folder, self.machine, self.place, self.world, self.tell,
            self.position, clock=lambda: self.seconds,
        )  # fmt: skip
        self.tell(
            Started(
                step=self.step, steps=self.reach.steps, tokens=self.reach.tokens,
                flops=self.reach.flops, parameters=self.replica.parameters,
                device=self.place.name, processes=1, parallel="stack", micro_batch_rows=rows,
                accumulation=1, epochs=batches.epoch(self.reach.steps),
            )
        )  # fmt: skip

    def exact(self) -> dict[str, Any]:
        """Return what must be the same for a resumed run to be equal bit for bit.

        That it is in a stack, but not which runs are beside it: they change nothing.
        """
        return {
            "device": self.place.name,
            "processes": 1,
            "torch": torch.__version__,
            "threads": self.place.threads,
            "micro_batch_rows": self.run.batch_tokens // self.run.model.context,
            "compile": False,
            "checkpoint_activations": False,
            "stack": True,
        }

    @property
    def factor(self) -> float:
        """What multiplies the peak rates in the step that comes next."""
        return multiplier(self.run.optim, self.step, self.reach.steps)

    def stepped(self, measured: Measured, epoch: float) -> None:
        """Count a step and record it; raises Diverged where a loss is no number."""
        factor = self.factor
        self.step += 1
        self._recorder.add(self.step, measured, self.unroll, epoch=epoch, lr_factor=factor)

    @property
    def _recorder(self) -> Recorder:
        assert self.recorder is not None, "start comes first"
        return self.recorder

    def validate(self) -> None:
        """Validate the plain model at this step, unless that is done; raises Diverged."""
        if self.validation.get("step") == self.step:
            return
        self._recorder.flush()
        found = validate(self.replica, self.run, self.data, self.world, self.place)
        self.validation = {"step": self.step, **asdict(found)}
        self._recorder.validated(self.step, found)

    def validate_if_done(self) -> None:
        """Validate at the end."""
        if self.done:
            self.validate()

    def save(self) -> None:
        """Save the plain model."""
        self._recorder.flush()
        self._recorder.sync()
        self.saver.save(
            replace(
                self._recorder.position, step=self.step, validation=self.validation,
                exact=self.exact(),
            )
        )  # fmt: skip

    def finish(self, epochs: float) -> TrainResult:
        """Write the result of a run that is done, validated and saved."""
        now = self._recorder.position
        row = run_row(
            self.run, self.reach, val_loss=self.validation["loss"],
            val_bits_per_byte=self.validation["bits_per_byte"],
            val_tokens=self.validation["tokens"], train_loss=now.train_loss, epochs=epochs,
            seconds=now.seconds, device=self.place.name, processes=1,
            data_digest=self.data.digest,
        )  # fmt: skip
        self.folder.finish(row)
        self.close()
        result = TrainResult(self.folder.path, True, self.step, self.reach.steps, row)
        self.tell(Finished(result))
        return result

    def close(self) -> None:
        """Close what is open."""
        if self.recorder is not None:
            self.recorder.close()
            self.recorder = None
