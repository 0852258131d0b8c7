"""The designs of a sweep: which architectures and horizons stand beside each other.

A design says what is held while the recurrence r changes, and so what a difference in loss means:
iso-depth holds the layers that a token passes (and nearly the FLOPs), iso-parameter the stored
block, iso-token the tokens, width-fixed the width. Every design makes its controls with it: the
model without a loop, and where a loop adds depth, the same depth without tied weights.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from loopworth.plan.plan import PlannedRun, Role
from loopworth.spec import ModelSpec, RunSpec

Grid = Mapping[float, Sequence[int]]  # budget in FLOPs, or tokens: the widths d_model to train
Layers = tuple[int, int, int]  # prelude, recurrent block, coda


def iso_depth(
    grid: Grid,
    *,
    depth: int = 20,
    ends: tuple[int, int] = (2, 2),
    recurrences: Sequence[int] = (1, 2, 4, 8),
    plain: Layers | None = None,
    study: str = "baseline",
    seeds: Sequence[int] = (42,),
    model: Mapping[str, Any] | None = None,
    run: Mapping[str, Any] | None = None,
) -> list[PlannedRun]:
    """Return a sweep in which every model passes a token through `depth` layers.

    grid is budget -> widths; ends the layers of prelude and coda; `plain` the layers of the model
    at recurrence 1, which is always there and is the untied control as well (None: the same ends).
    `model` and `run` are the other fields of ModelSpec and RunSpec. Source: arXiv 2604.21106,
    section 3. Raises ValueError where a recurrence does not divide the shared layers.

    >>> runs = iso_depth({1e18: [640]}, recurrences=(2, 4))
    >>> [(p.run.model.recurrence, p.run.model.n_recur, p.role) for p in runs]
    [(1, 16, 'plain'), (2, 8, 'cell'), (4, 4, 'cell')]
    """
    shared = depth - sum(ends)
    _check_ends(depth, ends)
    for recurrence in recurrences:
        if recurrence < 1 or shared % recurrence:
            allowed = ", ".join(str(n) for n in range(1, shared + 1) if shared % n == 0)
            raise ValueError(
                f"recurrence {recurrence} does not divide the {shared} shared layers (depth "
                f"{depth} without the {sum(ends)} of prelude and coda); use {allowed}, or "
                "another depth"
            )
    layouts: list[tuple[int, Layers]] = [(1, plain or (ends[0], shared, ends[1]))]
    layouts += [(r, (ends[0], shared // r, ends[1])) for r in _looped(recurrences)]
    return _fill(grid, "budget_flops", layouts, _roles(layouts), study, seeds, model, run)


def iso_parameter(
    grid: Grid,
    *,
    layers: Layers = (2, 4, 2),
    recurrences: Sequence[int] = (1, 2, 4, 8),
    horizon: str = "budget_flops",
    study: str = "iso_parameter",
    seeds: Sequence[int] = (42,),
    model: Mapping[str, Any] | None = None,
    run: Mapping[str, Any] | None = None,
) -> list[PlannedRun]:
    """Return a sweep in which the stored block is the same and a loop adds depth and FLOPs.

    Its controls: recurrence 1, and for each r the untied stack of the same depth.

    >>> runs = iso_parameter({1e18: [640]}, recurrences=(2,))
    >>> [(p.run.model.recurrence, p.run.model.n_recur, p.role) for p in runs]
    [(1, 4, 'plain'), (2, 4, 'cell'), (1, 8, 'untied')]
    """
    prelude, block, coda = layers
    looped = _looped(recurrences)
    layouts: list[tuple[int, Layers]] = [(1, layers)]
    roles: list[Role] = ["plain"]
    for r in looped:
        layouts += [(r, layers), (1, (prelude, block * r, coda))]
        roles += ["cell", "untied"]
    return _fill(grid, horizon, layouts, roles, study, seeds, model, run)


def iso_token(grid: Grid, *, study: str = "iso_token", **design: Any) -> list[PlannedRun]:
    """Return a sweep at equal tokens: the grid is tokens -> widths, the rest as `iso_parameter`.

    >>> {p.run.tokens for p in iso_token({10**9: [640]}, recurrences=(2,))}
    {1000000000}
    """
    return iso_parameter(grid, horizon="tokens", study=study, **design)


def width_fixed(
    width: int, budgets: Sequence[float], *, study: str = "width_fixed", **design: Any
) -> list[PlannedRun]:
    """Return an iso-depth sweep of one width over several budgets.

    One width ties N to r, so a law cannot tell A, alpha and E apart from it; it shows how a gap
    between recurrences changes with tokens, at the least cost.

    >>> len(width_fixed(640, [1e18, 2e18]))
    8
    """
    return iso_depth({budget: [width] for budget in budgets}, study=study, **design)


def _looped(recurrences: Sequence[int]) -> list[int]:
    return sorted({r for r in recurrences if r > 1})


def _check_ends(depth: int, ends: tuple[int, int]) -> None:
    if sum(ends) >= depth:
        raise ValueError(
            f"depth={depth} leaves no layer to share beside ends={ends}; use a larger depth"
        )


def _roles(layouts: Sequence[tuple[int, Layers]]) -> list[Role]:
    return ["plain" if recurrence == 1 else "cell" for recurrence, _ in layouts]


def _fill(
    grid: Grid,
    horizon: str,
    layouts: Sequence[tuple[int, Layers]],
    roles: Sequence[Role],
    study: str,
    seeds: Sequence[int],
    model: Mapping[str, Any] | None,
    run: Mapping[str, Any] | None,
) -> list[PlannedRun]:
    """Make a run of every width, layout and seed at every point of the grid."""
    return [
        PlannedRun(
            RunSpec(
                model=looped_model(width, recurrence, layers, **(model or {})),
                seed=seed,
                **{horizon: reach, **(run or {})},
            ),
            study,
            role,
        )
        for reach, widths in grid.items()
        for width in widths
        for (recurrence, layers), role in zip(layouts, roles, strict=True)
        for seed in seeds
    ]


def looped_model(width: int, recurrence: int, layers: Layers, **fields: Any) -> ModelSpec:
    """Return the model of a layout; without a loop it has no injection, and no window.

    >>> looped_model(640, 1, (0, 20, 0), injection="linear").injection
    'none'
    """
    if recurrence == 1:
        fields |= {"injection": "none", "bptt_window": None}
    prelude, block, coda = layers
    return ModelSpec(
        d_model=width,
        n_prelude=prelude,
        n_recur=block,
        n_coda=coda,
        recurrence=recurrence,
        **fields,
    )
