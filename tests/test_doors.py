"""What the public functions say to arguments of another kind, and to files that never end."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loopworth
from loopworth import Convention
from loopworth.arguments import MOST_RESAMPLES
from loopworth.check import check
from loopworth.compare import compare
from loopworth.files import read_file
from loopworth.law.pasted import read_law
from loopworth.runs import load_runs

BASE, OTHER = "schwethelm2026", "schwethelm2026:hyperconnections"


@pytest.fixture(scope="module")
def table() -> Any:
    return load_runs(BASE)


@pytest.mark.parametrize("function", [loopworth.fit, compare])
@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ({"bootstrap": 2.5}, r"bootstrap=2\.5 is of type float; it must be a whole number"),
        ({"bootstrap": 10.0}, r"bootstrap=10\.0 is of type float; .*; use 10"),
        ({"bootstrap": True}, "bootstrap=True is of type bool"),
        ({"bootstrap": "9"}, "bootstrap='9' is of type str"),
        ({"bootstrap": -1}, "bootstrap=-1 is too small; it must be 0 or more"),
        ({"bootstrap": MOST_RESAMPLES + 1}, "1000 is the usual number"),
        ({"seed": "x"}, "seed='x' is of type str"),
        ({"seed": None}, "seed=None is of type NoneType"),
        ({"seed": -1}, "seed=-1 is too small"),
        ({"law": []}, r"law=\[\] is unknown; use none, unrolled, power"),
        ({"law": None}, "law=None is unknown"),
        ({"law": "powr"}, "law='powr' is unknown; did you mean 'power'"),
        ({"convention": "once"}, "convention='once' is of type str; give a Convention, such as"),
        ({"convention": True}, "convention=True is of type bool"),
    ],
)
def test_fit_and_compare(
    function: Callable[..., Any], argument: dict[str, Any], words: str
) -> None:
    tables = (BASE,) if function is loopworth.fit else (BASE, OTHER)
    with pytest.raises(ValueError, match=words):
        function(*tables, **{"bootstrap": 0} | argument)


@pytest.mark.parametrize("without", ["2", ["x"], [None], None, float("nan"), [True]])
def test_recurrences_to_leave_out(without: Any) -> None:
    with pytest.raises(ValueError, match=r"without_recurrence=.* a recurrence or several"):
        compare(BASE, OTHER, bootstrap=0, without_recurrence=without)


def test_one_recurrence_may_stand_alone() -> None:
    assert compare(BASE, OTHER, bootstrap=0, without_recurrence=2).recurrences == (1.0, 4.0, 8.0)


@pytest.mark.parametrize("read", [read_file, read_law])
@pytest.mark.parametrize("path", [5, None, b"x", "", "a\0b"])
def test_what_is_no_path(read: Callable[[Any], Any], path: Any) -> None:
    with pytest.raises(ValueError, match="give the path of a file"):
        read(path)


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_what_is_no_name_of_a_table(path: str) -> None:
    with pytest.raises(ValueError, match="is no path; give the path of a file"):
        check(path)


def test_numpy_s_integers_are_integers(table: Any) -> None:
    found = loopworth.fit(table, bootstrap=np.int64(0), seed=np.uint8(3))
    assert found.options["seed"] == 3


@pytest.mark.parametrize("convention", ["once", None, 3, Convention])
def test_a_convention_is_a_convention(table: Any, convention: Any) -> None:
    for call in (load_runs, check):
        with pytest.raises(ValueError, match="give a Convention, such as Convention"):
            call(BASE, convention=convention)
    with pytest.raises(ValueError, match="give a Convention, such as Convention"):
        table.under(convention)


def test_a_regular_file_and_a_pipe_are_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"x" * 100)
    assert read_file(path) == b"x" * 100
    assert read_file(path, most=100) == b"x" * 100
    with pytest.raises(ValueError, match=r"a\.csv holds more than .* MiB"):
        read_file(path, most=99)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs device files")
@pytest.mark.parametrize("read", [read_file, load_runs, check, read_law])
def test_a_device_is_refused_before_it_is_read(read: Callable[[str], Any]) -> None:
    for device in ("/dev/zero", os.devnull):
        with pytest.raises(ValueError, match="is a device or a socket; give a file, a pipe"):
            read(device)


@pytest.mark.skipif(os.name == "nt", reason="POSIX shell")
@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("check - < /dev/zero", 1, "Standard input holds more than"),
        ("check - <&-", 1, "Standard input is closed"),
        ("fit /dev/zero", 1, "is a device"),
        ("ledger --spec /dev/zero", 1, "is a device"),
        ("fit --bootstrap 0 --against /dev/zero", 1, "is a device"),
    ],
)
def test_the_command_line_reads_nothing_without_an_end(line: str, code: int, words: str) -> None:
    ran = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -m loopworth {line}'],
        check=False,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == code
    assert ran.stdout == ""
    assert words in " ".join(ran.stderr.split())
