"""Several small runs at once: the cells of a budget and a width, stacked in one process.

At widths of 8 to 32 most of a run's time goes into calling operations. The runs of a stack have the
same shapes at every effective layer, whatever their recurrence, so one batched product serves all.
Each has its own folder, spec, horizon and result, the same files as `loop.train` writes, and its
numbers are those of `loop.train` up to rounding. Runs move in step; one that is done drops out.

All unfinished runs save at the same steps. A stack that was killed goes on from the newest step
that all of them have, bit for bit as if it had not been.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from loopworth.data import Batches
from loopworth.plan.stacking import check_stack
from loopworth.spec import RunSpec
from loopworth.train.environment import environment
from loopworth.train.events import Event, Finished, Noted, Stopped, Watch
from loopworth.train.folder import RunFolder, locked
from loopworth.train.loop import open_run_data, with_advice
from loopworth.train.machine import Machine, Place, find_place, numerics, peak_flops
from loopworth.train.parallel import World
from loopworth.train.recorder import Measured
from loopworth.train.result import TrainResult
from loopworth.train.saving import Diverged
from loopworth.train.stack_member import Member
from loopworth.train.stack_model import StackedModel
from loopworth.train.stack_optim import StackedOptimizer
from loopworth.train.stopping import StopRequest, stop_requests
from loopworth.train.trackers import check_trackers

StackWatch = Callable[[Path, Event], None]
_LOG_EVERY = 20  # steps between reports, which take as long as a layer


def train_stack(
    runs: Sequence[RunSpec],
    outs: Sequence[str | Path],
    machine: Machine | None = None,
    watch: StackWatch | None = None,
) -> list[TrainResult]:
    """Train runs of one stack in their folders: start, resume, or return the results there.

    runs, outs   as `loop.train`, one folder a run    watch   is told the folder and what happens

    Works on a CPU, in one process. A run whose loss is no number any more leaves the stack: its
    result is not complete and gives the reason; the other runs go on.

    Raises ValueError where the runs are no stack (`plan.stacking`), where a folder is another run's
    or in use, where the data does not fit, where a checkpoint cannot be written or read.
    """
    machine = machine or Machine(device="cpu")
    check_trackers(machine.trackers)
    check_stack(runs)
    _check_folders(runs, outs)
    with ExitStack() as stack:
        stop = stack.enter_context(stop_requests())
        place = find_place(replace(machine, device="cpu"), "float32", 0)
        place = replace(place, compile=False, log_every=machine.log_every or _LOG_EVERY)
        stack.enter_context(numerics(place))
        folders = [
            RunFolder(Path(out), run, machine.keep) for run, out in zip(runs, outs, strict=True)
        ]
        for folder in folders:
            stack.enter_context(locked(folder.path))
            folder.claim()
        training = _StackTraining(folders, machine, place, watch or _silent)
        stack.callback(training.close)
        found = training.go(stop)
        return [found[folder.path] for folder in folders]


def common_step(folders: Sequence[RunFolder], watch: StackWatch) -> int:
    """Return the newest step that all runs have whole, 0 before the first, and forget newer ones.

    A stack is killed between the checkpoints of two runs, too; the later ones come again.
    """
    while True:
        steps = []
        for folder in folders:
            folder.checkpoints.sweep()
            newest, problems = folder.checkpoints.newest()
            for problem in problems:
                watch(folder.path, Noted(f"{problem}; going on from an earlier checkpoint"))
            steps.append(newest.step if newest is not None else 0)
        common = min(steps)
        if common == max(steps):
            return common
        for folder in folders:
            for step in folder.checkpoints.steps():
                if step > common:
                    shutil.rmtree(folder.checkpoints.place(step))
                    watch(folder.path, Noted(_forgotten(step, common)))


class _Stack:
    """Members whose weights are in banks."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)
        first = members[0].run
        rows = first.batch_tokens // first.model.context
        self.model = StackedModel([member.model for member in members], rows)
        peaks = [member.optimiser.peaks for member in members]
        self.optimiser = StackedOptimizer(self.model, first.optim, peaks)
        for cell, member in zip(self.model.cells, members, strict=True):
            self.optimiser.load(cell, member.optimiser)
        order = self.model.state_order()
        rows_of = [[i for i, p in enumerate(order) if p == k] for k in range(len(members))]
        self._states = torch.tensor([row for rows in rows_of for row in rows])
        self._counts = [len(rows) for rows in rows_of]

    def step(self, rows_BT: Tensor) -> list[Measured]:
        """Make one step of all members with the same rows; return what it left, by member."""
        cells = len(self.members)
        tokens_N, targets_N = rows_BT[:, :-1].flatten(), rows_BT[:, 1:].flatten()
        self.model.zero_grad()
        loss_C, sizes = self.model.forward(tokens_N.expand(cells, -1), targets_N.expand(cells, -1))
        torch.autograd.backward(loss_C.sum())
        norms = self.optimiser.gradient_norms()
        step = self.members[0].step
        self.optimiser.step(step, [member.factor for member in self.members])
        sums = (loss_C.detach() * targets_N.numel()).unbind()
        by_member = torch.stack(list(norms.values()), dim=1)
        states = torch.split(sizes[self._states], self._counts)
        return [
            Measured([sums[k]], self._own(member, norms, by_member[k]), states[k])
            for k, member in enumerate(self.members)
        ]

    @staticmethod
    def _own(member: Member, names: Mapping[str, object], values: Tensor) -> dict[str, Tensor]:
        """Keep the norms of the groups that a run has."""
        pairs = zip(names, values.unbind(), strict=True)
        return {name: value for name, value in pairs if name in member.groups or name == "all"}

    def store(self) -> None:
        """Copy the banks into the plain models and optimisers of the members."""
        for cell, member in zip(self.model.cells, self.members, strict=True):
            self.model.store(cell, member.model)
            self.optimiser.store(cell, member.optimiser, member.step)


