"""What a model holds and costs, against the ledger, and its values at the start."""

import itertools
import math
from typing import Any, get_args

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from loopworth.ledger import Convention, ledger
from loopworth.model import LoopedTransformer, build
from loopworth.model.conditioning import CONDITIONINGS
from loopworth.model.injection import INJECTIONS
from loopworth.spec import Conditioning, Injection, ModelSpec
from loopworth.tensors import CONDITIONING_ROWS, INJECTION_ROWS
from loopworth.unroll import Unroll, flops_per_token

torch.set_num_threads(1)

INJECTION_NAMES = get_args(Injection)
CONDITIONING_SETS = [
    names for n in range(4) for names in itertools.combinations(get_args(Conditioning), n)
]
LAYOUTS = {1: (0, 20, 0), 2: (2, 8, 2), 4: (2, 4, 2), 8: (2, 2, 2)}


def small(**fields: Any) -> ModelSpec:
    given = {"d_model": 32, "head_dim": 16, "vocab_size": 48, "context": 24, "n_prelude": 1,
             "n_recur": 1, "n_coda": 1, "recurrence": 3}  # fmt: skip
    if fields.get("injection") == "none":
        given["recurrence"] = 1
    return ModelSpec(**(given | fields))


def stored(model: LoopedTransformer) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_registries_of_model_ledger_and_spec_agree() -> None:
    assert set(INJECTIONS) == set(INJECTION_ROWS) == set(get_args(Injection))
    assert set(CONDITIONINGS) == set(CONDITIONING_ROWS) == set(get_args(Conditioning))


@pytest.mark.parametrize("injection", INJECTION_NAMES)
def test_parameters_equal_the_ledger(injection: str) -> None:
    for r, conditioning in itertools.product((1, 2, 5), CONDITIONING_SETS):
        if injection == "none" and r > 1:
            continue
        spec = small(injection=injection, recurrence=r, conditioning=conditioning)
        model, account = build(spec, device="meta"), ledger(spec)
        assert stored(model) == account.parameters
        norms = sum(p.numel() for name, p in model.named_parameters() if "norm_" in name)
        rows = [row for row in account.rows if row.kind == "norm" and row.group != "conditioning"]
        assert norms == sum(row.parameters for row in rows)


@pytest.mark.parametrize(
    "fields",
    [
        {"n_prelude": 0, "n_coda": 0},
        {"n_kv_heads": 1},
        {"mlp_kind": "swiglu", "mlp_ratio": 8 / 3},
        {"tied_embeddings": True},
        {"injection": "hyperconnections", "n_lanes": 3},
        {"conditioning": ("low_rank",), "conditioning_rank": 3, "n_recur": 2, "n_kv_heads": 1},
    ],
)
def test_parameters_of_every_option_equal_the_ledger(fields: dict[str, Any]) -> None:
    spec = small(**fields)
    assert stored(build(spec, device="meta")) == ledger(spec).parameters


@pytest.mark.parametrize(
    ("r", "unique"), [(1, 98_331_520), (2, 59_818_880), (4, 40_152_960), (8, 30_320_000)]
)
def test_the_published_architectures_have_the_published_parameters(r: int, unique: int) -> None:
    prelude, recur, coda = LAYOUTS[r]
    spec = ModelSpec.from_scale(
        10, n_prelude=prelude, n_recur=recur, n_coda=coda, recurrence=r,
        injection="none" if r == 1 else "linear",
    )  # fmt: skip
    model = build(spec, device="meta")
    assert stored(model) - 2 * spec.vocab_size * spec.d_model == unique
    assert ledger(spec).count().n_unique == unique


def test_conditioning_counts_once() -> None:
    plain, more = small(), small(conditioning=("loop_embedding", "loop_norm", "low_rank"))
    before, after = (ledger(spec).count(Convention()) for spec in (plain, more))
    assert after.n_rec == before.n_rec
    added = 3 * 2 * 32 + 3 * 8 * (4 * 64 + 2 * 160)  # vectors; low rank: 4 square, 2 of the MLP
    assert after.n_once - before.n_once == added


