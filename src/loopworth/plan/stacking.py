"""Which runs can be trained as one stack: same width, depth and data, whatever their recurrence.

No tensors here, so that a sweep can form its stacks without them.
"""

from collections.abc import Sequence
from typing import Any

from loopworth.spec import ModelSpec, RunSpec

INJECTIONS = ("none", "linear", "hyperconnections")
LARGEST_WIDTH = 128  # above it a matrix product alone fills a core, and a stack only costs memory


def why_alone(run: RunSpec) -> str | None:
    """Return why a run cannot be part of a stack; None where it can.

    >>> why_alone(RunSpec(ModelSpec(16, head_dim=8, context=64), batch_tokens=512, steps=1))
    >>> why_alone(RunSpec(ModelSpec(640), steps=1))
    'd_model=640 is above 128'
    """
    model = run.model
    for name, value, allowed in _demands(run):
        if value not in allowed:
            return f"{name}={value!r} is not {' or '.join(repr(each) for each in allowed)}"
    if model.d_model > LARGEST_WIDTH:
        return f"d_model={model.d_model} is above {LARGEST_WIDTH}"
    if model.kv_heads != model.n_heads:
        return f"n_kv_heads={model.n_kv_heads} is not the number of heads, {model.n_heads}"
    if model.head_dim % 2:
        return f"head_dim={model.head_dim} is odd"
    return None


def _demands(run: RunSpec) -> list[tuple[str, Any, tuple[Any, ...]]]:
    model = run.model
    return [
        ("model.injection", model.injection, INJECTIONS),
        ("model.mlp_kind", model.mlp_kind, ("squared_relu",)),
        ("model.conditioning", tuple(model.conditioning), ((),)),
        ("model.tied_embeddings", model.tied_embeddings, (False,)),
        ("unroll.recurrence", run.unroll.recurrence, ("fixed",)),
        ("unroll.window", run.unroll.window, ("last",)),
        ("precision", run.precision, ("auto", "float32")),
    ]


def stack_key(run: RunSpec) -> tuple[Any, ...] | None:
    """Return what runs of one stack have in common; None for a run that must go alone.

    Recurrence, loop layers, injection, window, rates, horizon and seed are each run's own.

    >>> def run(r, layers):
    ...     model = ModelSpec(16, n_prelude=1, n_recur=layers, n_coda=1, recurrence=r, head_dim=8,
    ...                       context=64)
    ...     return RunSpec(model, batch_tokens=512, steps=9)
    >>> stack_key(run(2, 4)) == stack_key(run(8, 1)), stack_key(run(2, 4)) == stack_key(run(2, 2))
    (True, False)
    """
    if why_alone(run) is not None:
        return None
    optim = run.optim
    moments = (optim.momentum, optim.beta1, optim.beta2, optim.eps)
    return (*_shape(run.model), run.batch_tokens, run.data, run.validation_tokens, *moments)


def _shape(model: ModelSpec) -> tuple[Any, ...]:
    ends = (model.n_prelude, model.n_recur * int(model.recurrence), model.n_coda)
    return (model.d_model, *ends, model.head_dim, model.mlp_width, model.vocab_size, model.context)


def stacks(runs: Sequence[RunSpec], *, most: int = 8) -> list[list[int]]:
    """Return the places of the runs, stack by stack; a run that must go alone is a stack of one.

    Runs of one stack have one budget, and there are at most `most` of them. The order is that of
    each stack's first run.

    >>> a = RunSpec(ModelSpec(16, head_dim=8, context=64), batch_tokens=512, steps=9)
    >>> stacks([a, a.replace(seed=1), a.replace(steps=10), a.replace(seed=2)], most=2)
    [[0, 1], [2], [3]]
    """
    formed: list[list[int]] = []
    open_stacks: dict[tuple[Any, ...], list[int]] = {}
    for place, run in enumerate(runs):
        key = stack_key(run)
        if key is None:
            formed.append([place])
            continue
        full = (*key, run.budget_flops, run.tokens, run.steps)
        stack = open_stacks.get(full)
        if stack is None or len(stack) >= most:
            stack = open_stacks[full] = []
            formed.append(stack)
        stack.append(place)
    return formed


def check_stack(runs: Sequence[RunSpec]) -> None:
    """Refuse runs that are no stack; raises ValueError that names the run and the reason."""
    if not runs:
        raise ValueError("a stack has no runs; give at least one")
    for run in runs:
        reason = why_alone(run)
        if reason is not None:
            raise ValueError(
                f"the run {run.content_hash()[:8]} cannot be part of a stack: {reason}; train it "
                "alone"
            )
    first = stack_key(runs[0])
    for run in runs:
        if stack_key(run) != first:
            raise ValueError(
                f"the runs {runs[0].content_hash()[:8]} and {run.content_hash()[:8]} differ in "
                "width, depth, ends, data, batch or moments, so they are no stack; form stacks "
                "with loopworth.plan.stacking.stacks"
            )
