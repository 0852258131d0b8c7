"""Whether each row is a run of its own kind: checkpoints, reruns, recipes, methods, sources."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from loopworth.check.report import SeedNoise
from loopworth.findings import Finding, Severity, join_words, name_rows
from loopworth.runs import RunTable
from loopworth.table.draft import Draft
from loopworth.table.values import Floats, distinct

Places = NDArray[np.int64]

_OTHER_TOKENS = 1.01  # tokens of two checkpoints differ by more than the rounding to steps
_EVEN = 0.02
_FEWEST_EVEN = 4
_INTERVALS = 50
_TOO_DIFFERENT = 0.02  # log loss between reruns, 20 times the usual seed noise
_SHIFT_ERRORS = 5.0
_SHIFT_FLOOR = 2e-3  # of log loss: 6 mnats
_FEWEST_A_LABEL = 5


def checkpoint_findings(draft: Draft, places: Places) -> list[Finding]:
    """Find rows of one configuration that differ in tokens at one budget, or in even steps.

    At one budget a configuration has one number of tokens, so fewer tokens are an earlier point of
    the same run. Rows that a run_id tells apart are believed.
    """
    budget, steps = draft.numbers["budget_flops"], draft.numbers["step"]
    tokens = draft.numbers["tokens"]
    sure: list[list[int]] = []
    maybe: list[list[int]] = []
    for group in _groups(places, lambda p: (_configuration(draft, p), _number(float(budget[p])))):
        given = group[np.isfinite(budget[group]) & ~draft.derived_tokens[group]]
        if len(given) < 2 or _told_apart(draft, given):
            continue
        given = given[~_wrong_budget(tokens[given], float(budget[given[0]]), budget[places])]
        if len(given) > 1 and tokens[given].max() > _OTHER_TOKENS * tokens[given].min():
            sure.append(given.tolist())
    known = {place for group in sure for place in group}
    left = places[np.isfinite(steps[places]) & ~np.isin(places, list(known))]
    for group in _groups(left, lambda p: _configuration(draft, p)):
        if len(set(steps[group].tolist())) < 2 or _told_apart(draft, group):
            continue
        even = _even_steps(steps[group])
        if len(even) >= _FEWEST_EVEN:
            sure.append(group[even].tolist())
        else:
            maybe.append(group.tolist())
    findings = []
    if sure:
        rows = draft.name(sorted(place for group in sure for place in group))
        message = (
            f"Checkpoints of one run seem to stand as runs: {_name(draft, sure)} share "
            "architecture, budget and labels and differ in tokens or steps only. They are not "
            "independent, and points before the end of a schedule lie above the law."
        )
        remedy = "Keep the last row of each run, or add a run_id, so that runs are resampled whole."
        evidence = {"runs": [list(draft.name(group)) for group in sure]}
        findings.append(
            Finding("checkpoints_suspected", "warning", message, rows, remedy, evidence)
        )
    if maybe:
        rows = draft.name(sorted(place for group in maybe for place in group))
        message = (
            f"{len(maybe)} configuration{'s have' if len(maybe) > 1 else ' has'} rows at several "
            "steps; nothing says whether these are runs of their own or checkpoints of one run."
        )
        remedy = "Add a run_id column."
        findings.append(Finding("checkpoints_possible", "note", message, rows, remedy))
    return findings


def _wrong_budget(tokens: Floats, budget: float, budgets: Floats) -> NDArray[np.bool_]:
    """Tell which rows of one budget have exactly the tokens of another budget of the table."""
    others = budgets[np.isfinite(budgets)]
    others = distinct(others[np.abs(others / budget - 1) > 2 * _EVEN]) / budget
    share = (tokens / tokens.max())[:, None]
    return np.asarray((np.abs(share / others - 1) < _OTHER_TOKENS - 1).any(axis=1))


def _even_steps(steps: Floats) -> list[int]:
    """Return the places of the longest series of steps at 1, 2, 3, ... times one interval.

    Runs of their own stand at the geometric steps of a grid of budgets, checkpoints at every so
    many steps.

    >>> _even_steps(np.array([100.0, 430.0, 200.0, 300.0, 400.0, 900.0]))
    [0, 2, 3, 4]
    """
    best: list[int] = []
    for interval in sorted(steps[steps > 0].tolist())[:_INTERVALS]:
        multiple = steps / interval
        whole = np.round(multiple)
        fits = (np.abs(multiple - whole) <= _EVEN) & (whole >= 1)
        run = [int(np.flatnonzero(fits & (whole == k))[0]) for k in _counting(whole[fits])]
        if len(run) > len(best):
            best = run
    return best


def _counting(multiples: Floats) -> list[int]:
    """Return 1, 2, 3, ... as far as all of them occur."""
    present = set(multiples.astype(int).tolist())
    last = next(k for k in range(1, len(present) + 2) if k not in present)
    return list(range(1, last))


def _groups(places: Places, key: Callable[[int], object]) -> Iterator[Places]:
    groups: dict[object, list[int]] = defaultdict(list)
    for place in places.tolist():
        groups[key(place)].append(place)
    for members in groups.values():
        if len(members) > 1:
            yield np.array(members)


def _configuration(draft: Draft, place: int) -> tuple[object, ...]:
    """What a run is, apart from its length, its outcome and its identity."""
    numbers = [_number(draft.numbers[name][place]) for name in ("n_once", "n_rec", "recurrence")]
    labels = [_label(draft, name, place) for name in ("study", "recipe", "seed")]
    return (*numbers, *labels, draft.specs[place])


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _label(draft: Draft, name: str, place: int) -> str | None:
    return draft.texts[name][place] if name in draft.texts else None


def _told_apart(draft: Draft, group: Places) -> bool:
    """Tell whether run_id says of all rows that they are one run, or that each is its own."""
    names = [_label(draft, "run_id", place) for place in group.tolist()]
    return None not in names and len(set(names)) in (1, len(names))


def _name(draft: Draft, groups: Sequence[list[int]]) -> str:
    words = [name_rows(draft.name(group)) for group in groups[:5]]
    return "; ".join([*words, *([f"{len(groups) - 5} more runs"] if len(groups) > 5 else [])])


def rerun_findings(draft: Draft, places: Places) -> tuple[SeedNoise | None, list[Finding]]:
    """Measure the noise of a seed wherever one configuration was run more than once.

    Groups that a seed (or `rerun`) label tells apart are reruns; without labels the noise is
    reported as what it would be. A group that differs far more than seeds do is a conflict, and
    takes no part in the noise.
    """
    tokens, loss = draft.numbers["tokens"], draft.numbers["val_loss"]

    def key(place: int) -> tuple[object, ...]:
        same = list(_configuration(draft, place))
        same[5] = None  # reruns differ in their seed
        return (*same, float(tokens[place]))

    groups = list(_groups(places, key))
    wild = [group for group in groups if np.ptp(np.log(loss[group])) > _TOO_DIFFERENT]
    calm = [group for group in groups if np.ptp(np.log(loss[group])) <= _TOO_DIFFERENT]
    findings = []
    if wild:
        rows = draft.name(sorted(place for group in wild for place in group.tolist()))
        nats = [round(float(np.ptp(loss[group])), 4) for group in wild]
        message = (
            f"Runs of one configuration differ by up to {max(nats):.3f} nats, far more than seeds "
            f"do: {_name(draft, [group.tolist() for group in wild])}."
        )
        remedy = "Find out which of them did not train, or what else differs."
        spread = {"range_nats": nats}
        findings.append(Finding("replicates_disagree", "warning", message, rows, remedy, spread))
    if not calm:
        return None, findings
    noise = _pooled(draft, calm)
    word = "" if noise.labelled else ", if these are reruns with other seeds"
    message = (
        f"Seed noise is {noise.nats:.2g} nats ({noise.dof} degree{'s' if noise.dof > 1 else ''} of "
        f"freedom, {noise.groups} configuration{'s' if noise.groups > 1 else ''} run more than "
        f"once){word}. Differences below twice that are not told apart by single runs."
    )
    evidence = {"nats": noise.nats, "dof": noise.dof, "groups": noise.groups}
    findings.append(Finding("seed_noise", "note", message, noise.rows, "", evidence))
    return noise, findings


def _pooled(draft: Draft, groups: Sequence[Places]) -> SeedNoise:
    loss = draft.numbers["val_loss"]
    squares = sum(float(((loss[group] - loss[group].mean()) ** 2).sum()) for group in groups)
    dof = sum(len(group) - 1 for group in groups)
    labels = [[_label(draft, "seed", place) for place in group.tolist()] for group in groups]
    labelled = all(None not in each and len(set(each)) == len(each) for each in labels)
    rows = draft.name(sorted(place for group in groups for place in group.tolist()))
    return SeedNoise(math.sqrt(squares / dof), dof, len(groups), rows, labelled)


# Code, severity, what is mixed, the label of each run, the runs it is about, the remedy.
_Check = tuple[str, Severity, str, Sequence[str | None], NDArray[np.bool_] | None, str]


def mixture_findings(table: RunTable, local: Floats | None) -> list[Finding]:
    """Say where runs of several recipes, methods, vocabularies, seeds or loss sources are mixed.

    `local` are the log residuals of the runs, by which a shift between two labels is measured.
    """
    looped = table.recurrence > 1
    vocabularies = [str(spec.vocab_size) if spec else None for spec in table.specs]
    recipes = table.labels.get("recipe", ())
    checks: tuple[_Check, ...] = (
        ("mixed_recipes", "warning", "recipes", recipes, None,
         "Fit them apart: recipe is part of what a run is. Another recipe moves a loss by 7 to 13 "
         "mnats, the size of the effects that are looked for."),
        ("mixed_methods", "warning", "ways of looping", methods_of(table), looped,
         "Select one study or method; one phi over several describes none of them."),
        ("mixed_vocabularies", "warning", "vocabularies", vocabularies, None,
         "Losses per token of different vocabularies cannot be compared; fit them apart."),
        ("several_seeds", "note", "seeds", table.labels.get("seed", ()), None, ""),
        ("mixed_loss_sources", "note", "loss sources", table.labels.get("loss_source", ()), None,
         ""),
    )  # fmt: skip
    findings = []
    for code, severity, words, labels, among, remedy in checks:
        found = _mixed(table, code, severity, words, labels, among, remedy)
        if found is not None:
            findings.append(found)
            if local is not None and code in ("mixed_recipes", "several_seeds",
                                              "mixed_loss_sources"):  # fmt: skip
                findings += _shift(table, labels, words, local)
    return findings


def methods_of(table: RunTable) -> list[str | None]:
    """Name the way of looping of each run, as far as it is told."""
    names: list[str | None] = []
    for study, spec, recurrence in zip(table.study, table.specs, table.recurrence, strict=True):
        words = [study] if study else []
        if spec is not None:
            words.append(spec.injection)
            if spec.injection == "hyperconnections":
                words.append(f"{spec.n_lanes} lanes")
            if spec.bptt_window is not None and spec.bptt_window < recurrence:
                words.append("truncated")
        names.append(", ".join(words) or None)
    return names


def _mixed(
    table: RunTable, code: str, severity: Severity, words: str, labels: Sequence[str | None],
    among: NDArray[np.bool_] | None, remedy: str,
) -> Finding | None:  # fmt: skip
    """Return a finding that names the rows of all labels but the most common one."""
    if not labels:
        return None
    chosen = [i for i in range(len(table)) if among is None or among[i]]
    counts = Counter(labels[i] for i in chosen)
    if len(counts) < 2:
        return None
    usual, *others = [label for label, _ in counts.most_common()]
    rows = tuple(int(table.rows[i]) for i in chosen if labels[i] != usual)
    shown = [f"{_word(label)} ({counts[label]})" for label in [usual, *others][:5]]
    if len(counts) > 5:
        shown.append(f"{len(counts) - 5} more")
    message = (
        f"The runs have several {words}: {join_words(shown)}. "
        f"All but {_word(usual)}: {name_rows(rows)}."
    )
    evidence = {"counts": {_word(label): counts[label] for label in counts}}
    return Finding(code, severity, message, rows, remedy, evidence)


def _word(label: str | None) -> str:
    return "unknown" if label is None else label


def _shift(
    table: RunTable, labels: Sequence[str | None], words: str, local: Floats
) -> Iterator[Finding]:
    """Yield labels whose runs lie above or below the others of their cells."""
    counts = Counter(each for each in labels if each is not None)
    for label, _ in reversed(counts.most_common()):  # the rare one is the odd one
        one = np.array([each == label for each in labels])
        if min(one.sum(), (~one).sum()) < _FEWEST_A_LABEL:
            continue
        shift = float(local[one].mean() - local[~one].mean())
        error = math.sqrt(sum(float(x.var(ddof=1)) / len(x) for x in (local[one], local[~one])))
        if abs(shift) < max(_SHIFT_ERRORS * error, _SHIFT_FLOOR):
            continue
        nats = shift * float(table.val_loss.mean())
        rows = tuple(int(row) for row in table.rows[one])
        side = "above" if shift > 0 else "below"
        message = (
            f"Of the {words}, {label} lies {abs(nats):.3f} nats {side} the others of the same "
            f"budgets and recurrences ({name_rows(rows)})."
        )
        remedy = "Fit them apart, or find out why they differ."
        evidence = {"label": label, "shift_nats": round(nats, 4),
                    "standard_errors": round(shift / max(error, 1e-12), 1)}  # fmt: skip
        yield Finding("label_shift", "warning", message, rows, remedy, evidence)
        return  # with two labels the other one says the same


def rows_of(findings: Iterable[Finding], *codes: str) -> set[int]:
    """Return the rows of the findings with one of these codes."""
    return {row for each in findings if each.code in codes for row in each.rows}
