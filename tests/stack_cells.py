"""The cells that the tests of stacks are made of."""

from pathlib import Path

from loopworth.plan.designs import looped_model
from loopworth.spec import ModelSpec, OptimSpec, RunSpec
from train_runs import CONTEXT, small_run

LAYERS = {1: (1, 8, 1), 2: (1, 4, 1), 4: (1, 2, 1), 8: (1, 1, 1)}


def cell_spec(kind, *, width=8, context=8, vocab_size=16) -> ModelSpec:
    """Return the model of a recurrence, an injection and a window."""
    recurrence, injection, window = kind
    return looped_model(
        width, recurrence, LAYERS[recurrence], injection=injection, bptt_window=window,
        head_dim=4, vocab_size=vocab_size, context=context,
    )  # fmt: skip


def stack_runs(data: Path, steps=(7, 6, 6, 5), **model) -> list[RunSpec]:
    """Return r = 1, 2, 4, 8 with horizons of their own and gentle rates.

    High rates would amplify rounding: the comparison is of the arithmetic, not of chaos.
    """
    optim = OptimSpec(
        batch_exponent=0, token_exponent=0, matrix_lr=0.01, embedding_lr=0.002, head_lr=0.001,
        norm_lr=0.001,
    )  # fmt: skip
    kinds = [
        (1, "none", None),
        (2, "linear", None),
        (4, "linear", 2),
        (8, "hyperconnections", None),
    ]
    return [
        small_run(
            data, steps=n, optim=optim,
            model=cell_spec(kind, context=CONTEXT, vocab_size=320).to_json() | model,
        )
        for n, kind in zip(steps, kinds, strict=True)
    ]  # fmt: skip
