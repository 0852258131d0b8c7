"""Sweeps on a real Ray cluster of two workers, which is started here."""

import json
import signal

import pytest

from engine_runs import long
from loopworth.sweep.engines import Resources
from loopworth.sweep.folder import SweepFolder
from loopworth.sweep.launch import run_sweep
from loopworth.sweep.ray_engine import RayEngine
from loopworth.sweep.run import look
from sweep_runs import HERE, Quick, launch, table
from sweep_worker import DIVERGES
from train_runs import make_data

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'loopworth[ray]'")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def cluster():
    """A cluster of two workers with a core each; a test may kill the second."""
    from ray.cluster_utils import Cluster

    head = {"include_dashboard": False, "include_log_monitor": False}
    node = {"num_cpus": 1, "object_store_memory": 80_000_000}
    # as where Ray is started in the background
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE))  # a task finds `sweep_runs`
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        made = Cluster(initialize_head=True, head_node_args=head | node)
        made.add_node(**node)
        signal.signal(signal.SIGINT, heard)
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def sweep(tmp_path):
    return SweepFolder(tmp_path / "sweep")


def status(sweep: SweepFolder) -> list[dict]:
    return [json.loads(path.read_text()) for path in sweep.path.glob("runs/*/status.json")]


def at_work(sweep: SweepFolder) -> int:
    return sum(
        look(sweep.run_path(cell), cell.run_id).state == "running"
        and (sweep.run_path(cell) / "checkpoint").exists()
        for cell in sweep.cells
    )


def test_cancelled_runs_are_saved(cluster, data, sweep):
    sweep.grow(long(data, 1, 2, 3, steps=100_000))
    runs = [sweep.prepare(cell).absolute() for cell in sweep.cells]
    engine = RayEngine(sweep.path, None, Quick(), cluster.address)
    assert engine.room() == 3  # two at work, and one that waits for them
    engine.submit([(run,) for run in runs], Quick())
    while at_work(sweep) < 2:
        assert engine.poll(0.1).alive == set(runs)
    engine.cancel()
    assert engine.poll(0).alive == frozenset()
    engine.close()
    states = [look(run, cell.run_id).state for run, cell in zip(runs, sweep.cells, strict=True)]
    assert sorted(states) == ["stopped", "stopped", "waiting"]


def test_what_the_cluster_has_not_is_refused(cluster, sweep):
    with pytest.raises(ValueError, match="no node of the Ray cluster has CPU 1, GPU 1"):
        RayEngine(sweep.path, None, Resources(gpus=1), cluster.address)


def test_the_runs_of_a_killed_worker_are_done_by_another(cluster, data, sweep, tmp_path):
    made = long(data, 1, 2, DIVERGES, steps=3000)
    undisturbed = SweepFolder(tmp_path / "undisturbed")
    launch(undisturbed, made)
    words = []

    def kill() -> None:
        nodes = [node for node in cluster.worker_nodes if node.any_processes_alive()]
        if nodes and at_work(sweep) == 2:
            cluster.remove_node(nodes[0], allow_graceful=False)

    engine = RayEngine(sweep.path, None, Quick(), cluster.address)
    tell = lambda happening: words.append(getattr(happening, "words", ""))  # noqa: E731
    assert run_sweep(sweep, engine, Quick(), plan=made, tell=tell, idle=kill).to_the_end
    assert table(sweep) == table(undisturbed)
    assert len(cluster.worker_nodes) == 0
    states = sorted(run["state"] for run in status(sweep))
    assert states == ["complete", "complete", "failed"]
    assert sorted(run["attempts"] for run in status(sweep)) == [1, 1, 2]
    assert "the loss is not finite" in words
    assert any(said.startswith("Ray says: ") for said in words)


def test_no_cluster_is_told(sweep):
    with pytest.raises(ValueError, match=r"there is no Ray cluster at '127\.0\.0\.1:1': .*refused"):
        RayEngine(sweep.path, None, Resources(), "127.0.0.1:1")
