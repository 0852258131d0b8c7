import dataclasses
import json
import math
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopworth.cli import options
from loopworth.spec import Conditioning, DataSpec, Injection, ModelSpec, RunSpec


@st.composite
def specs(draw: st.DrawFn) -> ModelSpec:
    """Draw any valid spec."""
    n_heads = draw(st.integers(1, 12))
    head_dim = draw(st.sampled_from([8, 64, 128]))
    injection = draw(st.sampled_from(get_args(Injection)))
    whole = st.integers(1, 32)
    recurrence: st.SearchStrategy[int | float] = whole | st.floats(1, 32)
    if injection == "none":
        recurrence = st.just(1)
    elif injection == "hyperconnections":
        recurrence = whole
    r = draw(recurrence)
    conditioning = draw(st.lists(st.sampled_from(get_args(Conditioning)), unique=True))
    if not isinstance(r, int) and not r.is_integer():
        conditioning = []
    full_only = injection in ("none", "passthrough")
    window = st.integers(math.ceil(r) if full_only else 1, math.floor(r)) if r >= 1 else st.none()
    divisors = [n for n in range(1, n_heads + 1) if n_heads % n == 0]
    may_cut = not full_only or float(r).is_integer()
    return ModelSpec(
        d_model=n_heads * head_dim,
        head_dim=head_dim,
        n_prelude=draw(st.integers(0, 4)),
        n_recur=draw(st.integers(1, 8)),
        n_coda=draw(st.integers(0, 4)),
        recurrence=r,
        injection=injection,
        n_lanes=draw(st.integers(2, 4)),
        bptt_window=draw(st.none() | window) if may_cut else None,
        vocab_size=draw(st.integers(2, 70000)),
        context=draw(st.integers(1, 8192)),
        n_kv_heads=draw(st.none() | st.sampled_from(divisors)),
        mlp_ratio=draw(st.floats(0.5, 8)),
        mlp_kind=draw(st.sampled_from(["squared_relu", "swiglu"])),
        tied_embeddings=draw(st.booleans()),
        conditioning=tuple(conditioning),
        conditioning_rank=draw(st.integers(1, 16)),
    )


@given(specs())
def test_json_round_trip_keeps_the_spec_and_its_hash(spec: ModelSpec) -> None:
    again = ModelSpec.from_json(json.dumps(spec.to_json()))
    assert again == spec
    assert again.content_hash() == spec.content_hash()
    assert hash(again) == hash(spec)


@given(specs())
def test_the_hash_ignores_how_the_same_model_was_written(spec: ModelSpec) -> None:
    assert spec.canonical().canonical() == spec.canonical()
    assert spec.canonical().content_hash() == spec.content_hash()
    shuffled = dict(reversed(spec.to_json().items()))
    assert ModelSpec.from_json(shuffled).content_hash() == spec.content_hash()


@given(specs(), st.sampled_from(["d_model", "n_prelude", "n_recur", "n_coda", "vocab_size"]))
def test_the_hash_changes_with_the_model(spec: ModelSpec, name: str) -> None:
    step = spec.head_dim * spec.n_heads if name == "d_model" else 1  # kv heads still divide
    other = dataclasses.replace(spec, **{name: getattr(spec, name) + step})
    assert other.content_hash() != spec.content_hash()


def test_the_hash_is_stable_across_versions_and_machines() -> None:
    # A stored sweep is found again by this hash: change it only with a migration.
    assert ModelSpec(640).content_hash() == (
        "0140bbd1b9993e867754a8c1d873eff47dda7fcab8fdb4a12c53099160d22ac4"
    )


def test_conditioning_is_part_of_the_model_where_it_is_used() -> None:
    plain, both = ModelSpec(640), ModelSpec(640, conditioning=("low_rank", "loop_norm"))
    assert ModelSpec(640, conditioning_rank=3).content_hash() == plain.content_hash()
    assert both.content_hash() != plain.content_hash()
    assert dataclasses.replace(both, conditioning_rank=3).content_hash() != both.content_hash()
    swapped = dataclasses.replace(both, conditioning=("loop_norm", "low_rank"))
    assert swapped.content_hash() == both.content_hash()
    assert ModelSpec(640, conditioning=["loop_norm"]).conditioning == ("loop_norm",)  # type: ignore[arg-type]
    run = RunSpec(both, steps=10)
    assert RunSpec.from_json(json.dumps(run.to_json())) == run
    assert json.loads(json.dumps(run.to_json())) == run.to_json()


def test_what_has_parameters_of_each_recurrence() -> None:
    assert not ModelSpec(640).has_parameters_per_recurrence
    assert ModelSpec(640, injection="hyperconnections").has_parameters_per_recurrence
    assert ModelSpec(640, conditioning=("loop_norm",)).has_parameters_per_recurrence


def test_equal_numbers_make_equal_specs() -> None:
    spec = ModelSpec(np.int64(640), recurrence=np.float64(4.0), mlp_ratio=4)  # type: ignore[arg-type]
    assert spec == ModelSpec(640)
    assert type(spec.d_model) is int
    assert type(spec.recurrence) is int
    assert json.loads(json.dumps(spec.to_json())) == spec.to_json()


def test_full_windows_and_own_kv_heads_are_the_default() -> None:
    spec = ModelSpec(640, bptt_window=4, n_kv_heads=5, n_lanes=3)
    assert spec != ModelSpec(640)
    assert spec.canonical() == ModelSpec(640)
    assert ModelSpec(640, injection="hyperconnections", n_lanes=3).canonical().n_lanes == 3


