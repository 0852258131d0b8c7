"""The law of recurrence equivalence: its gains, its solver, its intervals, its fit."""

from loopworth.law.fitted import FittedLaw
from loopworth.law.fitting import Estimate, Fit, fit
from loopworth.law.gain import GAINS

__all__ = ["GAINS", "Estimate", "Fit", "FittedLaw", "fit"]
