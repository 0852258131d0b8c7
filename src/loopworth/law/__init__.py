"""The law of recurrence equivalence: its gains, its solver, its intervals, its fit."""

from loopworth.law.fitted import FittedLaw
from loopworth.law.fitting import fit
from loopworth.law.gain import GAINS
from loopworth.law.result import Estimate, Fit

__all__ = ["GAINS", "Estimate", "Fit", "FittedLaw", "fit"]
