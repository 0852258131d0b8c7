"""`loopworth data prepare` and `loopworth data show`."""

import json

import pytest
from click.testing import CliRunner

from loopworth.cli import main
from loopworth.data import open_folder


def run(*arguments):
    result = CliRunner().invoke(main, ["data", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def corpus(tmp_path):
    lines = [{"body": f"Document {k} says that it is number {k}, été. " * 5} for k in range(60)]
    lines += [{"body": ""}, lines[3], {"none": 1}]
    file = tmp_path / "corpus.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def test_prepare_then_show(corpus, tmp_path):
    options = ("--text-column", "body", "--tokenizer", "bpe:300", "--validation", "0.1")
    code, out, err = run("prepare", corpus, "--out", tmp_path / "out", *options, "--skip-bad")
    assert code == 0
    stages = ["reading text", "training the tokenizer", "tokenising", "shuffling"]
    assert err.split("\n") == [*(f"... {stage}" for stage in stages), ""]
    data = open_folder(tmp_path / "out", verify=True)
    assert data.digest in out
    for words in (
        "corpus.jsonl: 61 documents",
        "tokenizer bpe:300, 300 ids stored as uint16, seed 0",
        f"{data.train.n_tokens:,}",
        "empty documents, left out: 1",
        "documents that could not be read, left out: 1",
        "documents that repeat another, on its side of the split: 1",
    ):
        assert words in " ".join(out.split())
    assert "line 63: no key 'body'; it has none" in data.sidecar.source["skipped_first"][0]
    code, out, _ = run("show", tmp_path / "out", "--sample", 4, "--verify")
    assert code == 0
    assert out.count("says that it is number") >= 4
    assert "Sample 4" in out
    assert "All files have the sha256" in out
    assert max(map(len, out.splitlines())) <= 80


def test_json_is_one_object(corpus, tmp_path):
    options = ("--text-column", "body", "--skip-bad", "--json", "-q")
    code, out, err = run("prepare", corpus, "--out", tmp_path / "out", *options)
    page = json.loads(out)
    assert (code, err) == (0, "")
    assert page["digest"] == open_folder(tmp_path / "out").digest
    train = page["splits"]["train"]
    assert train["bytes_per_token"] == train["bytes"] / train["tokens"]
    assert train["shards"][0]["file"] == "train-00000.bin"
    shown = json.loads(run("show", tmp_path / "out", "--json", "--sample", "2")[1])
    assert len(shown.pop("samples")) == 2
    assert shown == page


def test_a_separator_can_be_a_new_line(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n\nthree")
    options = ("--separator", r"\n\n", "--json")
    code, out, _ = run("prepare", tmp_path / "a.txt", "--out", tmp_path / "out", *options)
    assert code == 0
    assert sum(part["documents"] for part in json.loads(out)["splits"].values()) == 2


def test_errors_are_for_people(corpus, tmp_path):
    def problem(*arguments):
        result = CliRunner().invoke(main, ["data", *map(str, arguments)])
        assert result.exit_code != 0
        return " ".join((str(result.exception) + result.output).split())

    assert "no key 'text'; it has body" in problem("prepare", corpus, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert "not a prepared folder" in problem("show", tmp_path)
    assert "does not exist" in problem("show", tmp_path / "nowhere")
    assert "--out" in problem("prepare", corpus)
