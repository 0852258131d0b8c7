"""What the laws `power` and `bounded` say of recurrences that nobody has run, side by side.

Both describe a range of r alike and part beyond it. Their draws are paired: the same resamples,
solved under both laws, so that the difference of the two has an interval of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from loopworth.findings import Finding
from loopworth.law.gain import FloatArray, Gain
from loopworth.law.intervals import Bootstrap, Interval
from loopworth.law.joint import GAIN
from loopworth.law.rivals import DECISIVE_AICC, LawRow, make_problem
from loopworth.law.valley import nearby_bootstrap
from loopworth.runs import RunTable

RIVALS = ("power", "bounded")
"""The law that grows without end and the one that saturates, in the order of their difference."""

BEYOND = (2.0, 4.0)
"""Multiples of the largest recurrence at which the two are compared."""

_SAME_GAIN = 0.05


@dataclass(frozen=True)
class UntestedRow:
    """g at a recurrence that was not run, under both laws, with 95 % intervals.

    `difference` is g of `power` minus g of `bounded`, resample by resample. The intervals hold if
    their law does; that the two disagree is what neither interval contains.
    """

    recurrence: float
    power: float
    power_ci95: Interval | None
    bounded: float
    bounded_ci95: Interval | None
    difference: float
    difference_ci95: Interval | None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        row = asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in row.items()}


def rival_draws(
    runs: RunTable, laws: Sequence[LawRow], power: Bootstrap | None
) -> dict[str, Bootstrap]:
    """Return the resamples of `power` solved under both laws, none where there is nothing to pair.

    Each starts from the optimum of all runs. On a ridge, where only k1/k2 matters, it ends where
    the objective is flat, which moves g beyond the grid by less than 2 %.
    """
    row = next((row for row in laws if row.key == "bounded"), None)
    if power is None or row is None:
        return {} if power is None else {"power": power}
    problem = make_problem(runs, "bounded")
    starts = np.broadcast_to(row.optimum.theta, (len(power.weights), len(row.optimum.theta)))
    return {"power": power, "bounded": nearby_bootstrap(problem, power.weights, starts)}


def untested_rows(
    laws: Sequence[LawRow], draws: Mapping[str, Bootstrap]
) -> tuple[UntestedRow, ...]:
    """Return g of both laws at two and four times the largest recurrence, none without both.

    >>> from loopworth import fit
    >>> row = fit("schwethelm2026", bootstrap=0).untested[0]
    >>> row.recurrence, round(row.power, 1), round(row.bounded, 1)
    (16.0, 3.3, 2.8)
    """
    by_key = {row.key: row.law for row in laws}
    if not all(key in by_key and by_key[key].recurrences for key in RIVALS):
        return ()
    power, bounded = (by_key[key] for key in RIVALS)
    rows = []
    for multiple in BEYOND:
        r = multiple * max(power.recurrences)
        ours, theirs = power.g(r), bounded.g(r)
        ends: tuple[Interval | None, ...] = (None, None, None)
        if all(key in draws for key in RIVALS):
            gains = [_gains(by_key[key].gain, draws[key], r) for key in RIVALS]
            ends = (
                draws["power"].interval(gains[0], ours),
                draws["bounded"].interval(gains[1], theirs),
                paired(draws).interval(gains[0] - gains[1], ours - theirs),
            )
        rows.append(UntestedRow(r, ours, ends[0], theirs, ends[1], ours - theirs, ends[2]))
    return tuple(rows)


def paired(draws: Mapping[str, Bootstrap]) -> Bootstrap:
    """Return the resamples that both laws converged in, for intervals of a difference."""
    power, bounded = (draws[key] for key in RIVALS)
    return replace(power, converged=np.asarray(power.converged & bounded.converged))


def _gains(gain: Gain, boot: Bootstrap, recurrence: float) -> FloatArray:
    """Return g at one recurrence in every resample, shape (S,)."""
    return np.asarray(gain.evaluate(boot.theta[:, GAIN:], np.array([recurrence]))[0][:, 0])


def untested_findings(laws: Sequence[LawRow], rows: Sequence[UntestedRow]) -> Iterator[Finding]:
    """Yield where two laws that fit alike part beyond the recurrences that were run.

    Laws whose g differs by less than 5 % there are taken to agree.
    """
    by_key = {row.key: row for row in laws}
    if not rows:
        return
    power, bounded = (by_key[key] for key in RIVALS)
    if power.delta_aicc is None or bounded.delta_aicc is None:
        return
    row = rows[0]
    if abs(power.delta_aicc - bounded.delta_aicc) >= DECISIVE_AICC or _agree(row):
        return
    yield Finding(
        "untested_recurrence",
        "note",
        "The laws 'power' and 'bounded' cannot be told apart on these runs, but predict "
        f"g({row.recurrence:g}) = {row.power:.1f} against {row.bounded:.1f}.",
        remedy=f"Runs at r = {row.recurrence:g} would decide; until then do not extrapolate in r.",
        evidence=row.to_json(),
    )


def _agree(row: UntestedRow) -> bool:
    return abs(row.difference) < _SAME_GAIN * min(row.power, row.bounded)
