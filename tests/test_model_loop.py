"""What the loop computes, against an unrolled stack that is written here from its definition."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from loopworth.model import LoopedTransformer, build
from loopworth.spec import ModelSpec
from loopworth.unroll import Unroll

torch.set_num_threads(1)

LOOPED = ["passthrough", "linear", "additive", "diagonal", "hyperconnections"]
RETURNING = LOOPED[1:]
ALL_CONDITIONING = ("loop_embedding", "loop_norm", "low_rank")


def small(injection: str = "linear", **fields: Any) -> ModelSpec:
    given = {"d_model": 32, "head_dim": 8, "vocab_size": 40, "context": 12, "n_prelude": 1,
             "n_recur": 2, "n_coda": 1, "recurrence": 1 if injection == "none" else 3}  # fmt: skip
    return ModelSpec(injection=injection, **(given | fields))  # type: ignore[arg-type]


def tokens(spec: ModelSpec, rows: int = 2, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, spec.vocab_size, (rows, spec.context), generator=generator)


def grown(spec: ModelSpec, dtype: torch.dtype = torch.float64) -> LoopedTransformer:
    """Return a model in which every parameter has left its initial value."""
    model = build(spec).to(dtype)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.empty(parameter.shape).normal_(0, 0.1, generator=generator)
            parameter.add_(noise.to(dtype))
    return model


def gradients(model: LoopedTransformer) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


# The reference: one function a layer, positions by complex numbers, attention by a mask, and the
# recurrences written out one after the other with the same weights.


def reference_norm(x: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * scale


def reference_rope(x: Tensor, head_dim: int) -> Tensor:
    """Turn channel pairs (c, c + C/2) by -t base^(-2c/C), as complex numbers, (B, H, T, C)."""
    half = head_dim // 2
    pairs = torch.complex(x[..., :half], x[..., half:])
    angle = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * 10000.0 ** (
        -torch.arange(half, dtype=torch.float64) / half
    )
    turned = pairs * torch.polar(torch.ones_like(angle), -angle)
    return torch.cat((turned.real, turned.imag), dim=-1)


def reference_block(spec: ModelSpec, p: dict[str, Tensor], x: Tensor) -> Tensor:
    h = reference_norm(x, p["norm_attention.weight"])
    heads = []
    for name in ("q", "k", "v"):
        y = (h @ p[name].T).unflatten(-1, (-1, spec.head_dim)).transpose(1, 2)
        if name != "q":
            y = y.repeat_interleave(spec.n_heads // spec.kv_heads, dim=1)
        heads.append(y)
    q, k = (reference_norm(reference_rope(y, spec.head_dim)) for y in heads[:2])
    scores = q @ k.transpose(-1, -2) / math.sqrt(spec.head_dim)
    ahead = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    mixed = scores.masked_fill(ahead, -math.inf).softmax(-1) @ heads[2]
    x = x + mixed.transpose(1, 2).flatten(-2) @ p["o"].T
    h = reference_norm(x, p["norm_mlp.weight"])
    up = h @ p["up"].T
    if spec.mlp_kind == "swiglu":
        gate = h @ p["gate"].T
        return x + (gate * torch.sigmoid(gate) * up) @ p["down"].T
    return x + up.clamp(min=0).pow(2) @ p["down"].T


def stack(
    spec: ModelSpec, p: dict[str, Tensor], inputs: Tensor, r: int, cut: int = 0
) -> tuple[Tensor, list[Tensor]]:
    """Return logits and states; the outputs of the first `cut` recurrences are constants."""

    def part(prefix: str) -> dict[str, Tensor]:
        return {n.removeprefix(prefix): v for n, v in p.items() if n.startswith(prefix)}

    def run(group: str, layers: int, x: Tensor) -> Tensor:
        for layer in range(layers):
            x = reference_block(spec, part(f"{group}.{layer}."), x)
        return x

    e = reference_norm(p["embedding"][inputs], p["norm_embedding.weight"])
    e = run("prelude", spec.n_prelude, e)
    lanes = [e] * spec.n_lanes
    s = torch.zeros_like(e) if spec.injection == "additive" else e
    states = []
    for i in range(r):
        if spec.injection == "linear":
            u = e @ p["injection.weight"][:, : spec.d_model].T
            u = u + s @ p["injection.weight"][:, spec.d_model :].T
        elif spec.injection == "additive":
            u = s + e
        elif spec.injection == "diagonal":
            u = p["injection.gains"][0] * s + p["injection.gains"][1] * e
        elif spec.injection == "hyperconnections":
            alpha, mix, beta = (p[f"injection.{n}"][min(i, int(spec.recurrence) - 1)]
                                for n in ("alpha", "mix", "beta"))  # fmt: skip
            u = sum(alpha[n] * lanes[n] for n in range(spec.n_lanes))  # type: ignore[assignment]
        else:
            u = s
        y = reference_norm(run("recur", spec.n_recur, u), p["norm_recur.weight"])
        y = y.detach() if i < cut else y
        s = y
        if spec.injection == "hyperconnections":
            lanes = [
                sum(mix[n, j] * lanes[j] for j in range(spec.n_lanes)) + beta[n] * y  # type: ignore[misc]
                for n in range(spec.n_lanes)
            ]
            s = sum(lanes)  # type: ignore[assignment]
        states.append(s)
    x = reference_norm(run("coda", spec.n_coda, s), p["norm_final.weight"])
    return 15 * torch.tanh(x @ p.get("head.weight", p["embedding"]).T / 15), states


CASES = [
    *((name, {}) for name in LOOPED),
    ("none", {}),
    ("none", {"n_prelude": 0, "n_coda": 0, "n_recur": 3}),
    ("linear", {"n_prelude": 0, "n_coda": 0}),
    ("additive", {"n_prelude": 0, "n_coda": 0, "n_kv_heads": 2}),
    ("linear", {"n_kv_heads": 1}),
    ("linear", {"mlp_kind": "swiglu", "mlp_ratio": 8 / 3}),
    ("linear", {"tied_embeddings": True}),
    ("hyperconnections", {"n_lanes": 3, "recurrence": 4}),
]


@pytest.mark.parametrize(("injection", "fields"), CASES)
def test_looping_equals_an_unrolled_stack_of_tied_weights(
    injection: str, fields: dict[str, Any]
) -> None:
    spec = small(injection, **fields)
    model, inputs = grown(spec), tokens(spec)
    logits, states = model(inputs, return_states=True)
    named = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    expected, expected_states = stack(spec, named, inputs, int(spec.recurrence))
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)  # tables are fp32
    assert len(states) == spec.recurrence
    for state, other in zip(states, expected_states, strict=True):
        torch.testing.assert_close(state, other, rtol=0, atol=1e-5)
    targets = inputs.roll(-1, 1)
    model(inputs, targets).backward()
    F.cross_entropy(expected.flatten(0, 1), targets.flatten()).backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, named[name].grad, rtol=0, atol=1e-5, msg=name)


@pytest.mark.parametrize("injection", RETURNING)
@pytest.mark.parametrize(("r", "k"), [(3, 1), (3, 2), (5, 2)])
def test_no_grad_gives_the_gradients_of_a_cut(injection: str, r: int, k: int) -> None:
    spec = small(injection, recurrence=r)
    model, inputs = grown(spec), tokens(spec)
    model(inputs, inputs, unroll=Unroll(r, k)).backward()
    named = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    expected, _ = stack(spec, named, inputs, r, cut=r - k)
    F.cross_entropy(expected.flatten(0, 1), inputs.flatten()).backward()
    found = gradients(model)
    for name, parameter in named.items():
        assert parameter.grad is not None
        torch.testing.assert_close(found[name], parameter.grad, rtol=0, atol=2e-6, msg=name)


@pytest.mark.parametrize("injection", RETURNING)
def test_gradient_flows_through_the_kept_recurrences_only(injection: str) -> None:
    spec = small(injection, recurrence=4)
    model, inputs = grown(spec), tokens(spec)
    loss, states = model(inputs, inputs, unroll=Unroll(4, 2), return_states=True)
    if injection == "hyperconnections":  # lanes carry e itself, so the states do have a history
        assert all(state.requires_grad for state in states)
    else:
        assert [state.requires_grad for state in states] == [False, False, True, True]
    loss.backward()
    for name, gradient in gradients(model).items():
        assert gradient.abs().max() > 0, name
    full = grown(spec)
    full(inputs, inputs).backward()
    cut, whole = gradients(model), gradients(full)
    assert (cut["recur.0.q"] - whole["recur.0.q"]).abs().max() > 1e-6
    assert torch.equal(cut["head.weight"], whole["head.weight"])


def test_gradient_of_per_recurrence_parameters_is_that_of_the_kept_recurrences() -> None:
    spec = small("hyperconnections", recurrence=4, conditioning=ALL_CONDITIONING)
    model, inputs = grown(spec), tokens(spec)
    model(inputs, inputs, unroll=Unroll(4, 2)).backward()
    found = gradients(model)
    for name in ("injection.alpha", *(n for n in found if n.startswith("conditioning"))):
        rows = found[name].flatten(1).abs().amax(1) > 0
        assert rows.tolist() == [False, False, True, True], name


@pytest.mark.parametrize("injection", ["none", *LOOPED])
@pytest.mark.parametrize("n_kv_heads", [None, 2])
def test_no_token_sees_a_later_one(injection: str, n_kv_heads: int | None) -> None:
    spec = small(injection, n_kv_heads=n_kv_heads)
    model, inputs = grown(spec), tokens(spec, rows=1)
    before = model(inputs).detach()
    for position in (0, 5, spec.context - 1):
        changed = inputs.clone()
        changed[0, position] = (inputs[0, position] + 1) % spec.vocab_size
        moved = (model(changed).detach() - before).abs().amax((0, 2)) > 1e-9
        assert not moved[:position].any()
        assert moved[position:].all()


@pytest.mark.parametrize("injection", ["linear", "diagonal"])
def test_at_the_start_only_the_last_loop_matters(injection: str) -> None:
    spec = small(injection)
    model, inputs = build(spec), tokens(spec)
    _, states = model(inputs, unroll=Unroll(5, 5), return_states=True)
    assert all(torch.equal(state, states[0]) for state in states)
    assert torch.equal(model(inputs, unroll=Unroll(1, 1)), model(inputs, unroll=Unroll(5, 5)))
    model(inputs, inputs).backward()
    weight = model.injection.weight if injection == "linear" else model.injection.gains
    state_half = weight.grad[:, spec.d_model :] if injection == "linear" else weight.grad[0]
    assert state_half.abs().max() > 0  # so the loops can come apart


def test_at_the_start_lanes_are_a_residual_stream_of_recurrences() -> None:
    spec = small("hyperconnections", recurrence=3, n_lanes=2)
    model, inputs = build(spec).double(), tokens(spec)
    inside: list[Tensor] = []
    hooks = [
        model.recur[0].register_forward_pre_hook(lambda _, args: inside.append(args[0])),
        model.norm_recur.register_forward_hook(lambda *args: inside.append(args[2])),
    ]
    _, states = model(inputs, return_states=True)
    for hook in hooks:
        hook.remove()
    (e, *_), outputs = inside[::2], inside[1::2]
    stream = e
    for entered, y, state in zip(inside[::2], outputs, states, strict=True):
        torch.testing.assert_close(entered, stream)
        stream = stream + y
        torch.testing.assert_close(state, 2 * stream)  # the sum of two equal lanes


@pytest.mark.parametrize("injection", ["none", *LOOPED])
def test_conditioning_changes_nothing_at_the_start(injection: str) -> None:
    spec = small(injection)
    plain, inputs = build(spec), tokens(spec)
    for names in [(name,) for name in ALL_CONDITIONING] + [ALL_CONDITIONING]:
        more = build(dataclasses.replace(spec, conditioning=names))
        for other, parameter in more.named_parameters():
            assert other.startswith("conditioning") or torch.equal(
                parameter, dict(plain.named_parameters())[other]
            )
        assert torch.equal(plain(inputs), more(inputs))


def test_conditioning_is_what_it_says() -> None:
    spec = small(conditioning=("low_rank", "loop_norm", "loop_embedding"), n_recur=1, recurrence=1)
    model, inputs = grown(spec), tokens(spec)
    found = model(inputs)
    plain = build(small(n_recur=1, recurrence=1)).double()
    state = {n: v for n, v in model.state_dict().items() if not n.startswith("conditioning")}
    own = model.conditioning
    for name in ("q", "k", "v", "o", "up", "down"):  # fold the low-rank change into the matrix
        up, down = (getattr(own["low_rank"], f"{name}_0_{side}")[0] for side in ("up", "down"))
        state[f"recur.0.{name}"] = state[f"recur.0.{name}"] + up @ down
    state["norm_recur.weight"] = state["norm_recur.weight"] * own["loop_norm"].weight[0]
    plain.load_state_dict(state)
    vector = own["loop_embedding"].weight[0]
    plain.recur[0].register_forward_pre_hook(lambda _, args: (args[0] + vector, *args[1:]))
    torch.testing.assert_close(found, plain(inputs), rtol=0, atol=1e-12)


@pytest.mark.parametrize("injection", LOOPED)
def test_any_recurrence_at_evaluation_under_the_stated_rule(injection: str) -> None:
    for conditioning in ((), ALL_CONDITIONING):
        spec = small(injection, recurrence=2, conditioning=conditioning)
        model, inputs = grown(spec), tokens(spec)
        own = bool(conditioning) or injection == "hyperconnections"
        logits, states = model(inputs, unroll=Unroll(5, 5), return_states=True)
        assert len(states) == 5
        assert torch.isfinite(logits).all()
        if own:
            with pytest.raises(ValueError, match="recurrence=5 is past the 2"):
                model(inputs, unroll=Unroll(5, 5), beyond="refuse")
        else:
            refused = model(inputs, unroll=Unroll(5, 5), beyond="refuse")
            assert torch.equal(logits, refused)
        torch.testing.assert_close(
            model(inputs), model(inputs, unroll=Unroll(2, 2), beyond="refuse"), rtol=0, atol=0
        )
    named = dict(grown(small(injection, recurrence=2)).named_parameters())
    clamped = grown(small(injection, recurrence=2))(inputs, unroll=Unroll(4, 4))
    expected, _ = stack(small(injection, recurrence=2), named, inputs, 4)
    torch.testing.assert_close(clamped, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("injection", ["none", *LOOPED])
def test_single_precision_follows_double(injection: str) -> None:
    spec = small(injection)
    exact, rough, inputs = grown(spec), grown(spec, torch.float32), tokens(spec)
    rough.load_state_dict(exact.state_dict())
    one, two = exact(inputs, inputs), rough(inputs, inputs)
    assert (one.dtype, two.dtype) == (torch.float64, torch.float32)
    assert two.item() == pytest.approx(one.item(), rel=2e-6)
    one.backward()
    two.backward()
    wide = gradients(exact)
    for name, gradient in gradients(rough).items():
        error = (gradient.double() - wide[name]).norm() / wide[name].norm()
        assert error < 2e-5, name


@pytest.mark.parametrize("injection", LOOPED)
@pytest.mark.parametrize("k", [1, 3])
def test_checkpointing_changes_no_number(injection: str, k: int) -> None:
    if injection == "passthrough" and k == 1:
        return
    spec = small(injection, conditioning=ALL_CONDITIONING)
    kept, again, inputs = grown(spec), grown(spec), tokens(spec)
    one = kept(inputs, inputs, unroll=Unroll(3, k))
    two = again(inputs, inputs, unroll=Unroll(3, k), checkpoint=True)
    assert torch.equal(one, two)
    one.backward()
    two.backward()
    others = gradients(again)
    for name, gradient in gradients(kept).items():
        torch.testing.assert_close(gradient, others[name], rtol=0, atol=1e-12)


def saved_bytes(call: Callable[[], Tensor]) -> int:
    """Return the bytes that autograd keeps for the backward pass, each storage once."""
    seen: dict[int, int] = {}
    alive = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = call()
    del loss
    return sum(seen.values())


def test_checkpointed_memory_grows_by_a_state_a_recurrence() -> None:
    spec = small(recurrence=8, n_recur=4, context=64)
    model, inputs = build(spec), tokens(spec)
    kept = {
        (r, flag): saved_bytes(lambda: model(inputs, inputs, unroll=Unroll(r, r), checkpoint=flag))  # noqa: B023
        for r in (2, 8)
        for flag in (False, True)
    }
    state = inputs.numel() * spec.d_model * 4
    assert kept[8, True] - kept[2, True] <= 6 * 2 * state
    assert kept[8, False] - kept[2, False] > 20 * (kept[8, True] - kept[2, True])


def test_early_recurrences_keep_nothing() -> None:
    spec = small(recurrence=8, n_recur=4, context=64)
    model, inputs = build(spec), tokens(spec)
    short = saved_bytes(lambda: model(inputs, inputs, unroll=Unroll(2, 2)))
    cut = saved_bytes(lambda: model(inputs, inputs, unroll=Unroll(8, 2)))
    assert cut <= short + inputs.numel() * spec.d_model * 4


def test_contradictions_are_refused() -> None:
    spec = small("passthrough")
    model, inputs = build(spec), tokens(spec)
    with pytest.raises(ValueError, match=r"window=1 of 3 .* without gradient"):
        model(inputs, inputs, unroll=Unroll(3, 1))
    with torch.no_grad():
        model(inputs, inputs, unroll=Unroll(3, 1))
    with pytest.raises(ValueError, match="beyond='wrap' is unknown"):
        model(inputs, beyond="wrap")
    with pytest.raises(ValueError, match="reduction='max' is unknown"):
        model(inputs, inputs, reduction="max")


def test_rows_longer_than_the_context_continue_the_positions() -> None:
    spec = small()
    model = grown(spec)
    longer = grown(dataclasses.replace(spec, context=30))
    inputs = tokens(dataclasses.replace(spec, context=30))
    assert torch.equal(model(inputs), longer(inputs))


@pytest.mark.parametrize("injection", ["none", *LOOPED])
def test_bfloat16_autocast_stays_near(injection: str) -> None:
    spec = small(injection, n_kv_heads=2, conditioning=ALL_CONDITIONING)
    model, inputs = build(spec), tokens(spec)
    expected = model(inputs, inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, _ = model(inputs, inputs, return_states=True)
        logits = model(inputs)
    assert loss.dtype == logits.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=0.01)
    loss.backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # asked by the compiler
def test_blocks_compile_once_whatever_the_recurrence() -> None:
    spec = small()
    model, inputs = grown(spec, torch.float32), tokens(spec)
    expected = [model(inputs, inputs, unroll=Unroll(r, k)) for r, k in ((3, 3), (5, 2), (4, 4))]
    compiled = grown(spec, torch.float32).compile_blocks(backend="eager", fullgraph=True)
    torch._dynamo.utils.counters.clear()
    compiled(inputs, inputs, unroll=Unroll(4, 2)).backward()
    frames = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    found = [compiled(inputs, inputs, unroll=Unroll(r, k)) for r, k in ((3, 3), (5, 2), (4, 4))]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
        one.backward()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == frames
    torch._dynamo.reset()
