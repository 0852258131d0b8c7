"""Runs by name, and runs from a file: what `loopworth train` can be given."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

from loopworth.spec import ModelSpec, OptimSpec, RunSpec
from loopworth.spec.checks import hint

SPEC_FILE = "spec.json"


def tiny() -> RunSpec:
    """Return a run of about a minute on a laptop: bytes of the built-in text, 4 recurrences.

    >>> tiny().model.effective_layers
    6
    """
    model = ModelSpec(
        64, n_prelude=1, n_recur=1, n_coda=1, recurrence=4, head_dim=32, vocab_size=320, context=64
    )
    optim = OptimSpec(matrix_lr=0.02, embedding_lr=0.1, batch_exponent=0.0, reference_tokens=1e6)
    return RunSpec(
        model, optim=optim, batch_tokens=1024, budget_flops=2e12, validation_tokens=2**16
    )


RUNS: dict[str, Callable[[], RunSpec]] = {"tiny": tiny}


def load_run(source: str) -> tuple[str, RunSpec, Path | None]:
    """Return a run, a name for it, and its folder where the source is one.

    source   a name of `RUNS`, a JSON or TOML file with the fields of a RunSpec, or the folder of a
             run, which is then gone on with

    Raises ValueError that names what is wrong and what there is.

    >>> name, run, folder = load_run("tiny")
    >>> name, run.model.recurrence, folder
    ('tiny', 4, None)
    """
    if source in RUNS:
        return source, RUNS[source](), None
    path = Path(source)
    if path.is_dir():
        if not (path / SPEC_FILE).is_file():
            raise ValueError(
                f"{source} is a folder without {SPEC_FILE}; name the folder of a run, or a file "
                "with its spec"
            )
        return path.name, _read(path / SPEC_FILE), path
    if path.is_file():
        return path.stem, _read(path), None
    raise ValueError(
        f"{source!r} is neither a run nor a file; {hint(source, list(RUNS))}, or name a JSON or "
        "TOML file (`loopworth train tiny --print` shows one)"
    )


def _read(path: Path) -> RunSpec:
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() == ".toml":
            return RunSpec.from_json(json.loads(json.dumps(tomllib.loads(text))))
        return RunSpec.from_json(text)
    except tomllib.TOMLDecodeError as problem:
        raise ValueError(f"{path} is not TOML: {problem}") from problem
    except UnicodeDecodeError as problem:
        raise ValueError(f"{path} is not UTF-8 text; a run is a JSON or TOML file") from problem
    except ValueError as problem:
        raise ValueError(f"{path}: {problem}") from problem
