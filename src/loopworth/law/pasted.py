"""A law from elsewhere, published or pasted, beside the runs of a table."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product, starmap
from pathlib import Path
from typing import Any, get_args

import numpy as np

from loopworth import datasets
from loopworth.files import read_file
from loopworth.law.fitted import FittedLaw
from loopworth.law.points import Point, published_points
from loopworth.ledger import Convention, CountInjection
from loopworth.runs import RunTable
from loopworth.table.values import distinct

_GIVEN = "The law given as JSON"
_CONSTANTS = ("A", "alpha", "B", "beta", "E", "phi")


@dataclass(frozen=True)
class Against:
    """A law pasted from elsewhere beside the runs of a table, under the law's own convention.

    `misses` is by recurrence: n_runs, bias (observed minus predicted) and rmse in nats per token.
    `points` are measured runs beyond the grid, `predicted` the law there.
    """

    source: str
    law: FittedLaw
    convention: Convention
    misses: tuple[dict[str, float], ...]
    points: tuple[Point, ...] = ()
    predicted: tuple[float, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "source": self.source,
            "fitted_law": self.law.to_json(),
            "convention": self.convention.name,
            "by_recurrence": [dict(row) for row in self.misses],
            "points": [
                asdict(x) | {"predicted": loss, "miss": x.val_loss - loss}
                for x, loss in zip(self.points, self.predicted, strict=True)
            ],
        }


def published_law() -> FittedLaw:
    """Return the law of the project page of arXiv 2604.21106, which counts the injection once.

    >>> round(float(published_law().predict(2e8, 1e8, 4, 1e10)), 3)
    2.301
    """
    return _from_constants(datasets.published()["joint"]["page"], "published")


def read_law(source: str | Path) -> tuple[FittedLaw, Convention]:
    """Read a law to compare with: `published`, a fit.json of ours, or constants as JSON.

    Constants come in a file or as the text itself, such as '{"A": 28.4, ...}'. They are A, alpha,
    B, beta, E and phi, with `injection` saying how N was counted (default recurrent). Raises
    ValueError that names the file, the key and what is allowed, OSError for an unreadable file.

    >>> law, convention = read_law("published")
    >>> round(law.phi(4), 3), convention.injection
    (0.459, 'once')
    >>> constants = '{"A": 28.4, "alpha": 0.2, "B": 911, "beta": 0.37, "E": 1.57, "phi": 0.46}'
    >>> read_law(constants)[0].phi(4)
    0.46
    """
    if source == "published":
        return published_law(), Convention("once")
    pasted = _is_pasted(source)
    try:
        data = json.loads(str(source) if pasted else read_file(source).decode("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as problem:
        raise ValueError(f"{source} is not JSON ({problem}); {_allowed()}") from None
    source = _GIVEN if pasted else source
    if not isinstance(data, dict):
        raise ValueError(f"{source} holds no JSON object; {_allowed()}")
    if "fitted_law" in data:
        return _fitted(data["fitted_law"], source), _named_convention(data, source)
    place = data.get("injection", "recurrent")
    if place not in get_args(CountInjection):
        known = ", ".join(get_args(CountInjection))
        raise ValueError(f"{source}: injection is {place!r}; use one of {known}")
    return _from_constants(data, source), Convention(place)


def _is_pasted(source: str | Path) -> bool:
    return isinstance(source, str) and source.lstrip().startswith("{")


def _named_convention(data: Mapping[str, Any], source: str | Path) -> Convention:
    """Return the convention that a fit.json names, at its top or in its provenance."""
    origin = data.get("provenance")
    inner = origin.get("convention") if isinstance(origin, dict) else None
    name = data.get("convention", inner)
    known = {
        each.name: each
        for each in starmap(Convention, product(get_args(CountInjection), *2 * [(True, False)]))
    }
    if not isinstance(name, str) or name not in known:
        raise ValueError(
            f"{source}: convention is {name!r}; use a name such as {Convention().name!r}, as "
            "`loopworth fit --json` writes it"
        )
    return known[name]


def _fitted(data: Any, source: str | Path) -> FittedLaw:
    try:
        law = FittedLaw.from_json(data)
        numbers = (law.A, law.alpha, law.B, law.beta, law.E, *law.gain_parameters)
        if all(_is_number(x) for x in numbers):
            return law
        reason = "a constant is not a finite number"
    except KeyError as problem:
        reason = f"it lacks {problem}"
    except (TypeError, ValueError) as problem:
        reason = str(problem)
    raise ValueError(f"{source}: fitted_law cannot be read, {reason}; {_allowed()}")


def _is_number(value: Any) -> bool:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return real and math.isfinite(value)


def _allowed() -> str:
    return f"give 'published', a fit.json, or a JSON object with {', '.join(_CONSTANTS)}"


def _from_constants(data: Mapping[str, Any], source: str | Path) -> FittedLaw:
    missing = [name for name in _CONSTANTS if not _is_number(data.get(name))]
    if missing:
        many = "numbers" if len(missing) > 1 else "number"
        raise ValueError(f"{source} lacks the {many} {', '.join(missing)}; {_allowed()}")
    a, alpha, b, beta, e, phi = (float(data[name]) for name in _CONSTANTS)
    for name in _CONSTANTS[:-1]:
        if data[name] <= 0:
            raise ValueError(f"{source}: {name} is {data[name]:g}, and must be above 0")
    return FittedLaw("power", (2.0, 4.0, 8.0), a, alpha, b, beta, e, (phi,))


def against(source: str | Path, runs: RunTable) -> Against:
    """Read a law from elsewhere and hold it against the runs of a table.

    The plain method's built-in runs bring the measured points beyond their grid with them.

    >>> from loopworth import load_runs
    >>> row = against("published", load_runs("schwethelm2026")).misses[0]
    >>> row["n_runs"], round(row["rmse"], 3)
    (29, 0.009)
    """
    law, convention = read_law(source)
    plain = runs.citation is not None and set(runs.study) == {"baseline"}
    points = published_points(convention) if plain else ()
    name = "the law given" if _is_pasted(source) else str(source)
    return hold_against(law, convention, runs, points, source=name)


def hold_against(
    law: FittedLaw,
    convention: Convention,
    runs: RunTable,
    points: Sequence[Point] = (),
    *,
    source: str = "law",
) -> Against:
    """Return what a law misses of the runs, and of points counted under the same convention.

    Raises ValueError where the runs cannot be counted that way, or hold an r unknown to the law.
    """
    table = runs.under(convention)
    predicted = law.predict(table.n_once, table.n_rec, table.recurrence, table.tokens)
    miss = table.val_loss - predicted
    rows = []
    for r in distinct(table.recurrence).tolist():
        part = miss[table.recurrence == r]
        errors = {"bias": float(part.mean()), "rmse": float(np.sqrt((part**2).mean()))}
        rows.append({"recurrence": r, "n_runs": len(part), **errors})
    reached = tuple(x for x in points if law.knows(x.recurrence))
    losses = tuple(float(law.predict(x.n_once, x.n_rec, x.recurrence, x.tokens)) for x in reached)
    return Against(source, law, convention, tuple(rows), reached, losses)
