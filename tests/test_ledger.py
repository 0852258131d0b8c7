import csv
import dataclasses
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import loopworth.datasets
from loopworth.ledger import Convention, Ledger, horizon, ledger
from loopworth.spec import ModelSpec
from loopworth.tensors import TensorRow

DATA = Path(loopworth.datasets.__file__).parent
LAYOUTS = {1: (0, 20, 0), 2: (2, 8, 2), 4: (2, 4, 2), 8: (2, 2, 2)}
CONVENTIONS = [
    Convention(where, norms, embeddings)
    for where in ("recurrent", "once", "excluded")
    for norms in (True, False)
    for embeddings in (True, False)
]


def reference(s: int, r: int, **others: Any) -> ModelSpec:
    """Return an architecture of the published grid."""
    prelude, recur, coda = LAYOUTS[r]
    fields = {"injection": "none" if r == 1 else "linear"} | others
    return ModelSpec.from_scale(
        s, n_prelude=prelude, n_recur=recur, n_coda=coda, recurrence=r, **fields
    )


# An independent count: walk the model as a token does and add up shapes.


def layer_shapes(spec: ModelSpec) -> list[tuple[int, ...]]:
    d, kv = spec.d_model, spec.kv_heads * spec.head_dim
    hidden = round(spec.mlp_ratio * d)
    mlp = [(hidden, d), (d, hidden)] + [(hidden, d)] * (spec.mlp_kind == "swiglu")
    return [(d, d), (kv, d), (kv, d), (d, d), *mlp, (d,), (d,)]


def injection_shapes(spec: ModelSpec) -> list[tuple[int, ...]]:
    """Return what each recurrence multiplies a token with, lanes as one vector a coefficient."""
    d, n = spec.d_model, spec.n_lanes
    return {
        "linear": [(d, 2 * d)],
        "diagonal": [(d,), (d,)],
        "hyperconnections": [(n, d), (n, n, d), (n, d)],
    }.get(spec.injection, [])


def walk(spec: ModelSpec) -> tuple[int, int]:
    """Count training and inference FLOPs a token by brute force (whole recurrences only)."""
    train = inference = 0
    window = spec.recurrence if spec.bptt_window is None else spec.bptt_window

    def visit(shape: tuple[int, ...], gradient: bool) -> None:
        nonlocal train, inference
        inference += 2 * math.prod(shape)
        train += 2 * math.prod(shape) + (4 * math.prod(shape) if gradient else 0)

    def run_layer(gradient: bool) -> None:
        for shape in layer_shapes(spec):
            visit(shape, gradient)
        for _ in range(spec.n_heads):
            visit((spec.head_dim, spec.context), gradient)  # q k^T, full T x T
            visit((spec.context, spec.head_dim), gradient)  # times v

    for _ in range(spec.n_prelude + spec.n_coda):
        run_layer(gradient=True)
    for i in range(int(spec.recurrence)):
        gradient = i >= spec.recurrence - window
        for shape in injection_shapes(spec):
            visit(shape, gradient)
        for _ in range(spec.n_recur):
            run_layer(gradient)
    visit((spec.vocab_size, spec.d_model), gradient=True)
    return train, inference


def stored(spec: ModelSpec) -> int:
    """Count all parameters from shapes."""
    layer = sum(math.prod(shape) for shape in layer_shapes(spec))
    if spec.injection == "hyperconnections":
        injection = int(spec.recurrence) * (spec.n_lanes**2 + 2 * spec.n_lanes)
    else:
        injection = sum(math.prod(shape) for shape in injection_shapes(spec))
    tables = spec.vocab_size * spec.d_model * (1 if spec.tied_embeddings else 2)
    layers = spec.n_prelude + spec.n_recur + spec.n_coda
    return layers * layer + injection + tables + 3 * spec.d_model


