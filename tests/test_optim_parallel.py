"""Two processes share the work of a step, on plain parameters and on FSDP2's shards."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from loopworth.spec import ModelSpec, OptimSpec
from loopworth.train.health import gradient_norms
from loopworth.train.optim import build_optimizer
from loopworth.train.polar import polar_flops
from loopworth.train.share import Sharing, rows_held, share_out

torch.set_num_threads(1)
STEPS, WORLD = 4, 2
REFERENCE = {
    "model": ModelSpec(640), "batch_tokens": 2**18, "tokens": 1e9, "steps": STEPS,
}  # fmt: skip


class Small(nn.Module):
    """Matrices of four shapes, of which some do not divide by two, vectors and a table."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        shapes = {
            "a": (8, 8),
            "b": (8, 8),
            "up": (7, 20),
            "down": (20, 7),
            "row": (1, 6),
            "w": (6, 12),
        }
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape, generator=generator)))
        self.scale = nn.Parameter(torch.ones(5))
        self.table = nn.Parameter(torch.randn(9, 4, generator=generator))

    def forward(self, step):
        """A loss whose gradients are full of different numbers."""
        generator = torch.Generator().manual_seed(step)
        return sum(
            (each * torch.randn(each.shape, generator=generator)).sin().sum()
            for each in self.parameters()
        )


def _groups(model):
    named = dict(model.named_parameters())
    names = {
        "matrix_once": ["a", "up", "row"], "matrix_loop": ["b", "down", "w"],
        "embedding": ["table"], "norm": ["scale"],
    }  # fmt: skip
    return {group: [(name, named[name]) for name in members] for group, members in names.items()}


def _full(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _train(model, steps, state=None, **more):
    groups = _groups(model)
    optimiser = build_optimizer(groups, OptimSpec(recurrence_rule="inverse"), **REFERENCE, **more)
    if state is not None:
        optimiser.load_state_dict(state)
    for step in steps:
        model(step).backward()
        norms = {name: norm.item() for name, norm in gradient_norms(groups).items()}
        optimiser.step()
        optimiser.zero_grad()
    weights = {name: _full(each.detach()) for name, each in model.named_parameters()}
    return weights, optimiser, norms


def _saved(weights, optimiser, norms):
    state = optimiser.state_dict()
    parameters = {
        name: {key: _full(value).clone() for key, value in each.items()}
        for name, each in state["parameters"].items()
    }
    weights = {name: each.clone() for name, each in weights.items()}
    whole = {"step": state["step"], "parameters": parameters}
    return {"weights": weights, "state": whole, "norms": norms}


def _work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD
    )
    try:
        for kind in ("ddp", "fsdp2"):
            model = Small()
            if kind == "fsdp2":
                fully_shard(model, mesh=init_device_mesh("cpu", (WORLD,)))
            half = _saved(*_train(model, range(STEPS // 2)))
            end = _saved(*_train(model, range(STEPS // 2, STEPS), half["state"]))
            torch.save({"half": half, "end": end}, Path(folder) / f"{kind}-{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two processes saved, half way and at the end; one start for all tests."""
    path = tmp_path_factory.mktemp("two")
    mp.spawn(_work, args=(str(path),), nprocs=WORLD)
    return path


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_processes_do_what_one_does(kind, folder):
    wanted = _saved(*_train(Small(), range(STEPS)))
    results = [
        torch.load(folder / f"{kind}-{rank}.pt", weights_only=True)["end"] for rank in range(WORLD)
    ]
    for found in results:
        assert found["state"]["step"] == STEPS
        assert found["norms"] == pytest.approx(wanted["norms"], rel=1e-5)
        for name, each in wanted["weights"].items():
            torch.testing.assert_close(found["weights"][name], each, atol=2e-6, rtol=2e-6)
            for key, value in wanted["state"]["parameters"][name].items():
                other = found["state"]["parameters"][name][key]
                torch.testing.assert_close(other, value, atol=2e-6, rtol=2e-6)
    # What the processes hold alike stays alike to the last bit.
    for name, each in results[0]["weights"].items():
        assert torch.equal(each, results[1]["weights"][name])


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_one_process_goes_on_where_two_stopped(kind, folder):
    half = torch.load(folder / f"{kind}-0.pt", weights_only=True)["half"]
    model = Small()
    model.load_state_dict(half["weights"])
    found, _, _ = _train(model, range(STEPS // 2, STEPS), half["state"])
    for name, each in _train(Small(), range(STEPS))[0].items():
        torch.testing.assert_close(found[name], each, atol=2e-6, rtol=2e-6)


def test_work_is_shared_out_evenly():
    shapes = [(64, 64)] * 12 + [(64, 256)] * 6 + [(256, 64)] * 6 + [(64, 128)]
    for size in (1, 2, 3, 8):
        owners = share_out(shapes, size)
        busy = [
            sum(
                polar_flops(*shape)
                for shape, owner in zip(shapes, owners, strict=True)
                if owner == q
            )
            for q in range(size)
        ]
        assert max(busy) - min(busy) <= max(polar_flops(*shape) for shape in shapes)
    assert share_out(shapes, 1) == [0] * len(shapes)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("rows", [1, 2, 7, 12])
def test_rows_are_dealt_as_torch_chunks_them(rows, size):
    chunks = [len(each) for each in torch.arange(rows).chunk(size)]
    assert rows_held(rows, size) == chunks + [0] * (size - len(chunks))


def test_a_single_process_does_not_share():
    assert Sharing.of(["w"], [torch.ones(2, 2)]) == Sharing()
    assert Sharing.of([], []) == Sharing()
