"""Preparing data: no text is lost, the split is exact, the digest depends on the text alone."""

import json
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopworth.data import TokenData, open_data, open_folder, prepare
from loopworth.data.shards import SIDECAR
from loopworth.data.sources import Tally
from loopworth.spec import DataSpec

WORDS = [
    "the",
    "loop",
    "reads",
    "each",
    "word",
    "once",
    "more",
    "and",
    "écrit",
    "漢字",
    "🎉",
    "into",
    "its",
    "<|bos|>",
    "state",
    "<s>\n\t",
]


class Texts:
    """A source that holds its documents in memory."""

    name, size = "texts", 0

    def __init__(self, texts):
        self.texts = list(texts)

    def documents(self, tally):
        yield from self.texts

    def to_json(self):
        return {"name": self.name, "kind": "memory"}


def some_texts(n, seed=0):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 60))) + f" {k}" for k in range(n)]


def all_texts(data: TokenData):
    return [
        data.tokenizer.decode(ids)
        for split in (data.train, data.validation)
        for ids in split.documents()
    ]


@pytest.mark.parametrize("tokenizer", ["bytes", "chars", "bpe:300"])
def test_every_document_comes_back(tmp_path, tokenizer):
    texts = some_texts(120)
    made = prepare(Texts([*texts, "", ""]), tmp_path / "out", tokenizer=tokenizer, shard_tokens=997)
    data = made.open()
    assert sorted(all_texts(data)) == sorted(texts)
    assert data.exact_bytes
    for split in (data.train, data.validation):
        ids = np.asarray(split.tokens())
        assert data.token_bytes[ids].sum() == split.n_bytes
        assert np.count_nonzero(ids == data.bos) == split.n_documents
    assert data.train.n_bytes + data.validation.n_bytes == sum(len(t.encode()) for t in texts)
    assert made.sidecar.source["empty_documents"] == 2
    assert len(made.sidecar.splits["train"]["shards"]) > 2
    data.verify()


def test_the_digest_does_not_depend_on_the_order_of_reading_but_on_all_else(tmp_path):
    texts = some_texts(50)
    texts += texts[:20] * 3

    def digest(name, texts=texts, **options):
        return prepare(Texts(texts), tmp_path / name, **options).digest

    first = digest("a")
    assert digest("b", texts[::-1]) == first
    assert digest("c", texts[7:] + texts[:7]) == first
    others = [
        digest("d", [*texts[:-1], texts[-1] + "!"]),
        digest("e", texts[:-1]),
        digest("f", seed=1),
        digest("g", validation=0.2),
        digest("h", tokenizer="chars"),
    ]
    assert len({first, *others}) == 6


def test_the_same_folder_from_two_training_runs_of_the_bpe(tmp_path):
    texts = some_texts(80)
    one = prepare(Texts(texts), tmp_path / "a", tokenizer="bpe:350")
    two = prepare(Texts(texts[::-1]), tmp_path / "b", tokenizer="bpe:350")
    assert one.digest == two.digest
    assert one.sidecar.vocab_size == 350
    for name in ("train-00000.bin", "validation-00000.bin", "tokenizer.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@settings(max_examples=25)
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), min_size=2),
    st.sampled_from(["bytes", "chars"]),
    st.floats(0.01, 0.49),
    st.integers(0, 2**40),
)
def test_any_texts_survive_and_no_text_is_on_both_sides(
    tmp_path_factory, texts, tokenizer, share, seed
):
    folder = tmp_path_factory.mktemp("any") / "out"
    options = {"tokenizer": tokenizer, "validation": share, "seed": seed, "shard_tokens": 13}
    texts_left = [text for text in texts if text]
    if len(set(texts_left)) < 2:
        with pytest.raises(ValueError, match="document"):
            prepare(Texts(texts), folder, **options)
        assert list(folder.parent.iterdir()) == []
        return
    data = prepare(Texts(texts), folder, **options).open()
    sides = [
        [data.tokenizer.decode(ids) for ids in split.documents()]
        for split in (data.train, data.validation)
    ]
    assert sorted(sides[0] + sides[1]) == sorted(texts_left)
    assert not set(sides[0]) & set(sides[1])
    if len(set(texts_left)) == len(texts_left):
        wanted = share * len(texts_left)
        assert len(sides[1]) == 1 or abs(len(sides[1]) - wanted) <= 0.5


def test_copies_of_a_text_stay_together_on_one_side_but_not_next_to_each_other(tmp_path):
    texts = some_texts(200) + ["a text that is there often"] * 40
    data = prepare(Texts(texts), tmp_path / "out", validation=0.1).open()
    sides = [
        [data.tokenizer.decode(ids) for ids in split.documents()]
        for split in (data.train, data.validation)
    ]
    counts = sorted(side.count(texts[-1]) for side in sides)
    assert counts == [0, 40]
    side = max(sides, key=lambda each: each.count(texts[-1]))
    neighbours = sum(a == b == texts[-1] for a, b in pairwise(side))
    assert neighbours < 15  # 39 if they were not shuffled
    assert data.sidecar.source["repeated_documents"] == 39


def test_the_shuffle_mixes_the_order(tmp_path):
    texts = [f"document {k:04}" for k in range(400)]
    data = prepare(Texts(texts), tmp_path / "out").open()
    order = [int(data.tokenizer.decode(ids)[-4:]) for ids in data.train.documents()]
    assert abs(np.corrcoef(order, np.arange(len(order)))[0, 1]) < 0.2