@st.composite
def whole_specs(draw: st.DrawFn) -> ModelSpec:
    n_heads = draw(st.integers(1, 6))
    injection = draw(
        st.sampled_from(["passthrough", "linear", "additive", "diagonal", "hyperconnections"])
    )
    r = draw(st.integers(1, 6))
    window = None if injection == "passthrough" else draw(st.none() | st.integers(1, r))
    return ModelSpec(
        d_model=n_heads * 16,
        head_dim=16,
        n_prelude=draw(st.integers(0, 3)),
        n_recur=draw(st.integers(1, 4)),
        n_coda=draw(st.integers(0, 3)),
        recurrence=r,
        injection=injection,
        n_lanes=draw(st.integers(2, 4)),
        bptt_window=window,
        vocab_size=draw(st.integers(2, 500)),
        context=draw(st.integers(1, 300)),
        n_kv_heads=draw(st.sampled_from([1, n_heads])),
        mlp_ratio=draw(st.sampled_from([1, 8 / 3, 4])),
        mlp_kind=draw(st.sampled_from(["squared_relu", "swiglu"])),
        tied_embeddings=draw(st.booleans()),
    )


@given(whole_specs())
def test_the_ledger_equals_a_walk_through_the_model(spec: ModelSpec) -> None:
    account = ledger(spec)
    assert (account.train_flops_per_token, account.inference_flops_per_token) == walk(spec)
    assert account.parameters == stored(spec)
    assert account.weight_bytes(4) == 4 * stored(spec)


@given(whole_specs())
def test_every_convention_is_a_partition_of_the_parameters(spec: ModelSpec) -> None:
    account = ledger(spec)
    norms = sum(row.parameters for row in account.rows if row.kind == "norm")
    tables = sum(row.parameters for row in account.rows if row.group in ("embedding", "head"))
    for convention in CONVENTIONS:
        count = account.count(convention)
        assert count.n_unique == count.n_once + count.n_rec
        left_out = (
            (0 if convention.norms else norms)
            + (0 if convention.embeddings else tables)
            + (count.n_injection if convention.injection == "excluded" else 0)
        )
        assert count.n_unique + left_out == account.parameters
        assert account.n_eff(1, convention) == count.n_unique
        assert account.n_eff(3.5, convention) == count.n_once + 3.5 * count.n_rec


@given(whole_specs(), st.floats(1, 6))
def test_costs_are_linear_in_a_mean_recurrence(spec: ModelSpec, mean: float) -> None:
    if spec.injection == "hyperconnections":
        return
    accounts = [
        ledger(ModelSpec.from_json(spec.to_json() | {"recurrence": r, "bptt_window": None}))
        for r in (1, mean, 6)
    ]
    weight = (mean - 1) / 5
    for name in ("train_flops_per_token", "inference_flops_per_token", "kv_slots"):
        low, middle, high = (getattr(account, name) for account in accounts)
        assert middle == pytest.approx((1 - weight) * low + weight * high, rel=1e-12)
    assert accounts[1].count() == accounts[2].count()


# The published numbers.


def test_all_44_published_architectures() -> None:
    cells = json.loads((DATA / "schwethelm2026_published.json").read_text())["architectures"]
    assert len(cells) == 44
    for cell in cells:
        account = ledger(reference(cell["s"], cell["r"]))
        assert account.count().n_unique == cell["unique_params"]
        assert account.train_flops_per_token == pytest.approx(
            cell["train_flops_per_token"], rel=5e-5
        )


@pytest.mark.parametrize(
    ("r", "unique", "flops"),
    [(1, 98_331_520, 1.027676e9), (2, 59_818_880, 1.037507e9), (4, 40_152_960, 1.047337e9),
     (8, 30_320_000, 1.066998e9)],
)  # fmt: skip
def test_exact_values_at_scale_10(r: int, unique: int, flops: float) -> None:
    account = ledger(reference(10, r))
    assert account.count().n_unique == unique
    assert account.train_flops_per_token == pytest.approx(flops, rel=1e-6)


