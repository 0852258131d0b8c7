"""A data set of the Hugging Face hub as a source (extra `data`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loopworth.data.sources import Reading, Tally
from loopworth.spec.checks import listed

PREFIX = "hub:"


class HubSource:
    """`hub:OWNER/NAME`, or `hub:` and a local folder that `datasets.load_dataset` understands.

    config, split   of the data set

    The library downloads it once into its own cache and reads it from there. Raises ValueError
    where `datasets` is not installed, or where there is no such data set, split or column.
    """

    size = 0

    def __init__(
        self, name: str, reading: Reading, *, config: str | None = None, split: str = "train"
    ) -> None:
        try:
            import datasets
        except ImportError:
            raise ValueError(
                f"{name}: data sets of the hub need the library `datasets`; install it with "
                "pip install 'loopworth[data]'"
            ) from None
        self.name, self.reading, self.config, self.split = name, reading, config, split
        try:
            self._table = datasets.load_dataset(name.removeprefix(PREFIX), config, split=split)
        except Exception as problem:  # the library raises kinds of its own, of no common base
            raise ValueError(
                f"{name} (config {config!r}, split {split!r}) cannot be loaded: {problem}"
            ) from problem
        if reading.text_column not in self._table.column_names:
            raise ValueError(
                f"{name} has no column {reading.text_column!r}; it has "
                f"{listed(self._table.column_names)}; name the one with the text with --text-column"
            )

    def documents(self, tally: Tally) -> Iterator[str]:
        """Yield the text of each row."""
        key = self.reading.text_column
        for number, row in enumerate(self._table.select_columns([key]), start=1):
            if isinstance(row[key], str):
                yield row[key]
            else:
                kind = type(row[key]).__name__
                where = f"{self.name}, row {number}"
                remedy = "name another column with --text-column"
                tally.bad(where, f"{key!r} is of type {kind}, not a string", remedy)

    def to_json(self) -> dict[str, Any]:
        """Return name, config, split, column and the fingerprint of the data set."""
        return {
            "name": self.name,
            "kind": "hub",
            "config": self.config,
            "split": self.split,
            "text_column": self.reading.text_column,
            "fingerprint": self._table._fingerprint,
        }
