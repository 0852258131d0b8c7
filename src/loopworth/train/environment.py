"""What a run was trained with: versions, device, threads, commit, data. No names of people, hosts
or folders.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from loopworth import __version__
from loopworth.data import TokenData
from loopworth.train.machine import Place
from loopworth.train.parallel import World

_PACKAGES = ("numpy", "safetensors", "tokenizers", "triton")


def environment(
    place: Place, world: World, mode: str, micro_batch_rows: int, data: TokenData
) -> dict[str, Any]:
    """Return what bears on the numbers or the speed of a run, as plain JSON values."""
    build = torch.version
    return {
        "versions": {"loopworth": __version__, "python": platform.python_version()}
        | {"torch": torch.__version__}
        | _versions(),
        "torch_build": {"cuda": build.cuda, "hip": build.hip, "commit": build.git_version},
        "commit": source_commit(Path(__file__).resolve().parents[3]),
        "system": f"{platform.system()} {platform.machine()}",
        "device": place.name,
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": place.threads,
        "precision": "bfloat16" if place.autocast is not None else "float32",
        "compile": place.compile,
        "deterministic": place.deterministic,
        "processes": world.size,
        "parallel": mode,
        "micro_batch_rows": micro_batch_rows,
        "data_digest": data.digest,
        "data_source": data.sidecar.source.get("name"),
        "data_versions": dict(data.sidecar.versions),
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def cpu_name() -> str:
    """Return the model of the CPU, as Linux gives it, or what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def source_commit(root: Path) -> str | None:
    """Return the git commit of a checkout, with + where files differ from it; None outside one."""
    if not (root / ".git").exists() or not (root / "pyproject.toml").is_file():
        return None  # installed from a wheel: whatever repository it lies in is another one
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return commit + ("+" if _git(root, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=10
    ).stdout.strip()
