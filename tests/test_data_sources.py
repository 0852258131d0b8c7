"""Sources of text, on files that are made here: what is read, and what an error names."""

import gzip
import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loopworth.data import prepare
from loopworth.data.hub import HubSource
from loopworth.data.sources import FileSource, Reading, Tally

TEXTS = ["one", "two and\nthree ", "", "vier — 漢字 🎉", "\r\n five\u2028"]


def read(path, tally=None, **reading):
    return list(FileSource(path, Reading(**reading)).documents(tally or Tally()))


def as_lines(texts, key="text"):
    return "".join(json.dumps({"id": 7, key: text}) + "\n" for text in texts)


def test_a_text_file_is_one_document(tmp_path):
    for name in ("a.txt", "b.md", "C.TXT"):
        (tmp_path / name).write_bytes("été\r\n\n x ".encode())
        assert read(tmp_path / name) == ["été\r\n\n x "]


def test_a_byte_order_mark_is_not_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfhello")
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "hello"}')
    assert read(tmp_path / "a.txt") == read(tmp_path / "a.jsonl") == ["hello"]


@pytest.mark.parametrize("block", [1, 2, 3, 5, 2**24])
def test_a_separator_cuts_a_file_wherever_the_blocks_end(tmp_path, monkeypatch, block):
    monkeypatch.setattr("loopworth.data.sources._BLOCK", block)
    (tmp_path / "a.txt").write_text("<eot>".join(TEXTS), newline="")
    assert read(tmp_path / "a.txt", separator="<eot>") == TEXTS


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_json_lines(tmp_path, name):
    content = ("\n" + as_lines(TEXTS, "body") + "  \n").encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert read(tmp_path / name, text_column="body") == TEXTS


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())]
)
def test_parquet(tmp_path, kind):
    table = pa.table({"id": range(5), "body": pa.array(TEXTS, pa.string()).cast(kind)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    assert read(tmp_path / "a.parquet", text_column="body") == TEXTS


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path):
    names = ["b.txt", "a/z.jsonl", "a/b/c.md", "c.parquet", ".hidden/x.txt", "notes.doc", ".x.txt"]
    for name in names[::-1]:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("parquet"):
            pq.write_table(pa.table({"text": [name]}), file)
        else:
            file.write_text(as_lines([name]) if name.endswith("jsonl") else name)
    source, tally = FileSource(tmp_path, Reading()), Tally()
    assert list(source.documents(tally)) == ["a/b/c.md", "a/z.jsonl", "b.txt", "c.parquet"]
    assert list(source.documents(Tally())) == ["a/b/c.md", "a/z.jsonl", "b.txt", "c.parquet"]
    assert tally.done == source.size
    assert source.to_json()["ignored_files"] == 1


LINE = b'{"text": "good"}\n'
BAD = {
    "utf8.txt": (b"ab\xff", "byte 0xff at offset 2 is not UTF-8"),
    "utf8.jsonl": (LINE + b'{"text": "\xe9"}', "line 2: byte 0xe9 at offset 27 is not UTF-8"),
    "broken.jsonl": (LINE * 2 + b'{"text": ', "line 3: not JSON"),
    "list.jsonl": (b'["text"]', "line 1: a JSON list"),
    "key.jsonl": (b'{"body": "x", "id": 1}', "line 1: no key 'text'; it has body or id"),
    "number.jsonl": (b'{"text": 4}', "line 1: 'text' is of type int"),
    "null.jsonl": (b'{"text": null}', "line 1: 'text' is of type NoneType"),
    "half.jsonl": (rb'{"text": "\ud83d"}', "line 1: 'text' has half a surrogate"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_document_that_cannot_be_read_is_named_or_skipped_and_counted(tmp_path, name):
    content, says = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match="--skip-bad") as caught:
        read(tmp_path / name)
    assert says in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)
    tally = Tally(skip_bad=True)
    assert read(tmp_path / name, tally) == ["good"] * content.count(LINE)
    assert tally.skipped == 1
    assert says in tally.problems[0]


def test_a_parquet_row_without_text_is_named(tmp_path):
    pq.write_table(pa.table({"text": ["a", None, "b"], "n": [1, 2, 3]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet, row 2: 'text' is empty \(null\)"):
        read(tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", Tally(skip_bad=True)) == ["a", "b"]
    with pytest.raises(ValueError, match="row 1: 'n' is of type int"):
        read(tmp_path / "a.parquet", text_column="n")
    with pytest.raises(ValueError, match=r"no column 'body'; it has text or n"):
        read(tmp_path / "a.parquet", text_column="body")


def test_parquet_bytes_that_are_not_utf8_are_named(tmp_path):
    raw = pa.array([b"good", b"\xff"], pa.binary())
    text = pa.StringArray.from_buffers(2, raw.buffers()[1], raw.buffers()[2])
    pq.write_table(pa.table({"text": text}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="row 2: byte 0 of 'text' is not UTF-8"):
        read(tmp_path / "a.parquet")


def test_damaged_files_are_named(tmp_path):
    whole = gzip.compress(as_lines([f"{k} " * 50 for k in range(2000)]).encode())
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "no.jsonl.gz").write_bytes(b"plain")
    (tmp_path / "no.parquet").write_bytes(b"PAR1 no")
    for name in ("cut.jsonl.gz", "no.jsonl.gz", "no.parquet"):
        with pytest.raises(ValueError, match=name):
            read(tmp_path / name)


def test_sources_that_are_none(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        read(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="is empty"):
        read(tmp_path)
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    with pytest.raises(ValueError, match=r"has only \.pdf; use \.txt"):
        read(tmp_path)
    with pytest.raises(ValueError, match="no suffix that is known"):
        read(tmp_path / "a.pdf")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ValueError, match="separator is empty"):
        read(tmp_path / "a.txt", separator="")
    (tmp_path / "e.txt").write_text("")
    with pytest.raises(ValueError, match="has no text: 1 documents are empty"):
        prepare(tmp_path / "e.txt", tmp_path / "out")


def test_the_result_does_not_depend_on_how_files_are_listed_or_packed(tmp_path):
    texts = [f"text {k} " * (k % 7 + 1) for k in range(60)]
    (tmp_path / "split").mkdir()
    for k, text in enumerate(texts):
        (tmp_path / "split" / f"{k * 7919 % 1000}.txt").write_text(text)
    (tmp_path / "a.jsonl").write_text(as_lines(texts))
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    (tmp_path / "a.txt").write_text("\n--\n".join(texts))
    made = [
        prepare(tmp_path / "split", tmp_path / "1"),
        prepare(tmp_path / "a.jsonl", tmp_path / "2"),
        prepare(tmp_path / "a.parquet", tmp_path / "3"),
        prepare(tmp_path / "a.txt", tmp_path / "4", separator="\n--\n"),
    ]
    assert len({each.digest for each in made}) == 1


def test_the_hub_needs_its_library(tmp_path):
    code = (
        "import sys; sys.modules['datasets'] = None\n"
        "from loopworth.data import prepare\n"
        "prepare('hub:owner/name', sys.argv[1])\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "out")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "pip install 'loopworth[data]'" in run.stderr.splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_a_data_set_of_the_hub_library(tmp_path, monkeypatch):
    pytest.importorskip("datasets", reason="the extra `data` is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_text(as_lines([t for t in TEXTS if t], "body"))
    name = f"hub:{tmp_path / 'set'}"
    source = HubSource(name, Reading(text_column="body"))
    assert list(source.documents(Tally())) == [t for t in TEXTS if t]
    with pytest.raises(ValueError, match="no column 'text'; it has id or body"):
        HubSource(name, Reading())
    with pytest.raises(ValueError, match="cannot be loaded"):
        HubSource(name, Reading(), split="nowhere")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_file_without_permission_is_named(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "a.txt").chmod(0)
    with pytest.raises(PermissionError, match=r"a\.txt"):
        read(tmp_path / "a.txt")
