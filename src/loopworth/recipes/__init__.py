"""Sweeps by name, and sweeps from a file of one's own.

A recipe is a function of the data that returns a plan. A file of one's own defines one called
`recipe`; what it returns may be a `Plan`, or a list of `PlannedRun` or `RunSpec`.
"""

import runpy
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loopworth.plan import Plan, PlannedRun
from loopworth.recipes import laptop, paper
from loopworth.spec import DataSpec, RunSpec
from loopworth.spec.checks import hint

Recipe = Callable[[DataSpec], Plan]

RECIPES: dict[str, Recipe] = {
    "laptop": laptop.laptop,
    "laptop-preview": laptop.preview,
    "laptop-thorough": laptop.thorough,
    "paper": paper.paper,
    "paper-truncated": paper.truncated,
    "paper-hyperconnections": paper.hyperconnections,
    "paper-ablations": paper.ablations,
    "paper-extrapolation": paper.extrapolation,
}


def load_plan(source: str, data: DataSpec | None = None) -> Plan:
    """Return the plan of a recipe: its name, or the path of a Python file.

    Raises ValueError for an unknown name, for a file without a `recipe`, and, with its line, for
    any error inside the file.

    >>> len(load_plan("paper").runs)
    116
    """
    if source in RECIPES:
        return RECIPES[source](data or DataSpec())
    if not source.endswith(".py"):
        raise ValueError(
            f"{source!r} is not a recipe; {hint(source, list(RECIPES))}, or give a Python file "
            "that defines recipe(data)"
        )
    path = Path(source)
    if not path.is_file():
        raise ValueError(f"the recipe {source!r} is not a file; check its path")
    try:
        recipe = runpy.run_path(str(path)).get("recipe")
        made = recipe(data or DataSpec()) if callable(recipe) else None
    except (Exception, SystemExit) as problem:
        raise ValueError(_where(problem, path)) from problem
    if not callable(recipe):
        raise ValueError(
            f"{source} defines no function `recipe`; add `def recipe(data): ...` that returns "
            "runs, such as loopworth.plan.iso_depth makes"
        )
    return _as_plan(made, path)


def _where(problem: BaseException, path: Path) -> str:
    """Say at which line of the user's file it stopped, and why."""
    frames = traceback.extract_tb(problem.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    if isinstance(problem, SyntaxError) and problem.filename == str(path):
        lines.append(problem.lineno)
    place = f"{path}, line {lines[-1]}" if lines else str(path)
    return f"the recipe {place} ended with {type(problem).__name__}: {problem}"


def _as_plan(made: Any, path: Path) -> Plan:
    """Bring what a recipe returned into one form."""
    if isinstance(made, Plan):
        return made
    runs = list(made) if isinstance(made, list | tuple) else [made]
    for run in runs:
        if not isinstance(run, PlannedRun | RunSpec):
            raise ValueError(
                f"the recipe of {path} returned a {type(run).__name__}; return a Plan, or a list "
                "of PlannedRun or RunSpec"
            )
    study = path.stem
    return Plan(study, [r if isinstance(r, PlannedRun) else PlannedRun(r, study) for r in runs])
