"""What the tests of training share: a small data folder, small runs, and processes to kill."""

import json
import multiprocessing
import os
import random
import signal
import socket
from pathlib import Path
from typing import Any

import numpy as np

from loopworth.spec import DataSpec, ModelSpec, OptimSpec, RunSpec
from loopworth.train.metrics import TIMED, read_metrics

CONTEXT = 32
FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["loopworth.train.loop"])  # torch is imported once, not per process


def make_data(folder: Path) -> Path:
    """Prepare some seeded pseudo-text; return the folder of its tokens."""
    from loopworth.data.prepare import prepare

    words = ["loop", "depth", "a", "recurrence", "is", "worth", "layer", "the", "of", "what"]
    choose = random.Random(7)
    lines = [" ".join(choose.choices(words, k=40)) for _ in range(120)]
    source = folder / "text.jsonl"
    source.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    return prepare(source, folder / "tokens", validation=0.1).folder


def small_run(data: Path, *, steps: int = 12, model: dict[str, Any] | None = None, **others: Any):
    """Return a run of a second or so."""
    shape = {
        "d_model": 32, "head_dim": 16, "n_prelude": 1, "n_recur": 1, "n_coda": 1, "recurrence": 2,
        "vocab_size": 320, "context": CONTEXT, "mlp_ratio": 2.0,
    } | (model or {})  # fmt: skip
    given = {
        "data": DataSpec(source=str(data)), "batch_tokens": 8 * CONTEXT, "steps": steps,
        "optim": OptimSpec(
            batch_exponent=0, token_exponent=0, matrix_lr=0.03, embedding_lr=0.05, head_lr=0.01
        ),
    } | others  # fmt: skip
    return RunSpec(ModelSpec(**shape), **given)


def losses(out: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(out / "metrics.jsonl")]


def untimed(out: Path) -> list[dict[str, Any]]:
    """Return all metrics, without what a clock measured."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in TIMED} for line in lines]


def final_weights(out: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    last = max((out / "checkpoint").glob("step-*"))
    return load_file(last / "model.safetensors")


def same_weights(one: Path, other: Path) -> bool:
    """Say whether two runs ended with the same weights, bit for bit."""
    left, right = final_weights(one), final_weights(other)
    return left.keys() == right.keys() and all(
        left[name].tobytes() == right[name].tobytes() for name in left
    )


def train_here(run: RunSpec, out: Path, **machine: Any) -> Any:
    """Train in this process, on one thread."""
    from loopworth.train import Machine, train

    return train(run, out, Machine(device="cpu", threads=1, peak_flops=1e12, **machine))


def _child(run: RunSpec, out: Path, machine: dict[str, Any], kill: tuple[int, int] | None) -> None:
    """Train in a new process, which may send itself a signal after a step."""
    from loopworth.train import Machine, Stepped, train

    def watch(event: object) -> None:
        if kill is not None and isinstance(event, Stepped) and event.step == kill[0]:
            os.kill(os.getpid(), kill[1])

    result = train(run, out, Machine(device="cpu", threads=1, peak_flops=1e12, **machine), watch)
    raise SystemExit(0 if result.complete else 75)


def train_apart(
    run: RunSpec,
    out: Path,
    *,
    kill_at: int | None = None,
    signal_number: int = signal.SIGKILL,
    seconds: float | None = None,
    **machine: Any,
) -> int:
    """Train in a process of its own and return its exit code, negative where a signal ended it.

    It is sent a signal after a step, or killed after some seconds, wherever it is then.
    """
    kill = None if kill_at is None else (kill_at, signal_number)
    process = FORK.Process(target=_child, args=(run, out, machine, kill))
    process.start()
    process.join(seconds)
    if process.is_alive() and seconds is not None:
        process.kill()
    process.join(120)
    assert process.exitcode is not None
    return process.exitcode


def _rank(
    rank: int, world: int, port: int, run: RunSpec, out: Path, machine: dict[str, Any],
    kill: tuple[int, int] | None,
) -> None:  # fmt: skip
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    # What is expected to fail here says so by its exit code.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    _child(run, out, machine, kill)


def train_together(
    run: RunSpec,
    out: Path,
    world: int = 2,
    *,
    stop_at: int | None = None,
    **machine: Any,
) -> list[int | None]:
    """Train in several processes that talk by gloo; return their exit codes.

    The first is asked to stop after a step.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kill = None if stop_at is None else (stop_at, signal.SIGTERM)
    ranks = [
        FORK.Process(target=_rank, args=(rank, world, port, run, out, machine, kill))
        for rank in range(world)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(600)  # only a hang takes so long, and then nothing must stay behind
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
    return codes
