"""Losses that no law can be read from: all of them equal, or with more noise than effect."""

from __future__ import annotations

import numpy as np

from loopworth.check.reference import Reference
from loopworth.findings import Finding
from loopworth.law.diagnose import equal_losses
from loopworth.law.identify import NOISY, PHI_WIDE, reach_of_phi
from loopworth.law.intervals import NORMAL
from loopworth.law.joint import GAIN
from loopworth.quantities import format_count
from loopworth.runs import RunTable

_FEWEST = 3
_VERY_NOISY = 0.4  # scatter over what phi can do, from which a table is noisy whatever its size
_EXPLAINS_LITTLE = 0.5  # R2 of a law below which the losses hardly depend on what was run
_SAME_DIRECTION = 1e-13


def equal_findings(table: RunTable) -> list[Finding]:
    """Find losses that are one number; a law of any constants then fits."""
    if len(table) < _FEWEST or not equal_losses(table.val_loss):
        return []
    return [
        Finding(
            "losses_all_equal",
            "error",
            f"All {format_count(len(table))} runs have the same loss ({table.val_loss[0]:g} nats), "
            "so they say nothing about parameters, tokens or recurrences.",
            tuple(int(row) for row in table.rows),
            "Check the column val_loss.",
            {"val_loss": float(table.val_loss[0])},
        )
    ]


def scatter_findings(reference: Reference) -> list[Finding]:
    """Find losses that hardly follow the law, and runs that scatter as much as phi moves them.

    `reference` is a robust law of one phi. Its standard error is that of least squares with the
    robust standard deviation of the runs that agree with it.
    """
    poor = _poor_law(reference)
    if poor:
        return poor
    problem, theta = reference.problem, reference.theta
    if "phi" not in problem.names:
        return []
    jacobian = problem.jacobian(theta[None])[0][:, reference.trusted]
    length = np.sqrt((jacobian**2).sum(axis=1))
    if not (length > 0).all():
        return []
    unit = jacobian / length[:, None]
    values, vectors = np.linalg.eigh(unit @ unit.T)
    if values[0] <= _SAME_DIRECTION * values[-1]:
        return []
    inverse = float((vectors[GAIN] ** 2 / values).sum())
    loss = float(np.median(reference.rows.val_loss[reference.trusted]))
    width = 2 * NORMAL * reference.scale * float(np.sqrt(inverse)) / float(length[GAIN])
    scatter, reach = reference.scale * loss, reach_of_phi(problem, theta)
    hidden = width > PHI_WIDE and scatter > NOISY * reach
    if not hidden and scatter <= _VERY_NOISY * reach:
        return []
    return [
        Finding(
            "noise_hides_phi",
            "warning",
            f"Single runs scatter by {1e3 * scatter:.0f} mnats around the law, and phi = 1 instead "
            f"of 0 changes the loss of a looped run by {1e3 * reach:.0f} mnats: a 95 % interval of "
            f"phi would be about {width:.2g} wide.",
            remedy="Look for what scatters the losses (a short evaluation, unequal recipes, a "
            "wrong column), or add many runs.",
            evidence={"scatter": scatter, "reach": reach, "width": width},
        )
    ]


def _poor_law(reference: Reference) -> list[Finding]:
    """Find losses that have next to nothing to do with parameters, tokens and recurrences."""
    residual = reference.log_residual[reference.trusted]
    log_loss = np.log(reference.rows.val_loss[reference.trusted])
    spread = float(((log_loss - log_loss.mean()) ** 2).sum())
    r2 = 1.0 - float((residual**2).sum()) / spread if spread > 0 else 0.0
    if r2 >= _EXPLAINS_LITTLE:
        return []
    return [
        Finding(
            "law_explains_little",
            "warning",
            f"The best law explains {100 * max(r2, 0.0):.0f} % of the variance of the losses: they "
            "hardly depend on parameters, tokens and recurrences.",
            remedy="Check that each loss is in the row of its run, and that the runs differ enough "
            "in size and tokens to differ in loss.",
            evidence={"r2": r2},
        )
    ]
