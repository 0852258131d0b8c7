"""One training run, as a frozen value: model, data, optimiser, unrolling, horizon and seed.

All that changes the numbers of a run is in its `RunSpec`, and nothing else is: where it runs, how
often it speaks and saves, belongs to the machine. Two runs with one content hash are the same run.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self, get_args

from loopworth.spec.checks import as_seed, hint, json_object, one_of, real, whole
from loopworth.spec.model import ModelSpec

RecurrenceKind = Literal["fixed", "uniform", "poisson", "lognormal_poisson", "grow"]
WindowKind = Literal["last", "random", "curriculum"]
RecurrenceRule = Literal["none", "inverse_sqrt", "inverse", "hyperp"]
Precision = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class DataSpec:
    """What is read: a source of text, its tokenizer, and the split into train and validation.

    source       docstrings (built in), or a path: a folder made by `loopworth data prepare`
    tokenizer    bytes, chars, bpe:SIZE (trained on the source), or the path of a tokenizer.json;
                 a prepared folder brings its own
    validation   share of the documents held out, above 0 and below 0.5 (set where data is prepared)
    seed         of the rows' order; of the split and order of documents where data is prepared
    digest       sha256 of the tokens that must be found; None takes what is there

    >>> DataSpec().source
    'docstrings'
    """

    source: str = "docstrings"
    tokenizer: str = "bytes"
    validation: float = 0.05
    seed: int = 0
    digest: str | None = None

    def __post_init__(self) -> None:
        """Refuse an empty source and a split that leaves nothing on one side."""
        for name in ("source", "tokenizer"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise ValueError(f"data.{name}={value!r} must be a name or a path, not empty")
        share = real("data.validation", self.validation, "above 0 and below 0.5", "0.05 is usual")
        if share >= 0.5:
            raise ValueError(f"data.validation={share} must be above 0 and below 0.5")
        as_seed("data.seed", self.seed)


@dataclass(frozen=True, slots=True)
class OptimSpec:
    """The optimiser: MuonH for matrices, AdamW for the rest, and the rules that transfer both.

    Rates are those at the reference (d_model 640, 2^18 tokens a step, reference_tokens planned):
      matrix_lr       relative step of MuonH; a matrix keeps its Frobenius norm
      embedding_lr, head_lr, norm_lr, injection_lr   AdamW: embedding, head, norm scales, lanes and
                      other vectors of the injection or of the conditioning
      width_exponent  AdamW rates x (d_model / 640)^exponent
      batch_exponent  matrix, embedding, head rates x (batch_tokens / 2^18)^exponent
      token_exponent  matrix rate x (tokens / reference_tokens)^exponent
      reference_tokens   None: 983315200 at recurrence 1, 1016083200 above, as the reference
      recurrence_rule    how the matrix rate of the loop falls with r: none, inverse_sqrt, inverse;
                      hyperp: that of all matrices with the effective depth
      warmup, warmdown   shares of the steps; the rate ends at final_fraction of its peak

    Source: arXiv 2604.21106, its code (values and rules as applied there).

    >>> OptimSpec().matrix_lr
    0.014
    """

    matrix_lr: float = 0.014
    embedding_lr: float = 0.3
    head_lr: float = 0.004
    norm_lr: float = 0.005
    injection_lr: float = 0.01
    momentum: float = 0.95
    beta1: float = 0.8
    beta2: float = 0.95
    eps: float = 1e-10
    width_exponent: float = -0.5
    batch_exponent: float = 0.558
    token_exponent: float = -0.32
    reference_tokens: float | None = None
    recurrence_rule: RecurrenceRule = "none"
    warmup: float = 0.0
    warmdown: float = 1.0
    final_fraction: float = 0.1

    def __post_init__(self) -> None:
        """Refuse rates, shares and exponents outside their range."""
        for name in ("matrix_lr", "embedding_lr", "head_lr", "norm_lr", "injection_lr", "eps"):
            real(f"optim.{name}", getattr(self, name), "a positive number", "see the defaults")
        if self.reference_tokens is not None:
            real("optim.reference_tokens", self.reference_tokens, "a positive number", "or None")
        for name in ("momentum", "beta1", "beta2"):
            _between(f"optim.{name}", getattr(self, name), 0, 1, open_above=True)
        for name in ("warmup", "warmdown", "final_fraction"):
            _between(f"optim.{name}", getattr(self, name), 0, 1)
        for name in ("width_exponent", "batch_exponent", "token_exponent"):
            _between(f"optim.{name}", getattr(self, name), -2, 2)
        if self.warmup + self.warmdown > 1 + 1e-12:
            raise ValueError(
                f"optim.warmup={self.warmup} and optim.warmdown={self.warmdown} add up to more "
                "than the run; their sum must be at most 1"
            )
        one_of("optim.recurrence_rule", self.recurrence_rule, get_args(RecurrenceRule))


@dataclass(frozen=True, slots=True)
class UnrollSpec:
    """How many recurrences a step runs, and how many of the last carry gradient.

    recurrence   fixed: always model.recurrence. uniform, poisson, lognormal_poisson: drawn each
                 step with mean model.recurrence. grow: from `start` up to model.recurrence
    spread       standard deviation of the log rate of lognormal_poisson
    window       last: model.bptt_window. random: drawn each step with that mean, from 1.
                 curriculum: from `window_start` to model.bptt_window
    ramp         share of the steps over which grow and curriculum rise
    maximum      no draw is larger; None is four times model.recurrence

    >>> UnrollSpec().recurrence
    'fixed'
    """

    recurrence: RecurrenceKind = "fixed"
    spread: float = 0.5
    start: int = 1
    window: WindowKind = "last"
    window_start: int = 1
    ramp: float = 0.5
    maximum: int | None = None

    def __post_init__(self) -> None:
        """Refuse an unknown kind and a number outside its range."""
        one_of("unroll.recurrence", self.recurrence, get_args(RecurrenceKind))
        one_of("unroll.window", self.window, get_args(WindowKind))
        real("unroll.spread", self.spread, "a positive number", "0.5 is usual")
        whole("unroll.start", self.start, 1)
        whole("unroll.window_start", self.window_start, 1)
        _between("unroll.ramp", self.ramp, 0, 1)
        if self.maximum is not None:
            whole("unroll.maximum", self.maximum, 1, optional=True)


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One training run.

    batch_tokens   tokens a step, a multiple of model.context
    budget_flops, tokens, steps   the horizon: exactly one is given
    seed           of the initial weights and of the drawn recurrences
    precision      auto: bfloat16 autocast on a GPU, float32 on a CPU
    validation_tokens   tokens of the fixed validation set that are used; None is all of them

    Raises ValueError that names the field, its value, what is allowed and the remedy.

    >>> run = RunSpec(ModelSpec(640), budget_flops=1e18)
    >>> RunSpec.from_json(run.to_json()) == run
    True
    """

    model: ModelSpec
    data: DataSpec = field(default_factory=DataSpec)
    optim: OptimSpec = field(default_factory=OptimSpec)
    unroll: UnrollSpec = field(default_factory=UnrollSpec)
    batch_tokens: int = 2**18
    budget_flops: float | None = None
    tokens: int | None = None
    steps: int | None = None
    seed: int = 42
    precision: Precision = "auto"
    validation_tokens: int | None = None

    def __post_init__(self) -> None:
        """Refuse a run without a horizon, a batch that is not whole rows, a contradiction."""
        self._check_horizon()
        as_seed("seed", self.seed)
        one_of("precision", self.precision, get_args(Precision))
        if self.validation_tokens is not None:
            whole("validation_tokens", self.validation_tokens, self.model.context, optional=True)
        if whole("batch_tokens", self.batch_tokens, 1) % self.model.context:
            below = self.batch_tokens // self.model.context * self.model.context
            raise ValueError(
                f"batch_tokens={self.batch_tokens} is not a multiple of model.context="
                f"{self.model.context}; use {below or self.model.context}"
            )
        self._check_unroll()

    def _check_horizon(self) -> None:
        given = {name: getattr(self, name) for name in HORIZONS if getattr(self, name) is not None}
        if len(given) != 1:
            found = ", ".join(f"{name}={value}" for name, value in given.items()) or "none of them"
            raise ValueError(f"give exactly one of {', '.join(HORIZONS)}; found {found}")
        if "budget_flops" in given:
            real("budget_flops", self.budget_flops, "a positive number of FLOPs", "such as 1e18")
        else:
            name, value = given.popitem()
            whole(name, value, 1, optional=True)

    def _check_unroll(self) -> None:
        recurrence = self.model.recurrence
        if self.unroll.recurrence in ("fixed", "grow") and not isinstance(recurrence, int):
            raise ValueError(
                f"model.recurrence={recurrence} is not whole and unroll.recurrence="
                f"{self.unroll.recurrence!r}; use a whole number, or sample it, such as 'poisson'"
            )
        if self.unroll.window != "last" and self.model.bptt_window is None:
            raise ValueError(
                f"unroll.window={self.unroll.window!r} needs model.bptt_window, its mean or its "
                "end; give it, or use unroll.window='last'"
            )
        for name, value in (("start", self.unroll.start), ("maximum", self.unroll.maximum)):
            outside = value is not None and (value > recurrence) == (name == "start")
            if value is not None and outside and value != recurrence:
                order = "at most" if name == "start" else "at least"
                raise ValueError(
                    f"unroll.{name}={value} must be {order} model.recurrence={recurrence}"
                )

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other fields; a new horizon takes the place of the old one.

        >>> RunSpec(ModelSpec(640), steps=10).replace(tokens=2**20).steps is None
        True
        """
        if any(name in changes for name in HORIZONS):
            changes = dict.fromkeys(HORIZONS) | changes
        return replace(self, **changes)

    def content_hash(self) -> str:
        """Return the sha256 (64 hex digits) of the run, its model in canonical form."""
        value = self.to_json() | {"model": self.model.canonical().to_json()}
        text = json.dumps(value, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dict that `json.dumps` writes."""
        value = {name: getattr(self, name) for name in self.__slots__}
        for name in _PARTS:  # their fields are plain; `asdict` would copy each of them deeply
            part = value[name]
            value[name] = {field: getattr(part, field) for field in part.__slots__}
        return value | {"model": self.model.to_json()}

    @classmethod
    def from_json(cls, source: str | Mapping[str, Any]) -> Self:
        """Read a run from JSON text or from the dict it stands for; left-out fields are defaults.

        Raises ValueError for a field that does not exist, here or in a part.
        """
        given = dict(json_object(source, "run spec") if isinstance(source, str) else source)
        _known(cls, given, "run spec")
        if "model" not in given:
            raise ValueError('the run spec has no model; add it, such as {"d_model": 640}')
        given["model"] = ModelSpec.from_json(_part(given, "model"))
        for name, kind in _PARTS.items():
            if name in given:
                part = _part(given, name)
                _known(kind, part, name)
                given[name] = kind(**part)
        return cls(**given)


HORIZONS = ("budget_flops", "tokens", "steps")
_PARTS: dict[str, type] = {"data": DataSpec, "optim": OptimSpec, "unroll": UnrollSpec}


def _part(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = given[name]
    if not isinstance(part, Mapping):
        raise ValueError(f"{name}={part!r} in the run spec must be an object with fields")
    return part


def _known(kind: type, given: Mapping[str, Any], where: str) -> None:
    """Refuse a field that the part does not have."""
    names = [entry.name for entry in fields(kind)]
    for name in given:
        if name not in names:
            raise ValueError(f"{name!r} is not a field of {where}; {hint(name, names)}")


def _between(
    name: str, value: object, low: float, high: float, *, open_above: bool = False
) -> None:
    """Refuse a number outside [low, high], or [low, high) where it is open above."""
    inside = (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and low <= value <= high
    )
    if not inside or (open_above and value == high):
        raise ValueError(
            f"{name}={value!r} must be between {low} and {high}{' (excluded)' * open_above}"
        )
