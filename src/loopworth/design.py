"""The earlier place of `loopworth.table.design`."""

from loopworth.table.design import design_findings

__all__ = ["design_findings"]
