"""Which runs a sweep is made of, and what they cost, before anything is spent."""

from loopworth.plan.designs import iso_depth as iso_depth
from loopworth.plan.designs import iso_parameter as iso_parameter
from loopworth.plan.designs import iso_token as iso_token
from loopworth.plan.designs import width_fixed as width_fixed
from loopworth.plan.plan import Plan as Plan
from loopworth.plan.plan import PlannedRun as PlannedRun
