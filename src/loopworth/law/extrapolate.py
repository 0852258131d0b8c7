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
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from loopworth import datasets
from loopworth.findings import Finding
from loopworth.law.fitted import FittedLaw
from loopworth.law.fitting import Fit
from loopworth.law.gain import FloatArray
from loopworth.law.intervals import Interval
from loopworth.law.joint import GAIN
from loopworth.law.leaveout import rms
from loopworth.ledger import Convention, horizon, ledger
from loopworth.quantities import format_count
from loopworth.runs import RunTable
from loopworth.spec import ModelSpec
from loopworth.table.values import distinct

_NORMAL = 1.959964  # half the width of a 95 % interval in standard deviations
_GRID_BATCH = 2**18  # tokens a step of the runs in the built-in table (arXiv 2604.21106)
_CONSTANTS = ("A", "alpha", "B", "beta", "E", "phi")


@dataclass(frozen=True)
class Point:
    """A measured run that a law was not fitted to; loss in nats per token."""

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
    """A law at one point.

    ci95     from the bootstrap of the constants, None without it
    wide95   predicted ± 1.96 sd with sd^2 = sd_bootstrap^2 + (steps rms)^2, where rms is the
             rolling-origin error (leave-one-budget-out inside the grid); None without hold-outs
    steps    how many budget steps of the grid the point lies beyond it, at least 1
    inside   whether the measured loss lies in wide95
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

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        pairs = {
            k: list(v) if v else None for k, v in (("ci95", self.ci95), ("wide95", self.wide95))
        }
        return asdict(self) | pairs


@dataclass(frozen=True)
class Against:
    """A law pasted from elsewhere beside the runs of a table, under the law's own convention.

    `misses` is by recurrence: n_runs, bias (observed minus predicted) and rmse in nats per token.
    """

    source: str
    law: FittedLaw
    convention: Convention
    misses: tuple[dict[str, float], ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "source": self.source,
            "fitted_law": self.law.to_json(),
            "convention": self.convention.name,
            "by_recurrence": [dict(row) for row in self.misses],
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
            row["s"],
            n_prelude=prelude,
            n_recur=recur,
            n_coda=coda,
            recurrence=row["r"],
            injection=injection,
        )
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


def read_law(source: str) -> tuple[FittedLaw, Convention]:
    """Read a law to compare with: `published`, a fit.json of ours, or a JSON file of constants.

    Constants are A, alpha, B, beta, E and phi, with `injection` saying how N was counted (default
    recurrent). Raises ValueError that names what is missing, OSError for an unreadable file.

    >>> law, convention = read_law("published")
    >>> round(law.phi(4), 3), convention.injection
    (0.459, 'once')
    """
    if source == "published":
        page = datasets.published()["joint"]["page"]
        return _from_constants(page, source), Convention("once")
    try:
        data = json.loads(Path(source).read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as problem:
        raise ValueError(f"{source} is not JSON ({problem}); {_allowed()}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{source} holds no JSON object; {_allowed()}")
    if "fitted_law" in data:
        place = str(data.get("convention", Convention().name))
        known = [each for each in _conventions() if each.name == place]
        if not known:
            raise ValueError(f"{source} names the unknown convention {place!r}")
        return FittedLaw.from_json(data["fitted_law"]), known[0]
    return _from_constants(data, source), Convention(data.get("injection", "recurrent"))


def _conventions() -> Iterator[Convention]:
    for injection in ("recurrent", "once", "excluded"):
        for norms in (True, False):
            for embeddings in (True, False):
                yield Convention(injection, norms, embeddings)


def _allowed() -> str:
    return f"give 'published', a fit.json, or a JSON object with {', '.join(_CONSTANTS)}"


def _from_constants(data: Mapping[str, Any], source: str) -> FittedLaw:
    missing = [name for name in _CONSTANTS if not isinstance(data.get(name), int | float)]
    if missing:
        raise ValueError(f"{source} lacks the number {', '.join(missing)}; {_allowed()}")
    a, alpha, b, beta, e, phi = (float(data[name]) for name in _CONSTANTS)
    return FittedLaw("power", (2.0, 4.0, 8.0), a, alpha, b, beta, e, (phi,))


def against(source: str, runs: RunTable) -> Against:
    """Hold a law from elsewhere against the runs of a table.

    >>> from loopworth import load_runs
    >>> row = against("published", load_runs("schwethelm2026")).misses[0]
    >>> row["n_runs"], round(row["rmse"], 3)
    (29, 0.009)
    """
    law, convention = read_law(source)
    table = runs.under(convention)
    predicted = law.predict(table.n_once, table.n_rec, table.recurrence, table.tokens)
    miss = table.val_loss - predicted
    rows = []
    for r in distinct(table.recurrence).tolist():
        part = miss[table.recurrence == r]
        rows.append(
            {
                "recurrence": r,
                "n_runs": len(part),
                "bias": float(part.mean()),
                "rmse": float(np.sqrt((part**2).mean())),
            }
        )
    return Against(source, law, convention, tuple(rows))


def extrapolate(fit: Fit, points: Sequence[Point]) -> tuple[Prediction, ...]:
    """Predict points outside the grid with the widened interval; points the law cannot reach go.

    `points` must be counted under the convention of the fit.
    """
    return tuple(_predict(fit, point) for point in points if _knows(fit.law, point.recurrence))


def _knows(law: FittedLaw, recurrence: float) -> bool:
    return law.key != "free" or recurrence == 1.0 or recurrence in law.recurrences


def _predict(fit: Fit, point: Point) -> Prediction:
    where = (point.n_once, point.n_rec, point.recurrence, point.tokens)
    predicted = float(fit.law.predict(*where))
    ci95, spread = None, 0.0
    if fit.bootstrap is not None:
        draws = _draws(fit, point)
        ci95 = fit.bootstrap.interval(draws)
        if ci95 is not None:
            spread = (ci95[1] - ci95[0]) / (2 * _NORMAL)
    steps = _steps(fit.runs, point.budget_flops)
    kind = "rolling" if steps > 0 else "budget"
    missed = rms(fit.held_out, kind, fit.law.key)
    wide95 = None
    if missed is not None and fit.bootstrap is not None:
        half = _NORMAL * math.hypot(spread, max(steps, 1.0) * missed)
        wide95 = (predicted - half, predicted + half)
    inside = None if wide95 is None else wide95[0] <= point.val_loss <= wide95[1]
    return Prediction(
        name=point.name,
        recurrence=point.recurrence,
        tokens=point.tokens,
        observed=point.val_loss,
        predicted=predicted,
        ci95=ci95,
        steps=max(steps, 1.0),
        wide95=wide95,
        inside=inside,
    )


def _draws(fit: Fit, point: Point) -> FloatArray:
    """Return the prediction of every resample, nats per token, shape (S,)."""
    assert fit.bootstrap is not None
    theta = fit.bootstrap.theta
    g, _, _ = fit.law.gain.evaluate(theta[:, GAIN:], np.array([point.recurrence]))
    n_eff = point.n_once + g[:, 0] * point.n_rec
    a, alpha, b, beta, e = theta[:, :GAIN].T
    loss: FloatArray = np.exp(e) + np.exp(a) * n_eff**-alpha + np.exp(b) * point.tokens**-beta
    return loss


def _steps(runs: RunTable, budget: float) -> float:
    """Return how many budget steps of the grid a budget lies beyond its largest; 0 inside."""
    budgets = [b for b in distinct(runs.budgets).tolist() if math.isfinite(b)]
    if len(budgets) < 2:
        return 1.0
    step = median(math.log(b / a) for a, b in pairwise(budgets))
    return max(math.log(budget / budgets[-1]) / step, 0.0)


def extrapolation_findings(
    predictions: Sequence[Prediction], points: Sequence[Point]
) -> Iterator[Finding]:
    """Yield what differs at the points, and the points that even the widened interval misses."""
    other = sorted({x.batch_tokens for x in points if x.batch_tokens != _GRID_BATCH})
    if predictions and other:
        yield Finding(
            "recipe_differs",
            "note",
            f"The runs beyond the grid were trained with {format_count(other[0])} tokens a step, "
            f"the grid with {format_count(_GRID_BATCH)}, so their miss is not the law's alone.",
        )
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
