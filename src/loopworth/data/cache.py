"""Where the built-in text is kept once it is prepared: $LOOPWORTH_CACHE, or the XDG cache.

What lies there can be deleted at any time; it is made again. Several processes may make it at once:
each works in a scratch folder of its own, the first to finish renames it, the others take that.
"""

from __future__ import annotations

import os
import secrets
from functools import cache
from pathlib import Path
from typing import Any

from loopworth.data.docstrings import DocstringsSource, inventory_key
from loopworth.data.prepare import Tell, build
from loopworth.data.shards import SIDECAR
from loopworth.data.sources import Tally
from loopworth.spec import DataSpec


def cache_folder(cache: Path | None = None) -> Path:
    """Return the folder of the cache, which need not exist."""
    if cache is not None:
        return cache
    if own := os.environ.get("LOOPWORTH_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "loopworth"


def _build(source: DocstringsSource, folder: Path, data: DataSpec, tell: Tell | None) -> None:
    """Prepare the folder; keep the text, so that another tokenizer or seed needs no parsing."""
    place = folder.parent / f"docstrings-{inventory_key(source.inventory)}.json.gz"
    if not (place.is_file() and source.from_cache(place.read_bytes())):
        tally = Tally()
        for _ in source.documents(tally):
            if tell is not None:
                tell("reading documentation", tally.done, source.size)
        place.parent.mkdir(parents=True, exist_ok=True)
        scratch = place.with_name(f".{place.name}.{secrets.token_hex(6)}.partial")
        scratch.write_bytes(source.to_cache())
        scratch.replace(place)
    build(source, folder, data, on_progress=tell)


@cache
def _installed() -> dict[str, Any]:
    """Return what is installed: found once a process, since many small runs may open the text."""
    return DocstringsSource().inventory


def prepared_docstrings(
    data: DataSpec,
    cache: Path | None = None,
    *,
    source: DocstringsSource | None = None,
    on_progress: Tell | None = None,
) -> Path:
    """Return the folder of the built-in text under the tokenizer, split and seed of a spec.

    Prepared on first use, which parses the packages and takes about half a minute. The folder is
    named by all that decides its content: versions and files of the packages, and the spec.
    """
    inventory = _installed() if source is None else source.inventory
    tokenizer = data.tokenizer
    if Path(tokenizer).is_file():  # a tokenizer.json counts by its content
        tokenizer = inventory_key(Path(tokenizer).read_text(encoding="utf-8"))
    key = inventory_key(inventory, tokenizer, data.validation, data.seed)
    folder = cache_folder(cache) / f"docstrings-{key}"
    if not (folder / SIDECAR).is_file():
        try:
            _build(source or DocstringsSource(), folder, data, on_progress)
        except PermissionError as problem:
            raise ValueError(
                f"{folder.parent} cannot be written ({problem.strerror}); set LOOPWORTH_CACHE to a "
                "folder that can"
            ) from problem
    return folder
