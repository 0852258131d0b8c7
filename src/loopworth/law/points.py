"""Measured runs beyond a grid, and what besides the law differs there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from loopworth import datasets
from loopworth.findings import Finding, join_words
from loopworth.ledger import Convention, horizon, ledger
from loopworth.quantities import format_count
from loopworth.runs import RunTable
from loopworth.spec import ModelSpec
from loopworth.table.values import distinct


@dataclass(frozen=True)
class Point:
    """A run that a law was not fitted to.

    Loss is in nats per token, NaN where nobody measured it; parameters are counted under the
    convention of the law that will predict it. `batch_tokens` is tokens a step, None where unknown.
    """

    name: str
    recurrence: float
    n_once: float
    n_rec: float
    tokens: float
    budget_flops: float
    val_loss: float
    batch_tokens: int | None = None


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


def recipe_findings(points: Sequence[Point], runs: RunTable) -> Iterator[Finding]:
    """Yield what makes a miss at the points not the law's own alone.

    Only what both sides tell can differ: runs without `batch_tokens` say nothing.

    >>> from loopworth import load_runs
    >>> table = load_runs("schwethelm2026")
    >>> [x.code for x in recipe_findings(published_points(Convention()), table)]
    ['recipe_differs']
    """
    grid: list[float] = sorted(distinct(runs.batch_tokens[np.isfinite(runs.batch_tokens)]).tolist())
    other = sorted({x.batch_tokens for x in points if x.batch_tokens} - set(grid))
    if grid and other:
        ours = join_words(map(format_count, grid[:3]))
        yield Finding(
            "recipe_differs",
            "note",
            f"The runs beyond the grid were trained with {format_count(other[0])} tokens a step, "
            f"the grid with {ours}, so their miss is not the law's alone.",
        )
