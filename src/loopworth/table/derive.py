"""From matched columns to rows of numbers: counts, FLOPs and tokens, and why a row cannot be used.

A row that gives an architecture gets its parameters and FLOPs from the ledger, and its tokens from
the budget where it gives none. A row that gives its parameters directly is taken at its word; they
are read as the default convention has them: injection in n_rec, norms in, embeddings out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopworth.findings import Finding, join_words
from loopworth.ledger import REFERENCE_BATCH_TOKENS, Convention, Ledger, horizon, ledger
from loopworth.spec import ModelSpec
from loopworth.table.columns import ARCHITECTURE, BY_NAME, DIRECT
from loopworth.table.values import Floats, Numbers, read_numbers, read_texts

SPEC_FIELDS = ("n_prelude", "n_recur", "n_coda", "recurrence", "n_lanes", "bptt_window",
               "vocab_size", "context", "head_dim", "n_kv_heads", "mlp_ratio")  # fmt: skip
# Left out, these silently change FLOPs and with them tokens, so a note names their defaults.
_TELLING = ("injection", "vocab_size", "context", "mlp_ratio", "mlp_kind", "tied_embeddings")
_INJECTION_ALIASES = {"inject_init_prelude": "linear", "hyperconnect": "hyperconnections"}
_NEEDED = ("val_loss", "recurrence", "tokens", "n_once", "n_rec")
_HUGE = 1e30  # nothing that is counted or measured here comes near; beyond, products overflow
# The least value of a column, where it need not be above 0.
_FLOOR = {"recurrence": 1.0} | dict.fromkeys(
    ("n_once", "n_rec", "n_injection", "n_embeddings", "n_prelude", "n_coda", "step"), 0.0
)
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


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


def derive(
    columns: Mapping[str, list[Any]], rows: tuple[int, ...], separator: str | None = None
) -> Draft:
    """Read every column and derive what the architecture gives.

    `columns` are by registry name. Raises ValueError for a decimal comma.

    >>> draft = derive({"n_once": [1e6], "n_rec": [2e6], "recurrence": [0], "tokens": ["2B"],
    ...                 "val_loss": [2.9]}, (1,))
    >>> draft.troubles[0].kind, draft.numbers["tokens"]
    ('recurrence_below_one', array([2.e+09]))
    """
    read = {
        name: read_numbers(name, values, counts=BY_NAME[name].kind == "count", separator=separator)
        for name, values in columns.items()
        if BY_NAME[name].kind != "text"
    }
    texts = {
        name: read_texts(values) for name, values in columns.items() if BY_NAME[name].kind == "text"
    }
    none = np.zeros(len(rows), dtype=bool)
    draft = Draft(np.array(rows, dtype=np.int64), {}, texts, [None] * len(rows), none)
    unknown = np.full(len(rows), np.nan)
    for name, column in BY_NAME.items():
        if column.kind != "text":
            draft.numbers[name] = read[name].values.copy() if name in read else unknown.copy()
    _check_numbers(draft, read)
    if "d_model" in read or "width_scale" in read:
        _apply_architectures(draft, read)
    _check_required(draft)
    return draft


def _check_numbers(draft: Draft, read: Mapping[str, Numbers]) -> None:
    """Set a row aside for a bad value that a fit needs; any other bad value counts as not given."""
    for name in (*_NEEDED, *(name for name in read if name not in _NEEDED)):
        if name not in read:
            continue
        values, reasons = draft.numbers[name], read[name].reasons
        with np.errstate(invalid="ignore"):
            outside = values < _FLOOR.get(name, 1 / _HUGE)
            outside |= values > _HUGE
        wrong = {place: why for place, why in reasons.items() if why != "missing"}
        wrong |= {int(place): f"{values[place]:g}" for place in np.flatnonzero(outside)}
        if name in _NEEDED:
            for place, why in wrong.items():
                draft.spoil(place, _kind(name, values[place], why), name, why)
        elif wrong:
            draft.findings.append(_not_used(draft, name, wrong))
        values[list(wrong)] = np.nan


def _kind(name: str, value: float, why: str) -> str:
    if why in ("nan", "inf", "-inf"):
        return "not_finite"
    if not np.isfinite(value):
        return "not_a_number"
    if value > _HUGE:
        return "too_large"
    if name == "recurrence":
        return "recurrence_below_one"
    return "negative" if name in _FLOOR else "not_positive"


def _not_used(draft: Draft, name: str, wrong: Mapping[int, str]) -> Finding:
    example = next(iter(wrong.values()))
    return Finding(
        "value_not_used",
        "warning",
        f"{name} cannot be used where it is {example}; it counts as not given there.",
        draft.name(wrong),
        f"Give {name} as a number: {BY_NAME[name].meaning}.",
    )


def _check_required(draft: Draft) -> None:
    """Set aside the rows that still lack what a fit needs."""
    for name in _NEEDED:
        for place in np.flatnonzero(~np.isfinite(draft.numbers[name])):
            draft.spoil(int(place), "missing_value", name, "missing")
    total = draft.numbers["n_once"] + draft.numbers["n_rec"]
    for place in np.flatnonzero(total <= 0):
        draft.spoil(int(place), "not_positive", "n_once + n_rec", "0")
    contained = draft.numbers["n_injection"] > draft.numbers["n_rec"]
    if contained.any():
        places = np.flatnonzero(contained)
        draft.numbers["n_injection"][places] = np.nan
        wrong = {int(place): "larger than n_rec" for place in places}
        draft.findings.append(_not_used(draft, "n_injection", wrong))


def _apply_architectures(draft: Draft, read: Mapping[str, Numbers]) -> None:
    """Give every row with an architecture its spec, counts, FLOPs and, where needed, tokens."""
    numbers = draft.numbers
    direct = np.isfinite(numbers["n_once"]) & np.isfinite(numbers["n_rec"])
    complete = _complete_architectures(draft, direct)
    for place in complete:
        try:
            draft.specs[place] = _spec(draft, place)
        except ValueError as error:
            draft.spoil(place, "invalid_architecture", "the architecture", str(error))
    _note_defaults(draft, read)
    places = [place for place in complete if draft.specs[place] is not None]
    both = [place for place in places if direct[place]]
    if both and not _agrees(draft, both):
        places = [place for place in places if not direct[place]]
        for place in both:
            draft.specs[place] = None
    for place in places:
        spec = draft.specs[place]
        if spec is not None:
            _apply_ledger(draft, place, ledger(spec))


def _complete_architectures(draft: Draft, direct: NDArray[np.bool_]) -> list[int]:
    """Find the rows that give an architecture; one with holes and no counts is set aside."""
    numbers = draft.numbers
    complete = []
    for place in range(len(draft)):
        holes = [name for name in ARCHITECTURE[:3] if not np.isfinite(numbers[name][place])]
        if not np.isfinite(numbers["d_model"][place]) and not np.isfinite(
            numbers["width_scale"][place]
        ):
            holes.append("d_model")
        usable = np.isfinite(numbers["recurrence"][place]) and numbers["recurrence"][place] >= 1
        if not holes and usable:
            complete.append(place)
        elif holes and not direct[place]:
            draft.spoil(place, "missing_value", join_words(holes), "missing")
    return complete


def _spec(draft: Draft, place: int) -> ModelSpec:
    given: dict[str, Any] = {}
    for name in SPEC_FIELDS:
        value = float(draft.numbers[name][place])
        if math.isfinite(value):
            given[name] = int(value) if value.is_integer() and name != "mlp_ratio" else value
    for name in ("injection", "mlp_kind", "tied_embeddings"):
        text = draft.texts[name][place] if name in draft.texts else None
        if text is not None:
            given[name] = _word(name, text.lower())
    if "injection" not in given:
        given["injection"] = "none" if given["recurrence"] == 1 else "linear"
    if given.get("bptt_window", 0) >= given["recurrence"]:
        del given["bptt_window"]  # a window as long as the loop is the full gradient
    width, scale = (float(draft.numbers[name][place]) for name in ("d_model", "width_scale"))
    if not math.isfinite(width):
        return _from_scale(scale, tuple(given.items()))
    return _from_width(width, tuple(given.items()))


@lru_cache(maxsize=4096)  # a table repeats an architecture at every budget
def _from_scale(scale: float, given: tuple[tuple[str, Any], ...]) -> ModelSpec:
    return ModelSpec.from_scale(scale, **dict(given))


@lru_cache(maxsize=4096)
def _from_width(width: float, given: tuple[tuple[str, Any], ...]) -> ModelSpec:
    whole: Any = int(width) if width.is_integer() else width
    return ModelSpec(d_model=whole, **dict(given))


def _word(name: str, text: str) -> object:
    if name == "injection":
        return _INJECTION_ALIASES.get(text, text)
    if name == "tied_embeddings":
        return _TRUTH.get(text, text)
    return text


def _apply_ledger(draft: Draft, place: int, account: Ledger) -> None:
    numbers = draft.numbers
    count = account.count()
    numbers["n_once"][place] = count.n_once
    numbers["n_rec"][place] = count.n_rec
    numbers["n_injection"][place] = count.n_injection
    with_embeddings = account.count(Convention(embeddings=True)).n_once
    numbers["n_embeddings"][place] = with_embeddings - count.n_once
    numbers["train_flops_per_token"][place] = account.train_flops_per_token
    budget, batch = (float(numbers[key][place]) for key in ("budget_flops", "batch_tokens"))
    if np.isfinite(numbers["tokens"][place]) or not np.isfinite(budget):
        return
    try:
        reach = horizon(
            budget,
            account.train_flops_per_token,
            int(batch) if np.isfinite(batch) else REFERENCE_BATCH_TOKENS,
        )
    except ValueError as error:
        draft.spoil(place, "invalid_architecture", "the budget", str(error))
    else:
        numbers["tokens"][place] = reach.tokens
        draft.derived_tokens[place] = True


def _agrees(draft: Draft, places: list[int]) -> bool:
    """Tell whether given counts are the ledger's under some convention; say what was found."""
    given = np.array([[draft.numbers[key][place] for key in DIRECT[:2]] for place in places])
    for convention in all_conventions():
        specs = [draft.specs[place] for place in places]
        counts = [ledger(spec).count(convention) for spec in specs if spec is not None]
        derived = np.array([[count.n_once, count.n_rec] for count in counts], dtype=float)
        if np.allclose(given, derived, rtol=1e-6, atol=0.5):
            return True
    draft.findings.append(
        Finding(
            "counts_disagree",
            "warning",
            "n_once and n_rec are not what the architecture gives under any convention; they are "
            "used as given, and other conventions cannot be derived.",
            draft.name(places),
            "Drop n_once and n_rec to derive them, or drop the architecture columns.",
        )
    )
    return False


def all_conventions() -> tuple[Convention, ...]:
    """Return every convention, the three places of the injection first.

    >>> [convention.injection for convention in all_conventions()[:3]]
    ['recurrent', 'once', 'excluded']
    """
    places = ("recurrent", "once", "excluded")
    return tuple(
        Convention(place, norms=norms, embeddings=embeddings)  # type: ignore[arg-type]
        for norms in (True, False)
        for embeddings in (False, True)
        for place in places
    )


def _note_defaults(draft: Draft, read: Mapping[str, Numbers]) -> None:
    absent = [name for name in _TELLING if name not in read and name not in draft.texts]
    if not absent or not any(draft.specs):
        return
    defaults = {name: getattr(ModelSpec(d_model=128), name) for name in absent}
    if "injection" in defaults:
        defaults["injection"] = "linear where recurrence is above 1"
    words = join_words(f"{name} {value}" for name, value in defaults.items())
    message = f"The architecture leaves out columns that FLOPs depend on; assumed: {words}."
    draft.findings.append(
        Finding("assumed_defaults", "note", message, remedy="Add the columns if this is not so.")
    )
