"""Parameters, FLOPs and tokens of the rows that give an architecture.

They come from the ledger; tokens follow from the budget where a row gives none. Counts that are
given beside an architecture must be the ledger's under some convention.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from loopworth.findings import Finding, join_words
from loopworth.ledger import (
    REFERENCE_BATCH_TOKENS,
    Convention,
    CountInjection,
    Ledger,
    horizon,
    ledger,
)
from loopworth.spec import ModelSpec
from loopworth.table.columns import ARCHITECTURE, DIRECT
from loopworth.table.draft import Draft
from loopworth.table.values import Numbers

SPEC_FIELDS = ("n_prelude", "n_recur", "n_coda", "recurrence", "n_lanes", "bptt_window",
               "vocab_size", "context", "head_dim", "n_kv_heads", "mlp_ratio")  # fmt: skip
# Left out, these silently change FLOPs and with them tokens, so a note names their defaults.
_TELLING = ("injection", "vocab_size", "context", "mlp_ratio", "mlp_kind", "tied_embeddings")
_INJECTION_ALIASES = {"inject_init_prelude": "linear", "hyperconnect": "hyperconnections"}
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def apply_architectures(draft: Draft, read: Mapping[str, Numbers]) -> None:
    """Give every row with an architecture its spec, counts, FLOPs and, where needed, tokens."""
    numbers = draft.numbers
    direct = np.isfinite(numbers["n_once"]) & np.isfinite(numbers["n_rec"])
    complete = _complete_architectures(draft, direct)
    for place in complete:
        try:
            draft.specs[place] = _spec(draft, place)
        except ValueError as error:
            draft.spoil(place, "invalid_architecture", "the architecture", str(error))
    _note_windows(draft, complete)
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
    spec = _from_width(width, tuple(given.items()))
    if math.isfinite(scale) and _from_scale(scale, tuple(given.items())).d_model != spec.d_model:
        raise ValueError(
            f"d_model={width:g} and width_scale={scale:g} name different widths "
            f"(s = {scale:g} is d_model {_from_scale(scale, tuple(given.items())).d_model}); "
            "leave one of them out"
        )
    return spec


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
    wrong = np.ones(len(places), dtype=bool)
    for convention in all_conventions():
        specs = [draft.specs[place] for place in places]
        counts = [ledger(spec).count(convention) for spec in specs if spec is not None]
        derived = np.array([[count.n_once, count.n_rec] for count in counts], dtype=float)
        off = ~np.isclose(given, derived, rtol=1e-6, atol=0.5).all(axis=1)
        if not off.any():
            return True
        if off.sum() < wrong.sum():
            wrong, closest = off, (convention.name, given.sum(axis=1) / derived.sum(axis=1))
    evidence: dict[str, Any] = {}
    if not wrong.all():
        ratios = [round(float(each), 6) for each in closest[1][wrong]]
        evidence = {"convention": closest[0], "given_over_derived": ratios}
    draft.findings.append(
        Finding(
            "counts_disagree",
            "warning",
            "n_once and n_rec are not what the architecture gives under any convention; they are "
            "used as given, and other conventions cannot be derived.",
            draft.name(np.array(places)[wrong]),
            "Drop n_once and n_rec to derive them, or drop the architecture columns.",
            evidence,
        )
    )
    return False


def all_conventions() -> tuple[Convention, ...]:
    """Return every convention, the three places of the injection first.

    >>> [convention.injection for convention in all_conventions()[:3]]
    ['recurrent', 'once', 'excluded']
    """
    return tuple(
        Convention(place, norms=norms, embeddings=embeddings)
        for norms in (True, False)
        for embeddings in (False, True)
        for place in get_args(CountInjection)
    )


def _note_windows(draft: Draft, places: list[int]) -> None:
    """Say where more passes are said to carry a gradient than there are."""
    window, r = (draft.numbers[name] for name in ("bptt_window", "recurrence"))
    longer = [place for place in places if window[place] > r[place]]
    if longer:
        draft.findings.append(
            Finding(
                "window_beyond_recurrence",
                "warning",
                "bptt_window is larger than recurrence; it was read as a gradient through all "
                "passes, on which FLOPs and tokens depend.",
                draft.name(longer),
                "Give at most recurrence, or leave bptt_window empty where nothing is cut off.",
            )
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
