"""The built-in text: what counts as prose, and that packages are read without being imported."""

import subprocess
import sys

import pytest

from loopworth.data.cache import cache_folder, prepared_docstrings
from loopworth.data.docstrings import BLOCK_BYTES, DocstringsSource, documentation, find_package
from loopworth.data.prose import is_prose, paragraphs
from loopworth.data.sources import Tally
from loopworth.spec import DataSpec

DOCSTRING = """Compute the weighted average along the axis that is given by the caller.

The weights need not sum to one, since they are divided by their sum before
they are used. See :func:`numpy.mean` and :class:`~pkg.Thing` for what is
returned where *all* weights are ``zero``.

.. versionadded:: 1.2

Parameters
----------
a : array_like, shape (n, m)
    The values that are averaged. They are not copied, so they must not change.
axis : {0, 1, None}, default 0
keepdims : bool
    short
weights : ndarray
    Array of weights.

Args:
    eps (float, optional): The smallest sum of weights that is still divided by; below it,
        the result is that of equal weights.
    n: x

- A first point that is long enough to be kept, and that goes on
  in a second line of its own.
- no

    +-------+------+
    | axis  | size |
    +-------+------+

>>> average([1, 2], weights=[3, 4]) # This looks like a sentence of the English language.
1.57

.. math:: \\sum_{i=0}^{n} w_i x_i = \\overline{x}

Copyright (c) 2001 by the authors. All of the rights are reserved by them, as usual.
x = f(a, b) + g(c) if the_flag else None; y = h(d) and so on for all of the rest of it.
"""


def test_prose_is_taken_out_of_a_docstring():
    assert list(paragraphs(DOCSTRING)) == [
        "Compute the weighted average along the axis that is given by the caller.",
        "The weights need not sum to one, since they are divided by their sum before they are "
        "used. See numpy.mean and pkg.Thing for what is returned where all weights are zero.",
        "The values that are averaged. They are not copied, so they must not change.",
        "The smallest sum of weights that is still divided by; below it, the result is that of "
        "equal weights.",
        "A first point that is long enough to be kept, and that goes on in a second line of its own.",  # noqa: E501
    ]


@pytest.mark.parametrize(
    "text",
    [
        "too short to be of any use to a reader.",
        "It does not end like a sentence does, which is why it is not one of those, or is it",
        "starts in the middle of a sentence, which is why it is not taken as one of them.",
        "Returns out_array, n_iter, func_calls, grad_norm, hess_inv, jac_sparsity, and max_step.",
        "Das ist ein deutscher Satz, der lang genug ist und mit einem Punkt am Ende aufhört.",
        "Alpha, beta, gamma, delta, epsilon, zeta, eta, theta, iota, kappa, lambda, omega, end.",
        "See https://example.org/a/b for more on how it is that this is done by all of them.",
    ],
)
def test_what_is_no_prose(text):
    assert not is_prose(text)


def test_documentation_strings_are_found_by_their_place(tmp_path):
    (tmp_path / "a.py").write_text(
        '"""Module."""\n'
        "x = 'not documentation'\n"
        "class A:\n    '''Class.'''\n    async def f(self):\n        'Method.'\n"
        "try:\n    import nothing\nexcept ImportError:\n    def g():\n        'Fallback.'\n"
        "if x:\n    pass\nelse:\n    def h():\n        'Else.'\n"
        f"torch._C._add_docstr(x, r'''{'Added to C. ' * 10}''')\n"
        f"print('''{'Printed. ' * 20}''')\n"
        "bad = '\\d'\n"  # an invalid escape warns, but not us
    )
    found = documentation(tmp_path / "a.py")
    assert found[:5] == ["Module.", "Class.", "Method.", "Fallback.", "Else."]
    assert [text[:8] for text in found[5:]] == ["Added to"]
    (tmp_path / "b.py").write_text("print 'python 2'")
    assert documentation(tmp_path / "b.py") == []


def test_a_source_is_repeatable_and_counts_its_packages(tmp_path):
    names = ("click", "no_such_package", "packaging")
    one, two = DocstringsSource(names), DocstringsSource(names)
    documents = list(one.documents(Tally()))
    assert documents == list(two.documents(Tally())) == list(one.documents(Tally()))
    record = one.to_json()
    assert record["missing"] == ["no_such_package"]
    assert [each["name"] for each in record["packages"]] == ["click", "packaging"]
    assert sum(each["bytes"] for each in record["packages"]) == sum(map(len, documents))
    assert all(len(text) < BLOCK_BYTES + 4000 for text in documents)
    lines = [line for text in documents for line in text.split("\n")]
    assert len(lines) == len(set(lines))
    assert all(is_prose(line) for line in lines)


def test_the_standard_library_alone_gives_text_without_imports():
    code = (
        "import sys\n"
        "from loopworth.data.docstrings import DocstringsSource, find_package\n"
        "source = DocstringsSource(('torch', 'pandas', 'sympy'))\n"
        "assert source.inventory\n"
        "assert not {'torch', 'pandas', 'sympy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    found = find_package("stdlib")
    assert found is not None
    assert "pydoc_data/topics.py" in found.files
    assert not [name for name in found.files if "site-packages" in name or "/test/" in name]
    texts = documentation(found.root / "pydoc_data/topics.py")
    assert sum(len(p) for text in texts for p in paragraphs(text)) > 100_000


def test_the_cache_keeps_the_text_and_mends_a_damaged_one(tmp_path):
    spec = DataSpec()
    source = DocstringsSource(("packaging",))
    first = prepared_docstrings(spec, tmp_path, source=source)
    assert prepared_docstrings(spec, tmp_path, source=source) == first
    (text,) = tmp_path.glob("docstrings-*.json.gz")
    for damage in (text.read_bytes()[:-20], b"", text.read_bytes()):
        text.write_bytes(damage)
        for file in first.iterdir():
            file.unlink()
        first.rmdir()
        fresh = DocstringsSource(("packaging",))
        assert prepared_docstrings(spec, tmp_path, source=fresh) == first
    other = prepared_docstrings(DataSpec(tokenizer="chars", seed=1), tmp_path, source=source)
    assert other != first
    assert len(list(tmp_path.iterdir())) == 3


def test_where_the_cache_lies(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("LOOPWORTH_CACHE", raising=False)
    assert cache_folder() == tmp_path / "xdg" / "loopworth"
    monkeypatch.setenv("LOOPWORTH_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    assert cache_folder(tmp_path) == tmp_path
