"""Which parts of a documentation string are English prose, and how they read without markup.

A docstring mixes sentences with doctests, tables of parameters, formulas, lists of names and
drawings. It is cut into runs of lines that belong together; a run is kept if it looks like written
English: it starts like a sentence and ends like one, nearly all its words are ordinary words, and
enough of them are the small words that every English sentence has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

LEAST_CHARACTERS = 60
LEAST_PLAIN = 0.88  # share of words that are ordinary: lower case, a capital first, a number
LEAST_SMALL = 0.27  # share of words that are in _SMALL; English text has 0.4 to 0.5

_SMALL_WORDS = """
    a about above after again against all also although always an and any are as at be because
    been before being below between both but by can cannot could did do does done down during each
    either else even every few first for from further given had has have having he her here his how
    however i if in into is it its itself just last less like made make many may might more most
    must my neither never no nor not note nothing now of off often on once one only or other others
    our out over own per rather same see several shall she should since so some such than that the
    their them then there therefore these they this those though through thus to too two under
    unless until up upon us use used using very via was we well were what when where whether which
    while who whole whose why will with within without would yes yet you your
"""
_SMALL = frozenset(_SMALL_WORDS.split())
_TYPOGRAPHY = str.maketrans(
    {
        "\u2018": "'",
        "\u2019": "'",
        "\u201c": '"',
        "\u201d": '"',
        "\u2013": "-",
        "\u2014": "-",
        "\u2026": "...",
        "\u00a0": " ",
        "\t": " ",
    }
)
_MARKUP = [
    (re.compile(r":[a-zA-Z][\w:+.-]*:`[~!.]?([^`<]+?)(?:\s*<[^`>]*>)?`"), r"\1"),  # :role:`text`
    (re.compile(r"`([^`<>]+?)\s*<[^`>]*>`_{1,2}"), r"\1"),  # `text <address>`_
    (re.compile(r"`+([^`]+?)`+_{0,2}"), r"\1"),  # ``code``, `name`, `link`_
    (re.compile(r"\[([^\][]+)\]\([^)\s]*\)"), r"\1"),  # [text](address)
    (re.compile(r"\s*\[\d+\]_?"), ""),  # [1]_
    (re.compile(r"(?<![\w*])\*{1,2}([^*\s](?:[^*]*[^*\s])?)\*{1,2}(?![\w*])"), r"\1"),  # *emphasis*
    (re.compile(r"(?<=\w)::(?=\s|$)"), ":"),
]
_RULE = re.compile(r"\s*([^\w\s])\1{2,}\s*$")  # a line of dashes, under a headline or in a table
_BULLET = re.compile(r"(\s*)([-*+\u2022]|\(?(?:\d{1,2}|[a-z])[.)])\s+(?=\S)")
# `name (type): `, `:param name: `, `name : ` before a description that starts a sentence.
_LABEL = re.compile(
    r"(\s*)(?::\w[\w ,*\[\].]*:|\*{0,2}[\w.*`]+(?: \([^()]*\))? ?:)\s+(?=[\"'(`]?[A-Z])"
)
_DROPPED = re.compile(r"\s*(?:\.\.(?:\s|$)|>>>|\.\.\.(?:\s|$)|[|+#@%]|In \[|Out\[)")
_OPENS = re.compile(r"[\"'(]?[A-Z]")
_ENDS = re.compile(r"[.!?][\"')]*$")
_LAST = re.compile(r"[.!?][\"')`*\]_\d\[]*$")
_FOREIGN = re.compile(r"[\\{}|<>=~^$#@_*`\[\]&%]")
_PLAIN = re.compile(r"[A-Za-z]?[a-z]+(?:['/-][A-Za-z]?[a-z]+)*(?:'s|s')?|[AI]|\d+(?:[.,]\d+)*")
_EDGES = "\"'()[].,;:!?-"
_OTHER = re.compile(  # legal text, addresses, escapes
    r"copyright|licen[cs]e[ds]?\b|warrant(?:y|ies)|https?:|www\.|\\", re.IGNORECASE
)


def paragraphs(docstring: str) -> Iterator[str]:
    """Yield the paragraphs of prose of a docstring (its indentation already removed), in order.

    Each is one line of ASCII without markup.

    >>> text = '''Return the mean of all the values that have been seen so far.
    ...
    ... Parameters
    ... ----------
    ... x : array_like
    ...     The values; they are *not* copied, so that they must not change.
    ...
    ... >>> mean([1, 2])
    ... '''
    >>> list(paragraphs(text))  # doctest: +NORMALIZE_WHITESPACE
    ['Return the mean of all the values that have been seen so far.',
     'The values; they are not copied, so that they must not change.']
    """
    for lines in _runs(docstring):
        text = plain(" ".join(lines))
        if is_prose(text):
            yield text


def plain(text: str) -> str:
    """Return text without markup, with typewriter punctuation and single spaces."""
    text = text.translate(_TYPOGRAPHY)
    for pattern, kept in _MARKUP:
        text = pattern.sub(kept, text)
    return " ".join(text.split())


def is_prose(text: str) -> bool:
    """Say whether a paragraph reads as English sentences.

    >>> is_prose("The order in which files are listed does not matter, since all are sorted.")
    True
    >>> is_prose("x : array_like, shape (n, m), default None. See numpy.asarray and np.mean.")
    False
    """
    if len(text) < LEAST_CHARACTERS or not text.isascii():
        return False
    if not _OPENS.match(text) or not _ENDS.search(text) or _OTHER.search(text):
        return False
    if len(_FOREIGN.findall(text)) > len(text) / 100:
        return False
    words = [word.strip(_EDGES) for word in text.split()]
    words = [word for word in words if word]
    plain_words = sum(_PLAIN.fullmatch(word) is not None for word in words)
    small = sum(word.lower() in _SMALL for word in words)
    return plain_words >= LEAST_PLAIN * len(words) and small >= LEAST_SMALL * len(words)


def _runs(docstring: str) -> Iterator[list[str]]:
    """Yield runs of lines of one indentation between blank lines; a bullet or label starts one."""
    run: list[str] = []
    indent, hanging = 0, False
    lines = docstring.expandtabs().splitlines()
    for k, line in enumerate(lines):
        headline = k + 1 < len(lines) and _RULE.match(lines[k + 1]) is not None
        if not line.strip() or _RULE.match(line) or headline or _DROPPED.match(line):
            yield from _ended(run)
            run = []
            continue
        depth = len(line) - len(line.lstrip())
        bullet = _BULLET.match(line) or _LABEL.match(line)
        belongs = depth == indent or (hanging and depth > indent)
        if bullet or not belongs:
            yield from _ended(run)
            run, indent, hanging = [], depth, bullet is not None
        elif hanging and depth > indent:
            indent, hanging = depth, False  # the lines under a bullet are of one indentation again
        run.append(line[bullet.end() :] if bullet else line.strip())
    yield from _ended(run)


def _ended(run: list[str]) -> Iterator[list[str]]:
    """Yield a run that can be prose: most are not, and this is all that is looked at of them."""
    if sum(map(len, run)) >= LEAST_CHARACTERS - len(run) and _LAST.search(run[-1]):
        yield run
