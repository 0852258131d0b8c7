"""The Huber threshold that suits the scatter of a table."""

from __future__ import annotations

import numpy as np

from loopworth.law.rivals import make_problem
from loopworth.law.solve import optimise
from loopworth.runs import HUBER_DELTA, RunTable

_EFFICIENT = 1.345  # standard deviations; 95 % as efficient as least squares (Huber 1964)
_WIDE = 0.05  # a threshold that no honest run reaches, so the first fit is by least squares


def suitable_huber_delta(runs: RunTable) -> float:
    """Return 1.345 robust standard deviations of the log loss about the law, at least 0.001.

    To one significant digit, so that a run more or less does not move it. The law is `power`, and
    without a second recurrence Chinchilla's. Raises ValueError where the runs are fewer than its
    constants.

    >>> from loopworth.runs import load_runs
    >>> suitable_huber_delta(load_runs("schwethelm2026"))
    0.005
    """
    alone = len(set(runs.recurrence.tolist())) < 2
    problem = make_problem(runs.with_huber_delta(_WIDE), "none" if alone else "power")
    if len(runs) <= len(problem.names):
        raise ValueError(
            f"{len(runs)} runs do not tell how far runs scatter about a law of "
            f"{len(problem.names)} constants; add runs, or give a threshold"
        )
    theta = optimise(problem).theta
    residual = problem.log_loss - problem.log_prediction(theta[None])[0]
    spare = np.sqrt(len(runs) / (len(runs) - len(problem.names)))
    scatter = 1.4826 * float(np.median(np.abs(residual))) * float(spare)
    return max(HUBER_DELTA, float(f"{_EFFICIENT * scatter:.0e}"))
