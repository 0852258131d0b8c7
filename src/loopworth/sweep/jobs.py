"""Which runs of a sweep are handed out together, and in which order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from loopworth.plan.stacking import stacks
from loopworth.spec import RunSpec
from loopworth.sweep.folder import Cell

Cells = tuple[Cell, ...]


def stack_numbers(cells: Sequence[Cell]) -> dict[str, int]:
    """Return, by name, the stack of each run that can be trained with others of the sweep.

    All runs of a sweep are looked at, done or not, so that those that began together stay together.
    """
    formed = stacks([RunSpec.from_json(cell.spec) for cell in cells])
    return {
        cells[place].name: number
        for number, places in enumerate(formed)
        for place in places
        if len(places) > 1
    }


@dataclass(slots=True)
class _Forming:
    """Runs of a stack that can go on from one step."""

    saved: frozenset[int]
    cells: list[Cell] = field(default_factory=list)


def form_jobs(
    cells: Iterable[Cell], numbers: Mapping[str, int], saved: Callable[[Cell], frozenset[int]]
) -> list[Cells]:
    """Return jobs of runs that have one number; a run without a number goes alone.

    saved   the steps of the checkpoints of a run

    A stack goes on from a step that all its runs have, so those that share none are not put
    together: nothing is trained twice.
    """
    formed: list[_Forming] = []
    by_number: dict[int, list[_Forming]] = defaultdict(list)
    for cell in cells:
        number = numbers.get(cell.name)
        if number is None:
            formed.append(_Forming(frozenset(), [cell]))
            continue
        steps = saved(cell)
        for part in by_number[number]:
            if part.saved & steps or part.saved == steps:
                part.saved &= steps
                part.cells.append(cell)
                break
        else:
            part = _Forming(steps, [cell])
            formed.append(part)
            by_number[number].append(part)
    return [tuple(part.cells) for part in formed]


def in_order(jobs: Iterable[Cells]) -> list[Cells]:
    """Return jobs in the order in which they should be done.

    All budgets move on together, so that a law can be fitted early, the dear ones a little ahead,
    so that the last job to end is a cheap one and no worker waits long.
    """
    budgets: dict[float, list[Cells]] = defaultdict(list)
    for job in jobs:
        budgets[job[0].budget].append(job)
    groups = [budgets[budget] for budget in sorted(budgets, reverse=True)]
    placed = [
        ((rank + k / len(groups)) / len(group), k, rank, job)
        for k, group in enumerate(groups)
        for rank, job in enumerate(sorted(group, key=lambda job: -sum(c.flops for c in job)))
    ]
    return [job for *_, job in sorted(placed, key=lambda entry: entry[:3])]


def spread(jobs: Sequence[Cells], workers: int) -> list[Cells]:
    """Return jobs of which the largest are halved, until there is one for each worker.

    >>> [len(job) for job in spread([("a", "b", "c", "d"), ("e",)], 3)]  # any values will do
    [2, 2, 1]
    """
    jobs = list(jobs)
    while 0 < len(jobs) < workers:
        place = max(range(len(jobs)), key=lambda place: len(jobs[place]))
        job = jobs[place]
        if len(job) == 1:
            break
        half = (len(job) + 1) // 2
        jobs[place : place + 1] = [job[:half], job[half:]]
    return jobs
