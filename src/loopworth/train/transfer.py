"""Learning rates that follow width, batch, tokens and recurrence, and the schedule of a run.

No tensors here: numbers of a spec become numbers of a run, so a rate can be checked before any
model exists.
"""

import math
from collections.abc import Callable
from types import MappingProxyType

from loopworth.spec import ModelSpec, OptimSpec
from loopworth.spec.checks import real, whole

MATRIX_GROUPS = ("matrix_once", "matrix_loop")
VECTOR_GROUPS = ("embedding", "head", "norm", "injection")
GROUPS = MATRIX_GROUPS + VECTOR_GROUPS

REFERENCE_WIDTH = 640
REFERENCE_BATCH_TOKENS = 2**18
# Ten tokens a parameter of the width-640 models, at recurrence 1 and looped (2-4-2, linear).
REFERENCE_TOKENS = {"plain": 983_315_200, "looped": 1_016_083_200}
REFERENCE_LAYERS = 20  # effective layers of every model that the reference rates were tuned on


def peak_rates(
    optim: OptimSpec, model: ModelSpec, *, batch_tokens: float, tokens: float
) -> dict[str, float]:
    """Return the peak learning rate of every group of parameters.

    batch_tokens   tokens a step         tokens   tokens planned for the whole run
    Matrices: a relative step of MuonH, x batch^0.558 x tokens^-0.32 x the rule by recurrence. The
    sphere makes them free of width. AdamW: embedding and head x batch^0.558, norm scales and the
    injection's vectors without it, all x width^-0.5, none x tokens. Each factor is 1 at the
    reference: 2^18 tokens a step, width 640, `reference_tokens(optim, model)`.

    Raises ValueError for a count that is not positive.
    Source: arXiv 2604.21106, as its public code applies the rules.

    >>> rates = peak_rates(OptimSpec(), ModelSpec(640), batch_tokens=2**18, tokens=954728448)
    >>> round(rates["matrix_loop"], 5), rates["embedding"]
    (0.01428, 0.3)
    """
    remedy = "as many as the run will see"
    batch_tokens = real("batch_tokens", batch_tokens, "a positive number", remedy)
    tokens = real("tokens", tokens, "a positive number", remedy)
    batch = (batch_tokens / REFERENCE_BATCH_TOKENS) ** optim.batch_exponent
    width = (model.d_model / REFERENCE_WIDTH) ** optim.width_exponent
    horizon = (tokens / reference_tokens(optim, model)) ** optim.token_exponent
    once, loop = recurrence_factors(optim, model)
    matrix = optim.matrix_lr * batch * horizon
    return {
        "matrix_once": matrix * once,
        "matrix_loop": matrix * loop,
        "embedding": optim.embedding_lr * batch * width,
        "head": optim.head_lr * batch * width,
        "norm": optim.norm_lr * width,
        "injection": optim.injection_lr * width,
    }


def reference_tokens(optim: OptimSpec, model: ModelSpec) -> float:
    """Return the tokens at which the matrix rate is the reference's.

    >>> reference_tokens(OptimSpec(), ModelSpec(640, recurrence=1, injection="none"))
    983315200.0
    """
    if optim.reference_tokens is not None:
        return float(optim.reference_tokens)
    return float(REFERENCE_TOKENS["plain" if model.recurrence == 1 else "looped"])


def recurrence_factors(optim: OptimSpec, model: ModelSpec) -> tuple[float, float]:
    """Return the factors on the rate of the matrices outside the loop and inside it.

    none           1, 1: the reference, which keeps the effective depth constant instead
    inverse_sqrt   1, 1/sqrt(r): as if the r visits of a matrix added up like independent steps
    inverse        1, 1/r: as if they all moved the same way
    hyperp         sqrt(20 / L) for both, L the effective layers: HyperP's rule for depth

    HyperP (arXiv 2603.28743 and its public code) has a rule for depth, rate x (L0 / L)^0.5 on every
    layer, and none for recurrence. Taking the effective layers (prelude + r * recur + coda) for
    its depth is our reading, untested there; so is its use without HyperP's 1/sqrt(2 L) on the
    residual branches, which this model does not have. At 20 effective layers, the depth of the
    reference, the factor is 1. For looped models, arXiv 2606.18524 finds an optimal rate that does
    not depend on r, provided that the residual branches are scaled by 1/r: nothing here settles
    the rule, a learning-rate sweep does (`loopworth.train.lr_sweep`).

    r is the spec's recurrence, the mean where it is sampled.

    >>> recurrence_factors(OptimSpec(recurrence_rule="inverse_sqrt"), ModelSpec(640))
    (1.0, 0.5)
    """
    return _RULES[optim.recurrence_rule](model)


def _hyperp(model: ModelSpec) -> tuple[float, float]:
    factor = math.sqrt(REFERENCE_LAYERS / model.effective_layers)
    return factor, factor


# A rule of one's own: a line here and its name in `spec.run.RecurrenceRule`.
_RULES: MappingProxyType[str, Callable[[ModelSpec], tuple[float, float]]] = MappingProxyType(
    {
        "none": lambda _model: (1.0, 1.0),
        "inverse_sqrt": lambda model: (1.0, float(model.recurrence) ** -0.5),
        "inverse": lambda model: (1.0, 1 / model.recurrence),
        "hyperp": _hyperp,
    }
)


def multiplier(optim: OptimSpec, step: int, steps: int) -> float:
    """Return what every rate is multiplied by at `step` of `steps`, counted from 0.

    Linear warm-up over the first `warmup` of the steps, (t + 1) / w; then 1; then a straight line
    over the last `warmdown` of them that would reach `final_fraction` at t = steps. By default
    1 - 0.9 t / n. A step beyond the last has the final fraction: a run that is prolonged by its
    spec has another schedule from its start.

    Raises ValueError for a negative step and for a run without steps.
    Source: arXiv 2604.21106, its code.

    >>> [multiplier(OptimSpec(), t, 100) for t in (0, 50, 100)]
    [1.0, 0.55, 0.1]
    """
    step, steps = whole("step", step, 0), whole("steps", steps, 1)
    warmup = round(optim.warmup * steps)
    warmdown = round(optim.warmdown * steps)
    if step < warmup:
        return (step + 1) / warmup
    if step <= steps - warmdown:
        return 1.0
    left = max(steps - step, 0) / warmdown if warmdown else 0.0
    return left + (1 - left) * optim.final_fraction
