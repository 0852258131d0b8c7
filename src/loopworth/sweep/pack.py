"""What a cluster's job does: the runs it was given, with the workers of the machine it landed on.

Slurm and Ray call `work_through` where they have room. It knows of neither, and nothing of it is
needed afterwards: how the runs ended is in their folders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from loopworth.sweep.engines import Resources

_POLL_SECONDS = 0.5


def work_through(
    runs: Sequence[Path],
    resources: Resources,
    place: Path,
    *,
    at_once: int = 1,
    asked: Callable[[], object] = bool,
) -> Mapping[Path, str]:
    """Start each run once; return what is known about the end of those that did not go well.

    place     folder for what the workers log        at_once   runs at a time
    asked     says whether to stop; then every run is saved

    KeyboardInterrupt is a wish to stop as well: it is how Ray cancels.
    """
    from loopworth.sweep.registry import open_engine

    if not resources.gpus and resources.device == "auto":
        resources = replace(resources, device="cpu")  # what was not asked for is another's
    engine = open_engine("local", place, at_once, resources)
    waiting = [run.absolute() for run in runs]
    words: Mapping[Path, str] = {}
    with suppress(KeyboardInterrupt):
        try:
            alive: frozenset[Path] = frozenset()
            while (waiting or alive) and not asked():
                room = engine.room()
                engine.submit([(run,) for run in waiting[:room]], resources)
                waiting = waiting[room:]
                seen = engine.poll(_POLL_SECONDS)
                alive, words = seen.alive, seen.words
        finally:
            try:
                engine.cancel()  # where all is done, the workers are idle and end at once
            finally:
                engine.close()
    return words
