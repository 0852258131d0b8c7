"""How many recurrences run at a step, and how many of the last carry gradient.

A draw depends on the seed and the step alone: every rank, and a run that was resumed, draws the
same numbers without any state to keep.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from loopworth.ledger import ledger
from loopworth.spec import ModelSpec, UnrollSpec

# A random stream each, so that one draw never moves the other.
_RECURRENCE, _WINDOW = 0, 1


@dataclass(frozen=True, slots=True)
class Unroll:
    """One way to run the loop: `recurrence` passes, of which the last `window` carry gradient.

    A window larger than the recurrence is the full gradient. Raises ValueError below 1.

    >>> Unroll(8, 3).forward_only, Unroll(2, 3).with_gradient
    (5, 2)
    """

    recurrence: int
    window: int

    def __post_init__(self) -> None:
        """Refuse a loop that does not run, or that nothing is learnt from."""
        for name in ("recurrence", "window"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}={value!r} of the unrolling must be a whole number >= 1")

    @property
    def forward_only(self) -> int:
        """Recurrences at the start that run without gradient."""
        return max(0, self.recurrence - self.window)

    @property
    def with_gradient(self) -> int:
        """Recurrences at the end that carry gradient."""
        return min(self.recurrence, self.window)


def trained(model: ModelSpec) -> Unroll:
    """Return the unrolling that the model's own spec describes, a mean rounded up.

    >>> trained(ModelSpec(640, recurrence=4, bptt_window=2))
    Unroll(recurrence=4, window=2)
    """
    recurrence = math.ceil(model.recurrence)
    return Unroll(recurrence, _full_or(model, recurrence))


def draw(run_model: ModelSpec, unroll: UnrollSpec, *, seed: int, step: int, steps: int) -> Unroll:
    """Return the unrolling of step `step` (from 0) of `steps`; the same wherever it is asked for.

    recurrence  fixed; uniform on 1..2 mean - 1; poisson: 1 + Poisson(mean - 1); lognormal_poisson:
                1 + Poisson(exp(N(log(mean - 1) - spread^2 / 2, spread))); grow: a line from start
                to the mean over `ramp` of the steps. None exceeds `maximum` (four times the mean)
                nor, where there are parameters per recurrence, model.recurrence: such a model
                runs fewer recurrences on average than the spec says
    window      last: model.bptt_window; random: uniform on 1..2 k - 1; curriculum: a line from
                window_start to k. None exceeds the recurrence that was drawn

    A window as large as model.recurrence is the full gradient for every draw. Raises ValueError.
    Source: arXiv 2502.05171, section 3.3 (lognormal Poisson), shifted to have the stated mean.

    >>> grow = UnrollSpec("grow", start=1, ramp=0.5)
    >>> [draw(ModelSpec(640), grow, seed=1, step=t, steps=10).recurrence for t in range(6)]
    [1, 1, 2, 2, 3, 4]
    """
    if not 0 <= step < steps:
        raise ValueError(f"step={step} is outside 0..{steps - 1}, the steps of the run")
    recurrence = min(_recurrence(run_model, unroll, seed, step, steps), _cap(run_model, unroll))
    if unroll.window == "last":
        window = _full_or(run_model, recurrence)
    else:
        window = _window(run_model, unroll, seed, step, steps)
    return Unroll(recurrence, min(window, recurrence))


def flops_per_token(model: ModelSpec, unroll: Unroll) -> float:
    """Return the training FLOPs of a token where the model is unrolled so.

    Raises ValueError for an unrolling that the model does not allow.

    >>> flops_per_token(ModelSpec(640), Unroll(4, 4))
    1047336960
    """
    changed = replace(model, recurrence=unroll.recurrence, bptt_window=unroll.with_gradient)
    return ledger(changed).train_flops_per_token


def mean_flops_per_token(model: ModelSpec, unroll_spec: UnrollSpec, seed: int, steps: int) -> float:
    """Return the training FLOPs of a token, the mean over the steps that will really be drawn.

    >>> mean_flops_per_token(ModelSpec(640), UnrollSpec(), seed=1, steps=10)
    1047336960.0
    """
    if steps < 1:
        raise ValueError(f"steps={steps} is not a run; use 1 or more")
    if unroll_spec.recurrence == "fixed" and unroll_spec.window == "last":
        return float(flops_per_token(model, trained(model)))
    drawn = Counter(
        draw(model, unroll_spec, seed=seed, step=step, steps=steps) for step in range(steps)
    )
    return sum(flops_per_token(model, one) * times for one, times in drawn.items()) / steps


def _recurrence(model: ModelSpec, unroll: UnrollSpec, seed: int, step: int, steps: int) -> int:
    mean, kind = model.recurrence, unroll.recurrence
    if kind in ("fixed", "grow"):
        if not isinstance(mean, int):
            raise ValueError(
                f"model.recurrence={mean} is not whole and unroll.recurrence={kind!r}; "
                "use a whole number, or sample it, such as 'poisson'"
            )
        return mean if kind == "fixed" else _line(unroll.start, mean, unroll.ramp, step, steps)
    random = _generator(seed, step, _RECURRENCE)
    if kind == "uniform":
        return _uniform(random, mean)
    if mean == 1:
        return 1
    rate = mean - 1.0
    if kind == "lognormal_poisson":
        rate = math.exp(random.normal(math.log(rate) - unroll.spread**2 / 2, unroll.spread))
    return 1 + int(random.poisson(rate))


def _window(model: ModelSpec, unroll: UnrollSpec, seed: int, step: int, steps: int) -> int:
    if model.bptt_window is None:
        raise ValueError(
            f"unroll.window={unroll.window!r} needs model.bptt_window, its mean or its end; "
            "give it, or use unroll.window='last'"
        )
    if unroll.window == "random":
        return _uniform(_generator(seed, step, _WINDOW), model.bptt_window)
    start = min(unroll.window_start, model.bptt_window)
    return _line(start, model.bptt_window, unroll.ramp, step, steps)


def _uniform(random: np.random.Generator, mean: float) -> int:
    """Draw from 1..2 mean - 1; between whole ends, draw which of the two it is."""
    whole, share = divmod(2 * mean - 1, 1)
    last = int(whole) + int(share > 0 and random.random() < share)
    return int(random.integers(1, last, endpoint=True))


def _line(start: int, end: int, ramp: float, step: int, steps: int) -> int:
    """Return the whole number on the line from start, at step 0, to end, after the ramp."""
    length = ramp * steps
    return end if step >= length else start + math.floor((end - start) * step / length)


def _full_or(model: ModelSpec, recurrence: int) -> int:
    """Return the spec's window; one as large as its recurrence is full, as `canonical` has it."""
    window = model.bptt_window
    return recurrence if window is None or window == model.recurrence else min(window, recurrence)


def _cap(model: ModelSpec, unroll: UnrollSpec) -> int:
    """Return the most recurrences that a draw may have."""
    if not model.has_parameters_per_recurrence:
        return math.floor(4 * model.recurrence) if unroll.maximum is None else unroll.maximum
    if unroll.maximum is not None and unroll.maximum > model.recurrence:
        raise ValueError(
            f"unroll.maximum={unroll.maximum} is above model.recurrence={model.recurrence}, the "
            "recurrences that have parameters of their own; use that, or None"
        )
    return int(model.recurrence) if unroll.maximum is None else unroll.maximum


def _generator(seed: int, step: int, stream: int) -> np.random.Generator:
    """Return the generator of one step: a counter-based one needs no other steps before it."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, step, stream]))
