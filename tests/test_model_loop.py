"""What the loop computes, against an unrolled stack that is written from its definition."""

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from loopworth.model import build
from loopworth.unroll import Unroll
from model_reference import (
    ALL_CONDITIONING,
    LOOPED,
    RETURNING,
    gradients,
    grown,
    small,
    stack,
    tokens,
)

torch.set_num_threads(1)

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
