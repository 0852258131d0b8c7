"""The built-in run table and the numbers published with it.

`schwethelm2026` holds the runs of arXiv 2604.21106. Their losses were read off the paper's public
iso-FLOPs figure (the raw runs were never published): to about 0.0003 nats, and to about 0.002 nats
for the 45 rows whose `loss_source` is `inferred`, since their markers are hidden behind a star.

Each study is addressed as `schwethelm2026:STUDY`:

- `baseline`: the 116 runs at six budgets and r = 1, 2, 4, 8; plain `schwethelm2026` too;
- `baseline_lower`: the 80 of them at the four lower budgets, which the case studies compare with;
- `truncated_bptt`: 63 runs that differentiate the last r / 2 recurrences only, at the four lower
  budgets and r = 2, 4, 8, plus the baseline's 20 runs with r = 1 at those budgets, as in the paper;
- `hyperconnections`: 63 runs whose loop state travels in two lanes, plus the same 20 runs.

Row numbers are those of the one shipped file, so a shared run has one number in every study.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from loopworth.findings import join_words
from loopworth.table.reading import RawTable, read_bytes

_FOLDER = Path(__file__).parent  # importlib.resources would cost 15 ms at start-up

BUILTIN = "schwethelm2026"
STUDIES = ("baseline", "baseline_lower", "truncated_bptt", "hyperconnections")
CITATION = (
    "Schwethelm, Rueckert, Kaissis. How Much Is One Recurrence Worth? Iso-Depth Scaling Laws for "
    "Looped Language Models. arXiv:2604.21106 (v3, 2026), CC BY 4.0. Losses read off its public "
    "iso-FLOPs figure."
)

# The budgets of the case studies end here; the baseline goes on to 1e19 and 2.15e19.
_LOWER_BUDGETS_END = 5e18

# Facts of the recipe that hold for every row; with the architecture they decide its tokens.
_SHARED_BY_ALL_ROWS = {
    "vocab_size": 32064,
    "context": 2048,
    "mlp_ratio": 4.0,
    "mlp_kind": "squared_relu",
    "tied_embeddings": "false",
    "batch_tokens": 2**18,
}


def builtin_names() -> tuple[str, ...]:
    """Return every name under which `load_runs` finds a built-in table.

    >>> builtin_names()[1]
    'schwethelm2026:baseline'
    """
    return (BUILTIN, *(f"{BUILTIN}:{study}" for study in STUDIES))


def is_builtin(name: str) -> bool:
    """Tell whether a name means a built-in table, a misspelt study included."""
    return name.partition(":")[0] == BUILTIN


def read_builtin(name: str) -> RawTable:
    """Read the rows of one built-in study as raw columns.

    Raises ValueError for an unknown study, with the names there are.

    >>> len(read_builtin("schwethelm2026")), len(read_builtin("schwethelm2026:truncated_bptt"))
    (116, 83)
    """
    study = name.partition(":")[2] or "baseline"
    if name not in builtin_names():
        raise ValueError(
            f"The built-in table {BUILTIN} has no study {study!r}; use {join_words(STUDIES, 'or')}."
        )
    table = _whole_table()
    places = [place for place in range(len(table)) if _belongs(table, place, study)]
    columns: dict[str, list[Any]] = {
        key: [values[place] for place in places] for key, values in table.columns.items()
    }
    columns |= {key: [value] * len(places) for key, value in _SHARED_BY_ALL_ROWS.items()}
    rows = tuple(table.rows[place] for place in places)
    return RawTable(name, f"built-in table {name}", columns, rows, citation=CITATION)


def published() -> dict[str, Any]:
    """Return the numbers that the paper and its project page print, as a new dictionary.

    >>> published()["joint"]["phi"]
    0.459
    """
    text = (_FOLDER / "schwethelm2026_published.json").read_text(encoding="utf-8")
    numbers: dict[str, Any] = json.loads(text)
    return numbers


@cache
def _whole_table() -> RawTable:
    content = (_FOLDER / "schwethelm2026_runs.csv").read_bytes()
    return read_bytes(content, name=BUILTIN, source=BUILTIN)


def _belongs(table: RawTable, place: int, study: str) -> bool:
    own = table.columns["study"][place]
    if study == "baseline":
        return bool(own == "baseline")
    if float(table.columns["budget_flops"][place]) > _LOWER_BUDGETS_END:
        return False
    if study == "baseline_lower":
        return bool(own == "baseline")
    return bool(own == study) or (own == "baseline" and table.columns["recurrence"][place] == "1")
