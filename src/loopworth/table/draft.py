"""The rows of a table while they are being worked on, and why some of them cannot be used."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopworth.findings import Finding
from loopworth.spec import ModelSpec
from loopworth.table.values import Floats


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why one row is set aside: `kind` becomes the finding's code, `where` names the column."""

    place: int
    kind: str
    where: str
    what: str


@dataclass(slots=True)
class Draft:
    """Rows before they are screened: numbers and labels by column name, all of one length.

    `numbers` holds NaN where a value is unknown; n_once and n_rec are those of the default
    convention. `troubles` has at most one entry a row.
    """

    rows: NDArray[np.int64]
    numbers: dict[str, Floats]
    texts: dict[str, list[str | None]]
    specs: list[ModelSpec | None]
    derived_tokens: NDArray[np.bool_]
    troubles: dict[int, Trouble] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    def spoil(self, place: int, kind: str, where: str, what: str) -> None:
        """Set a row aside for the first trouble that it has."""
        self.troubles.setdefault(place, Trouble(place, kind, where, what))

    def name(self, places: Any) -> tuple[int, ...]:
        """Return the row numbers at places."""
        return tuple(int(self.rows[place]) for place in places)
