"""What a fit is worth: goodness, residuals, and which constants the runs leave open."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from loopworth.findings import Finding, join_words
from loopworth.law.gain import FloatArray
from loopworth.law.joint import GAIN, SCALE_PARAMETERS, Problem
from loopworth.law.profiles import sandwich
from loopworth.law.solve import Optimum
from loopworth.quantities import format_count
from loopworth.runs import RunTable

# What a design (loopworth.table.design) leaves open, by the names of the law's constants. `gain`
# stands for the constants of g(r).
_OPEN_BY_DESIGN = {
    "one_recurrence": ("gain",),
    "one_token_count": ("B", "beta", "E"),
    "tokens_proportional_to_parameters": ("A", "alpha", "B", "beta", "E"),
    "fixed_unique_parameters": ("A", "alpha", "gain"),
}
_SAME_LOSS = 1e-9  # relative
_MANY_AGREE = 0.25
_ON_THE_BOX = 1e-6  # of the box: a solver may stop just inside its edge
_PUBLIC = {"a": "A", "b": "B", "e": "E"}


@dataclass(frozen=True)
class Goodness:
    """How well a law meets its runs.

    objective   summed Huber loss of log residuals       r2, rmse   of loss, in nats for rmse
    aicc        n ln(mean squared log residual) + 2k + 2k(k+1)/(n-k-1), None where n < k + 2;
                a Gaussian criterion at the Huber optimum: compare differences, never levels
    """

    objective: float
    r2: float
    rmse: float
    aicc: float | None


@dataclass(frozen=True)
class ResidualRow:
    """Residuals in nats (observed minus predicted) of the runs at one recurrence."""

    recurrence: float
    n_runs: int
    mean: float
    max_abs: float
    rmse: float

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def goodness(problem: Problem, theta: FloatArray) -> Goodness:
    """Return the goodness of theta (p,) on the runs of the problem."""
    log_residual = problem.log_prediction(theta[None])[0] - problem.log_loss
    loss = np.exp(problem.log_loss)
    residual = loss * np.expm1(log_residual)
    count, constants = len(problem), len(theta)
    spread = float(((loss - loss.mean()) ** 2).sum())
    squared = float((residual**2).sum())
    spare = count - constants - 1
    log_variance = math.log(max(float((log_residual**2).mean()), 1e-300))
    return Goodness(
        float(problem.objective(theta[None], np.ones(count))[0]),
        1.0 - squared / spread if spread > 0 else math.nan,
        math.sqrt(squared / count),
        count * log_variance + 2 * constants * count / spare if spare > 0 else None,
    )


def residual_rows(recurrence: FloatArray, residual: FloatArray) -> tuple[ResidualRow, ...]:
    """Return the residual table: one row a recurrence, in rising order.

    >>> residual_rows(np.array([1.0, 1.0, 4.0]), np.array([0.01, -0.03, 0.02]))[0].max_abs
    0.03
    """
    rows = []
    for level in sorted(set(recurrence.tolist())):
        part = residual[recurrence == level]
        rows.append(
            ResidualRow(
                level,
                len(part),
                float(part.mean()),
                float(np.abs(part).max()),
                float(np.sqrt((part**2).mean())),
            )
        )
    return tuple(rows)


def refuse_equal_losses(runs: RunTable) -> None:
    """Raise ValueError where all runs have one loss: every law then fits, and none says anything.

    >>> from loopworth import load_runs
    >>> refuse_equal_losses(load_runs("schwethelm2026"))
    """
    loss = runs.val_loss
    if equal_losses(loss):
        raise ValueError(
            f"all {format_count(len(loss))} runs of {runs.name} have the same loss ({loss[0]:g} "
            "nats), so they say nothing about parameters, tokens or recurrences; check the column "
            "val_loss"
        )


def equal_losses(loss: FloatArray) -> bool:
    """Tell whether all of several losses are one number."""
    return len(loss) > 1 and bool(np.ptp(loss) <= _SAME_LOSS * loss.max())


def anchored(runs: RunTable) -> bool:
    """Tell whether runs at r = 1 fix the unit that a free g(r) is measured in.

    Without them another g at every r and another A describe the runs alike.
    """
    return bool((runs.recurrence == 1.0).any())


def open_constants(
    problem: Problem, theta: FloatArray, runs: RunTable, design: tuple[Finding, ...]
) -> tuple[str, ...]:
    """Return the names of the constants that these runs do not identify.

    A constant is open where the design says so, or where the Jacobian of the law at the optimum has
    a direction without length that it takes part in. Without runs at r = 1 a free g(r) is open, and
    A with it.
    """
    spread = sandwich(problem, theta, runs.cells, np.ones(len(problem)))
    names = [_PUBLIC.get(name, name) for name in problem.names]
    hidden = {name for name, se in zip(names, spread.standard_error, strict=True) if np.isinf(se)}
    for finding in design:
        hidden.update(_OPEN_BY_DESIGN.get(finding.code, ()))
    if problem.gain.key == "free" and not anchored(runs):
        hidden.update(("A", "gain"))
    if "gain" in hidden:
        hidden.update(problem.gain.parameters)
    return tuple(name for name in names if name in hidden)


def fit_findings(
    problem: Problem, optimum: Optimum, open_: tuple[str, ...], runs: RunTable
) -> Iterator[Finding]:
    """Yield what the point fit alone has to say: doubts about the optimum, constants left open."""
    theta = optimum.theta
    if optimum.seeds_agreeing < _MANY_AGREE * optimum.seeds:
        yield Finding(
            "seeds_disagree",
            "warning",
            f"Only {optimum.seeds_agreeing} of {optimum.seeds} independent starts reached the best "
            "optimum found, so it may not be the global one.",
            remedy="Expect several laws to describe these runs; compare with --law none.",
        )
    if problem.gain.key == "free" and not anchored(runs):
        yield Finding(
            "not_identified",
            "warning",
            f"No run has recurrence 1, so these runs do not identify {join_words(open_)}: other "
            "values of all of them together predict the same losses, and no number is reported. "
            "The losses that the law predicts at these recurrences stand.",
            remedy="Add runs at r = 1, or fit --law power, whose form ties g to r = 1.",
        )
    elif open_:
        yield Finding(
            "not_identified",
            "warning",
            f"These runs do not identify {join_words(open_)}: other values predict the same "
            "losses, so no number is reported for them.",
            remedy="Vary parameters, tokens and recurrence independently of each other.",
        )
    on_box = [
        f"{name} = {value:g}"
        for name, value, low, high in zip(
            problem.names, theta, problem.lower, problem.upper, strict=True
        )
        if min(value - low, high - value) <= _ON_THE_BOX * (high - low)
        and _PUBLIC.get(name, name) not in open_
    ]
    if on_box:
        yield Finding(
            "on_the_box",
            "warning",
            f"The optimum lies on the edge of the search box ({join_words(on_box)}), so the runs "
            "would like a value outside it.",
            remedy="Treat the law as descriptive; more budgets or widths would bound the constant.",
        )


def scale_parameters(theta: FloatArray) -> dict[str, float]:
    """Return A, alpha, B, beta and E of theta = (a, alpha, b, beta, e, ...)."""
    values = dict(zip(SCALE_PARAMETERS, (float(x) for x in theta[:GAIN]), strict=True))
    return {
        _PUBLIC.get(name, name): math.exp(value) if name in _PUBLIC else value
        for name, value in values.items()
    }
