"""Write the output of the commands that README.md shows into it again.

Run from the root of the project: .venv/bin/python benchmarks/readme.py
"""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner

from loopworth.cli import main

README = Path("README.md")
FIT = ("fit", "-q")
COMPARE = (
    "compare", "-q", "schwethelm2026:baseline_lower", "schwethelm2026:truncated_bptt",
    "schwethelm2026:hyperconnections",
)  # fmt: skip
CUT = "\n\nBy recurrence"  # README shows a comparison up to here


def blocks(readme: str) -> list[str]:
    """Return the outputs that a readme shows: that of `fit`, and the beginning of `compare`."""
    # The first two; what other commands print is not written here.
    return re.findall(r"```text\n(.*?)```", readme, flags=re.DOTALL)[:2]


def outputs(*options: str) -> list[str]:
    """Return what the two commands print now."""
    fit, compare = (
        CliRunner().invoke(main, [*command, *options]).stdout for command in (FIT, COMPARE)
    )
    return [fit, compare[: compare.index(CUT)] + "\n"]


if __name__ == "__main__":
    text = README.read_text(encoding="utf-8")
    for old, new in zip(blocks(text), outputs(), strict=True):
        text = text.replace(old, new)
    README.write_text(text, encoding="utf-8")
