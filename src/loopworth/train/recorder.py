"""What a run records: losses read from the device in bursts, metrics.jsonl, trackers, events.

A loss that is read makes the program wait for the device, so the losses of several steps are read
together; every step gets its line all the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from loopworth.ledger import Horizon
from loopworth.spec import RunSpec
from loopworth.train.events import Noted, Stepped, Validated, Watch
from loopworth.train.folder import RunFolder
from loopworth.train.health import ALL, HealthWatch
from loopworth.train.machine import Machine, Place, peak_flops
from loopworth.train.metrics import MetricsFile
from loopworth.train.parallel import World
from loopworth.train.saving import Diverged, Position
from loopworth.train.trackers import TRACKERS, Tracked, Tracker
from loopworth.train.validate import Validation
from loopworth.unroll import Unroll, flops_per_token

_FORECAST_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What a step left on the device: nothing has been waited for.

    losses      summed over the targets of this process, one a micro-batch
    gradients   norm of each group, and of all        states   (R, 2), of the first micro-batch
    """

    losses: list[torch.Tensor]
    gradients: Mapping[str, torch.Tensor]
    states: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Pending:
    step: int
    measured: Measured
    values: Mapping[str, Any]


class Recorder:
    """Records the steps of a run from `position` on.

    `position` is then how far the recorded steps are; the loop adds what else belongs to it.
    `clock` gives seconds: of this run alone, where a process trains several.
    """

    def __init__(
        self, run: RunSpec, reach: Horizon, folder: RunFolder, machine: Machine, place: Place,
        world: World, tell: Watch, position: Position,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self.run, self.reach, self.world, self.tell = run, reach, world, tell
        self.flops, self.seconds = position.flops, position.seconds
        self.train_loss = position.train_loss
        self.health = HealthWatch()
        if position.health:
            self.health.load_state_dict(position.health)
        self.every = place.log_every
        peak = machine.peak_flops or peak_flops(place)
        self._peak = None if peak is None else peak * world.size
        self._pending: list[_Pending] = []
        self._flops_told, self._rate, self._reports = position.flops, 0.0, 0
        self._file: MetricsFile | None = None
        self._trackers: list[Tracker] = []
        if world.is_first:
            name, config = folder.path.name, run.to_json()
            tracked = Tracked(folder.path, run.content_hash(), name, config, position.step)
            self._trackers = [TRACKERS[name](tracked) for name in machine.trackers]
            self._file = MetricsFile(folder.metrics, position.step)
        self._now, self._clock = clock, clock()

    def add(self, step: int, measured: Measured, unroll: Unroll, **values: float) -> None:
        """Take a step that is done, the `step`th."""
        self.flops += flops_per_token(self.run.model, unroll) * self.run.batch_tokens
        known = {
            "tokens": step * self.run.batch_tokens,
            "flops": self.flops,
            "recurrence": unroll.recurrence,
            "window": unroll.with_gradient,
        }
        self._pending.append(_Pending(step, measured, known | values))
        if len(self._pending) >= self.every:
            self.flush()

    def flush(self) -> None:
        """Read what the steps since the last flush left, write their lines and report.

        Raises Diverged at the first loss that is not finite.
        """
        if not self._pending:
            return
        done, self._pending = self._pending, []
        parts = torch.stack([loss for each in done for loss in each.measured.losses]).tolist()
        size = len(parts) // len(done)  # micro-batches of a step
        mine = [math.fsum(parts[i : i + size]) for i in range(0, len(parts), size)]
        losses = [total / self.run.batch_tokens for total in self.world.sum(mine)]
        speed = self._speed(len(done))
        for each, loss in zip(done, losses, strict=True):
            if not math.isfinite(loss):
                raise Diverged(f"the training loss of step {each.step} is {loss}")
            record = {"loss": loss, **each.values, **self._norms(each), **speed}
            if self._file is not None:
                self._file.write("step", each.step, record)
            self._track(each.step, "train", record)
        if self._file is not None:
            self._file.flush()
        self.train_loss = loss
        left = self.reach.flops - self.flops
        self.tell(
            Stepped(
                step=done[-1].step,
                steps=self.reach.steps,
                loss=loss,
                tokens_per_second=speed["tokens_per_second"],
                flops_per_second=speed["flops_per_second"],
                utilisation=speed.get("utilisation"),
                seconds=self.seconds,
                eta_seconds=max(0.0, left / self._rate) if self._rate else None,
                metrics=record,
            )
        )

    def _norms(self, done: _Pending) -> dict[str, Any]:
        """Read the norms of a step, and tell when one begins to be alarming."""
        found = done.measured.gradients
        values = torch.stack([*found.values()]).tolist()
        gradients = dict(zip(found, values, strict=True))
        states = done.measured.states.tolist()
        for alarm in self.health.check(done.step, gradients, states):
            self.tell(Noted(f"{alarm.message} {alarm.remedy}"))
        record = {f"grad_norm_{name}": norm for name, norm in gradients.items() if name != ALL}
        return {
            "grad_norm": gradients[ALL],
            **record,
            "state_norms": [mean for mean, _ in states],
            "state_max": max(largest for _, largest in states),
        }

    def _speed(self, steps: int) -> dict[str, float]:
        """Return the rates since the last flush; the first ones hold the warm-up."""
        took = max(self._now() - self._clock, 1e-9)
        self._clock += took
        self.seconds += took
        flops = self.flops - self._flops_told
        self._flops_told = self.flops
        rate = flops / took
        # The forecast looks back some seconds, and drops the first report, which has the warm-up.
        self._reports += 1
        weight = max(1 - math.exp(-took / _FORECAST_SECONDS), 1 / max(1, self._reports - 1))
        self._rate += weight * (rate - self._rate)
        speed = {
            "seconds": self.seconds,
            "tokens_per_second": steps * self.run.batch_tokens / took,
            "flops_per_second": rate,
        }
        return speed if self._peak is None else speed | {"utilisation": rate / self._peak}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Flush, then leave out of the clock what is done inside."""
        self.flush()
        start = self._now()
        yield
        self._clock += self._now() - start

    @property
    def position(self) -> Position:
        """What the flushed steps came to."""
        return Position(
            flops=self.flops, seconds=self.seconds, train_loss=self.train_loss,
            health=self.health.state_dict(),
        )  # fmt: skip

    def validated(self, step: int, found: Validation) -> None:
        """Take a validation; raises Diverged where it is no number."""
        if not math.isfinite(found.loss):
            raise Diverged(f"the validation loss after step {step} is {found.loss}")
        record = {"val_loss": found.loss, "val_bits_per_byte": found.bits_per_byte}
        if self._file is not None:
            self._file.write("validation", step, record)
            self._file.flush()
        self._track(step, "validation", record)
        self.tell(Validated(step, self.reach.steps, found.loss, found.bits_per_byte))

    def _track(self, step: int, room: str, values: Mapping[str, Any]) -> None:
        """Hand numbers to the trackers, a list as one number for each of its places."""
        if not self._trackers:
            return
        flat = dict(values)
        for name, value in values.items():
            if isinstance(value, list):
                flat |= {f"{name}/{place}": item for place, item in enumerate(value, start=1)}
        numbers = {f"{room}/{k}": float(v) for k, v in flat.items() if isinstance(v, int | float)}
        for tracker in self._trackers:
            tracker.log(step, numbers)

    def sync(self) -> None:
        """Bring the lines to the disk: a checkpoint must not be ahead of them."""
        if self._file is not None:
            self._file.flush(sync=True)

    def close(self) -> None:
        """Write what is left and close."""
        for tracker in self._trackers:
            tracker.close()
        if self._file is not None:
            self._file.close()
