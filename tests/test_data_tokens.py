"""Open folders: rows, batches and their shares, damage that is found, tokenizers of every kind."""

import json
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from loopworth.data import Batches, TokenSplit, open_folder, prepare
from loopworth.data.bpe import FileTokenizer, train_bpe
from loopworth.data.shards import SIDECAR, SplitWriter, token_dtype
from loopworth.data.shuffle import permute
from loopworth.data.tokenizers import ByteTokenizer, CharTokenizer


def split_of(lengths, dtype=np.uint16):
    ids = np.arange(1, sum(lengths) + 1).astype(dtype)
    shards = np.split(ids, np.cumsum(lengths)[:-1])
    return TokenSplit("train", shards, n_documents=1, n_bytes=0, bos=0), ids


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(1, 15))
def test_rows_are_slices_of_the_stream_whatever_the_shards(lengths, context):
    split, ids = split_of(lengths)
    n = split.n_rows(context)
    assert n == len([i for i in range(len(ids)) if i * context + context + 1 <= len(ids)])
    wanted = [ids[i * context : i * context + context + 1] for i in range(n)]
    rows = split.rows(np.arange(n), context)
    assert rows.dtype == np.int64
    assert rows.tolist() == [row.tolist() for row in wanted]
    assert split.rows(np.arange(n)[::-1], context).tolist() == rows[::-1].tolist()
    assert np.asarray(split.tokens(2, 9)).tolist() == ids[2:9].tolist()
    for bad in (-1, n):
        with pytest.raises(ValueError, match="counted from 0"):
            split.rows([bad], context)


def test_every_token_is_a_target_once_but_those_that_do_not_fill_a_row():
    split, ids = split_of([1000])
    targets = split.rows(np.arange(split.n_rows(64)), 64)[:, 1:].ravel()
    assert targets.tolist() == ids[1 : 1 + len(targets)].tolist()
    assert len(ids) - 1 - len(targets) < 64


@given(st.integers(1, 5000), st.integers(0, 2**63), st.integers(0, 50))
def test_a_permutation_is_one(n, seed, epoch):
    order = permute(np.arange(n), n, seed, epoch)
    assert np.array_equal(np.sort(order), np.arange(n))
    some = np.arange(0, n, 7)
    assert np.array_equal(permute(some, n, seed, epoch), order[some])


def test_permutations_are_spread_over_all_orders():
    n, places = 50, np.zeros((50, 50))
    for seed in range(200):
        places[np.arange(n), permute(np.arange(n), n, seed)] += 1
    chi2 = ((places - 4) ** 2 / 4).sum()
    assert abs(chi2 - 49**2) < 5 * np.sqrt(2 * 49**2)  # chi-square with 49^2 degrees of freedom
    orders = {tuple(permute(np.arange(4), 4, seed).tolist()) for seed in range(250)}
    assert len(orders) == 24
    assert not np.array_equal(permute(np.arange(50), 50, 0, 0), permute(np.arange(50), 50, 0, 1))


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6, 12])
def test_ranks_read_disjoint_rows_that_make_the_step_of_one_process(world):
    split, _ = split_of([200, 313])
    batches = Batches(split, context=5, rows_per_step=12, seed=3)
    for t in range(20):
        shares = [batches.step(t, rank=q, world=world) for q in range(world)]
        assert np.array_equal(np.concatenate(shares), batches.step(t))
    one_epoch = np.concatenate([batches.step(t) for t in range(batches.steps_per_epoch)])
    assert len(np.unique(one_epoch)) == len(one_epoch) == 102 // 12 * 12
    assert batches.epoch(batches.steps_per_epoch) <= 1 < batches.epoch(9)


def test_each_epoch_reads_every_row_once_in_another_order():
    split, _ = split_of([64])
    batches = Batches(split, context=3, rows_per_step=4, seed=0)
    stream = np.concatenate([batches.step(t) for t in range(21)])
    epochs = stream.reshape(4, 21)
    assert (np.sort(epochs, axis=1) == np.arange(21)).all()
    assert len(np.unique(epochs, axis=0)) == 4
    other = Batches(split, context=3, rows_per_step=4, seed=1)
    assert not np.array_equal(other.step(0), batches.step(0))
    big = Batches(split, context=3, rows_per_step=42)  # two epochs in each step
    assert np.array_equal(np.bincount(big.step(3)), [2] * 21)


