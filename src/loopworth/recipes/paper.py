"""The sweeps of arXiv 2604.21106: main grid, probes, ablations, extrapolation.

Budgets and widths are those of the paper's public code; a width scale s is d_model = 64 s. All runs
train 2^18 tokens a step at context 2048 with a vocabulary padded to 32064.
"""

from dataclasses import replace

from loopworth.ledger import Convention, ledger
from loopworth.plan import Plan, PlannedRun, iso_depth
from loopworth.plan.designs import looped_model
from loopworth.spec import DataSpec, OptimSpec, RunSpec

PLAIN = (0, 20, 0)
LAYERS = {1: PLAIN, 2: (2, 8, 2), 4: (2, 4, 2), 8: (2, 2, 2)}
MAIN = {
    4.64e17: (6, 8, 10, 12),
    1e18: (6, 8, 10, 12, 14),
    2.15e18: (8, 10, 12, 14, 16),
    4.64e18: (10, 12, 14, 16, 18, 20),
    1e19: (12, 16, 18, 20, 24),
    2.15e19: (18, 24, 28, 34),
}
TRUNCATED = {
    4.64e17: (6, 8, 10, 12),
    1e18: (6, 8, 10, 12, 14, 16),
    2.15e18: (8, 10, 12, 14, 16, 18),
    4.64e18: (10, 12, 14, 16, 18, 20, 22),
    1e19: (12, 16, 18, 20, 24, 28),
    2.15e19: (18, 24, 28, 34, 40),
}
HYPERCONNECTIONS = MAIN | {2.15e18: (8, 10, 12, 14, 16, 18)}
RATES = (0.008, 0.010, 0.012, 0.014, 0.016, 0.018, 0.020, 0.024)


def paper(data: DataSpec) -> Plan:
    """Return the main grid: 29 (budget, width) pairs at r = 1, 2, 4, 8, 116 runs."""
    return Plan("paper", _main(data), "Fit phi for linear injection with full backpropagation.")


def truncated(data: DataSpec) -> Plan:
    """Return 102 runs with a window of ceil(r / 2), and the main grid's 29 runs at r = 1."""
    cells = [
        replace(
            cell,
            run=cell.run.replace(
                model=replace(cell.run.model, bptt_window=-(-int(cell.run.model.recurrence) // 2))
            ),
        )
        for cell in _sweep(TRUNCATED, "truncated_bptt", data)
        if cell.role == "cell"
    ]
    purpose = "Measure what truncated backpropagation does to phi, against `paper`."
    return Plan("paper-truncated", [*_plain(data, "truncated_bptt"), *cells], purpose)


def hyperconnections(data: DataSpec) -> Plan:
    """Return 90 runs with two lanes, and the main grid's 29 runs at r = 1."""
    sweep = _sweep(
        HYPERCONNECTIONS, "hyperconnections", data, injection="hyperconnections", n_lanes=2
    )
    cells = [cell for cell in sweep if cell.role == "cell"]
    purpose = "Measure what hyperconnections do to phi, against `paper`."
    return Plan("paper-hyperconnections", [*_plain(data, "hyperconnections"), *cells], purpose)


def ablations(data: DataSpec) -> Plan:
    """Return the learning-rate sweeps (s, tokens per parameter) and the injections at 1e18, s = 10.

    Rates are peak rates of the matrices; tokens are a ratio times the effective parameters.
    """
    runs = []
    for scale, ratio in ((10, 10), (10, 20), (8, 10), (14, 10)):
        for recurrence in (1, 4):
            model = looped_model(64 * scale, recurrence, LAYERS[recurrence])
            tokens = ratio * ledger(model).n_eff(recurrence, Convention())
            for rate in RATES:
                run = RunSpec(model, data, OptimSpec(matrix_lr=rate), steps=int(tokens // 2**18))
                runs.append(PlannedRun(run, f"rate-s{scale}-x{ratio}"))
    for injection in ("linear", "passthrough", "additive"):
        model = looped_model(640, 4, LAYERS[4], injection=injection)
        runs.append(PlannedRun(RunSpec(model, data, budget_flops=1e18), f"injection-{injection}"))
    return Plan("paper-ablations", runs, "Check the borrowed learning rate and the injection.")


def extrapolation(data: DataSpec) -> Plan:
    """Return the pair outside the grid: s = 34, r = 1 and 4, 89,645 steps of 2^19 tokens (47 B)."""
    runs = [
        PlannedRun(
            RunSpec(looped_model(64 * 34, r, LAYERS[r]), data, batch_tokens=2**19, steps=89_645),
            "extrapolation",
            "plain" if r == 1 else "cell",
        )
        for r in (1, 4)
    ]
    return Plan("paper-extrapolation", runs, "Hold the law against a pair outside its grid.")


def _sweep(
    scales: dict[float, tuple[int, ...]], study: str, data: DataSpec, **model: object
) -> list[PlannedRun]:
    grid = {budget: [64 * s for s in widths] for budget, widths in scales.items()}
    return iso_depth(grid, plain=PLAIN, study=study, model=model, run={"data": data})


def _main(data: DataSpec) -> list[PlannedRun]:
    return _sweep(MAIN, "baseline", data)


def _plain(data: DataSpec, study: str) -> list[PlannedRun]:
    """Return the main grid's runs at r = 1, which a study of a method shares with it."""
    return [replace(cell, study=study) for cell in _main(data) if cell.role == "plain"]
