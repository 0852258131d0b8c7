"""The architecture of a looped transformer, as a frozen value.

A looped model runs `n_prelude` layers once, then one block of `n_recur` layers `recurrence` times,
then `n_coda` layers once. Everything else in the package (parameters, FLOPs, the model itself) is
derived from a `ModelSpec`; a wrong one cannot exist, because it is refused where it is made.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self, get_args

from loopworth.spec.checks import divisors, hint, json_object, listed, one_of, real, whole

Injection = Literal["none", "passthrough", "linear", "additive", "diagonal", "hyperconnections"]
MlpKind = Literal["squared_relu", "swiglu"]
Conditioning = Literal["loop_embedding", "loop_norm", "low_rank"]

# These give the input of the loop no way into the later recurrences but the state itself.
_STATE_ONLY = ("none", "passthrough")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One looped decoder-only transformer, without its training recipe.

    Fields
      d_model       width, a multiple of head_dim; the number of heads is d_model / head_dim
      n_prelude, n_recur, n_coda   layers before, in and after the loop
      recurrence    how often the block runs; not a whole number where it is a sampled mean
      injection     how the loop's input e returns to the state s at each recurrence:
                    none (recurrence 1 only), passthrough (s starts at e), linear (W [e; s]),
                    additive (s + e), diagonal (a * s + b * e, a and b one gain a channel),
                    hyperconnections (n_lanes residual streams over the recurrences)
      bptt_window   how many of the last recurrences carry gradient; None is all of them. The cut is
                    in the block's outputs: with hyperconnections the lanes still carry e's gradient
      vocab_size    padded vocabulary, in tokens       context      training sequence, in tokens
      n_kv_heads    grouped-query attention; None is one for each head
      mlp_ratio     hidden width / d_model; `mlp_width` is the product, rounded
      mlp_kind      squared_relu (two matrices) or swiglu (three)
      tied_embeddings   the head shares the token embedding's parameters
      conditioning  what tells one recurrence from another, any of: loop_embedding (a vector added
                    to the block's input), loop_norm (its own scale of the norm of the state),
                    low_rank (a low-rank change of every matrix of the block)
      conditioning_rank   rank of low_rank

    Raises ValueError that names the field, its value, what is allowed and the remedy.
    Source: arXiv 2604.21106, section 3 and its public code (1-D layout, injections).

    >>> spec = ModelSpec(d_model=640, recurrence=4)
    >>> spec.n_heads, spec.effective_layers
    (5, 20)
    """

    d_model: int
    n_prelude: int = 2
    n_recur: int = 4
    n_coda: int = 2
    recurrence: int | float = 4
    injection: Injection = "linear"
    n_lanes: int = 2
    bptt_window: int | None = None
    vocab_size: int = 32064
    context: int = 2048
    head_dim: int = 128
    n_kv_heads: int | None = None
    mlp_ratio: float = 4.0
    mlp_kind: MlpKind = "squared_relu"
    tied_embeddings: bool = False
    conditioning: tuple[Conditioning, ...] = ()
    conditioning_rank: int = 8

    def __post_init__(self) -> None:
        """Refuse what is not a model, and bring equal numbers into one form (4.0 becomes 4)."""
        self._check_types()
        self._check_heads()
        self._check_loop()

    def _check_types(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            object.__setattr__(self, name, whole(name, value, least, optional=name in _OPTIONAL))
        object.__setattr__(self, "recurrence", _recurrence(self.recurrence))
        ratio = real("mlp_ratio", self.mlp_ratio, "a positive number", "4 or 8/3 are usual")
        object.__setattr__(self, "mlp_ratio", ratio)
        if self.mlp_width < 1:
            raise ValueError(
                f"mlp_ratio={ratio} gives an MLP without hidden units at "
                f"d_model={self.d_model}; use a larger ratio, 4 is usual"
            )
        one_of("injection", self.injection, get_args(Injection))
        one_of("mlp_kind", self.mlp_kind, get_args(MlpKind))
        if not isinstance(self.tied_embeddings, bool):
            raise ValueError(f"tied_embeddings={self.tied_embeddings!r} must be true or false")
        object.__setattr__(self, "conditioning", _conditioning(self.conditioning))

    def _check_heads(self) -> None:
        if self.d_model % self.head_dim:
            below = self.d_model // self.head_dim * self.head_dim
            nearest = [str(d) for d in (below, below + self.head_dim) if d]
            raise ValueError(
                f"d_model={self.d_model} is not a multiple of head_dim={self.head_dim}; "
                f"use d_model={' or '.join(nearest)}, or another head_dim"
            )
        if self.n_kv_heads is not None and self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_kv_heads={self.n_kv_heads} does not divide the {self.n_heads} heads "
                f"(d_model / head_dim); use {listed(divisors(self.n_heads))}"
            )

    def _check_loop(self) -> None:
        if self.injection == "none" and self.recurrence != 1:
            raise ValueError(
                f"injection='none' with recurrence={self.recurrence} is not defined: it is the "
                "model without a loop; use recurrence=1, or injection='passthrough' to loop "
                "without injection"
            )
        if self.injection == "hyperconnections" and self.n_lanes < 2:
            raise ValueError(
                f"n_lanes={self.n_lanes} is too few for injection='hyperconnections'; use 2 or more"
            )
        if self.has_parameters_per_recurrence and not isinstance(self.recurrence, int):
            owner = f"conditioning={self.conditioning}"
            if self.injection == "hyperconnections":
                owner = "injection='hyperconnections'"
            raise ValueError(
                f"recurrence={self.recurrence} must be a whole number with {owner}, which has "
                "parameters for each recurrence; use the largest recurrence that is trained"
            )
        if self.bptt_window is None:
            return
        if self.bptt_window > self.recurrence:
            raise ValueError(
                f"bptt_window={self.bptt_window} is outside 1..{self.recurrence}, the recurrences "
                "there are; use None for the full gradient"
            )
        if self.bptt_window < self.recurrence and self.injection in _STATE_ONLY:
            raise ValueError(
                f"bptt_window={self.bptt_window} with injection={self.injection!r} and "
                f"recurrence={self.recurrence} leaves the embedding and the prelude without "
                "gradient; use bptt_window=None, or an injection such as 'linear'"
            )

    @classmethod
    def from_scale(cls, s: int | float, **others: Any) -> Self:
        """Build the spec of width scale `s`: d_model = ceil(64 s / 128) * 128, as the paper's code.

        An odd s rounds up to the next multiple of 128: s = 13 and s = 14 are both 896 wide.
        `others` are the other fields of the spec. Raises ValueError.

        >>> ModelSpec.from_scale(13).d_model
        896
        """
        scale = real("s", s, "a positive number", "d_model is about 64 s")
        return cls(d_model=math.ceil(64 * scale / 128) * 128, **others)

    @property
    def n_heads(self) -> int:
        """Query heads."""
        return self.d_model // self.head_dim

    @property
    def kv_heads(self) -> int:
        """Key and value heads: `n_kv_heads`, or `n_heads` where that is None."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def mlp_width(self) -> int:
        """Hidden width of the MLP, rounded to a whole number."""
        return round(self.mlp_ratio * self.d_model)

    @property
    def has_parameters_per_recurrence(self) -> bool:
        """Whether a recurrence beyond the trained ones has no parameters of its own."""
        return self.injection == "hyperconnections" or bool(self.conditioning)

    @property
    def gradient_visits(self) -> int | float:
        """Recurrences that carry gradient, min(recurrence, bptt_window)."""
        return self.recurrence if self.bptt_window is None else self.bptt_window

    @property
    def effective_layers(self) -> int | float:
        """Layers that a token passes: prelude + recurrence * recur + coda."""
        return self.n_prelude + self.recurrence * self.n_recur + self.n_coda

    def canonical(self) -> Self:
        """Return the spec with every field that makes no difference at its default.

        A full window becomes None, as do kv heads equal to the heads; lanes without
        hyperconnections become 2; conditioning is sorted.

        >>> ModelSpec(640, bptt_window=4).canonical() == ModelSpec(640)
        True
        """
        return replace(
            self,
            bptt_window=None if self.bptt_window == self.recurrence else self.bptt_window,
            n_kv_heads=None if self.n_kv_heads == self.n_heads else self.n_kv_heads,
            n_lanes=self.n_lanes if self.injection == "hyperconnections" else 2,
            conditioning=tuple(sorted(self.conditioning)),
            conditioning_rank=self.conditioning_rank if "low_rank" in self.conditioning else 8,
        )

    def content_hash(self) -> str:
        """Return the sha256 (64 hex digits) of the canonical spec as JSON with sorted keys.

        Two specs that describe the same model have the same hash, however they were written.

        >>> ModelSpec(640, bptt_window=4).content_hash() == ModelSpec(640).content_hash()
        True
        """
        value = self.canonical().to_json()
        for name, default in _ADDED.items():  # a hash outlives the addition of a field
            if value[name] == default:
                del value[name]
        text = json.dumps(value, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dict that `json.dumps` writes.

        >>> ModelSpec(640).to_json()["recurrence"]
        4
        """
        value = {name: getattr(self, name) for name in self.__slots__}
        return value | {"conditioning": list(self.conditioning)}

    @classmethod
    def from_json(cls, source: str | Mapping[str, Any]) -> Self:
        """Read a spec from JSON text or from the dict it stands for.

        Fields that are left out have their defaults. Raises ValueError for text that is not a JSON
        object and for a field that does not exist.

        >>> ModelSpec.from_json('{"d_model": 640, "recurrence": 8}').recurrence
        8
        """
        given = json_object(source) if isinstance(source, str) else source
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise ValueError(f"{name!r} is not a field of a model spec; {hint(name, known)}")
        if "d_model" not in given:
            raise ValueError("the model spec has no d_model, the width; add it, such as 640")
        return cls(**given)


