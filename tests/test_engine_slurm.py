"""Sweeps on a real Slurm cluster of one node, which is started here."""

import os
import shutil
import socket
import subprocess

import pytest

from engine_runs import long
from loopworth.sweep.engines import Resources
from loopworth.sweep.folder import SweepFolder
from loopworth.sweep.launch import run_sweep
from loopworth.sweep.run import look
from loopworth.sweep.slurm import SlurmEngine, script_of
from loopworth.sweep.status import read_status
from sweep_runs import HERE, Quick, launch, plan, table, train_swept, with_seeds
from sweep_worker import DIES
from train_runs import make_data, untimed

NEEDED = ("slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "munged")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster of one node; its settings are in the environment meanwhile."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        pytest.skip(f"Slurm is not installed: no {', '.join(missing)} (see .ci/run)")
    if os.geteuid():
        pytest.skip("only root can start the cluster")
    folder = tmp_path_factory.mktemp("cluster")
    node = [str(HERE / "slurm_node.sh")]
    subprocess.run(["bash", *node, "start", str(folder), str(two_free_ports())], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        patch.setenv("PYTHONPATH", str(HERE))  # a job finds `sweep_runs`
        yield
    subprocess.run(["bash", *node, "stop", str(folder)], check=True)


def two_free_ports() -> int:
    """Return a port that is free, as is the next."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


@pytest.fixture
def sweep(tmp_path):
    return SweepFolder(tmp_path / "sweep")


def engine(sweep: SweepFolder, **how) -> SlurmEngine:
    return SlurmEngine(sweep.path, every=0.2, **how)


def jobs(made: SlurmEngine, reason: str = "") -> list[str]:
    """Return the jobs of a sweep, or those that wait for this reason."""
    asked = ["squeue", "-h", "-r", f"--name={made.job_name}", "--states=all", "-o", "%F_%K %T%r"]
    shown = subprocess.run(asked, check=True, text=True, stdout=subprocess.PIPE).stdout
    return [line.split()[0] for line in shown.splitlines() if reason in line]


def test_preempted_jobs_go_on_to_the_same_result(cluster, data, sweep, tmp_path):
    made = plan(data, budgets=[6e9], widths=[16], recurrences=[1], seeds=[1, 2])
    undisturbed, slurm = SweepFolder(tmp_path / "undisturbed"), engine(sweep)
    undisturbed.grow(made)
    for cell, planned in zip(undisturbed.cells, made.runs, strict=True):
        train_swept(planned.run, undisturbed.run_path(cell))
    # Notice by a signal, after which the job queues itself again; or Slurm takes the node away.
    how = [["scancel", "--signal=USR1"], ["scontrol", "requeue"]]
    preempted, hurried = {}, set()

    def preempt() -> None:
        queue = jobs(slurm, "RUNNING")
        for k, cell in enumerate(sweep.cells):
            if k not in preempted and list(sweep.run_path(cell).glob("checkpoint/step-*")):
                preempted[k] = next(job for job in queue if job.endswith(f"_{k}"))
                subprocess.run([*how[k], preempted[k]], check=True)
        for job in set(jobs(slurm, "BeginTime")) - hurried:
            # Slurm would wait for two minutes; within a second, the node refuses the job's return.
            start = ["scontrol", "update", f"JobId={job}", "StartTime=now+3seconds"]
            subprocess.run(start, check=True)
            hurried.add(job)

    resources = Resources(device="cpu", save_every="5")
    assert run_sweep(sweep, slurm, resources, plan=made, idle=preempt).to_the_end
    assert len(preempted) == 2
    assert table(sweep) == table(undisturbed)
    for cell in sweep.cells:
        assert untimed(sweep.run_path(cell)) == untimed(undisturbed.run_path(cell))
        told = (sweep.run_path(cell) / "status.json").read_text()
        assert '"attempts": 2' in told
    assert len(set(jobs(slurm))) == 2  # the same jobs, not new ones


def test_arrays_fit_the_limit_of_the_cluster_and_a_dying_run_stops_no_other(cluster, data, sweep):
    made = with_seeds(data, *range(5), DIES)  # the cluster takes four jobs in an array
    ended = []
    run_sweep(sweep, engine(sweep), Quick(), plan=made, attempts=1, tell=ended.append)
    found = {run.cell.seed: run for run in read_status(sweep).runs}
    assert [found[seed].state for seed in range(5)] == ["complete"] * 5
    assert found[DIES].state == "failed"
    error = found[DIES].look.error
    assert error is not None
    assert error.startswith("Slurm says FAILED of job ")
    assert "killed by SIGKILL" in error
    assert len(list((sweep.path / "slurm").glob("*_submission.sh"))) == 2


def test_a_pack_does_its_runs_in_one_job(cluster, data, sweep, tmp_path):
    made = with_seeds(data, *range(6))
    undisturbed = SweepFolder(tmp_path / "undisturbed")
    launch(undisturbed, made)
    slurm = engine(sweep, pack=3)
    assert run_sweep(sweep, slurm, Quick(), plan=made).to_the_end
    assert table(sweep) == table(undisturbed)
    assert len(jobs(slurm)) == 2


def test_a_second_launcher_finds_the_jobs_of_one_that_died_and_stops_them(cluster, data, sweep):
    sweep.grow(long(data, *range(4)))
    runs = [sweep.prepare(cell).absolute() for cell in sweep.cells]
    engine(sweep, limit=1).submit([(run,) for run in runs], Quick())  # its launcher is killed now
    slurm = engine(sweep)
    slurm.submit([(run,) for run in runs], Quick())
    assert len(jobs(slurm)) == 4
    while not list(sweep.path.glob("runs/*/checkpoint/*")):
        assert slurm.poll(0.2).alive == set(runs)
    slurm.cancel()
    assert slurm.poll(0).alive == frozenset()
    states = [look(run, cell.run_id).state for run, cell in zip(runs, sweep.cells, strict=True)]
    assert sorted(states) == ["stopped", "waiting", "waiting", "waiting"]


def test_what_slurm_refuses_is_told_in_its_words(cluster, data, sweep):
    slurm = engine(sweep, options={"partition": "none"})
    with pytest.raises(ValueError, match=r"Slurm does not take a job: .*Invalid partition"):
        run_sweep(sweep, slurm, Quick(), plan=with_seeds(data, 1))


def test_the_printed_script_is_the_one_that_is_submitted(cluster, data, sweep):
    made, resources = with_seeds(data, 1, 2), Quick(seconds=3600, memory_bytes=2**29)
    slurm = engine(sweep, limit=1, options={"nice": "5"})
    printed = script_of(sweep, made, slurm, resources)
    assert not sweep.path.exists()
    run_sweep(sweep, slurm, resources, plan=made)
    (submitted,) = (sweep.path / "slurm").glob("*_submission.sh")
    (token,) = (sweep.path / "slurm").glob("*.json")
    assert submitted.read_text() == printed.replace("TOKEN", token.stem)
    for line in ("array=0-1%1", "time=60", "mem=512M", "nice=5", "signal=USR1@120", "requeue"):
        assert f"#SBATCH --{line}\n" in printed.replace("'", "")
    with pytest.raises(ValueError, match="there is nothing to submit"):
        script_of(sweep, made, slurm, resources)


def test_a_script_is_printed_without_a_cluster(tmp_path):
    asked = Resources(threads=4, gpus=2, seconds=100)
    slurm = SlurmEngine(tmp_path, pack=6, at_once=2, options={"exclusive": "", "partition": "gpu"})
    script = slurm.script([tmp_path / "runs" / str(k) for k in range(6)], asked)
    assert "--array" not in script  # one job does all
    for line in (
        "cpus-per-task=8", "gpus-per-node=4", "time=2", "signal=USR1@25", "exclusive",
        "partition=gpu",
    ):  # fmt: skip
        assert f"#SBATCH --{line}\n" in script
    with pytest.raises(ValueError, match="option signal of sbatch is set by loopworth"):
        SlurmEngine(tmp_path, options={"signal": "KILL"})