class _StackTraining:
    """The runs of a stack at work; `members` are those that are not done."""

    def __init__(
        self, folders: Sequence[RunFolder], machine: Machine, place: Place, watch: StackWatch
    ) -> None:
        self.machine, self.place, self.watch = machine, place, watch
        self.results: dict[Path, TrainResult] = {}
        self.members: list[Member] = []
        self.saved_at = time.monotonic()
        left = [folder for folder in folders if not self._has_result(folder)]
        if left:
            self._join(left)

    def _has_result(self, folder: RunFolder) -> bool:
        row = folder.result()
        if row is not None:
            result = TrainResult(folder.path, True, row["step"], row["step"], row)
            self.results[folder.path] = result
            self.watch(folder.path, Finished(result, already=True))
        return row is not None

    def _join(self, folders: Sequence[RunFolder]) -> None:
        """Make the members at their common step, those beside each other that do the same."""
        first = folders[0].run
        data = open_run_data(first, World())
        rows = first.batch_tokens // first.model.context
        self.batches = Batches(data.train, first.model.context, rows, first.data.seed)
        peak = self.machine.peak_flops or peak_flops(self.place)
        machine = replace(self.machine, peak_flops=peak)
        found = environment(self.place, World(), "stack", rows, data)
        common_step(folders, self.watch)
        for folder in sorted(folders, key=_order):
            tell = _teller(self.watch, folder.path)
            self.members.append(Member(folder, machine, self.place, data, tell))
        names = sorted(member.name for member in self.members if not member.done)
        for member in self.members:
            member.start(found | {"stack": names}, self.batches)

    def go(self, stop: StopRequest) -> dict[Path, TrainResult]:
        """Run until the last member is done, or until asked to stop."""
        self._finish()  # what was killed between its last step and its result
        while self.members:
            stack = _Stack(self.members)
            while self.members == stack.members:
                self._one_step(stack)
                done = any(member.done for member in self.members)
                validating = self._every(self.machine.eval_every)
                saving = done or stop.signal or self._save_due()
                if not (saving or validating or self.members != stack.members):
                    continue
                stack.store()
                self._each(Member.validate if validating else Member.validate_if_done)
                if saving:
                    self._save()
                self._finish()
                if stop.signal:
                    return self._stopped(StopRequest.name(stop.signal))
        return self.results

    def _one_step(self, stack: _Stack) -> None:
        start = time.perf_counter()
        step = self.members[0].step
        measured = stack.step(torch.from_numpy(self.batches.rows(step)))
        epoch = self.batches.epoch(step + 1)
        by_member = dict(zip(stack.members, measured, strict=True))
        self._each(lambda member: member.stepped(by_member[member], epoch))
        share = (time.perf_counter() - start) / len(stack.members)
        for member in self.members:
            member.seconds += share

    def _each(self, work: Callable[[Member], object]) -> None:
        """Do something with every member; one that turns out to have diverged is dropped."""
        for member in list(self.members):
            try:
                work(member)
            except Diverged as problem:
                self._drop(member, with_advice(problem, member.folder))

    def _drop(self, member: Member, reason: str) -> None:
        member.close()
        self.members = [each for each in self.members if each is not member]
        path, steps = member.folder.path, member.reach.steps
        self.results[path] = TrainResult(path, False, member.step, steps, {}, reason)
        self.watch(path, Stopped(member.step, steps, reason))

    def _every(self, steps: int | None) -> bool:
        return bool(steps and self.members and self.members[0].step % steps == 0)

    def _save_due(self) -> bool:
        seconds = self.machine.save_seconds
        late = seconds is not None and time.monotonic() - self.saved_at >= seconds
        return late or self._every(self.machine.save_every)

    def _save(self) -> None:
        """Save all members, so that no run is done at a step that the others cannot go on from."""
        self._each(Member.save)
        self.saved_at = time.monotonic()

    def _finish(self) -> None:
        """Write the results of the members that are done."""
        for member in [member for member in self.members if member.done]:
            result = member.finish(self.batches.epoch(member.step))
            self.results[member.folder.path] = result
        self.members = [member for member in self.members if not member.done]

    def _stopped(self, reason: str) -> dict[Path, TrainResult]:
        for member in list(self.members):
            self._drop(member, reason)
        return self.results

    def close(self) -> None:
        """Close the files of the members."""
        for member in self.members:
            member.close()


def _order(folder: RunFolder) -> tuple[str, float]:
    return folder.run.model.injection, -folder.run.model.recurrence


def _teller(watch: StackWatch, path: Path) -> Watch:
    return lambda event: watch(path, event)


def _silent(_path: Path, _event: Event) -> None:
    return


def _check_folders(runs: Sequence[RunSpec], outs: Sequence[str | Path]) -> None:
    if len(runs) != len(outs):
        raise ValueError(f"{len(runs)} runs and {len(outs)} folders; give one folder a run")
    if len({Path(out).resolve() for out in outs}) < len(outs):
        raise ValueError("two runs of the stack have one folder; give each its own")


def _forgotten(step: int, common: int) -> str:
    return (
        f"the checkpoint of step {step} is dropped: the other runs of the stack are at step "
        f"{common}, and all go on from there"
    )