@pytest.mark.parametrize(("s", "width"), [(6, 384), (13, 896), (14, 896), (1, 128), (6.5, 512)])
def test_a_scale_rounds_up_to_the_next_multiple_of_128(s: float, width: int) -> None:
    assert ModelSpec.from_scale(s).d_model == width


def test_derived_sizes() -> None:
    spec = ModelSpec(640, mlp_ratio=8 / 3, n_kv_heads=1, recurrence=2.5, bptt_window=2)
    assert (spec.n_heads, spec.kv_heads, spec.mlp_width) == (5, 1, 1707)
    assert (spec.gradient_visits, spec.effective_layers) == (2, 14.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"d_model": 100}, ["d_model=100", "head_dim=128", "use d_model=128"]),
        ({"d_model": 700}, ["d_model=700", "use d_model=640 or 768"]),
        ({"d_model": True}, ["d_model=True", "bool", "whole number"]),
        ({"d_model": "640"}, ["d_model='640'", "str", "whole number"]),
        ({"n_recur": 4.0}, ["n_recur=4.0", "float", "use 4"]),
        ({"n_recur": 0}, ["n_recur=0", "1 or more"]),
        ({"n_prelude": -1}, ["n_prelude=-1", "0 or more"]),
        ({"bptt_window": "full"}, ["bptt_window='full'", "or None"]),
        ({"vocab_size": None}, ["vocab_size=None", "NoneType"]),
        ({"recurrence": 0}, ["recurrence=0"]),
        ({"recurrence": 0.5}, ["recurrence=0.5", "below 1", "use 1"]),
        ({"recurrence": math.nan}, ["recurrence=nan", "finite"]),
        ({"recurrence": math.inf}, ["recurrence=inf", "finite"]),
        ({"recurrence": True}, ["recurrence=True", "bool"]),
        ({"recurrence": "4"}, ["recurrence='4'", "str"]),
        ({"injection": "liner"}, ["injection='liner'", "did you mean 'linear'?", "hyperconn"]),
        ({"injection": 3}, ["injection=3", "passthrough"]),
        ({"injection": "none"}, ["injection='none'", "recurrence=4", "use recurrence=1"]),
        ({"mlp_kind": "gelu"}, ["mlp_kind='gelu'", "squared_relu or swiglu"]),
        ({"mlp_ratio": 0}, ["mlp_ratio=0", "positive"]),
        ({"mlp_ratio": 0.5 / 640}, ["mlp_ratio=0.00078125", "hidden units"]),
        ({"n_kv_heads": 3}, ["n_kv_heads=3", "5 heads", "use 1 or 5"]),
        ({"bptt_window": 0}, ["bptt_window=0", "1 or more"]),
        ({"bptt_window": 5}, ["bptt_window=5", "outside 1..4", "None"]),
        (
            {"bptt_window": 2, "injection": "passthrough"},
            ["bptt_window=2", "injection='passthrough'", "without gradient", "bptt_window=None"],
        ),
        ({"injection": "hyperconnections", "n_lanes": 1}, ["n_lanes=1", "2 or more"]),
        ({"injection": "hyperconnections", "recurrence": 2.5}, ["recurrence=2.5", "whole number"]),
        ({"conditioning": "low_rank"}, ["conditioning='low_rank'", "list of names"]),
        ({"conditioning": ("lora",)}, ["conditioning='lora'", "use loop_embedding"]),
        ({"conditioning": ("loop_norm",) * 2}, ["names one twice"]),
        ({"conditioning_rank": 0}, ["conditioning_rank=0", "1 or more"]),
        (
            {"conditioning": ("loop_norm",), "recurrence": 2.5},
            ["recurrence=2.5", "whole number", "loop_norm"],
        ),
        ({"tied_embeddings": 1}, ["tied_embeddings=1", "true or false"]),
    ],
)
def test_a_wrong_field_is_refused_by_name_value_and_remedy(
    changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ValueError, match=r"\w") as refused:
        ModelSpec(**({"d_model": 640} | changes))
    for word in words:
        assert word in str(refused.value)


def test_truncation_is_allowed_where_the_input_comes_back() -> None:
    for injection in ("linear", "additive", "diagonal", "hyperconnections"):
        assert ModelSpec(640, injection=injection, bptt_window=2).gradient_visits == 2  # type: ignore[arg-type]
    assert ModelSpec(640, injection="passthrough", bptt_window=4).gradient_visits == 4


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"d_model": 640, "n_preludes": 2}, r"'n_preludes' is not a field.*mean 'n_prelude'\?"),
        ({"recurrence": 4}, "has no d_model"),
        ("[640]", "is JSON but a list; use one object"),
        ("{d_model: 640}", "is not JSON"),
        ({"d_model": 640, "recurrence": None}, "recurrence=None"),
    ],
)
def test_json_that_is_no_spec_is_refused(source: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelSpec.from_json(source)


def test_the_command_line_offers_every_injection() -> None:
    assert tuple(options.INJECTIONS) == get_args(Injection)


def test_a_seed_that_no_generator_takes_is_refused():
    with pytest.raises(ValueError, match="seed=9223372036854775808 is too large; it must be"):
        DataSpec(seed=2**63)
    assert DataSpec(seed=2**63 - 1).seed == 2**63 - 1


def test_brackets_without_end_are_refused():
    with pytest.raises(ValueError, match="the model spec is nested too deeply"):
        ModelSpec.from_json("[" * 100_000)
