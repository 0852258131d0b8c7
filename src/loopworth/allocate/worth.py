"""What a looped model is worth: the unlooped models of equal loss and of equal cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from loopworth.allocate.family import Family, families
from loopworth.law.fitted import FittedLaw
from loopworth.ledger import Convention
from loopworth.quantities import format_quantity
from loopworth.runs import RunTable
from loopworth.spec import ModelSpec

HEADLINE_PARAMETERS = 410e6
"""The size in the headline of arXiv 2604.21106: at r = 4, 410M is worth 580M at the cost of 1B."""


@dataclass(frozen=True, slots=True)
class Ratios:
    """The looped model over an unlooped one, each per token (weight bytes: per model).

    FLOPs count head and attention; weight bytes count all stored parameters, embeddings included.
    """

    train_flops: float
    inference_flops: float
    weight_bytes: float
    kv_bytes: float


@dataclass(frozen=True, slots=True)
class Equivalent:
    """A looped model beside the unlooped models of equal loss and of equal cost.

    Fields
      study, recurrence, layout, width   the looped model; layout as prelude-recur-coda
      convention   the name of how n_once and n_rec are counted: that of the law's fit
      n_unique     its parameters: unique, embeddings out, norms and injection in
      n_once, n_rec, gain   the law's terms
      worth        N_eff = n_once + g(r) n_rec: parameters of an unlooped model of equal loss
      unrolled     n_once + r n_rec: parameters of the unlooped model with the same layer visits
      worth_per_cost   worth / unrolled: below 1, looping costs more than it is worth
      cost         parameters of the unlooped layout with the same true training FLOPs per token
      unlooped     that layout, such as 0-20-0: the table's r = 1, or all visits as layers
      train_flops_per_token, inference_flops_per_token   of the looped model
      over_worth, over_cost   ratios of the looped model to the unlooped one of size `worth`, `cost`
    """

    study: str
    recurrence: float
    layout: str
    width: float
    convention: str
    n_unique: float
    n_once: float
    n_rec: float
    gain: float
    worth: float
    unrolled: float
    worth_per_cost: float
    cost: float
    unlooped: str
    train_flops_per_token: float
    inference_flops_per_token: float
    over_worth: Ratios
    over_cost: Ratios

    @property
    def sentence(self) -> str:
        """The equivalence in words."""
        n_unique, worth, cost = (format_quantity(x) for x in (self.n_unique, self.worth, self.cost))
        return (
            f"At r = {self.recurrence:g}, {n_unique} unique parameters are worth {worth} of an "
            f"unlooped model, at the training cost of {cost}."
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, the sentence included."""
        return asdict(self) | {"sentence": self.sentence}


def equivalents(
    law: FittedLaw,
    source: RunTable | ModelSpec | Iterable[Family],
    *,
    n_unique: float | None = None,
    convention: Convention | None = None,
) -> tuple[Equivalent, ...]:
    """Say what each looped layout is worth at one count of unique parameters.

    `source` is a table of runs (each of its looped layouts), one spec, or families. `n_unique`
    counts unique parameters without embeddings; without it, a spec keeps its own width and the rest
    is taken at 410M. `convention` is the one the law was fitted in; it is only read for a spec, as
    tables and families carry theirs. Raises ValueError for a recurrence that the law does not know
    and for a size that is not positive.

    >>> law = FittedLaw("power", (2.0, 4.0, 8.0), 28.4, 0.2, 911.0, 0.368, 1.57, (0.46,))
    >>> (x,) = equivalents(law, ModelSpec(640), n_unique=410e6)
    >>> x.sentence
    'At r = 4, 410M unique parameters are worth 597M of an unlooped model, at the training cost ...
    """
    if n_unique is not None and not 0.0 < n_unique < float("inf"):
        raise ValueError(f"n_unique={n_unique:g} must be a positive, finite number of parameters")
    if isinstance(source, ModelSpec):
        family = Family.of(source, convention)
        width = source.d_model if n_unique is None else family.n_unique.width(n_unique)
        return (_equivalent(law, family, width, _unlooped(family, [])),)
    chosen = families(source) if isinstance(source, RunTable) else tuple(source)
    size = HEADLINE_PARAMETERS if n_unique is None else n_unique
    unlooped = [family for family in chosen if family.recurrence == 1.0]
    return tuple(
        _equivalent(law, family, family.n_unique.width(size), _unlooped(family, unlooped))
        for family in chosen
        if family.recurrence != 1.0
    )


def _unlooped(family: Family, known: list[Family]) -> Family:
    """Return the r = 1 layout to compare with, in the family's convention.

    That of the same study, or the only one known; else every layer visit as a layer of its own.
    """
    same = [each for each in known if each.study == family.study] or known
    if len(same) == 1:
        return same[0]
    spec = family.spec
    if spec is None:
        raise ValueError(
            f"no r = 1 layout stands beside r = {family.recurrence:g}; add one to the families"
        )
    layers = round(spec.effective_layers)  # a mean recurrence need not give a whole number
    return Family.of(
        replace(
            spec,
            n_prelude=0,
            n_recur=layers,
            n_coda=0,
            recurrence=1,
            injection="none",
            bptt_window=None,
        ),
        family.convention,
    )


def _equivalent(law: FittedLaw, family: Family, width: float, unlooped: Family) -> Equivalent:
    once, rec = family.n_once(width), family.n_rec(width)
    gain = law.g(family.recurrence)
    worth, unrolled = once + gain * rec, once + family.recurrence * rec
    worth_width = unlooped.counted.width(worth)
    cost_width = unlooped.train_flops.width(family.train_flops(width))
    return Equivalent(
        study=family.study,
        recurrence=family.recurrence,
        layout=family.layout,
        width=width,
        convention=family.convention.name,
        n_unique=family.n_unique(width),
        n_once=once,
        n_rec=rec,
        gain=gain,
        worth=worth,
        unrolled=unrolled,
        worth_per_cost=worth / unrolled,
        cost=unlooped.counted(cost_width),
        unlooped=unlooped.layout,
        train_flops_per_token=family.train_flops(width),
        inference_flops_per_token=family.inference_flops(width),
        over_worth=_ratios(family, width, unlooped, worth_width),
        over_cost=_ratios(family, width, unlooped, cost_width),
    )


def _ratios(family: Family, width: float, unlooped: Family, other: float) -> Ratios:
    return Ratios(
        train_flops=family.train_flops(width) / unlooped.train_flops(other),
        inference_flops=family.inference_flops(width) / unlooped.inference_flops(other),
        weight_bytes=family.stored(width) / unlooped.stored(other),
        kv_bytes=family.kv_values(width) / unlooped.kv_values(other),
    )
