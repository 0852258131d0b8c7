"""The task file for SkyPilot: read as YAML, its fields are SkyPilot's, its commands run."""

import os
import shutil
import subprocess

import pytest
import yaml

from loopworth.sweep.engines import Resources
from loopworth.sweep.skypilot import task_file


def test_the_fields_are_those_of_a_task():
    asked = Resources(threads=4, gpus=8, memory_bytes=64e9)
    task = yaml.safe_load(task_file("paper", "s3://mine", asked, accelerators="H100:8"))
    assert sorted(task) == ["file_mounts", "name", "resources", "run", "setup"]
    assert task["name"] == "loopworth-paper"
    assert task["resources"] == {"use_spot": True, "accelerators": "H100:8", "memory": "64+"}
    assert task["file_mounts"] == {"/loopworth-sweep": {"source": "s3://mine", "mode": "MOUNT"}}
    assert task["setup"] == "pip install 'loopworth[train]'\n"
    started = task["run"].splitlines()[-1]
    assert started == (
        "loopworth sweep start paper --out ~/sweep --threads 4 --device auto --save-every 1min "
        "--gpus 8"
    )


def test_a_file_is_taken_along():
    text = task_file("plans/My grid.py", "mine", Resources(), spot=False)
    task = yaml.safe_load(text)
    assert task["name"] == "loopworth-my-grid"
    assert task["resources"] == {"use_spot": False, "cpus": "1+"}
    assert task["file_mounts"]["/loopworth-sweep"] == {"name": "mine", "mode": "MOUNT"}
    assert task["file_mounts"]["~/recipe.py"] == "plans/My grid.py"
    assert "loopworth sweep start ~/recipe.py --out" in task["run"]


def test_accelerators_of_another_form_are_refused():
    with pytest.raises(ValueError, match="must be a device and a count: H100:8"):
        task_file("paper", "mine", Resources(), accelerators="8 x H100")


@pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed")
def test_what_an_earlier_machine_left_is_fetched_and_kept(tmp_path):
    store, home, tools = (tmp_path / name for name in ("store", "home", "tools"))
    for folder in (store / "runs", home, tools):
        folder.mkdir(parents=True)
    (store / "runs" / "before").touch()
    sweep = '#!/bin/sh\nls "$HOME"/sweep/runs >"$HOME"/found\ntouch "$HOME"/sweep/runs/after\n'
    (tools / "loopworth").write_text(sweep + 'touch "$HOME"/sweep/launcher\nexit 3\n')
    (tools / "loopworth").chmod(0o755)
    script = yaml.safe_load(task_file("paper", "mine", Resources()))["run"]
    script = script.replace("/loopworth-sweep/", f"{store}/")
    environment = os.environ | {"HOME": str(home), "PATH": f"{tools}:{os.environ['PATH']}"}
    ended = subprocess.run(["bash", "-c", script], env=environment, check=False)
    assert ended.returncode == 3
    assert (home / "found").read_text() == "before\n"
    assert sorted(p.name for p in store.rglob("*")) == ["after", "before", "runs"]