def test_what_is_there_is_not_overwritten(tmp_path):
    prepare(Texts(some_texts(9)), tmp_path / "out")
    before = (tmp_path / "out" / SIDECAR).read_bytes()
    with pytest.raises(ValueError, match="already holds a prepared set"):
        prepare(Texts(some_texts(9)), tmp_path / "out")
    assert (tmp_path / "out" / SIDECAR).read_bytes() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("x")
    with pytest.raises(ValueError, match="is not empty"):
        prepare(Texts(some_texts(9)), tmp_path / "mine")
    with pytest.raises(ValueError, match="is a file"):
        prepare(Texts(some_texts(9)), tmp_path / "mine" / "letter.txt")
    with pytest.raises(ValueError, match="already prepared"):
        prepare(tmp_path / "out", tmp_path / "again")


def test_a_preparation_that_fails_leaves_nothing(tmp_path):
    class Broken(Texts):
        def documents(self, tally):
            yield from self.texts
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="disk is gone"):
        prepare(Broken(some_texts(2000)), tmp_path / "deep" / "out")
    assert list((tmp_path / "deep").iterdir()) == []


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path):
    (tmp_path / "a.txt").write_text("some text, " * 20_000)
    (tmp_path / "b.txt").write_text("other text, " * 20_000)
    code = (
        "import resource, sys\n"
        "from loopworth.data import prepare\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "prepare(sys.argv[1], sys.argv[1] + '/out')\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.stderr.splitlines()[-1].endswith(f"File too large: '{tmp_path}/out'")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"validation": 0.5}, "below 0.5"),
        ({"validation": 0.0}, "above 0"),
        ({"seed": -1}, "seed"),
        ({"tokenizer": "bpe:many"}, "whole number"),
        ({"tokenizer": "bpe:256"}, "257 or more"),
        ({"tokenizer": "nowhere.json"}, "does not exist"),
    ],
)
def test_wrong_options_say_what_is_allowed(tmp_path, options, says):
    with pytest.raises(ValueError, match=says):
        prepare(Texts(some_texts(9)), tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_one_document_cannot_be_split(tmp_path):
    with pytest.raises(ValueError, match="only one document, which"):
        prepare(Texts(["alone"]), tmp_path / "out")


def test_open_data_checks_the_digest(tmp_path):
    made = prepare(Texts(some_texts(9)), tmp_path / "out")
    assert open_data(DataSpec(str(tmp_path / "out"), digest=made.digest)).digest == made.digest
    with pytest.raises(ValueError, match="digest"):
        open_data(DataSpec(str(tmp_path / "out"), digest="0" * 64))
    with pytest.raises(ValueError, match="does not exist"):
        open_data(DataSpec(str(tmp_path / "nothing")))
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(ValueError, match="data prepare"):
        open_data(DataSpec(str(tmp_path / "a.txt")))


def test_two_processes_prepare_one_cache_at_once(tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from loopworth.data.cache import prepared_docstrings\n"
        "from loopworth.data.docstrings import DocstringsSource\n"
        "from loopworth.data import open_folder\n"
        "from loopworth.spec import DataSpec\n"
        "source = DocstringsSource(('click', 'no_such_package'))\n"
        "folder = prepared_docstrings(DataSpec(), Path(sys.argv[1]), source=source)\n"
        "print(open_folder(folder, verify=True).digest)\n"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(tmp_path)]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    digests = {run.communicate(timeout=120)[0].strip() for run in runs}
    assert [run.returncode for run in runs] == [0, 0]
    assert len(digests) == 1
    folder, text = sorted(tmp_path.iterdir(), key=lambda path: path.is_file())
    assert text.name.endswith(".json.gz")  # one folder, one text; no scratch
    sidecar = open_folder(folder).sidecar
    assert sidecar.source["missing"] == ["no_such_package"]
    assert sidecar.source["packages"][0]["bytes"] > 10_000


def test_two_processes_with_different_texts_do_not_share_a_folder(tmp_path):
    from loopworth.data.prepare import build

    class Slow(Texts):
        """While it is read, another one finishes."""

        def documents(self, tally):
            yield from self.texts
            if not (tmp_path / "out").exists():
                build(Texts(some_texts(9, seed=5)), tmp_path / "out", DataSpec())

    with pytest.raises(ValueError, match="another process"):
        build(Slow(some_texts(9)), tmp_path / "out", DataSpec())
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_sidecar_says_where_the_data_came_from(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n{"text": "two"}\n')
    prepare(tmp_path / "a.jsonl", tmp_path / "out")
    body = json.loads((tmp_path / "out" / SIDECAR).read_text())
    assert body["source"]["name"] == "a.jsonl"
    assert body["source"]["repeated_documents"] == 1
    assert body["settings"] == {"tokenizer": "bytes", "validation": 0.05, "seed": 0}
    assert body["versions"]["numpy"] == np.__version__
    assert str(tmp_path) not in json.dumps(body)


def test_a_tally_names_the_first_problems_only():
    tally = Tally(skip_bad=True)
    for k in range(9):
        tally.bad(f"row {k}", "is bad", "mend it")
    assert (tally.skipped, len(tally.problems)) == (9, 5)
