"""The data of a run: a prepared folder, or the built-in text prepared on first use."""

from __future__ import annotations

from pathlib import Path

from loopworth.data.tokens import TokenData, open_folder
from loopworth.spec import DataSpec


def open_data(data: DataSpec, *, cache: Path | None = None) -> TokenData:
    """Open what a run reads.

    cache   where the built-in text is prepared; None is $LOOPWORTH_CACHE or the XDG cache

    A prepared folder brings its own tokenizer and split; `data.seed` still orders the rows of the
    run. Raises ValueError where there is no such data, or where its digest is not `data.digest`.
    """
    if data.source == "docstrings":
        from loopworth.data.cache import prepared_docstrings

        folder = prepared_docstrings(data, cache)
    else:
        folder = Path(data.source)
        if not folder.exists():
            raise ValueError(
                f"data.source={data.source!r} does not exist; use 'docstrings' or a folder made by "
                "`loopworth data prepare SOURCE --out DIR`"
            )
        if not folder.is_dir():
            raise ValueError(
                f"data.source={data.source!r} is a file; prepare it first: `loopworth data prepare "
                f"{data.source} --out DIR`, then use DIR"
            )
    opened = open_folder(folder)
    if data.digest is not None and opened.digest != data.digest:
        raise ValueError(
            f"{data.source} has digest {opened.digest[:16]}..., the spec says data.digest="
            f"{data.digest[:16]}...: this is other text, another split or another tokenizer. Name "
            "the folder of the spec, or leave the digest out to train on what is there"
        )
    return opened
