"""Judge the rows of a table: which cannot be used, which are copies, which have diverged.

Every check returns findings that name the rows and say why. A row that cannot be used is set aside
and the rest goes on; a table is refused where continuing would give a wrong answer in silence.
The rules are written so that no run that obeys a scaling law is ever set aside.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from loopworth.findings import Finding, RefusedTable, join_words, name_rows
from loopworth.table.draft import Draft, Trouble
from loopworth.table.values import middle

Mask = NDArray[np.bool_]

_PHRASES = {
    "missing_value": "{where} is missing",
    "not_finite": "{where} is not finite ({what})",
    "not_a_number": "{where} is not a number ({what})",
    "not_positive": "{where} must be above 0 (it is {what})",
    "too_large": "{where} is beyond anything that can be trained ({what})",
    "negative": "{where} must not be negative (it is {what})",
    "recurrence_below_one": "recurrence must be 1 or more (it is {what})",
    "invalid_architecture": "{where} is not possible: {what}",
}
_CORRECT = "Correct the value, or leave the row out."
_REMEDIES = {
    "recurrence_below_one": "Count executions: a model without a loop has recurrence 1.",
}

# A run is compared with runs that a scaling law cannot rank far below it.
_WORSE_THAN_SMALLER = 1.5  # with no fewer parameters and tokens than 3 others, loss should be lower
_WORSE_THAN_SIMILAR = 2.0  # 4 times fewer of both costs less than a factor 2 at exponents to 0.5
_SIMILAR = 4.0
_JUDGES = 3
_SHOWN = 5
_NEAR_CONFIGURATION = 0.005
_NEAR_LOSS = 0.002


def screen(draft: Draft) -> tuple[Mask, list[Finding]]:
    """Return the mask of the rows to keep, and what was found, worst first.

    Raises ValueError where no row can be used. The unit checks of `loopworth.table.units` come
    between: they need the usable rows, and the copies and diverged runs are judged in one unit.
    """
    keep = np.ones(len(draft), dtype=bool)
    keep[list(draft.troubles)] = False
    findings = _unusable(draft)
    if not keep.any():
        reasons = " ".join(finding.message for finding in findings)
        rows = draft.name(range(len(draft)))
        message = f"No row of the table can be used. {reasons}"
        raise RefusedTable(Finding("no_usable_rows", "error", message, rows))
    return keep, findings


def set_aside(draft: Draft, keep: Mask) -> list[Finding]:
    """Set aside copies and diverged runs: clears them in `keep` and returns the findings."""
    findings = []
    for check in (_copies, _diverged):
        dropped, finding = check(draft, np.flatnonzero(keep))
        keep[dropped] = False
        findings += finding
    return findings


def remarks(draft: Draft, keep: Mask) -> list[Finding]:
    """Return what is worth knowing about the rows that are kept."""
    places = np.flatnonzero(keep)
    same, grouped = _same_configuration(draft, places)
    rest = np.array([place for place in places if place not in grouped], dtype=np.int64)
    return [*_repeated_runs(draft, places), *same, *_near_duplicates(draft, rest)]


def _unusable(draft: Draft) -> list[Finding]:
    groups: dict[tuple[str, str], list[Trouble]] = defaultdict(list)
    for trouble in draft.troubles.values():
        groups[trouble.kind, trouble.where].append(trouble)
    findings = []
    for (kind, where), troubles in groups.items():
        rows = draft.name(sorted(trouble.place for trouble in troubles))
        examples = list(dict.fromkeys(trouble.what for trouble in troubles))
        shown = ", ".join(examples[:3]) + (", ..." if len(examples) > 3 else "")
        reason = _PHRASES[kind].format(where=where, what=shown)
        findings.append(_aside(kind, rows, reason, _REMEDIES.get(kind, _CORRECT)))
    return findings


def _aside(code: str, rows: Iterable[int], reason: str, remedy: str = "") -> Finding:
    numbers = tuple(sorted(rows))
    named = name_rows(numbers)
    verb = "was" if len(numbers) == 1 else "were"
    message = f"{named[0].upper()}{named[1:]} {verb} set aside: {reason}."
    return Finding(code, "warning", message, numbers, remedy)


def _configuration(draft: Draft, place: int) -> tuple[object, ...]:
    """What a run is, apart from its outcome and its identity."""
    numbers = [draft.numbers[name][place] for name in ("n_once", "n_rec", "recurrence", "tokens")]
    labels = [draft.texts[name][place] for name in ("study", "recipe") if name in draft.texts]
    return (*(float(number) for number in numbers), *labels, draft.specs[place])


def _label(draft: Draft, name: str, place: int) -> str | None:
    return draft.texts[name][place] if name in draft.texts else None


def _copies(draft: Draft, places: NDArray[np.int64]) -> tuple[list[int], list[Finding]]:
    """Find rows that repeat an earlier row in every value, its identity included."""
    # NaN is not equal to itself, but two unknown values are the same entry in a table.
    numbers = np.nan_to_num(np.stack(list(draft.numbers.values())), nan=-1.0).T.tolist()
    seen: dict[tuple[object, ...], int] = {}
    copies: dict[int, int] = {}
    for place in places.tolist():
        key = (*numbers[place], *(text[place] for text in draft.texts.values()))
        if key in seen:
            copies[place] = seen[key]
        else:
            seen[key] = place
    if not copies:
        return [], []
    originals = name_rows(draft.name(set(copies.values())))
    reason = (
        f"they repeat {originals} in every value"
        if len(copies) > 1
        else (f"it repeats {originals} in every value")
    )
    remedy = "If these are independent runs, tell them apart by run_id or seed."
    return list(copies), [_aside("exact_duplicates", draft.name(copies), reason, remedy)]


def _diverged(draft: Draft, places: NDArray[np.int64]) -> tuple[list[int], list[Finding]]:
    """Find crashed runs by comparing each with runs that should have been worse, or hardly better.

    L falls with parameters and tokens under every law of the family, so a run that has at least as
    many of both as three others and still has 1.5 times their median loss did not train. The
    smallest runs have nobody below them: they are held against all runs with up to 4 times their
    parameters and tokens, which a law with exponents up to 0.5 cannot put at half their loss, and
    only if three quarters of these agree to a factor 1.5, as they do not where a law is steep.
    A loss above ln(vocabulary) is worse than guessing and needs no comparison.
    """
    loss = draft.numbers["val_loss"][places]
    tokens = draft.numbers["tokens"][places]
    once, rec = draft.numbers["n_once"][places], draft.numbers["n_rec"][places]
    unique, unrolled = once + rec, once + draft.numbers["recurrence"][places] * rec
    found: dict[int, tuple[str, float]] = {}  # the reason, and the loss that it compares with
    for spot in np.flatnonzero(loss > _WORSE_THAN_SMALLER * loss.min()).tolist():
        place = int(places[spot])
        spec = draft.specs[place]
        vocabulary = spec.vocab_size if spec else None
        if vocabulary and loss[spot] > math.log(vocabulary) + 0.1:
            found[place] = f"above ln({vocabulary}), worse than guessing", math.nan
            continue
        for size, limit in ((1.0, _WORSE_THAN_SMALLER), (_SIMILAR, _WORSE_THAN_SIMILAR)):
            judges = (
                (unique <= size * unique[spot])
                & (unrolled <= size * unrolled[spot])
                & (tokens <= size * tokens[spot])
            )
            judges[spot] = False
            if judges.sum() < _JUDGES:
                continue
            ranked = np.sort(loss[judges])
            agree = size == 1 or ranked[3 * len(ranked) // 4] <= _WORSE_THAN_SMALLER * ranked[0]
            usual = middle(ranked)
            if agree and loss[spot] > limit * usual:
                whom = "no larger" if size == 1 else f"up to {size:.0f} times as large"
                reason = f"more than {limit:g} times the median of runs with parameters and tokens "
                found[place] = reason + whom, usual
                break
    if not found:
        return [], []
    what = "loss looks like that of a run" if len(found) == 1 else "losses look like those of runs"
    reason = f"the {what} that diverged: {_reasons(draft, found)}"
    remedy = "Rerun them; if the losses are right, give their kind a table of its own."
    return list(found), [_aside("diverged_runs", draft.name(found), reason, remedy)]


def _reasons(draft: Draft, found: dict[int, tuple[str, float]]) -> str:
    """Say each reason once, with the losses that it is about."""
    parts = []
    for reason in dict.fromkeys(reason for reason, _ in found.values()):
        members = [place for place in found if found[place][0] == reason]
        losses = [f"{draft.numbers['val_loss'][place]:.4g}" for place in members]
        more = [f"{len(losses) - _SHOWN} more"] if len(losses) > _SHOWN else []
        usual = sorted(found[place][1] for place in members)
        against = ""
        if not math.isnan(usual[0]):
            low, high = f"{usual[0]:.4g}", f"{usual[-1]:.4g}"
            against = f" ({low})" if low == high else f" ({low} to {high})"
        verb = "is" if len(members) == 1 else "are"
        parts.append(f"{join_words([*losses[:_SHOWN], *more])} {verb} {reason}{against}")
    return "; ".join(parts)


def _repeated_runs(draft: Draft, places: NDArray[np.int64]) -> list[Finding]:
    """Say where several rows come from one run, and where a tracker's history suggests it."""
    runs: dict[str, list[int]] = defaultdict(list)
    for place in places.tolist():
        run = _label(draft, "run_id", place)
        if run is not None:
            runs[run].append(place)
    repeated = {run: members for run, members in runs.items() if len(members) > 1}
    if not repeated:
        return []
    rows = draft.name(sorted(place for members in repeated.values() for place in members))
    which = join_words([*list(repeated)[:3], *(["others"] if len(repeated) > 3 else [])])
    message = (
        f"{len(rows)} rows are several points of one run ({which}); they are not independent, so "
        "the bootstrap resamples such a run as a whole."
    )
    remedy = "Points before the end of a learning-rate schedule lie above the law; keep final ones."
    return [Finding("checkpoints_of_one_run", "warning", message, rows, remedy)]


