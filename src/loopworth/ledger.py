"""Parameters and FLOPs of a looped transformer: the sums over its tensors that the laws need.

The published tokens rest on these counts (arXiv 2604.21106 and its public code): D = C / FLOPs per
token, so a wrong count moves phi without a trace.
"""

from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

from loopworth.quantities import format_count, format_flops
from loopworth.spec import ModelSpec
from loopworth.spec.checks import one_of, real, whole
from loopworth.tensors import TensorRow, tensor_rows

CountInjection = Literal["recurrent", "once", "excluded"]

REFERENCE_BATCH_TOKENS = 2**18  # tokens a step in the published runs
_MOST_FLOPS = 1e24  # a token: the largest trainings so far took 1e26 for all of theirs


@dataclass(frozen=True, slots=True)
class Convention:
    """Where the injection, the norm vectors and the embeddings are counted.

    The convention moves phi as much as the methods do, so it has a name and travels with phi.
    injection  recurrent: in n_rec (default); once: in n_once; excluded: in neither
    norms      count the norm vectors: block norms with their block, the three global ones in n_once
    embeddings count the token embedding and the head in n_once

    >>> Convention("once").name
    'injection once, norms in, embeddings out'
    """

    injection: CountInjection = "recurrent"
    norms: bool = True
    embeddings: bool = False

    def __post_init__(self) -> None:
        """Refuse an unknown place for the injection, and words where a yes or no is meant."""
        one_of("injection", self.injection, get_args(CountInjection))
        for name in ("norms", "embeddings"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                kind = type(value).__name__
                raise ValueError(f"{name}={value!r} is of type {kind}; use True (in) or False")

    @property
    def name(self) -> str:
        """The convention in words."""
        norms, embeddings = ("in" if flag else "out" for flag in (self.norms, self.embeddings))
        return f"injection {self.injection}, norms {norms}, embeddings {embeddings}"


def as_convention(value: object) -> Convention:
    """Return a Convention; a word is refused, since it does not say where norms are counted.

    >>> as_convention("once")
    Traceback (most recent call last):
    ValueError: convention='once' is of type str; give a Convention, such as Convention('once')
    """
    if not isinstance(value, Convention):
        word = value if value in ("recurrent", "excluded") else "once"
        raise ValueError(
            f"convention={value!r} is of type {type(value).__name__}; "
            f"give a Convention, such as Convention({word!r})"
        )
    return value


@dataclass(frozen=True, slots=True)
class Count:
    """Parameters under a convention; n_unique is n_once + n_rec.

    n_injection is what the injection layer holds, wherever the convention puts it.
    """

    n_once: int
    n_rec: int
    n_injection: int
    n_unique: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """The account of one spec: its rows, and the sums that the laws need."""

    spec: ModelSpec
    rows: tuple[TensorRow, ...]

    def count(self, convention: Convention | None = None) -> Count:
        """Return the parameters used once and the parameters that recur, under a convention.

        >>> ledger(ModelSpec.from_scale(10)).count(Convention("once"))
        Count(n_once=20487040, n_rec=19665920, n_injection=819200, n_unique=40152960)
        """
        convention = Convention() if convention is None else as_convention(convention)
        once = rec = injection = 0
        for row in self.rows:
            if row.kind == "norm" and not convention.norms:
                continue
            if row.group == "injection":
                injection += row.parameters
            elif row.group == "recur":
                rec += row.parameters
            elif row.group not in ("embedding", "head") or convention.embeddings:
                once += row.parameters
        once += injection if convention.injection == "once" else 0
        rec += injection if convention.injection == "recurrent" else 0
        return Count(once, rec, injection, once + rec)

    def n_eff(self, gain: float, convention: Convention | None = None) -> float:
        """Return n_once + gain * n_rec: gain is 1 for shared layers, r for unrolled ones.

        >>> ledger(ModelSpec.from_scale(10)).n_eff(4 ** 0.45) / 1e6
        57.9...
        """
        real("gain", gain, "a positive, finite number", "1 for layers that are not repeated")
        count = self.count(convention)
        return count.n_once + gain * count.n_rec

    @property
    def parameters(self) -> int:
        """All stored parameters, with embeddings and norms."""
        return sum(row.parameters for row in self.rows)

    @property
    def train_flops_per_token(self) -> float:
        """FLOPs of forward and backward pass, per training token, at full context.

        >>> ledger(ModelSpec.from_scale(10)).train_flops_per_token
        1047336960
        """
        return sum(row.train_flops_per_token for row in self.rows)

    @property
    def inference_flops_per_token(self) -> float:
        """FLOPs of a forward pass, per token, at full context (the spec's)."""
        return sum(row.inference_flops_per_token for row in self.rows)

    def decode_flops_per_token(self, context: int) -> float:
        """Return the FLOPs of one generated token that attends to `context` tokens.

        >>> account = ledger(ModelSpec.from_scale(10))
        >>> account.decode_flops_per_token(2048) == account.inference_flops_per_token
        True
        """
        whole("context", context, 0)
        scores = sum(row.inference_flops_per_token for row in self.rows if row.kind == "scores")
        rest = self.inference_flops_per_token - scores
        return rest + scores * context / self.spec.context

    def weight_bytes(self, bytes_per_parameter: float = 2) -> float:
        """Return the bytes of all stored parameters (2 a parameter: bf16). A loop adds none."""
        real("bytes_per_parameter", bytes_per_parameter, "a positive, finite number", "2 for bf16")
        return self.parameters * bytes_per_parameter

    @property
    def kv_slots(self) -> int | float:
        """Key-value slots (recurrence, layer) that a token fills: p + r m + c."""
        return self.spec.effective_layers

    def kv_bytes_per_token(self, bytes_per_value: float = 2) -> float:
        """Return the bytes of keys and values that a token leaves in a full cache.

        A loop multiplies these: every recurrence of every layer has its own slot.

        >>> ledger(ModelSpec.from_scale(10)).kv_bytes_per_token()
        51200
        """
        real("bytes_per_value", bytes_per_value, "a positive, finite number", "2 for bf16")
        return self.kv_slots * 2 * self.spec.kv_heads * self.spec.head_dim * bytes_per_value

    def to_json(
        self, convention: Convention | None = None, reach: "Horizon | None" = None
    ) -> dict[str, Any]:
        """Return the account, and the horizon of a budget, as a dict that `json.dumps` writes."""
        convention = convention or Convention()
        return {
            "spec": self.spec.to_json(),
            "spec_hash": self.spec.content_hash(),
            "convention": asdict(convention) | {"name": convention.name},
            "count": asdict(self.count(convention)),
            "parameters": self.parameters,
            "train_flops_per_token": self.train_flops_per_token,
            "inference_flops_per_token": self.inference_flops_per_token,
            "weight_bytes": self.weight_bytes(),
            "kv_bytes_per_token": self.kv_bytes_per_token(),
            "kv_slots": self.kv_slots,
            "horizon": asdict(reach) if reach else None,
            "tensors": [asdict(row) for row in self.rows],
        }


def ledger(spec: ModelSpec) -> Ledger:
    """Return the account of a spec.

    Where recurrence is a mean, FLOPs are those at the mean. Raises ValueError for anything but a
    spec, and for a model beyond every machine. Source: arXiv 2604.21106, its code.

    >>> ledger(ModelSpec.from_scale(10)).count().n_unique
    40152960
    """
    if not isinstance(spec, ModelSpec):
        raise ValueError(f"{type(spec).__name__} is no ModelSpec; give one, as ModelSpec(640)")
    account = _account(spec)
    if account.train_flops_per_token > _MOST_FLOPS:
        raise ValueError(
            f"the model takes more than {_MOST_FLOPS:g} FLOPs a token, which no machine has; "
            "use a smaller width, recurrence, vocabulary or context, or fewer layers"
        )
    return account


@lru_cache(maxsize=4096)  # a run table asks for the same few architectures again and again
def _account(spec: ModelSpec) -> Ledger:
    return Ledger(spec, tensor_rows(spec))


@dataclass(frozen=True, slots=True)
class Horizon:
    """How far a budget reaches: whole steps, their tokens, and the FLOPs they really cost."""

    steps: int
    tokens: int
    flops: float


def horizon(
    budget_flops: float, flops_per_token: float, batch_tokens: int = REFERENCE_BATCH_TOKENS
) -> Horizon:
    """Return the steps a budget buys: round(C / (F B)), ties to the even number as the reference.

    budget_flops C in FLOPs, flops_per_token F as `Ledger.train_flops_per_token`, batch_tokens B in
    tokens a step. Raises ValueError below half a step. Source: arXiv 2604.21106, its code.

    >>> horizon(1e18, 1047336960).tokens
    954728448
    """
    real("budget_flops", budget_flops, "a positive, finite number", "such as 1e18")
    real("flops_per_token", flops_per_token, "a positive, finite number", "such as 1e9")
    whole("batch_tokens", batch_tokens, 1)
    step_flops = flops_per_token * batch_tokens
    steps = round(budget_flops / step_flops)
    if steps < 1:
        raise ValueError(
            f"budget_flops={format_flops(budget_flops)} is less than half a step of "
            f"{format_flops(step_flops)} FLOPs ({format_count(batch_tokens)} tokens at "
            f"{format_flops(flops_per_token)} each); use a larger budget or a smaller batch_tokens"
        )
    return Horizon(steps, steps * batch_tokens, steps * step_flops)