def test_batches_that_cannot_be():
    split, _ = split_of([20])
    with pytest.raises(ValueError, match="too few for one row of context 64"):
        Batches(split, 64, 4)
    with pytest.raises(ValueError, match="context=0"):
        Batches(split, 0, 4)
    batches = Batches(split, 4, 4)
    with pytest.raises(ValueError, match="world=3"):
        batches.step(0, world=3)
    with pytest.raises(ValueError, match="rank=2"):
        batches.step(0, rank=2, world=2)


def test_a_set_of_ten_gigabytes_opens_at_once(tmp_path):
    dtype, n = token_dtype(2**17), 2_500_000_000
    (tmp_path / "big.bin").touch()
    with (tmp_path / "big.bin").open("r+b") as file:
        file.truncate(n * dtype.itemsize)  # a hole: no space is used
    shard = np.memmap(tmp_path / "big.bin", dtype, "r")
    split = TokenSplit("train", [shard], n_documents=1, n_bytes=0, bos=0)
    before = time.process_time()
    batches = Batches(split, 2048, 128)
    assert batches.rows(10**6 // 2).shape == (128, 2049)
    assert time.process_time() - before < 5  # a table of all rows would take longer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("data")
    lines = [json.dumps({"text": f"text {k} " * 30}) for k in range(40)]
    (place / "a.jsonl").write_text("\n".join(lines))
    prepare(place / "a.jsonl", place / "out", tokenizer="bpe:280", shard_tokens=1000)
    return place / "out"


@pytest.fixture
def copy(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def change(file, at, value):
    content = bytearray(file.read_bytes())
    content[at] ^= value
    file.write_bytes(content)


def test_damage_is_found_and_named(copy):
    open_folder(copy)
    shard = copy / "train-00001.bin"
    good = shard.read_bytes()
    change(shard, 100, 1)
    with pytest.raises(ValueError, match=r"train-00001\.bin is corrupt: .* prepare it again"):
        open_folder(copy)
    open_folder(copy, verify=False)  # its size is right
    shard.write_bytes(good[:-1])
    with pytest.raises(ValueError, match=r"train-00001\.bin is truncated: it has 1999 bytes"):
        open_folder(copy, verify=False)
    shard.write_bytes(good + b"x")
    with pytest.raises(ValueError, match="too long"):
        open_folder(copy, verify=False)
    shard.unlink()
    with pytest.raises(ValueError, match=r"train-00001\.bin is missing"):
        open_folder(copy)
    shard.write_bytes(good)
    open_folder(copy)
    change(copy / "tokenizer.json", 50, 1)
    with pytest.raises(ValueError, match=r"tokenizer\.json is corrupt"):
        open_folder(copy, verify=False)


def test_a_sidecar_that_is_none_or_was_changed(copy, tmp_path_factory):
    place = copy / SIDECAR
    body = json.loads(place.read_text())
    for wrong, says in (
        ("{", "is not JSON"),
        ("[]", "does not describe"),
        (json.dumps(body | {"version": 9}), "format version 9"),
        (json.dumps(body | {"vocab_size": 300}), "was changed"),
        (json.dumps({k: v for k, v in body.items() if k != "splits"}), "incomplete"),
        (json.dumps(body | {"splits": {"train": {}}}), "incomplete"),
    ):
        place.write_text(wrong)
        with pytest.raises(ValueError, match=says):
            open_folder(copy)
    with pytest.raises(ValueError, match="not a prepared folder"):
        open_folder(tmp_path_factory.mktemp("empty"))
    with pytest.raises(ValueError, match="not a prepared folder"):
        open_folder(place)


def test_a_writer_splits_exactly(tmp_path):
    with SplitWriter(tmp_path, "train", token_dtype(256), 10) as writer:
        for n in (3, 0, 25, 2):
            writer.write(np.arange(n))
    assert [record["tokens"] for record in writer.records] == [10, 10, 10]
    with SplitWriter(tmp_path, "none", token_dtype(256), 10) as empty:
        pass
    assert empty.records == []
    with pytest.raises(ValueError, match="32 bits"):
        token_dtype(2**33)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_bytes_and_characters_keep_any_text(text):
    tokenizers = [ByteTokenizer()] + ([CharTokenizer(text)] if text else [])
    for tokenizer in tokenizers:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.token_bytes[ids].sum() == len(text.encode())
        assert tokenizer.bos == tokenizer.vocab_size - 1 not in ids.tolist()


def test_tokenizers_refuse_what_they_do_not_know():
    with pytest.raises(ValueError, match=r"'z' \(U\+007A\)"):
        CharTokenizer("abc").encode("az")
    with pytest.raises(ValueError, match="different characters"):
        CharTokenizer("")
    with pytest.raises(ValueError, match="257 is not a token"):
        ByteTokenizer().decode([257])
    assert ByteTokenizer().decode([195]) == "\ufffd"


BPE = train_bpe(["a loop is a loop is a loop", "été 漢字"] * 5, 270)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_trained_bpe_keeps_any_text(text):
    for each in (text, f"{text}<|bos|>{text}"):
        ids = BPE.encode(each)
        assert BPE.decode(ids) == each
        assert BPE.token_bytes[ids].sum() == len(each.encode())
        assert BPE.bos not in ids.tolist()


def sentencepiece_like():
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{b:02X}>": 3 + b for b in range(256)}
    vocabulary |= {token: 259 + k for k, token in enumerate(["\u2581", "a", "b", "\u2581a", "ab"])}
    merges = [("\u2581", "a"), ("a", "b")]
    model = models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=9)
    return tokenizer


def test_any_tokenizer_json(tmp_path):
    sentencepiece_like().save(str(tmp_path / "t.json"))
    texts = ["ab ab aé", "b <s> b" * 30, "abba", "b b b a"]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": t}) for t in texts))
    path = str(tmp_path / "t.json")
    made = prepare(tmp_path / "a.jsonl", tmp_path / "out", tokenizer=path)
    data = made.open()
    assert (data.bos, data.vocab_size, data.padded_vocab()) == (1, 264, 320)
    got = [data.tokenizer.decode(i) for s in (data.train, data.validation) for i in s.documents()]
    assert sorted(got) == sorted(texts)  # not cut, not padded, no template, "<s>" is text
    # It puts a space before each document, so its bytes are not those of the text.
    assert not data.exact_bytes
    ids = np.concatenate([data.train.tokens(), data.validation.tokens()])
    assert data.token_bytes[ids].sum() == pytest.approx(sum(len(t.encode()) for t in texts))
    stored = str(tmp_path / "out" / "tokenizer.json")
    again = prepare(tmp_path / "a.jsonl", tmp_path / "2", tokenizer=stored)
    assert again.digest == made.digest


def test_unknown_text_is_counted(tmp_path):
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "one": 1, "two": 2, "[go]": 3}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "t.json"))
    (tmp_path / "a.jsonl").write_text('{"text": "one two three"}\n{"text": "two"}')
    source, out, path = tmp_path / "a.jsonl", tmp_path / "out", str(tmp_path / "t.json")
    with pytest.raises(ValueError, match="name one of its tokens with --bos"):
        prepare(source, out, tokenizer=path)
    with pytest.raises(ValueError, match=r"no token '\[no\]'"):
        prepare(source, out, tokenizer=path, bos="[no]")
    made = prepare(source, out, tokenizer=path, bos="[go]")
    assert made.sidecar.source["unknown_tokens"] == 1
    assert not made.open().exact_bytes


def test_files_that_are_no_tokenizer(tmp_path):
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(ValueError, match=r"is no tokenizer\.json"):
        FileTokenizer.from_file(tmp_path / "t.json")
