"""The training loop, top to bottom: `train` opens the folder, `_Training` makes the parts and runs.

A step: draw the unrolling, read the rows of this process, accumulate the gradient of the mean over
all tokens of the step, let the optimiser move. All that decides a number is a function of the spec
and the step, so a run that was killed goes on as if it had not been.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from loopworth.data import Batches, TokenData, open_data
from loopworth.model import build
from loopworth.reach import reach
from loopworth.spec import RunSpec
from loopworth.train.environment import environment
from loopworth.train.events import Event, Finished, Started, Stopped, Watch
from loopworth.train.folder import RunFolder, locked
from loopworth.train.health import gradient_norms, state_norms
from loopworth.train.machine import Machine, Place, find_place, numerics
from loopworth.train.optim import build_optimizer
from loopworth.train.parallel import Replica, World, choose_mode, join_world
from loopworth.train.recorder import Measured, Recorder
from loopworth.train.result import TrainResult, run_row
from loopworth.train.rows import memory_in_words, micro_batch_rows
from loopworth.train.saving import Diverged, Position, Saver
from loopworth.train.stopping import StopRequest, stop_requests
from loopworth.train.trackers import check_trackers
from loopworth.train.transfer import multiplier
from loopworth.train.validate import validate, validation_rows
from loopworth.unroll import Unroll, draw


def train(
    run: RunSpec,
    out: str | Path,
    machine: Machine | None = None,
    watch: Watch | None = None,
) -> TrainResult:
    """Train a run in its folder: start it, resume it, or return the result that is there.

    run      what is trained       out    the folder of the run (see `folder.py`)
    machine  where and how         watch  is told what happens (see `events.py`)

    Under torchrun every process calls it with the same arguments; the folder must be one for all.
    SIGTERM, SIGUSR1 and Ctrl-C save a checkpoint after the step and return a result that is not
    complete.

    Raises ValueError where the folder is another run's or in use, where the data does not fit,
    where memory does not suffice, where the loss is no number any more (`Diverged`), where a
    checkpoint cannot be written or none can be read (`CheckpointError`). The last good checkpoint
    stays in all cases.
    """
    machine = machine or Machine()
    check_trackers(machine.trackers)
    with ExitStack() as stack:
        stop = stack.enter_context(stop_requests())
        gpu = machine.device != "cpu" and torch.cuda.is_available()
        world = stack.enter_context(join_world(gpu))
        place = find_place(machine, run.precision, world.local_rank, width=run.model.d_model)
        stack.enter_context(numerics(place))
        tell = watch if watch is not None and world.is_first else _silent
        folder = RunFolder(Path(out), run, machine.keep)
        if world.is_first:
            stack.enter_context(locked(folder.path))
        row = world.first(lambda: _claim(folder))
        if row is not None:
            result = TrainResult(folder.path, True, row["step"], row["step"], row)
            tell(Finished(result, already=True))
            return result
        stack.enter_context(memory_in_words(place))
        training = _Training(run, folder, machine, place, world, tell)
        stack.callback(training.recorder.close)
        try:
            return training.go(stop)
        except Diverged as problem:
            raise Diverged(with_advice(problem, folder)) from problem


class _Training:
    """The parts of a run at work: data, model, optimiser, and how far they are."""

    def __init__(
        self, run: RunSpec, folder: RunFolder, machine: Machine, place: Place, world: World,
        tell: Watch,
    ) -> None:  # fmt: skip
        self.run, self.folder, self.machine = run, folder, machine
        self.place, self.world, self.tell = place, world, tell
        self.reach = reach(run)
        self.data = open_run_data(run, world)
        rows = run.batch_tokens // run.model.context
        self.batches = Batches(self.data.train, run.model.context, rows, run.data.seed)
        self.share = _share(run, rows, world)
        self.replica = self._replica()
        groups = self.replica.model.parameter_groups()
        self.groups = {name: members for name, members in groups.items() if members}
        self.optimiser = build_optimizer(
            self.groups, run.optim, model=run.model,
            batch_tokens=run.batch_tokens, tokens=self.reach.tokens, steps=self.reach.steps,
        )  # fmt: skip
        self.saver = Saver(run, folder, self.data, self.replica, self.optimiser, place, world, tell)
        position = self.saver.resume()
        self.step, self.validation = position.step, dict(position.validation)
        self.micro_rows = self._micro_rows(position)
        self.saver.note_changes(position.exact, self._exact())
        self._announce()
        self.recorder = Recorder(run, self.reach, folder, machine, place, world, tell, position)

    def _replica(self) -> Replica:
        model = build(
            self.run.model, seed=self.run.seed, device=self.place.device,
            n_tokens=self.data.vocab_size,
        )  # fmt: skip
        if self.place.compile:
            model.compile_blocks()
        parameters = sum(parameter.numel() for parameter in model.parameters())
        mode = choose_mode(self.machine.parallel, self.world, self.place, parameters)
        return Replica(model, mode, self.world, self.place)

    def _micro_rows(self, position: Position) -> int:
        """Keep the rows of a pass that the checkpoint had, where nothing else was asked for."""
        asked, before = self.machine.micro_batch_rows, position.exact
        same = (
            before.get("processes") == self.world.size and before.get("device") == self.place.name
        )
        if asked is None and same:
            asked = before["micro_batch_rows"]
        rows = micro_batch_rows(
            self.run, self.place, self.share, asked,
            checkpoint=self.machine.checkpoint_activations,
        )  # fmt: skip
        return -self.world.largest([-rows])[0]  # the device with the least room decides

    def _announce(self) -> None:
        rates = self.optimiser.peaks
        found = {"peak_rates": rates} | environment(
            self.place, self.world, self.replica.mode, self.micro_rows, self.data
        )
        self.world.first(lambda: self.folder.started(found, self.step))
        self.tell(
            Started(
                step=self.step,
                steps=self.reach.steps,
                tokens=self.reach.tokens,
                flops=self.reach.flops,
                parameters=self.replica.parameters,
                device=self.place.name,
                processes=self.world.size,
                parallel=self.replica.mode,
                micro_batch_rows=self.micro_rows,
                accumulation=self.share // self.micro_rows,
                epochs=self.batches.epoch(self.reach.steps),
            )
        )

    def go(self, stop: StopRequest) -> TrainResult:
        """Run the steps that are left, validate, save, and return how it ended."""
        while self.step < self.reach.steps:
            self._one_step()
            last = self.step == self.reach.steps
            if self._every(self.machine.eval_every) and not last:
                self._validate()
            # All processes must agree, and one clock and one signal decide.
            reason, due, failed = self.world.largest(
                [stop.signal, self._save_due(), self.saver.failed]
            )
            if failed:
                self.saver.wait()
            if reason and not last:
                return self._stopped(StopRequest.name(reason))
            if due and not last:
                self._save()
            self.saver.tell_saved()
        return self._finished()

    def _one_step(self) -> None:
        """Accumulate the gradient of the mean loss over the step, then let the optimiser move."""
        unroll = draw(
            self.run.model, self.run.unroll, seed=self.run.seed, step=self.step,
            steps=self.reach.steps,
        )  # fmt: skip
        rows = self.batches.rows(self.step, rank=self.world.rank, world=self.world.size)
        rows_BT = torch.from_numpy(rows).to(self.place.device, non_blocking=True)
        factor = multiplier(self.run.optim, self.step, self.reach.steps)
        self.optimiser.set_step(self.step)
        losses, states = self._gradient(rows_BT, unroll)
        measured = Measured(losses, gradient_norms(self.groups), states)
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.step += 1
        epoch = self.batches.epoch(self.step)
        self.recorder.add(self.step, measured, unroll, epoch=epoch, lr_factor=factor)

    def _gradient(
        self, rows_BT: torch.Tensor, unroll: Unroll
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Leave the gradient in the parameters; return summed losses, and norms of the states."""
        targets = self.share * self.run.model.context
        parts = torch.split(rows_BT, self.micro_rows)
        losses: list[torch.Tensor] = []
        norms = torch.empty(0)
        for part in parts:
            with self.replica.accumulate(last=part is parts[-1]):
                with self.place.training_math():
                    loss, states = self.replica.run(
                        part[:, :-1], part[:, 1:], unroll=unroll, reduction="sum",
                        checkpoint=self.machine.checkpoint_activations, return_states=True,
                    )  # fmt: skip
                # Processes have equal shares and average their gradients: the mean over the step.
                (loss / targets).backward()
            norms = norms if losses else state_norms(states)
            losses.append(loss.detach())
        return losses, norms

    def _every(self, steps: int | None) -> bool:
        return steps is not None and self.step % steps == 0

    def _save_due(self) -> bool:
        seconds = self.machine.save_seconds
        late = seconds is not None and time.monotonic() - self.saver.saved_at >= seconds
        return late or self._every(self.machine.save_every)

    def _validate(self) -> None:
        with self.recorder.paused():
            found = validate(self.replica, self.run, self.data, self.world, self.place)
            self.validation = {"step": self.step, **asdict(found)}
            self.recorder.validated(self.step, found)

    def _save(self) -> None:
        """Save this step; the recorder first finds out whether its loss is a number."""
        with self.recorder.paused():
            self.recorder.sync()
            self.saver.save(
                replace(
                    self.recorder.position,
                    step=self.step,
                    validation=self.validation,
                    exact=self._exact(),
                )
            )

    def _exact(self) -> dict[str, Any]:
        """Return what must be the same for a resumed run to be equal bit for bit."""
        return self._where() | {
            "torch": torch.__version__,
            "threads": self.place.threads,
            "micro_batch_rows": self.micro_rows,
            "compile": self.place.compile,
            "checkpoint_activations": self.machine.checkpoint_activations,
        }

    def _where(self) -> dict[str, Any]:
        return {"device": self.place.name, "processes": self.world.size}

    def _stopped(self, reason: str) -> TrainResult:
        self._save()
        self.saver.wait()
        self.tell(Stopped(self.step, self.reach.steps, reason))
        return TrainResult(self.folder.path, False, self.step, self.reach.steps, {}, reason)

    def _finished(self) -> TrainResult:
        """Validate, save the end, and write the result, which makes the run complete."""
        if self.validation.get("step") != self.step:  # else it was killed after its last save
            self._validate()
            self._save()
            self.saver.wait()
        now = self.recorder.position
        row = run_row(
            self.run, self.reach, val_loss=self.validation["loss"],
            val_bits_per_byte=self.validation["bits_per_byte"],
            val_tokens=self.validation["tokens"], train_loss=now.train_loss,
            epochs=self.batches.epoch(self.step), seconds=now.seconds, device=self.place.name,
            processes=self.world.size, data_digest=self.data.digest,
        )  # fmt: skip
        self.world.first(lambda: self.folder.finish(row))
        result = TrainResult(self.folder.path, True, self.step, self.reach.steps, row)
        self.tell(Finished(result))
        return result


