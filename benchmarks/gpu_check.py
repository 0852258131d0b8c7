"""Check and time training on one GPU, within six minutes. Prints Markdown.

    .venv/bin/python benchmarks/gpu_check.py            # one CUDA device
    .venv/bin/python benchmarks/gpu_check.py --small    # the same code on a CPU, tiny models

Correctness: losses of a few steps on the GPU (fp32, and bf16 as trained) against the CPU in fp32.
Speed: bf16 tokens/s and utilisation (ledger FLOPs over the device's bf16 peak), peak memory, and
compile time at s = 10 and s = 20, r = 1, 4, 8; then what is compiled anew when r and the window
change after warm-up, which should be nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch._dynamo.utils import counters

from loopworth.ledger import ledger
from loopworth.model import LoopedTransformer, build
from loopworth.plan.designs import looped_model
from loopworth.spec import ModelSpec, OptimSpec
from loopworth.train.machine import Machine, find_place, peak_flops
from loopworth.train.optim import LoopOptimizer, build_optimizer
from loopworth.unroll import Unroll, trained

LAYERS = {1: (0, 20, 0), 4: (2, 4, 2), 8: (2, 2, 2)}
LIMIT_S = 330  # cases that would begin later are left out, and said so


@dataclass
class Sizes:
    """What is measured: scales s, context, vocabulary, rows of a pass by scale."""

    widths: dict[str, int]
    rows: dict[str, int]
    context: int
    vocabulary: int
    head_dim: int
    steps: int


LARGE = Sizes({"s = 10": 640, "s = 20": 1280}, {"s = 10": 32, "s = 20": 16}, 2048, 32064, 128, 10)
SMALL = Sizes({"s = 1": 64, "s = 2": 128}, {"s = 1": 2, "s = 2": 2}, 64, 256, 32, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="tiny models, on a CPU if need be")
    small = parser.parse_args().small
    if not small and not torch.cuda.is_available():
        sys.exit("gpu_check: no CUDA device here; --small runs the same code on a CPU")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes, began = SMALL if small else LARGE, time.monotonic()
    torch.backends.cuda.matmul.allow_tf32 = False
    title = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "CPU"
    print(f"{title}, Python {platform.python_version()}, torch {torch.__version__}\n", flush=True)
    correct = correctness(device)
    speed(device, sizes, began, compiled=device == "cuda")
    recompiles = recompilation(device, sizes)
    print(f"\n{time.monotonic() - began:.0f} s in all")
    if not correct or recompiles:
        sys.exit("gpu_check: a loss differs from the CPU's, or something was compiled anew")


def correctness(device: str) -> bool:
    """Train 20 steps of a small model on CPU and device; print the largest difference of losses."""
    print("### Losses against the CPU in fp32, 20 steps of a small model\n")
    print("| injection | device | largest difference, nats | allowed |")
    print("|---|---|---|---|")
    good = True
    for injection in ("linear", "additive", "diagonal", "hyperconnections"):
        spec = ModelSpec(
            128, n_recur=2, recurrence=4, bptt_window=2, injection=injection, vocab_size=512,
            context=128, head_dim=64,
        )  # fmt: skip
        reference = losses(spec, "cpu", torch.float32)
        for dtype, allowed in ((torch.float32, 2e-3), (torch.bfloat16, 5e-2)):
            found = losses(spec, device, dtype)
            gap = max(abs(a - b) for a, b in zip(reference, found, strict=True))
            good = good and gap <= allowed
            name = str(dtype).removeprefix("torch.")
            print(f"| {injection} | {device} {name} | {gap:.1e} | {allowed:.0e} |", flush=True)
    return good


def losses(spec: ModelSpec, device: str, dtype: torch.dtype) -> list[float]:
    model, optimiser = parts(spec, device)
    generator = torch.Generator().manual_seed(3)
    found = []
    for _ in range(20):
        rows = torch.randint(64, (8, spec.context + 1), generator=generator).to(device)
        with autocast(device, dtype):
            loss = model(rows[:, :-1], rows[:, 1:])
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        found.append(loss.item())
    return found


def speed(device: str, sizes: Sizes, began: float, *, compiled: bool) -> None:
    """Time whole steps in bf16: both passes and the optimiser."""
    peak = peak_flops(find_place(Machine(device=device), "auto"))
    print("\n### bf16 training, one pass of rows a step\n")
    print(
        "| size | r | window | rows | tokens/s | FLOP/s | utilisation | peak memory, GiB "
        "| compile, s |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for size, width in sizes.widths.items():
        for recurrence, layers in LAYERS.items():
            for window in sorted({recurrence, max(1, recurrence // 2)}, reverse=True):
                if time.monotonic() - began > LIMIT_S:
                    print(f"| {size} | {recurrence} | {window} | left out: six minutes |")
                    continue
                spec = looped_model(
                    width, recurrence, layers, bptt_window=window, vocab_size=sizes.vocabulary,
                    context=sizes.context, head_dim=sizes.head_dim,
                )  # fmt: skip
                print(row_of(size, spec, sizes.rows[size], device, sizes.steps, peak, compiled))
                sys.stdout.flush()


def row_of(
    size: str, spec: ModelSpec, rows: int, device: str, steps: int, peak: float | None,
    compiled: bool,
) -> str:  # fmt: skip
    """Measure one model: the first step (with compilation), then the median of the others."""
    torch._dynamo.reset()
    reset_peak(device)
    model, optimiser = parts(spec, device)
    if compiled:
        model.compile_blocks()
    tokens = torch.randint(spec.vocab_size, (rows, spec.context + 1), device=device)
    step = stepper(model, optimiser, tokens, device)
    first = timed(step, device)
    times = sorted(timed(step, device) for _ in range(steps + 2))[: steps + 1]
    seconds = times[len(times) // 2]
    rate = rows * spec.context / seconds
    flops = rate * ledger(spec).train_flops_per_token
    share = f"{flops / peak:.1%}" if peak else "peak unknown"
    memory = f"{torch.cuda.max_memory_allocated() / 2**30:.1f}" if device == "cuda" else "-"
    return (
        f"| {size} | {spec.recurrence} | {spec.gradient_visits} | {rows} | {rate:,.0f} "
        f"| {flops:.3g} | {share} | {memory} | {first - seconds:.0f} |"
    )


def recompilation(device: str, sizes: Sizes) -> int:
    """Return how many graphs are compiled after warm-up while r and the window change."""
    width = next(iter(sizes.widths.values()))
    spec = looped_model(
        width, 4, LAYERS[4], vocab_size=sizes.vocabulary, context=sizes.context,
        head_dim=sizes.head_dim,
    )  # fmt: skip
    torch._dynamo.reset()
    model, optimiser = parts(spec, device)
    model.compile_blocks()
    tokens = torch.randint(spec.vocab_size, (2, spec.context + 1), device=device)
    step = stepper(model, optimiser, tokens, device)
    step(Unroll(4, 4))
    step(Unroll(4, 2))
    warm = counters["stats"]["unique_graphs"]
    for recurrence, window in ((1, 1), (2, 1), (8, 3), (5, 5), (3, 2)):
        step(Unroll(recurrence, window))
    new = int(counters["stats"]["unique_graphs"] - warm)
    print(f"\nGraphs compiled after warm-up over five other unrollings: {new} ({warm} before).")
    return new


def parts(spec: ModelSpec, device: str) -> tuple[LoopedTransformer, LoopOptimizer]:
    model = build(spec, device=device)
    optimiser = build_optimizer(
        model.parameter_groups(), OptimSpec(), model=spec, batch_tokens=2**18, tokens=10**9,
        steps=10**4,
    )  # fmt: skip
    return model, optimiser


def stepper(
    model: LoopedTransformer, optimiser: LoopOptimizer, tokens: torch.Tensor, device: str
) -> Callable[..., None]:
    def step(unroll: Unroll | None = None) -> None:
        with autocast(device, torch.bfloat16):
            loss = model(tokens[:, :-1], tokens[:, 1:], unroll=unroll or trained(model.spec))
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def timed(step: Callable[..., None], device: str) -> float:
    start = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def reset_peak(device: str) -> None:
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def autocast(device: str, dtype: torch.dtype) -> contextlib.AbstractContextManager[object]:
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device, dtype)


if __name__ == "__main__":
    main()
