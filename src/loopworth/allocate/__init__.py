"""Where a fitted law puts a budget, and what a loop is worth.

`family.py` holds a layout at a continuous width, `optimum.py` the compute-optimal N, D and width of
a budget, `worth.py` the unlooped model that a looped one stands for, `decide.py` the run that tells
two laws apart, `findings.py` what to know before using them. All take FLOPs from the
ledger, never from 6 N.
"""

from loopworth.allocate.decide import DecidingRun, deciding_run, runs_needed
from loopworth.allocate.family import Family, Quadratic, families, family_findings
from loopworth.allocate.findings import frontier_findings, minima_findings
from loopworth.allocate.optimum import FrontierPoint, frontier
from loopworth.allocate.worth import Equivalent, equivalents

__all__ = [
    "DecidingRun",
    "Equivalent",
    "Family",
    "FrontierPoint",
    "Quadratic",
    "deciding_run",
    "equivalents",
    "families",
    "family_findings",
    "frontier",
    "frontier_findings",
    "minima_findings",
    "runs_needed",
]
