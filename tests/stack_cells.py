"""The cells that the tests of stacks are made of."""

from loopworth.plan.designs import looped_model
from loopworth.spec import ModelSpec

LAYERS = {1: (1, 8, 1), 2: (1, 4, 1), 4: (1, 2, 1), 8: (1, 1, 1)}


def cell_spec(kind, *, width=8, context=8, vocab_size=16) -> ModelSpec:
    """Return the model of a recurrence, an injection and a window."""
    recurrence, injection, window = kind
    return looped_model(
        width, recurrence, LAYERS[recurrence], injection=injection, bptt_window=window,
        head_dim=4, vocab_size=vocab_size, context=context,
    )  # fmt: skip
