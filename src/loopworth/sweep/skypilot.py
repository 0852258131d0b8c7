"""A sweep as a task file for SkyPilot, which finds a machine in a cloud; it is not needed here.

The sweep runs on the disk of one machine, with the workers of that machine. Every five minutes its
folder is copied to a bucket, and from there to the next machine where the first is taken away: a
mounted bucket has neither locks nor links, so runs cannot lie on it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from loopworth.sweep.engines import Resources

_STORE = "/loopworth-sweep"
_COPY_SECONDS = 300


def task_file(
    recipe: str,
    bucket: str,
    resources: Resources,
    *,
    accelerators: str | None = None,
    spot: bool = True,
    package: str = "loopworth[train]",
) -> str:
    """Return the YAML of a SkyPilot task that does a recipe's sweep; start it by `sky jobs launch`.

    recipe         a name, or a file, which is taken along
    bucket         where the folder of the sweep is kept: a name, or an address such as s3://name
    accelerators   as SkyPilot has them: H100:8; None is a machine without
    spot           machines that may be taken away, and cost less
    package        what pip installs there

    Raises ValueError for accelerators of another form.

    >>> print(task_file("paper", "s3://mine", Resources(), accelerators="H100:8"))
    name: "loopworth-paper"
    resources:
      use_spot: true
      accelerators: "H100:8"
    ...
    """
    if accelerators is not None and not re.fullmatch(r"[\w.-]+(:\d+)?", accelerators):
        raise ValueError(f"accelerators={accelerators!r} must be a device and a count: H100:8")
    own = Path(recipe).suffix == ".py"
    store = "source" if "://" in bucket else "name"
    mounts = [f"  {_STORE}:", f"    {store}: {json.dumps(bucket)}", "    mode: MOUNT"]
    if own:
        mounts.append(f"  ~/recipe.py: {json.dumps(recipe)}")
    needs = [f"use_spot: {'true' if spot else 'false'}"]
    if accelerators is not None:
        needs.append(f"accelerators: {json.dumps(accelerators)}")
    else:
        needs.append(f'cpus: "{resources.threads}+"')
    if resources.memory_bytes is not None:
        needs.append(f'memory: "{resources.memory_bytes / 1e9:.0f}+"')
    lines = [
        f"name: {json.dumps(f'loopworth-{_plain(Path(recipe).stem)}')}",
        "resources:", *_indented(needs),
        "file_mounts:", *mounts,
        "setup: |", *_indented([f"pip install '{package}'"]),
        "run: |", *_indented(_script("~/recipe.py" if own else recipe, resources)),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _script(recipe: str, resources: Resources) -> list[str]:
    """Return the commands of the machine: fetch what was done, go on, keep it."""
    without = "--exclude claim --exclude launcher --exclude stop --exclude '.*'"
    how = [
        f"--threads {resources.threads}", f"--device {resources.device}",
        f"--save-every {resources.save_every}",
    ]  # fmt: skip
    if resources.gpus:
        how.append(f"--gpus {resources.gpus}")
    return [
        f"keep() {{ rsync -a --inplace {without} ~/sweep/ {_STORE}/; }}",
        "mkdir -p ~/sweep",
        f"rsync -a {_STORE}/ ~/sweep/",
        f"(while sleep {_COPY_SECONDS}; do keep; done) &",
        "trap 'kill $!; keep' EXIT",
        f"loopworth sweep start {recipe} --out ~/sweep {' '.join(how)}",
    ]


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _plain(name: str) -> str:
    """Return a name of the letters that clusters may have.

    >>> _plain("My grid_2")
    'my-grid-2'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "sweep"
