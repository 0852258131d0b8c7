"""Predictions outside the grid, with intervals that know how the law has missed before.

A bootstrap interval at a larger budget says how well the constants are known if the law is true.
The law is not: fitted to the smaller budgets it misses the next one, always to the same side. So a
prediction is widened by that held-out error, once for every budget step it lies beyond the grid.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, product, starmap
from pathlib import Path
from statistics import NormalDist, median
from typing import Any, get_args

import numpy as np

from loopworth import datasets
from loopworth.findings import Finding
from loopworth.law.fitted import FittedLaw
from loopworth.law.fitting import Fit
from loopworth.law.gain import FloatArray
from loopworth.law.intervals import COVERAGE, Bootstrap, Interval
from loopworth.law.joint import GAIN
from loopworth.law.leaveout import rms
from loopworth.ledger import REFERENCE_BATCH_TOKENS as GRID_BATCH
from loopworth.ledger import Convention, CountInjection, horizon, ledger
from loopworth.quantities import format_count
from loopworth.runs import RunTable
from loopworth.spec import ModelSpec
from loopworth.table.values import distinct

_NORMAL = NormalDist().inv_cdf(0.5 + COVERAGE / 2)  # half a 95 % interval in standard deviations
_RULE = (
    "wide95 = predicted +- 1.96 sqrt(sd_bootstrap^2 + sd_held_out^2); sd_bootstrap = width of ci95 "
    "/ 3.92; sd_held_out = max(steps * rolling-origin RMS, leave-one-budget-out RMS)"
)
_CONSTANTS = ("A", "alpha", "B", "beta", "E", "phi")


@dataclass(frozen=True)
class Point:
    """A run that a law was not fitted to.

    Loss is in nats per token, NaN where nobody measured it; parameters are counted under the
    convention of the law that will predict it.
    """

    name: str
    recurrence: float
    n_once: float
    n_rec: float
    tokens: float
    budget_flops: float
    val_loss: float
    batch_tokens: int


@dataclass(frozen=True)
class Prediction:
    """A law at one point; losses in nats per token.

    ci95     from the bootstrap of the constants, None without it
    steps    how many budget steps of the grid the point lies beyond it, 0 inside
    wide95   predicted ± 1.96 sd with sd^2 = sd_bootstrap^2 + sd_held_out^2. sd_bootstrap is a
             normal's with the width of ci95; sd_held_out is `steps` times the rolling-origin RMS,
             and never below the leave-one-budget-out RMS, its value inside the grid. A law that is
             bent by its range misses each further step to the same side, so the error grows with
             the steps, not with their root. None without a bootstrap or hold-outs
    inside   whether the measured loss lies in wide95, None where there is no loss or no interval
    """

    name: str
    recurrence: float
    tokens: float
    observed: float
    predicted: float
    ci95: Interval | None
    steps: float
    wide95: Interval | None
    inside: bool | None
    sd_bootstrap: float | None = None
    sd_held_out: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        pairs = {
            k: list(v) if v else None for k, v in (("ci95", self.ci95), ("wide95", self.wide95))
        }
        return asdict(self) | pairs | {"rule": _RULE}


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


def published_points(convention: Convention) -> tuple[Point, ...]:
    """Return the extrapolation pair of arXiv 2604.21106: s = 34 at 47 B tokens, r = 1 and 4.

    >>> [(x.recurrence, x.val_loss, x.batch_tokens) for x in published_points(Convention())]
    [(1.0, 2.047, 524288), (4.0, 2.108, 524288)]
    """
    layouts = {1: (0, 20, 0, "none"), 4: (2, 4, 2, "linear")}
    points = []
    for row in datasets.published()["extrapolation"]:
        prelude, recur, coda, injection = layouts[row["r"]]
        spec = ModelSpec.from_scale(
            row["s"], n_prelude=prelude, n_recur=recur, n_coda=coda,
            recurrence=row["r"], injection=injection,
        )  # fmt: skip
        account = ledger(spec)
        count = account.count(convention)
        flops = float(account.train_flops_per_token)
        batch = int(row["batch_tokens"])
        reach = horizon(row["tokens"] * flops, flops, batch)
        points.append(
            Point(
                name=f"s = {row['s']}, r = {row['r']}",
                recurrence=float(row["r"]),
                n_once=float(count.n_once),
                n_rec=float(count.n_rec),
                tokens=float(reach.tokens),
                budget_flops=reach.tokens * flops,
                val_loss=row["val_loss"],
                batch_tokens=batch,
            )
        )
    return tuple(points)


def published_law() -> FittedLaw:
    """Return the law of the project page of arXiv 2604.21106, which counts the injection once.

    >>> round(float(published_law().predict(2e8, 1e8, 4, 1e10)), 3)
    2.301
    """
    return _from_constants(datasets.published()["joint"]["page"], "published")


def read_law(source: str | Path) -> tuple[FittedLaw, Convention]:
    """Read a law to compare with: `published`, a fit.json of ours, or a JSON file of constants.

    Constants are A, alpha, B, beta, E and phi, with `injection` saying how N was counted (default
    recurrent). Raises ValueError that names the file, the key and what is allowed, OSError for an
    unreadable file.

    >>> law, convention = read_law("published")
    >>> round(law.phi(4), 3), convention.injection
    (0.459, 'once')
    """
    if str(source) == "published":
        return published_law(), Convention("once")
    try:
        data = json.loads(Path(source).read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as problem:
        raise ValueError(f"{source} is not JSON ({problem}); {_allowed()}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{source} holds no JSON object; {_allowed()}")
    if "fitted_law" in data:
        return _fitted(data["fitted_law"], source), _named_convention(data, source)
    place = data.get("injection", "recurrent")
    if place not in get_args(CountInjection):
        known = ", ".join(get_args(CountInjection))
        raise ValueError(f"{source}: injection is {place!r}; use one of {known}")
    return _from_constants(data, source), Convention(place)


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
        raise ValueError(f"{source} lacks the number {', '.join(missing)}; {_allowed()}")
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
    return hold_against(law, convention, runs, points, source=str(source))


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
    reached = tuple(x for x in points if _knows(law, x.recurrence))
    losses = tuple(float(law.predict(x.n_once, x.n_rec, x.recurrence, x.tokens)) for x in reached)
    return Against(source, law, convention, tuple(rows), reached, losses)


def extrapolate(fit: Fit, points: Sequence[Point]) -> tuple[Prediction, ...]:
    """Predict points outside the grid with the widened interval; points the law cannot reach go.

    `points` must be counted under the convention of the fit.
    """
    return predict(
        fit.law,
        fit.bootstrap,
        [point for point in points if _knows(fit.law, point.recurrence)],
        rms(fit.held_out, "rolling", fit.law.key),
        inside_rms=rms(fit.held_out, "budget", fit.law.key),
        budgets=distinct(fit.runs.budgets).tolist(),
    )


def predict(
    law: FittedLaw,
    draws: Bootstrap | None,
    where: Sequence[Point],
    held_out_rms: float | None,
    *,
    inside_rms: float | None = None,
    budgets: Sequence[float] = (),
) -> tuple[Prediction, ...]:
    """Predict each point with its bootstrap interval and the widened one (see `Prediction`).

    held_out_rms   rolling-origin RMS in nats: what one budget step beyond the grid has cost
    inside_rms     leave-one-budget-out RMS, the least error anywhere; by default held_out_rms
    budgets        of the grid in FLOPs; their median ratio is one step. With fewer than two, every
                   point counts as one step beyond
    """
    least = held_out_rms if inside_rms is None else inside_rms
    found = []
    for point in where:
        place = (point.n_once, point.n_rec, point.recurrence, point.tokens)
        predicted = float(law.predict(*place))
        steps = _steps(budgets, point.budget_flops)
        ci95 = draws.interval(_draws(law, draws, point)) if draws else None
        spread = (ci95[1] - ci95[0]) / (2 * _NORMAL) if ci95 else None
        missed = least
        if steps > 0:
            missed = None if held_out_rms is None else max(steps * held_out_rms, least or 0.0)
        wide95 = inside = None
        if missed is not None and spread is not None:
            half = _NORMAL * math.hypot(spread, missed)
            wide95 = (predicted - half, predicted + half)
            if math.isfinite(point.val_loss):
                inside = wide95[0] <= point.val_loss <= wide95[1]
        seen = (point.name, point.recurrence, point.tokens, point.val_loss)
        found.append(Prediction(*seen, predicted, ci95, steps, wide95, inside, spread, missed))
    return tuple(found)


def _knows(law: FittedLaw, recurrence: float) -> bool:
    return law.key != "free" or recurrence == 1.0 or recurrence in law.recurrences


def _draws(law: FittedLaw, boot: Bootstrap, point: Point) -> FloatArray:
    """Return the prediction of every resample, nats per token, shape (S,)."""
    theta = boot.theta
    g, _, _ = law.gain.evaluate(theta[:, GAIN:], np.array([point.recurrence]))
    # A resample whose gain has fallen below zero may have no parameters left to predict from.
    n_eff = point.n_once + g[:, 0] * point.n_rec
    n_eff = np.where(n_eff > 0, n_eff, np.nan)
    a, alpha, b, beta, e = theta[:, :GAIN].T
    loss: FloatArray = np.exp(e) + np.exp(a) * n_eff**-alpha + np.exp(b) * point.tokens**-beta
    return loss


def _steps(grid: Sequence[float], budget: float) -> float:
    """Return how many budget steps of the grid a budget lies beyond its largest; 0 inside."""
    budgets = sorted(b for b in grid if math.isfinite(b))
    if len(budgets) < 2:
        return 1.0
    step = median(math.log(b / a) for a, b in pairwise(budgets))
    return max(math.log(budget / budgets[-1]) / step, 0.0)


def extrapolation_findings(
    predictions: Sequence[Prediction], points: Sequence[Point]
) -> Iterator[Finding]:
    """Yield what differs at the points, and the points that even the widened interval misses."""
    if predictions:
        yield from _recipe_differs(points)
    missed = [x for x in predictions if x.inside is False]
    if missed:
        worst = max(missed, key=lambda x: abs(x.observed - x.predicted))
        yield Finding(
            "extrapolation_missed",
            "warning",
            f"{len(missed)} of {len(predictions)} runs beyond the grid lie outside the widened "
            f"interval; the worst is {worst.name}: {worst.observed:.3f} against "
            f"{worst.predicted:.3f} nats.",
            remedy="Do not extrapolate this law.",
        )


def against_findings(found: Against) -> Iterator[Finding]:
    """Yield what makes the law's misses at the points not its own alone."""
    yield from _recipe_differs(found.points)


def _recipe_differs(points: Sequence[Point]) -> Iterator[Finding]:
    other = sorted({x.batch_tokens for x in points if x.batch_tokens != GRID_BATCH})
    if other:
        yield Finding(
            "recipe_differs",
            "note",
            f"The runs beyond the grid were trained with {format_count(other[0])} tokens a step, "
            f"the grid with {format_count(GRID_BATCH)}, so their miss is not the law's "
            "alone.",
        )