def _same_configuration(draft: Draft, places: NDArray[np.int64]) -> tuple[list[Finding], set[int]]:
    """Group rows of one configuration: replicates if their seeds differ, else a question."""
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for place in places.tolist():
        groups[_configuration(draft, place)].append(place)
    replicates: list[list[int]] = []
    unclear: list[list[int]] = []
    for members in groups.values():
        if len(members) > 1:
            seeds = [_label(draft, "seed", place) for place in members]
            (replicates if None not in seeds and len(set(seeds)) == len(seeds) else unclear).append(
                members
            )
    findings = []
    if unclear:
        named = _name_groups(draft, unclear)
        message = f"The same configuration has several losses: {named}. All are kept."
        remedy = "Add a seed column if these are reruns; else find out what differs."
        findings.append(
            Finding("same_configuration", "warning", message, _flat(draft, unclear), remedy)
        )
    if replicates:
        named = _name_groups(draft, replicates)
        message = f"One configuration was run with several seeds: {named}."
        findings.append(Finding("replicates", "note", message, _flat(draft, replicates)))
    return findings, {place for members in (*unclear, *replicates) for place in members}


def _near_duplicates(draft: Draft, places: NDArray[np.int64]) -> list[Finding]:
    """Find pairs that differ by rounding only: the same run entered twice, at two precisions."""
    if len(places) < 2:
        return []
    order = places[np.argsort(draft.numbers["tokens"][places], kind="stable")]
    logs = np.log(draft.numbers["tokens"][order])
    ends = np.searchsorted(logs, logs + _NEAR_CONFIGURATION, side="right")
    sizes, losses = np.full((2, len(draft)), np.nan)
    sizes[places] = np.log((draft.numbers["n_once"] + draft.numbers["n_rec"])[places])
    losses[places] = np.log(draft.numbers["val_loss"][places])
    recurrence = draft.numbers["recurrence"]
    pairs: list[list[int]] = []
    for spot, place in enumerate(order.tolist()):
        others = order[spot + 1 : ends[spot]]
        near = others[
            (np.abs(sizes[others] - sizes[place]) < _NEAR_CONFIGURATION)
            & (np.abs(losses[others] - losses[place]) < _NEAR_LOSS)
            & (recurrence[others] == recurrence[place])
        ]
        pairs += [sorted((place, other)) for other in near.tolist() if _kin(draft, place, other)]
    if not pairs:
        return []
    message = (
        f"Some runs are nearly the same: {_name_groups(draft, pairs)}, with parameters and tokens "
        "within 0.5 % and loss within 0.2 %. All are kept."
    )
    remedy = "Drop one of each if they are one run written twice."
    return [Finding("near_duplicates", "warning", message, _flat(draft, pairs), remedy)]


def _kin(draft: Draft, place: int, other: int) -> bool:
    """Tell whether two rows could be one run: the same labels, the same way of looping."""
    for name in ("study", "recipe"):
        if _label(draft, name, place) != _label(draft, name, other):
            return False
    seeds = {_label(draft, "seed", place), _label(draft, "seed", other)}
    if len(seeds) > 1:
        return False
    one, two = draft.specs[place], draft.specs[other]
    if one is None or two is None:
        return True
    return (one.injection, one.bptt_window) == (two.injection, two.bptt_window)


def _name_groups(draft: Draft, groups: list[list[int]]) -> str:
    words = [name_rows(draft.name(members)) for members in groups[:5]]
    if len(groups) > 5:
        words.append(f"{len(groups) - 5} more groups")
    return "; ".join(words)


def _flat(draft: Draft, groups: list[list[int]]) -> tuple[int, ...]:
    return tuple(sorted({row for members in groups for row in draft.name(members)}))