@pytest.mark.parametrize("s", [6, 10, 20, 34])
def test_closed_form_of_the_model_without_a_loop(s: int) -> None:
    d = 64 * s
    account = ledger(reference(s, 1))
    assert account.train_flops_per_token == 1440 * d**2 + 240 * d + 192384 * d + 491520 * d
    count = account.count()
    assert (count.n_once, count.n_rec) == (3 * d, 240 * d**2 + 40 * d)
    assert account.count(Convention(norms=False)).n_once == 0


@pytest.mark.parametrize("r", [2, 4, 8])
def test_where_each_convention_puts_the_injection_and_the_norms(r: int) -> None:
    d, (prelude, recur, coda) = 640, LAYOUTS[r]
    layer, norms, injection = 12 * d**2, 2 * d, 2 * d**2
    once, rec = (prelude + coda) * (layer + norms) + 3 * d, recur * (layer + norms)
    account = ledger(reference(10, r))
    where = {
        Convention(): (once, rec + injection),
        Convention("once"): (once + injection, rec),
        Convention("excluded"): (once, rec),
        Convention(norms=False): ((prelude + coda) * layer, recur * layer + injection),
        Convention("once", embeddings=True): (once + injection + 2 * 32064 * d, rec),
    }
    for convention, expected in where.items():
        count = account.count(convention)
        assert (count.n_once, count.n_rec, count.n_injection) == (*expected, injection)