def counted(spec: ModelSpec, unroll: Unroll, **options: Any) -> float:
    """Count the matrix FLOPs a token of one training step with PyTorch's own counter."""
    model = build(spec, device="meta")
    tokens = torch.zeros(1, spec.context, dtype=torch.int64, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(tokens, tokens, unroll=unroll, **options).backward()
    return counter.get_total_flops() / spec.context


@pytest.mark.parametrize("injection", INJECTION_NAMES)
def test_flops_equal_the_counter_of_pytorch(injection: str) -> None:
    cases = [(1, 1)]
    if injection != "none":
        cases += [(3, 3)]
    if injection not in ("none", "passthrough"):
        cases += [(4, 2)]
    for r, k in cases:
        spec = ModelSpec(
            1024, n_prelude=1, n_recur=2, n_coda=1, recurrence=r, injection=injection,  # type: ignore[arg-type]
            vocab_size=512, context=256,
        )  # fmt: skip
        unroll = Unroll(r, k)
        expected = flops_per_token(spec, unroll)
        assert counted(spec, unroll) == pytest.approx(expected, rel=0.005)


@pytest.mark.parametrize(
    "fields",
    [
        {"n_prelude": 0, "n_coda": 0},
        {"conditioning": ("loop_embedding", "loop_norm", "low_rank"), "conditioning_rank": 64},
        {"mlp_kind": "swiglu", "mlp_ratio": 8 / 3},
        {"n_kv_heads": 2},
        {"tied_embeddings": True},
    ],
)
def test_flops_of_every_option_equal_the_counter(fields: dict[str, Any]) -> None:
    given: dict[str, Any] = {"n_prelude": 1, "n_recur": 1, "n_coda": 1, "recurrence": 3}
    spec = ModelSpec(1024, vocab_size=512, context=256, **(given | fields))
    expected = flops_per_token(spec, Unroll(3, 2))
    assert counted(spec, Unroll(3, 2)) == pytest.approx(expected, rel=0.005)


def test_inference_flops_equal_the_counter() -> None:
    spec = ModelSpec(1024, n_prelude=1, n_recur=1, n_coda=1, vocab_size=512, context=256)
    model = build(spec, device="meta")
    tokens = torch.zeros(1, 256, dtype=torch.int64, device="meta")
    expected = ledger(spec).inference_flops_per_token
    for targets in (None, tokens):  # logits, and the loss of a validation
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(tokens, targets)
        assert counter.get_total_flops() / 256 == pytest.approx(expected, rel=0.005)


def test_every_parameter_is_in_one_group() -> None:
    for injection, tied in itertools.product(INJECTION_NAMES, (True, False)):
        conditioning = ("loop_embedding", "loop_norm", "low_rank")
        spec = small(injection=injection, tied_embeddings=tied, conditioning=conditioning)
        model = build(spec, device="meta")
        groups = model.parameter_groups()
        assert list(groups) == [
            "matrix_once", "matrix_loop", "embedding", "head", "norm", "injection",
        ]  # fmt: skip
        members = [name for group in groups.values() for name, _ in group]
        assert sorted(members) == sorted(name for name, _ in model.named_parameters())
        for name in ("matrix_once", "matrix_loop"):
            assert all(parameter.ndim == 2 for _, parameter in groups[name])
        assert len(groups["matrix_loop"]) == 6 + (injection == "linear")
        assert len(groups["matrix_once"]) == 12
        assert all(parameter.ndim == 1 for _, parameter in groups["norm"])
        assert len(groups["norm"]) == 3 + 2 * 3
        assert len(groups["head"]) == (not tied)


def test_initial_values() -> None:
    spec = ModelSpec(256, head_dim=64, n_prelude=1, n_recur=1, n_coda=0, vocab_size=1000)
    model = build(spec)
    named = dict(model.named_parameters())
    assert named["embedding"].std().item() == pytest.approx(1, rel=0.02)
    assert named["head.weight"].std().item() == pytest.approx(0.001, rel=0.02)
    for name in ("q", "k", "v", "o", "up"):
        matrix = named[f"recur.0.{name}"]
        assert matrix.std().item() == pytest.approx(256**-0.5, rel=0.02)
        assert matrix.abs().max().item() <= math.sqrt(3 / 256)
    assert named["recur.0.down"].std().item() == pytest.approx(1024**-0.5, rel=0.02)
    eye = torch.eye(256)
    assert torch.equal(named["injection.weight"], torch.cat((eye, 0 * eye), dim=1))
    for name, parameter in named.items():
        if "norm_" in name:
            assert torch.equal(parameter, torch.ones(256))
        assert parameter.dtype == torch.float32


def test_initial_lanes_and_gains() -> None:
    lanes = build(small(injection="hyperconnections", n_lanes=2)).injection
    assert lanes.alpha.tolist() == [[1, 0], [0, 1], [1, 0]]
    assert torch.equal(lanes.mix, torch.eye(2).expand(3, 2, 2))
    assert torch.equal(lanes.beta, torch.ones(3, 2))
    gains = build(small(injection="diagonal")).injection.gains
    assert torch.equal(gains, torch.tensor([[0.0], [1.0]]).expand(2, 32))


def test_the_same_seed_makes_the_same_model() -> None:
    one, same, other = (build(small(), seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["embedding"], other["embedding"])
    assert not any("TC" in name for name in one)  # tables are made, not stored


def test_more_tokens_than_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"n_tokens=49 is outside 1\.\.48"):
        build(small(), n_tokens=49)
