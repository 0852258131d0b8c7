"""Student's t, which tells how much wider an interval from few blocks must be."""

from __future__ import annotations

import math


def t_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t for a probability above 0.5, by bisection.

    Its distribution is a finite sum for whole degrees of freedom (Abramowitz and Stegun 26.7.3).

    >>> round(t_quantile(0.975, 23), 4)
    2.0687
    """

    def inside(angle: float) -> float:
        """Return P(|t| < x) at x = sqrt(degrees) tan(angle)."""
        cosine, sine = math.cos(angle), math.sin(angle)
        odd = degrees % 2
        term = sine * cosine if odd else sine
        total = 0.0
        for k in range(1 + odd, degrees, 2):
            total += term
            term *= cosine * cosine * k / (k + 1)
        return 2 / math.pi * (angle + total) if odd else total

    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < 2 * probability - 1 else (low, middle)
    return math.sqrt(degrees) * math.tan(low)
