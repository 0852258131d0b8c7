"""A sweep of minutes on a CPU: the method at work, on models of 2 to 100 thousand parameters.

Layers 1 + 8 + 1 at every recurrence, 64 characters of context, 256 tokens a step, on the built-in
text in a seeded order, of which no run reads all. Budgets of 1e11 FLOPs are eight orders below the
paper's: phi comes out of it, with an interval, but it is not the paper's phi, and E, A, B, alpha
and beta are not identified.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from loopworth.plan import Plan, PlannedRun, iso_depth
from loopworth.spec import DataSpec, OptimSpec
from loopworth.spec.checks import hint

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
    return Plan(name, _sweep(GRIDS[name], "baseline", data), purpose)


def _two_lanes(run: PlannedRun) -> PlannedRun:
    model = replace(run.run.model, injection="hyperconnections", n_lanes=2)
    return replace(run, run=run.run.replace(model=model))


def _half_window(run: PlannedRun) -> PlannedRun:
    window = -(-int(run.run.model.recurrence) // 2)
    return replace(run, run=run.run.replace(model=replace(run.run.model, bptt_window=window)))


PROBES: Mapping[str, Callable[[PlannedRun], PlannedRun]] = {
    "hyperconnections": _two_lanes,
    "truncated_bptt": _half_window,
}


def probe(method: str, data: DataSpec, *, grid: str = "laptop") -> Plan:
    """Return the sweep of another method on a grid: its looped runs, and the baseline's at r = 1.

    hyperconnections: two lanes. truncated_bptt: a window of ceil(r / 2). Raises ValueError for
    another name.

    >>> from loopworth.spec import DataSpec
    >>> runs = [*laptop(DataSpec()).runs, *probe("truncated_bptt", DataSpec()).runs]
    >>> len(runs), len({each.run.content_hash() for each in runs})
    (96, 84)
    """
    if method not in PROBES:
        raise ValueError(f"{method!r} is no probe of {grid}; {hint(method, list(PROBES))}")
    runs = [
        run if run.role == "plain" else PROBES[method](run)
        for run in _sweep(GRIDS[grid], method, data)
    ]
    return Plan(f"{grid}-{method}", runs, f"Measure what {method} does to phi, against {grid}.")


def _sweep(grid: Mapping[float, Sequence[int]], study: str, data: DataSpec) -> list[PlannedRun]:
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
                {budget: [width]}, depth=DEPTH, ends=ENDS, recurrences=RECURRENCES, study=study,
                model=model, run=run,
            )  # fmt: skip
    return cells


def _vocabulary(data: DataSpec) -> int:
    """Return the columns of the head: few, for at width 8 they are much of a model's FLOPs."""
    if data.source == "docstrings" and data.tokenizer in VOCABULARIES:
        return VOCABULARIES[data.tokenizer]
    from loopworth.data import open_data  # numpy and shards, which a plan of text needs not

    return open_data(data).padded_vocab(8)
