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
    """Find runs that scatter so much that their phi would be known to no better than 0.5.

    `reference` is a robust law of one phi. Its standard error is that of least squares with the
    robust standard deviation of the runs that agree with it.
    """
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
    if width <= PHI_WIDE or scatter <= NOISY * reach:
        return []
    return [
        Finding(
            "noise_hides_phi",
            "warning",
            f"Single runs scatter by {1e3 * scatter:.0f} mnats around the law, and phi = 1 instead "
            f"of 0 changes the loss of a looped run by {1e3 * reach:.0f} mnats: a 95 % interval of "
            f"phi would be about {width:.1f} wide.",
            remedy="Look for what scatters the losses (a short evaluation, unequal recipes, a "
            "wrong column), or add many runs.",
            evidence={"scatter": scatter, "reach": reach, "width": width},
        )
    ]
