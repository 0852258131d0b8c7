"""Checkpoints: whole or not there, checked when read, pruned, and never the end of the last one."""

import json
import os
import pickle
import resource
import shutil

import pytest
import torch

from loopworth.train.checkpoint import (
    MANIFEST,
    MODEL,
    STATE,
    BackgroundWriter,
    Checkpoint,
    CheckpointError,
    Checkpoints,
    write_atomic,
)
from train_runs import FORK


def write(kept: Checkpoints, *steps: int) -> None:
    for step in steps:
        weights = {"w": torch.full((300, 300), float(step)), "v": torch.arange(3.0)}
        state = {"moment": torch.full((300, 300), -float(step)), "step": step, "name": ["a", None]}
        kept.write(step, weights, state, {"spec_hash": "abc"})


@pytest.fixture
def kept(tmp_path):
    return Checkpoints(tmp_path / "checkpoint", keep=2)


def test_what_is_written_is_read(kept):
    write(kept, 7)
    found, problems = kept.newest()
    assert (found.step, found.meta, problems) == (7, {"spec_hash": "abc"}, [])
    assert torch.equal(found.model()["w"], torch.full((300, 300), 7.0))
    state = found.state()
    assert torch.equal(state["moment"], torch.full((300, 300), -7.0))
    assert (state["step"], state["name"]) == (7, ["a", None])


def test_the_newest_stay_and_nothing_else(kept):
    write(kept, 1, 2, 30, 4)
    assert kept.steps() == [4, 30]
    assert sorted(path.name for path in kept.folder.iterdir()) == ["step-00000004", "step-00000030"]


@pytest.mark.parametrize("name", [MODEL, STATE, MANIFEST])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_one_is_passed_over_and_named(kept, name, damage):
    write(kept, 1, 2)
    path = kept.place(2) / name
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif damage == "truncate":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.unlink()
    found, problems = kept.newest()
    assert found.step == 1
    assert len(problems) == 1
    assert "step-00000002" in problems[0]
    assert name in problems[0]


def test_every_byte_of_the_manifest_counts(kept):
    write(kept, 1)
    manifest = kept.place(1) / MANIFEST
    value = json.loads(manifest.read_text())
    value["meta"]["spec_hash"] = "abd"
    manifest.write_text(json.dumps(value))
    with pytest.raises(CheckpointError, match="sha256"):
        kept.newest()


def test_none_that_is_whole_is_refused_not_started_over(kept):
    write(kept, 1, 2)
    for step in (1, 2):
        (kept.place(step) / STATE).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"step-00000002.*step-00000001.*delete that folder"):
        kept.newest()


def test_a_damaged_one_is_replaced_when_its_step_comes_again(kept):
    write(kept, 1, 2)
    (kept.place(2) / MODEL).write_bytes(b"")
    write(kept, 2)
    found, problems = kept.newest()
    assert (found.step, problems) == (2, [])


@pytest.mark.parametrize("room", [0, 1000, 361_000])  # bytes: before, in the weights, in the state
def test_no_room_on_the_disk_leaves_the_last_one(kept, room):
    write(kept, 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))  # the kernel refuses more
    try:
        with pytest.raises(CheckpointError, match=r"step 2 .*too large.*last good one is step 1"):
            write(kept, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in kept.folder.iterdir()] == ["step-00000001"]
    assert kept.newest()[0].step == 1


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB, where this machine lets us have one."""
    place = tmp_path / "disk"
    place.mkdir()
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    if os.system(f"mount -t tmpfs -o size=1M tmpfs {place} 2>/dev/null") != 0:
        pytest.skip("this machine does not let us mount a file system")
    yield place
    os.system(f"umount {place}")


def test_a_full_disk_leaves_the_last_one(small_disk):
    kept = Checkpoints(small_disk / "checkpoint", keep=2)
    write(kept, 1)  # 720 KB: a second one does not fit
    with pytest.raises(CheckpointError, match="No space left on device"):
        write(kept, 2)
    assert [path.name for path in kept.folder.iterdir()] == ["step-00000001"]
    assert kept.newest()[0].step == 1


def _killed_in_the_middle(folder, room: int) -> None:
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # the kernel ends the process at that byte
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    write(Checkpoints(folder, keep=2), 2)


@pytest.mark.parametrize("room", [100, 361_000])
def test_a_process_that_dies_while_writing_leaves_the_last_one(kept, room):
    write(kept, 1)
    process = FORK.Process(target=_killed_in_the_middle, args=(kept.folder, room))
    process.start()
    process.join()
    assert process.exitcode < 0
    assert len(list(kept.folder.iterdir())) == 2  # what it left behind is no checkpoint
    assert kept.newest()[0].step == 1
    kept.sweep()
    assert [path.name for path in kept.folder.iterdir()] == ["step-00000001"]


def test_no_code_runs_from_a_checkpoint(kept, tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "was_run"),))

    write(kept, 1)
    torch.save({"moment": Evil()}, kept.place(1) / STATE)
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        Checkpoint(1, kept.place(1), {}).state()
    assert not (tmp_path / "was_run").exists()


def test_a_write_in_the_background_reports_what_went_wrong():
    writer = BackgroundWriter()
    writer.submit(lambda: None)
    writer.submit(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        writer.wait()
    writer.wait()  # reported once


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "result.json"
    write_atomic(path, b"one")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write_atomic(path, b"two")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]
