"""Measure training on a CPU: rate against GEMM, time against the ledger, looping, memory. Markdown.

All times are medians of rounds in which the cases take turns, so that a busy machine slows all of
them alike; with one thread they are CPU seconds, which other work on the machine hardly changes.
FLOPs are the ledger's; the GEMM rate is the best that `torch.mm` reaches in fp32 here.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from loopworth.ledger import ledger
from loopworth.model import build
from loopworth.plan.designs import looped_model
from loopworth.spec import ModelSpec, OptimSpec
from loopworth.train.optim import build_optimizer
from loopworth.unroll import trained

VOCABULARY, CONTEXT, HEAD = 512, 256, 64
STEP_TOKENS = 2**15  # the optimiser moves once a step, the passes run for each part of it
LAYERS = {1: (0, 12, 0), 2: (2, 4, 2), 4: (2, 2, 2), 8: (2, 1, 2)}  # 12 layers a token, each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=8, help="sequences of a step")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="*", metavar="PART", help="functions of this file")
    parser.add_argument("--peak", metavar="JSON", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        print(_peak_bytes(options.peak))
        return
    torch.set_num_threads(options.threads)
    print(
        f"{_processor()}, {options.threads} threads, Python {platform.python_version()}, ", end=""
    )
    print(f"torch {torch.__version__}; steps of {options.rows} x {CONTEXT} tokens\n", flush=True)
    for part in (rate_against_gemm, time_against_ledger, looped_against_unrolled, memory):
        if not options.only or part.__name__ in options.only:
            part(options)


def clock() -> float:
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


@dataclass
class Case:
    """One model, its two passes, the move of its optimiser, and the times they took."""

    name: str
    spec: ModelSpec
    passes: Callable[[], None]
    move: Callable[[], None]
    seconds: list[float]
    moves: list[float]

    @property
    def median(self) -> float:
        """Seconds of the two passes."""
        return statistics.median(self.seconds)


def rate_against_gemm(options: argparse.Namespace) -> None:
    """Compare FLOPs a second with matrix products: the two passes alone, and a whole step."""
    widths = (128, 256, 384, 512)
    cases = [make_case(f"{width}", looped(width, 4), options.rows) for width in widths]
    products = {width: gemm(width, options.rows) for width in widths}
    best = dict.fromkeys(widths, 0.0)
    for _ in range(options.rounds):
        for width, case in zip(widths, cases, strict=True):
            best[width] = max(best[width], timed_rate(*products[width]))
            run_once(case)
    machine = max(best.values())
    print("### Share of the GEMM rate, r = 4\n")
    print(
        f"| width | passes, GFLOP/s | best GEMM | share | optimiser, ms | share of a step of "
        f"{STEP_TOKENS:,} tokens |"
    )
    print("|---|---|---|---|---|---|")
    for width, case in zip(widths, cases, strict=True):
        flops = step_flops(case.spec, options.rows)
        passes = STEP_TOKENS / (options.rows * CONTEXT)
        whole = passes * flops / (passes * case.median + statistics.median(case.moves))
        print(
            f"| {width} | {flops / case.median / 1e9:.0f} | {machine / 1e9:.0f} "
            f"| {flops / case.median / machine:.0%} | {1e3 * statistics.median(case.moves):.0f} "
            f"| {whole / machine:.0%} |",
            flush=True,
        )


def gemm(width: int, rows: int) -> tuple[Callable[[], object], float]:
    """Return the product of an MLP's size, all tokens of a step, and its FLOPs."""
    one, two = torch.randn(rows * CONTEXT, width), torch.randn(width, 4 * width)
    out = torch.empty(rows * CONTEXT, 4 * width)
    return lambda: torch.mm(one, two, out=out), 2.0 * rows * CONTEXT * width * 4 * width


def timed_rate(product: Callable[[], object], flops: float) -> float:
    product()
    start = clock()
    for _ in range(5):
        product()
    return 5 * flops / (clock() - start)


def time_against_ledger(options: argparse.Namespace) -> None:
    """Compare seconds a token with the ledger's FLOPs over r, injections and windows."""
    specs = {}
    for recurrence in (1, 2, 4, 8):
        specs[f"r = {recurrence}, linear"] = looped(256, recurrence)
    for injection in ("additive", "diagonal", "hyperconnections"):
        specs[f"r = 4, {injection}"] = looped(256, 4, injection=injection)
    for recurrence in (4, 8):
        window = recurrence // 2
        specs[f"r = {recurrence}, linear, window {window}"] = looped(
            256, recurrence, bptt_window=window
        )
    cases = take_turns(specs, options)
    base = cases["r = 1, linear"]
    print("\n### Time a token against FLOPs a token, width 256, relative to r = 1\n")
    print("| model | FLOPs | time | time / FLOPs |")
    print("|---|---|---|---|")
    for name, case in cases.items():
        flops = step_flops(case.spec, 1) / step_flops(base.spec, 1)
        seconds = case.median / base.median
        print(f"| {name} | {flops:.3f} | {seconds:.3f} | {seconds / flops:.3f} |", flush=True)
    for recurrence in (4, 8):
        whole = cases[f"r = {recurrence}, linear"].median
        short = cases[f"r = {recurrence}, linear, window {recurrence // 2}"].median
        print(f"\nA window of r / 2 saves {1 - short / whole:.1%} of the time at r = {recurrence}.")