def _claim(folder: RunFolder) -> dict[str, Any] | None:
    folder.claim()
    return folder.result()


def open_run_data(run: RunSpec, world: World) -> TokenData:
    """Open the data; the built-in text is prepared by one process. Refuses what does not fit."""

    def prepare() -> None:
        data = open_data(run.data)
        validation_rows(run, data)
        if data.vocab_size > run.model.vocab_size:
            raise ValueError(
                f"model.vocab_size={run.model.vocab_size} is too small for {run.data.source}, "
                f"whose tokenizer has {data.vocab_size} tokens; use "
                f"{data.padded_vocab()}, which is padded to a multiple of 64"
            )

    world.first(prepare)
    return open_data(run.data)


def _share(run: RunSpec, rows: int, world: World) -> int:
    if rows % world.size:
        raise ValueError(
            f"batch_tokens={run.batch_tokens} is {rows} rows of {run.model.context} tokens, which "
            f"{world.size} processes cannot share equally; use another number of processes"
        )
    return rows // world.size


def with_advice(problem: Diverged, folder: RunFolder) -> str:
    """Return what went wrong, what is left, and what to do."""
    steps = folder.checkpoints.steps()
    good = f"the last good checkpoint is step {steps[-1]}" if steps else "there is no checkpoint"
    return (
        f"{problem}; {good}. Training again leads to the same place: use a lower "
        "optim.matrix_lr or embedding_lr, or a warm-up, in a new folder"
    )


def _silent(_event: Event) -> None:
    return
