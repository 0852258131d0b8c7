"""A sweep of minutes on a CPU: the method at work, on models of 2 to 100 thousand parameters.

Layers 1 + 8 + 1 at every recurrence, 64 characters of context, 256 tokens a step, on the built-in
text in a seeded order, of which no run reads all. Budgets of 1e11 FLOPs are eight orders below the
paper's: phi comes out of it, with an interval, but it is not the paper's phi, and E, A, B, alpha
and beta are not identified.
"""

from collections.abc import Mapping, Sequence

from loopworth.plan import Plan, PlannedRun, iso_depth
from loopworth.spec import DataSpec, OptimSpec

DEPTH, ENDS, RECURRENCES = 10, (1, 1), (1, 2, 4, 8)
CONTEXT, BATCH_TOKENS, VALIDATION_TOKENS = 64, 256, 2**16

PREVIEW = {0.75e11: (8, 12, 16), 1.5e11: (8, 12, 16), 3e11: (12, 16, 24)}
GRID = {0.75e11: (8, 12, 16, 24), 1.5e11: (8, 12, 16, 24), 3e11: (12, 16, 24, 32)}
THOROUGH = GRID | {6e11: (12, 16, 24, 32)}
GRIDS: Mapping[str, Mapping[float, Sequence[int]]] = {
    "laptop-preview": PREVIEW,
    "laptop": GRID,
    "laptop-thorough": THOROUGH,
}

# At 512 tokens a step seeds scatter twice as far (0.026 against 0.012 nats at 7.5e10 FLOPs, width
# 12), and a sweep takes two thirds of the time.
# The rate of the matrices is 0.02 (D / 1e6)^-0.32, for every batch; the others are the paper's at
# this width. Halving or doubling any of them gains nothing beyond the noise of seeds.
OPTIM = OptimSpec(matrix_lr=0.02, reference_tokens=1e6, batch_exponent=0.0)

CHARACTERS = DataSpec(tokenizer="chars")
# Columns of the head: 97 characters of ASCII prose and room for 7 more; 256 bytes and one.
VOCABULARIES = {"chars": 104, "bytes": 264}


def laptop(data: DataSpec) -> Plan:
    """Return 48 runs: 3 budgets, 4 widths each, r = 1, 2, 4, 8.

    >>> from loopworth.spec import DataSpec
    >>> len(laptop(DataSpec()).runs)
    48
    """
    return baseline("laptop", data)


def preview(data: DataSpec) -> Plan:
    """Return 36 runs, in half the time: too few for an interval to trust."""
    return baseline("laptop-preview", data)


def thorough(data: DataSpec) -> Plan:
    """Return 64 runs, those of `laptop` and a fourth budget, 6e11 FLOPs."""
    return baseline("laptop-thorough", data)


def baseline(name: str, data: DataSpec) -> Plan:
    """Return one of the sweeps of `GRIDS`: linear injection, full backpropagation."""
    purpose = "Show the method at work in minutes; its phi is that of tiny models."
    return Plan(name, _sweep(GRIDS[name], data), purpose)


def _sweep(grid: Mapping[float, Sequence[int]], data: DataSpec) -> list[PlannedRun]:
    """Return the cells of a grid, those of a budget and a width beside each other."""
    data = CHARACTERS if data == DataSpec() else data
    run = {
        "data": data,
        "optim": OPTIM,
        "batch_tokens": BATCH_TOKENS,
        "validation_tokens": VALIDATION_TOKENS,
    }
    cells: list[PlannedRun] = []
    for budget, widths in grid.items():
        for width in widths:
            model = {
                "head_dim": width,  # one head: wider heads gave lower losses, and cost less
                "context": CONTEXT,
                "vocab_size": _vocabulary(data),
            }
            cells += iso_depth(
                {budget: [width]}, depth=DEPTH, ends=ENDS, recurrences=RECURRENCES,
                study="baseline", model=model, run=run,
            )  # fmt: skip
    return cells


def _vocabulary(data: DataSpec) -> int:
    """Return the columns of the head: few, for at width 8 they are much of a model's FLOPs."""
    if data.source == "docstrings" and data.tokenizer in VOCABULARIES:
        return VOCABULARIES[data.tokenizer]
    from loopworth.data import open_data  # numpy and shards, which a plan of text needs not

    return open_data(data).padded_vocab(8)
