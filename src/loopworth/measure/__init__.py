"""From the folder of a sweep to phi: its tables, checked, fitted and compared."""

from loopworth.measure.measuring import Measured, measured
from loopworth.measure.track import PhiPoint, PhiTrack

__all__ = ["Measured", "PhiPoint", "PhiTrack", "measured"]
