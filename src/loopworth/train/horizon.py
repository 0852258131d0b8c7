"""How many steps a run takes, and how many rows of a step go through the device at once."""

from __future__ import annotations

import torch

from loopworth.ledger import Horizon, horizon
from loopworth.spec import ModelSpec, RunSpec
from loopworth.spec.checks import divisors, listed
from loopworth.train.machine import Place
from loopworth.unroll import Unroll, draw, flops_per_token, mean_flops_per_token

# Bytes that the kept activations of a pass may fill. On a CPU more is not faster: past a few
# hundred MB the passes leave the cache anyway, and every new page costs.
_CPU_BYTES = 2**27
_GPU_SHARE = 0.85


def reach(run: RunSpec) -> Horizon:
    """Return the steps of a run, their tokens and the FLOPs they cost, by the ledger.

    Where the unrolling is drawn, FLOPs are the sum over the draws that will be made; a budget then
    buys the number of steps whose sum comes closest to it.

    >>> reach(RunSpec(ModelSpec(640), budget_flops=1e18)).tokens
    954728448
    """
    if run.budget_flops is None:
        steps = run.steps or max(1, round((run.tokens or 0) / run.batch_tokens))
        return _cost(run, steps)
    mean = flops_per_token(run.model, draw(run.model, run.unroll, seed=run.seed, step=0, steps=1))
    tried: dict[int, Horizon] = {}
    while True:  # the FLOPs of the draws depend on the number of steps, and it on them
        steps = horizon(run.budget_flops, mean, run.batch_tokens).steps
        if steps in tried:
            return min(tried.values(), key=lambda each: abs(each.flops - run.budget_flops))  # type: ignore[operator]
        tried[steps] = _cost(run, steps)
        mean = tried[steps].flops / tried[steps].tokens


def _cost(run: RunSpec, steps: int) -> Horizon:
    mean = mean_flops_per_token(run.model, run.unroll, run.seed, steps)
    tokens = steps * run.batch_tokens
    return Horizon(steps, tokens, mean * tokens)


def micro_batch_rows(
    run: RunSpec, place: Place, share: int, asked: int | None, *, checkpoint: bool
) -> int:
    """Return the rows of one pass: what was asked for, or the most that memory has room for.

    share   rows of a step on one device; the result divides it

    Raises ValueError for a number that does not divide it.
    """
    if asked is not None:
        if share % asked:
            raise ValueError(
                f"micro_batch_rows={asked} does not divide the {share} rows of a step on one "
                f"device; use {listed(divisors(share))}"
            )
        return asked
    room = _CPU_BYTES
    if place.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(place.device)
        room = int(_GPU_SHARE * free)
    width = 2 if place.autocast is not None else 4
    most = max(1, room // activation_bytes(run.model, _largest(run), width, checkpoint=checkpoint))
    return max(rows for rows in divisors(share) if rows <= most)


def _largest(run: RunSpec) -> Unroll:
    """Return an unrolling that few draws exceed: memory must hold the large ones too."""
    probes = (draw(run.model, run.unroll, seed=run.seed, step=t, steps=256) for t in range(256))
    return max(probes, key=lambda each: each.with_gradient)


def activation_bytes(model: ModelSpec, unroll: Unroll, width: int, *, checkpoint: bool) -> int:
    """Return about how many bytes one row leaves behind for the backward pass.

    width   bytes of a value: 2 under autocast, where the norms still keep some in 4
    checkpoint   one recurrence is kept at a time, and one state for each of the others

    Estimate: 18 d + 3 F values a token and layer visit, which is what the layers save.
    """
    d = model.d_model
    layer = (18 * d + 3 * model.mlp_width) * width + 4 * d
    visits = model.n_prelude + model.n_coda
    visits += model.n_recur * (1 if checkpoint else unroll.with_gradient)
    states = (unroll.with_gradient + 4) * 6 * d
    return int(model.context * (visits * layer + states))
