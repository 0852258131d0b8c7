"""How a model runs: any recurrence, precision, memory, compiled, and what it refuses."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from loopworth.model import build
from loopworth.unroll import Unroll
from model_reference import ALL_CONDITIONING, LOOPED, gradients, grown, small, stack, tokens

torch.set_num_threads(1)


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