def looped_against_unrolled(options: argparse.Namespace) -> None:
    """Compare a loop with the stack of the same layers, each with its own weights."""
    specs = {}
    for recurrence in (2, 4, 8):
        loop = looped(256, recurrence, injection="passthrough")
        specs[f"loop {recurrence}"] = loop
        specs[f"stack {recurrence}"] = replace(
            loop, recurrence=1, n_recur=loop.n_recur * recurrence, injection="none"
        )
    cases = take_turns(specs, options)
    print("\n### A loop against the untied stack of the same layers and FLOPs, width 256\n")
    print("| r | loop, ms | stack, ms | loop / stack |")
    print("|---|---|---|---|")
    for recurrence in (2, 4, 8):
        loop_time = cases[f"loop {recurrence}"].median
        stack_time = cases[f"stack {recurrence}"].median
        print(
            f"| {recurrence} | {1e3 * loop_time:.0f} | {1e3 * stack_time:.0f} "
            f"| {loop_time / stack_time:.3f} |",
            flush=True,
        )


def memory(options: argparse.Namespace) -> None:
    """Compare the memory that a forward and backward pass adds, with and without checkpointing."""
    print("\n### Peak memory a step adds, width 256, MiB\n")
    print("| r | layers a token | kept | one recurrence at a time |")
    print("|---|---|---|---|")
    for recurrence in (1, 2, 4, 8, 16):
        added = [
            int(
                subprocess.run(
                    [sys.executable, __file__, "--rows", str(options.rows), "--peak",
                     f"{recurrence},{int(checkpoint)},{options.rows}"],
                    check=True, capture_output=True, text=True,
                ).stdout
            )
            for checkpoint in (False, True)
        ]  # fmt: skip
        spec = _memory_spec(recurrence)
        kept, one = (f"{value / 2**20:.0f}" for value in added)
        print(f"| {recurrence} | {spec.effective_layers} | {kept} | {one} |", flush=True)


def _memory_spec(recurrence: int) -> ModelSpec:
    return ModelSpec(
        256, n_prelude=1, n_recur=2, n_coda=1, recurrence=recurrence, vocab_size=VOCABULARY,
        context=CONTEXT, head_dim=HEAD,
    )  # fmt: skip


def _peak_bytes(case: str) -> int:
    """Return what a pass adds to the largest resident size of this new process (Linux)."""
    recurrence, checkpoint, rows = (int(part) for part in case.split(","))
    torch.set_num_threads(1)
    model = build(_memory_spec(recurrence))
    tokens = torch.zeros(rows, CONTEXT, dtype=torch.int64)
    model(tokens[:1], tokens[:1]).backward()  # gradients, and what the first pass ever allocates
    Path("/proc/self/clear_refs").write_text("5")  # the largest size is counted from here
    before = _largest_size()
    model(tokens, tokens, checkpoint=bool(checkpoint)).backward()
    return _largest_size() - before


def _largest_size() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def looped(width: int, recurrence: int, **fields: object) -> ModelSpec:
    return looped_model(
        width, recurrence, LAYERS[recurrence], vocab_size=VOCABULARY, context=CONTEXT,
        head_dim=HEAD, **fields,
    )  # fmt: skip


def make_case(name: str, spec: ModelSpec, rows: int) -> Case:
    """Build a model, its passes over the rows of a step, and its optimiser."""
    model = build(spec)
    optimiser = build_optimizer(
        model.parameter_groups(), OptimSpec(), model=spec, batch_tokens=rows * CONTEXT,
        tokens=10**9, steps=10**6,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCABULARY, (rows, CONTEXT + 1), generator=generator)
    unroll = trained(spec)

    def passes() -> None:
        model(tokens[:, :-1], tokens[:, 1:], unroll=unroll).backward()

    def move() -> None:
        optimiser.step()
        optimiser.zero_grad()

    passes()
    move()
    return Case(name, spec, passes, move, [], [])


def run_once(case: Case) -> None:
    start = clock()
    case.passes()
    middle = clock()
    case.move()
    case.seconds.append(middle - start)
    case.moves.append(clock() - middle)


def take_turns(specs: dict[str, ModelSpec], options: argparse.Namespace) -> dict[str, Case]:
    cases = {name: make_case(name, spec, options.rows) for name, spec in specs.items()}
    for _ in range(options.rounds):
        for case in cases.values():
            run_once(case)
    return cases


def step_flops(spec: ModelSpec, rows: int) -> float:
    return ledger(spec).train_flops_per_token * rows * CONTEXT


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
