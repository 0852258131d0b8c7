"""Forensics of a table of runs: which rows are wrong, why, and what to do about them.

`checking.py` leads a table through the checks. `bare.py` reads what `load_runs` refuses; `units.py`
and `losses.py` recognise other units; `reference.py` is the robust law that rows are judged by and
`outliers.py` the judgement; `flops.py` holds budgets against architectures; `grid.py` finds holes;
`identity.py` tells runs from checkpoints, reruns and other recipes; `report.py` is the outcome.
"""

from loopworth.check.checking import check
from loopworth.check.report import KINDS, CheckReport, Kind, SeedNoise

__all__ = ["KINDS", "CheckReport", "Kind", "SeedNoise", "check"]
