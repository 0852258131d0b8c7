"""How far a run goes, and what one of its rows leaves in memory, before anything is trained."""

from loopworth.ledger import Horizon, horizon
from loopworth.spec import ModelSpec, RunSpec
from loopworth.unroll import Unroll, draw, flops_per_token, mean_flops_per_token


def reach(run: RunSpec) -> Horizon:
    """Return the steps of a run, their tokens and the FLOPs they cost, by the ledger.

    Where the unrolling is drawn, FLOPs are the sum over the draws that will be made; a budget then
    buys the number of steps whose sum comes closest to it.

    >>> reach(RunSpec(ModelSpec(640), budget_flops=1e18)).tokens
    954728448
    """
    budget = run.budget_flops
    if budget is None:
        steps = run.steps or max(1, round((run.tokens or 0) / run.batch_tokens))
        return _cost(run, steps)
    mean = flops_per_token(run.model, draw(run.model, run.unroll, seed=run.seed, step=0, steps=1))
    tried: dict[int, Horizon] = {}
    while True:  # the FLOPs of the draws depend on the number of steps, and it on them
        steps = horizon(budget, mean, run.batch_tokens).steps
        if steps in tried:
            return min(tried.values(), key=lambda each: abs(each.flops - budget))
        tried[steps] = _cost(run, steps)
        mean = tried[steps].flops / tried[steps].tokens


def _cost(run: RunSpec, steps: int) -> Horizon:
    mean = mean_flops_per_token(run.model, run.unroll, run.seed, steps)
    tokens = steps * run.batch_tokens
    return Horizon(steps, tokens, mean * tokens)


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
