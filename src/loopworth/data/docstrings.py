"""The built-in text: English prose in the documentation of Python and of installed packages.

Every machine that can train has it, so training needs no download and no text is shipped. Packages
are found on the import path and parsed, never imported. The text depends on their versions, which
the sidecar records; on one installation it is always the same.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import gzip
import hashlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import platform
import re
import sysconfig
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from loopworth.data.prose import paragraphs
from loopworth.data.sources import Tally

# In this order. What the extra `train` brings gives about 6 MB; each is left out if not installed.
PACKAGES = (
    *("stdlib", "numpy", "matplotlib", "mpl_toolkits", "PIL", "fontTools", "pyparsing", "dateutil"),
    *("click", "rich", "pygments", "pandas", "pyarrow", "torch", "sympy", "mpmath", "networkx"),
    *("jinja2", "fsspec", "huggingface_hub", "tokenizers", "safetensors", "filelock", "packaging"),
)
FORM = 1  # of the filter and the blocks; a change of the text it gives must count it up
BLOCK_BYTES = 2048

_DISTRIBUTIONS = {
    "PIL": "pillow",
    "mpl_toolkits": "matplotlib",
    "fontTools": "fonttools",
    "dateutil": "python-dateutil",
}
_SKIPPED = frozenset(
    [
        *("test", "tests", "testing", "_vendor", "vendor", "site-packages", "dist-packages"),
        *("__pycache__", "idlelib", "lib2to3", "ensurepip", "node_modules"),
    ]
)
# Calls that give documentation to functions written in C, and the help texts of the language.
_ADDS = re.compile(r"add_?(new)?doc(str)?")
_HELP_TEXTS = "pydoc_data/topics.py"


@dataclass(frozen=True)
class Package:
    """The files of one package: name, version, paths relative to its root in sorted order."""

    name: str
    version: str
    root: Path
    files: tuple[str, ...]

    @cached_property
    def inventory(self) -> str:
        """Return a sha256 of the paths and sizes of the files: the same text, without reading."""
        lines = [f"{name} {(self.root / name).stat().st_size}" for name in self.files]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def paragraphs(self) -> Iterator[str]:
        """Yield the prose of the package, in the order of its files and their lines."""
        for name in self.files:
            for text in documentation(self.root / name):
                yield from paragraphs(text)


class DocstringsSource:
    """The built-in text as a source: documents of about 2 KB, each from one package.

    A paragraph that has occurred before, but for case, digits and punctuation, is left out.
    """

    name = "docstrings"

    def __init__(self, packages: Sequence[str] = PACKAGES) -> None:
        found = {name: find_package(name) for name in packages}
        self.packages = [package for package in found.values() if package is not None]
        self.missing = [name for name, package in found.items() if package is None]
        self.size = len(self.packages)  # progress is counted in packages
        self._bytes: dict[str, int] = {}
        self._read: list[str] | None = None

    @property
    def inventory(self) -> dict[str, Any]:
        """Return what decides the text: versions and files of the packages, form of the filter."""
        return {
            "form": FORM,
            "python": platform.python_version(),
            "packages": {each.name: [each.version, each.inventory] for each in self.packages},
        }

    def documents(self, tally: Tally) -> Iterator[str]:
        """Yield the documents; the packages are parsed on the first reading only."""
        if self._read is None:
            read: list[str] = []
            for text in self._extract(tally):
                read.append(text)
                yield text
            self._read = read
        else:
            yield from self._read

    def to_cache(self) -> bytes:
        """Return the documents that have been read, for `from_cache`."""
        held = {"bytes": self._bytes, "documents": self._read}
        return gzip.compress(json.dumps(held).encode(), compresslevel=6, mtime=0)

    def from_cache(self, content: bytes) -> bool:
        """Take documents from `to_cache` of the same inventory; False if they are damaged."""
        try:
            held = json.loads(gzip.decompress(content))
            self._bytes, self._read = held["bytes"], held["documents"]
        except (OSError, EOFError, zlib.error, ValueError, KeyError):
            return False
        return True

    def _extract(self, tally: Tally) -> Iterator[str]:
        seen: set[int] = set()
        for package in self.packages:
            block: list[str] = []
            size = total = 0
            for paragraph in package.paragraphs():
                words = re.sub(r"[^a-z]+", "", paragraph.lower())
                known = hash_text(words)
                if known in seen:
                    continue
                seen.add(known)
                block.append(paragraph)
                size += len(paragraph) + 1
                if size >= BLOCK_BYTES:
                    yield "\n".join(block)
                    total, size, block = total + size - 1, 0, []
            if block:
                yield "\n".join(block)
                total += size - 1
            self._bytes[package.name] = total
            tally.done += 1

    def to_json(self) -> dict[str, Any]:
        """Return versions and bytes of text of each package, and which are missing."""
        return {
            "name": self.name,
            "kind": "docstrings",
            "form": FORM,
            "packages": [
                {
                    "name": each.name,
                    "version": each.version,
                    "files": len(each.files),
                    "bytes": self._bytes.get(each.name, 0),
                    "inventory": each.inventory,
                }
                for each in self.packages
            ],
            "missing": self.missing,
        }


def find_package(name: str) -> Package | None:
    """Find a package on the import path without importing it; None if it is not there.

    >>> find_package("no_such_package") is None
    True
    """
    if name == "stdlib":
        root, version = Path(sysconfig.get_paths()["stdlib"]), platform.python_version()
    else:
        spec = importlib.util.find_spec(name)
        places = list(spec.submodule_search_locations or []) if spec else []
        if not places:
            return None
        root, version = Path(places[0]), "unknown"
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(_DISTRIBUTIONS.get(name, name))
    return Package(name, version, root, tuple(sorted(_python_files(root))))


def _python_files(root: Path) -> Iterator[str]:
    """Yield the paths of Python files below a folder, relative to it, but those of tests."""
    for place, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED]
        inside = Path(place).relative_to(root)
        yield from ((inside / name).as_posix() for name in names if name.endswith(".py"))


def documentation(file: Path) -> list[str]:
    """Return the documentation strings of a Python file in order, without their indentation.

    A file that this Python cannot parse has none (packages carry files for other versions).
    """
    collected = gc.isenabled()
    gc.disable()  # a syntax tree is a million young objects; looking for garbage doubles the time
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in the strings of others
            tree = ast.parse(file.read_bytes())
        texts = [*_docstrings(tree)]
        if file.as_posix().endswith(_HELP_TEXTS):
            texts += _long_strings(tree)
    except (SyntaxError, ValueError, RecursionError):
        return []
    finally:
        if collected:
            gc.enable()
    return texts


def _docstrings(node: ast.AST) -> Iterator[str]:
    """Walk the statements, not the expressions in them, which are most of a tree."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        text = ast.get_docstring(node)
        if text:
            yield text
    for part in ("body", "handlers", "orelse", "finalbody"):
        for child in getattr(node, part, ()):
            if not isinstance(child, ast.Expr):
                yield from _docstrings(child)
            elif isinstance(child.value, ast.Call) and _ADDS.search(_called(child.value)):
                yield from _long_strings(child.value)


def _called(call: ast.Call) -> str:
    """Return the last name of what is called."""
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def _long_strings(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and len(each.value) > 80:
            yield inspect.cleandoc(each.value)


def hash_text(text: str) -> int:
    """Return 64 bits of a text, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def inventory_key(*parts: object) -> str:
    """Return 24 hex digits of the sha256 of plain values."""
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]
