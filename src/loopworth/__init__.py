"""Measure what a recurrence is worth in a looped language model.

>>> import loopworth
>>> table = loopworth.load_runs("schwethelm2026")
>>> len(table)
116

Names are imported on first use (PEP 562), so that `import loopworth` costs nothing and
`loopworth --help` does not wait for numpy. `loopworth.ledger` is the module; its function is
`from loopworth.ledger import ledger`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loopworth.findings import Finding as Finding
    from loopworth.law import Fit as Fit
    from loopworth.law import fit as fit
    from loopworth.ledger import Convention as Convention
    from loopworth.ledger import horizon as horizon
    from loopworth.runs import RunTable as RunTable
    from loopworth.runs import load_runs as load_runs
    from loopworth.spec import ModelSpec as ModelSpec

__version__ = "0.1.0"

# Public name -> the module it lives in.
_HOMES = {
    "Convention": "loopworth.ledger",
    "Finding": "loopworth.findings",
    "Fit": "loopworth.law",
    "ModelSpec": "loopworth.spec",
    "RunTable": "loopworth.runs",
    "fit": "loopworth.law",
    "horizon": "loopworth.ledger",
    "load_runs": "loopworth.runs",
}

__all__ = [
    "Convention",
    "Finding",
    "Fit",
    "ModelSpec",
    "RunTable",
    "__version__",
    "fit",
    "horizon",
    "load_runs",
]


def __getattr__(name: str) -> Any:
    """Import a public name on its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # the next access is an ordinary lookup
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})