@pytest.mark.parametrize(
    ("s", "surplus"), [(20, (1.2, 2.4, 4.9)), (6, (0.7, 1.5, 3.0)), (34, (1.4, 2.7, 5.5))]
)
def test_surplus_of_looped_models_at_equal_width(s: int, surplus: tuple[float, ...]) -> None:
    base = ledger(reference(s, 1)).train_flops_per_token
    for r, percent in zip((2, 4, 8), surplus, strict=True):
        flops = ledger(reference(s, r)).train_flops_per_token
        assert 100 * (flops / base - 1) == pytest.approx(percent, abs=0.051)
        lanes = ledger(reference(s, r, injection="hyperconnections")).train_flops_per_token
        assert 0 < lanes / base - 1 < 0.0011 / s * 6
        half = ledger(reference(s, r, bptt_window=r // 2)).train_flops_per_token
        assert 0.225 < 1 - half / flops < 0.265


def test_shares_of_the_model_without_a_loop() -> None:
    account = ledger(reference(20, 1))
    share = {"scores": 0.0, "head": 0.0, "blocks": 0.0}
    for row in account.rows:
        part = "head" if row.group == "head" else "scores" if row.kind == "scores" else "blocks"
        share[part] += row.train_flops_per_token / account.train_flops_per_token
    assert [round(100 * share[part]) for part in ("blocks", "scores", "head")] == [73, 19, 8]


# Budget, scale: tokens in billions, as the reference's code gives them for r = 1.
TOKENS = {
    4.64e17: {6: 0.977, 8: 0.638, 10: 0.451, 12: 0.338},
    1e18: {6: 2.105, 8: 1.374, 10: 0.973, 12: 0.727, 14: 0.565},
    2.15e18: {8: 2.954, 10: 2.092, 12: 1.564, 14: 1.215, 16: 0.973},
    4.64e18: {10: 4.515, 12: 3.375, 14: 2.623, 16: 2.099, 18: 1.719, 20: 1.434},
    1e19: {12: 7.274, 16: 4.524, 18: 3.705, 20: 3.091, 24: 2.248},
    2.15e19: {18: 7.966, 24: 4.833, 28: 3.675, 34: 2.588},
}


def test_budgets_become_the_tokens_of_the_reference() -> None:
    assert sum(map(len, TOKENS.values())) == 29
    for budget, cells in TOKENS.items():
        for s, billions in cells.items():
            flops = ledger(reference(s, 1)).train_flops_per_token
            assert horizon(budget, flops).tokens / 1e9 == pytest.approx(billions, abs=0.00051)


def test_truncation_buys_1315_tokens_for_1000() -> None:
    # The pairing that gives the published median: each truncated run against the same model at the
    # same budget with the full gradient, both in whole steps, over all 63 runs. Keeping only runs
    # whose twin is in the baseline grid gives 1.3144, per-token costs without steps 1.3157.
    published = json.loads((DATA / "schwethelm2026_published.json").read_text())
    ratios = []
    with (DATA / "schwethelm2026_runs.csv").open() as lines:
        for run in csv.DictReader(lines):
            if run["study"] != "truncated_bptt":
                continue
            s, r, window = (int(run[x]) for x in ("width_scale", "recurrence", "bptt_window"))
            tokens = [
                horizon(
                    float(run["budget_flops"]),
                    ledger(reference(s, r, bptt_window=k)).train_flops_per_token,
                ).tokens
                for k in (window, None)
            ]
            ratios.append(tokens[0] / tokens[1])
    assert len(ratios) == 63
    assert statistics.median(ratios) == pytest.approx(1.31537, abs=1e-5)
    assert round(statistics.median(ratios), 3) == published["truncation_token_ratio_median"]


def test_variants_change_what_they_should() -> None:
    plain = ModelSpec(1024, vocab_size=1000)
    tied = ledger(ModelSpec(1024, vocab_size=1000, tied_embeddings=True))
    grouped = ledger(ModelSpec(1024, vocab_size=1000, n_kv_heads=2))
    gated = ledger(ModelSpec(1024, vocab_size=1000, mlp_kind="swiglu"))
    base = ledger(plain)
    assert base.parameters - tied.parameters == 1000 * 1024
    assert base.train_flops_per_token == tied.train_flops_per_token
    assert grouped.kv_bytes_per_token() * 4 == base.kv_bytes_per_token()
    assert base.parameters - grouped.parameters == 8 * 2 * (1024 * 768)
    assert gated.parameters - base.parameters == 8 * 4 * 1024**2
    assert tied.count(Convention(embeddings=True)).n_once - tied.count().n_once == 1000 * 1024


def test_decoding_pays_for_the_context_it_attends_to() -> None:
    account = ledger(reference(10, 4))
    empty, full = account.decode_flops_per_token(0), account.decode_flops_per_token(2048)
    assert full == account.inference_flops_per_token
    assert full - empty == 4 * 640 * 2048 * 20
    with pytest.raises(ValueError, match="context=-1 is too small"):
        account.decode_flops_per_token(-1)


def test_equal_specs_share_one_account() -> None:
    assert ledger(reference(10, 4)) is ledger(reference(10, 4))


def test_rows_name_tensors_once_and_carry_their_visits() -> None:
    rows = {row.name: row for row in ledger(reference(10, 4, bptt_window=1)).rows}
    assert len(rows) == len(ledger(reference(10, 4, bptt_window=1)).rows)
    up = rows["recur.mlp.up"]
    assert up == TensorRow(
        "recur.mlp.up", "recur", "matrix", 4, 4 * 4 * 640**2, 4, 1,
        12 * 4 * 4 * 640**2, 8 * 4 * 4 * 640**2,
    )  # fmt: skip
    assert rows["embedding.token"].train_flops_per_token == 0


# Budgets.


@given(st.floats(1e15, 1e24), st.floats(1e6, 1e12), st.integers(1, 2**22))
def test_a_horizon_is_the_nearest_whole_step(budget: float, flops: float, batch: int) -> None:
    if budget / (flops * batch) <= 0.5:
        return
    reach = horizon(budget, flops, batch)
    assert reach.tokens == reach.steps * batch
    assert reach.flops == pytest.approx(reach.tokens * flops, rel=1e-12)
    # A budget of 1e24 is only known to 1e8 FLOPs, which can be half a step of its own.
    assert abs(reach.flops - budget) <= 0.5 * flops * batch * (1 + 1e-9) + 1e-15 * budget


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1e3, 1e9), "less than half a step of 2.62e14 FLOPs.*larger budget"),
        ((0.5, 1, 1), "less than half a step"),
        ((-1e18, 1e9), r"budget_flops=-1e\+18 must be a positive, finite number"),
        ((math.nan, 1e9), "budget_flops=nan must be"),
        ((1e18, math.inf), "flops_per_token=inf must be"),
        ((1e18, 1e9, 0), "batch_tokens=0 is too small; it must be 1"),
    ],
)
def test_a_budget_that_buys_nothing_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        horizon(*arguments)