# The least value of each whole-number field.
_LEAST = {
    "d_model": 1,
    "n_prelude": 0,
    "n_recur": 1,
    "n_coda": 0,
    "n_lanes": 1,
    "bptt_window": 1,
    "vocab_size": 1,
    "context": 1,
    "head_dim": 1,
    "n_kv_heads": 1,
    "conditioning_rank": 1,
}
_OPTIONAL = ("bptt_window", "n_kv_heads")
# Fields that came after the first hashes were stored, as they are in JSON: at these values they
# are left out of the hash.
_ADDED: dict[str, object] = {"conditioning": [], "conditioning_rank": 8}


def _conditioning(value: object) -> tuple[str, ...]:
    """Return the names of the conditioning, each known and none twice; a list counts."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(
            f"conditioning={value!r} must be a list of names; use any of "
            f"{listed([*get_args(Conditioning)])}, or none"
        )
    for name in value:
        one_of("conditioning", name, get_args(Conditioning))
    if len(set(value)) < len(value):
        raise ValueError(f"conditioning={value!r} names one twice; name each once")
    return tuple(value)


def _recurrence(value: object) -> int | float:
    """Return a recurrence of at least 1: an int, or a float where it is not whole."""
    number = real("recurrence", value, "a finite number of at least 1", "1 is no loop")
    if number < 1:
        raise ValueError(f"recurrence={value} is below 1; use 1 for a model without a loop")
    return int(number) if number.is_integer() else number
