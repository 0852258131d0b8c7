"""What README.md shows as output is what the commands print, but for the numbers."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def script(root: Path) -> ModuleType:
    path = root / "benchmarks" / "readme.py"
    spec = importlib.util.spec_from_file_location("readme", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words(text: str) -> str:
    """Leave out numbers, plots and line breaks: these may differ from machine to machine."""
    masked = re.sub(r"[<>]?[-+]?\d[\d.,]*(e[-+]?\d+)?[KMBT]?", "#", text)
    return re.sub(r"[─●\s]+", " ", masked)


def test_the_outputs_are_those_of_today(root: Path, script: ModuleType) -> None:
    shown = script.blocks((root / "README.md").read_text(encoding="utf-8"))
    for old, new in zip(shown, script.outputs("--bootstrap", "60"), strict=True):
        assert words(old) == words(new), "run benchmarks/readme.py"
