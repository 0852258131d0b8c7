"""Claims: one living owner, whatever dies and whatever the clocks say."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from loopworth.sweep import claim as claims
from loopworth.sweep.claim import Claim, HeldError, living_owner, owner_alive
from loopworth.sweep.files import file_system_now

TAKE = """
import sys, time
from pathlib import Path
from loopworth.sweep.claim import Claim
Claim.take(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path):
    return tmp_path / "claim"


def elsewhere(place, silent: float) -> None:
    """Leave the claim of a process on another machine, last touched some seconds ago."""
    owner = {"machine": "another", "pids": "", "pid": 1, "started": "1"}
    place.write_text(json.dumps(owner))
    touched = file_system_now(place.parent) - silent
    os.utime(place, (touched, touched))


def test_one_at_a_time(place):
    with Claim.take(place, about={"workers": 2}):
        assert living_owner(place)["workers"] == 2
        with pytest.raises(HeldError, match="worked on by another process"):
            Claim.take(place)
    assert not place.exists()
    Claim.take(place).release()
    assert [path.name for path in place.parent.iterdir()] == []


def test_the_claim_of_a_killed_process_is_taken_over_at_once(place):
    command = [sys.executable, "-c", TAKE, str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        assert owner_alive(place)
        with pytest.raises(HeldError):
            Claim.take(place)
        process.send_signal(signal.SIGKILL)
    assert place.exists()
    assert not owner_alive(place)
    Claim.take(place).release()


def test_a_silent_claim_from_elsewhere_is_taken_over_and_a_fresh_one_is_not(place):
    elsewhere(place, 10)
    assert owner_alive(place)
    with pytest.raises(HeldError, match="from elsewhere, last heard of 10 s ago"):
        Claim.take(place)
    elsewhere(place, 61)
    assert not owner_alive(place)
    Claim.take(place).release()


@pytest.mark.parametrize("skew", [-86400, 86400])
def test_the_clock_of_this_machine_does_not_matter(place, monkeypatch, skew):
    elsewhere(place, 10)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + skew)
    assert owner_alive(place)
    elsewhere(place, 61)
    assert not owner_alive(place)


@pytest.mark.parametrize("content", [b"", b"{", b"[]"])
def test_a_damaged_claim_is_held_while_it_is_fresh(place, content):
    place.write_bytes(content)
    with pytest.raises(HeldError):
        Claim.take(place)
    touched = file_system_now(place.parent) - 100
    os.utime(place, (touched, touched))
    Claim.take(place).release()


def test_of_many_that_take_over_one_wins(place):
    for _ in range(5):
        elsewhere(place, 100)
        start = threading.Barrier(8)

        def take(_number):
            start.wait()  # noqa: B023
            try:
                return Claim.take(place)
            except HeldError:
                return None

        with ThreadPoolExecutor(8) as pool:
            won = [claim for claim in pool.map(take, range(8)) if claim is not None]
        assert len(won) == 1
        won[0].release()


def test_who_loses_its_claim_is_told(place, monkeypatch):
    monkeypatch.setattr(claims, "BEAT_SECONDS", 0.01)
    told = threading.Event()
    claim = Claim.take(place, lambda _message: told.set())
    place.unlink()
    other = Claim.take(place)
    assert told.wait(10)
    claim.release()
    assert place.exists()  # what is not its own it leaves
    other.release()


def test_a_heartbeat_touches_the_claim(place, monkeypatch):
    monkeypatch.setattr(claims, "BEAT_SECONDS", 0.01)
    with Claim.take(place):
        os.utime(place, (0, 0))
        while place.stat().st_mtime == 0:
            pass


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"missing/claim could not be written: No such file"):
        Claim.take(tmp_path / "missing" / "claim")