def test_conventions_have_names_and_refuse_unknown_places() -> None:
    assert Convention().name == "injection recurrent, norms in, embeddings out"
    assert Convention("excluded", norms=False, embeddings=True).name == (
        "injection excluded, norms out, embeddings in"
    )
    assert len({convention.name for convention in CONVENTIONS}) == 12
    with pytest.raises(ValueError, match="injection='twice' is unknown; use recurrent"):
        Convention("twice")  # type: ignore[arg-type]


def test_an_account_survives_hashing_and_comparison() -> None:
    account = ledger(reference(6, 2))
    assert account == Ledger(account.spec, account.rows)
    assert hash(account) == hash(Ledger(account.spec, account.rows))


def test_conditioning_costs_each_recurrence_its_own() -> None:
    plain = ModelSpec(64, head_dim=16, n_recur=3, recurrence=4, bptt_window=2)
    before = ledger(plain)
    cost = {"loop_embedding": 64, "loop_norm": 0, "low_rank": 3 * 8 * (4 * 128 + 2 * 320)}
    held = cost | {"loop_norm": 64}
    for name in cost:
        after = ledger(dataclasses.replace(plain, conditioning=(name,)))  # type: ignore[arg-type]
        assert after.parameters - before.parameters == 4 * held[name]
        train = after.train_flops_per_token - before.train_flops_per_token
        assert train == (2 * 4 + 4 * 2) * cost[name]
        assert after.count().n_rec == before.count().n_rec
        assert after.count().n_once - before.count().n_once == 4 * held[name]
    bare = Convention(norms=False)
    assert ledger(dataclasses.replace(plain, conditioning=("loop_norm",))).count(
        bare
    ) == before.count(bare)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Convention(norms="no"), "norms='no' is of type str; use True"),
        (lambda: Convention(embeddings=1), "embeddings=1 is of type int"),
        (lambda: Convention(["once"]), r"injection=\['once'\] is unknown"),
        (lambda: ledger({"d_model": 640}), "dict is no ModelSpec"),
        (lambda: ledger(ModelSpec(640, recurrence=1e300)), "which no machine has"),
        (lambda: horizon("1e18", 1e9), "budget_flops='1e18' is of type str"),
        (lambda: horizon(1e18, None), "flops_per_token=None is of type NoneType"),
        (lambda: horizon(1e18, 1e9, True), "batch_tokens=True is of type bool"),
        (lambda: horizon(1e18, 1e9, 2.5), "batch_tokens=2.5 is of type float"),
        (
            lambda: ledger(ModelSpec(640)).count("once"),
            "convention='once' is of type str; give a Convention",
        ),
        (lambda: ledger(ModelSpec(640)).n_eff("2"), "gain='2' is of type str"),
        (lambda: ledger(ModelSpec(640)).weight_bytes(-1), "bytes_per_parameter=-1 must be"),
        (lambda: ledger(ModelSpec(640)).kv_bytes_per_token(None), "bytes_per_value=None is of"),
        (
            lambda: ledger(ModelSpec(640)).decode_flops_per_token(2.5),
            "context=2.5 is of type float",
        ),
    ],
)
def test_an_argument_of_another_type_is_refused_in_words(
    call: Callable[[], object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        call()
