"""Ranks of a step of Slurm that are forked from one process on each node, inside the step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.testing.slurm import VirtualCluster
from tests.clusters import cluster_with_limits
from tests.waiting import wait_until
from tests.waiting_jobs import OF_STEP, Job, held

# Starts of ranks on two nodes, on a machine that is busy.
pytestmark = [pytest.mark.slurm, pytest.mark.mpi, pytest.mark.timeout(240)]
TIMEOUT_S = 180

TRAINS = """
import json, os, sys
from hpctrain import RunConfig, ScalingConfig, SlurmConfig
from hpctrain.torch import TorchTrainer

def train():
    import torch
    from torch import distributed, nn
    import hpctrain, hpctrain.torch

    torch.manual_seed(3)
    model = hpctrain.torch.prepare_model(nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 1)))
    torch.manual_seed(hpctrain.get_context().get_world_rank())
    losses = []
    for _ in range(5):
        loss = model(torch.randn(64, 32)).square().mean()
        loss.backward()
        # An optimizer of torch imports its compiler, which takes each rank some seconds.
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.01 * weight.grad
                weight.grad = None
        losses.append(loss.item().hex())
    with open(f"/proc/{os.getppid()}/cmdline") as file:
        is_forked = "hpctrain.worker.fork_server" in file.read()
    context = hpctrain.get_context()
    place = [context.get_node_rank(), context.get_local_rank()]
    left = [name for name in os.environ if name.startswith(("PMI", "HPCTRAIN_NOT"))]
    has_imported = any(word.startswith("--import-first=") for word in sys.orig_argv)
    mine = {"losses": losses, "threads": torch.get_num_threads(), "place": place, "left": left}
    everybody = [None] * distributed.get_world_size()
    distributed.all_gather_object(
        everybody, [mine, [is_forked or has_imported, place[0], os.getppid()]]
    )
    return everybody

storage, answers = sys.argv[1], {}
for name, (wanted, mpi) in json.loads(sys.argv[2]).items():
    os.environ["HPCTRAIN_FORK_SERVER"] = wanted
    answers[name] = TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=4, slurm=SlurmConfig(mpi=mpi)),
        run_config=RunConfig(storage_path=storage, name=name, verbose=0),
    ).fit().return_value
with open(f"{storage}/answers.json", "w") as file:
    json.dump(answers, file)
"""


def _reasons(run: Path) -> list[str]:
    events = read_events(RunPaths(run))
    return [event["reason"] for event in events if event["event"] == "not-forked"]


def answers_of(
    cluster: VirtualCluster, folder: Path, runs: dict[str, Any], code: str, *, tasks_per_node: int
) -> dict[str, Any]:
    """Run a script in an allocation of two nodes; return what the ranks of each run answered."""
    script = folder / "train.py"
    script.write_text(code)
    done = subprocess.run(
        [
            *("salloc", "--quiet", "--nodes=2", f"--ntasks-per-node={tasks_per_node}"),
            *(sys.executable, str(script), str(folder), json.dumps(runs)),
        ],
        env={**os.environ, **cluster.environ},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answers: dict[str, Any] = json.loads((folder / "answers.json").read_text())
    return answers


def test_forked_ranks_of_a_step_compute_the_same_to_the_last_bit(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    runs = {"plain": ("0", "auto"), "srun": ("1", "auto"), "hydra": ("1", "wheel")}
    answers = answers_of(virtual_slurm, tmp_path, runs, TRAINS, tasks_per_node=2)
    plain = [rank for rank, _ in answers["plain"]]
    assert [rank["place"] for rank in plain] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert [rank["left"] for rank in plain] == [[]] * 4
    for name, (wanted, _) in runs.items():
        assert [rank for rank, _ in answers[name]] == plain, name
        made_by = [made for _, made in answers[name]]
        assert [is_forked for is_forked, *_ in made_by] == [wanted == "1"] * 4, name
        if wanted == "1":
            assert len({(node, server) for _, node, server in made_by}) == 2, name
        assert _reasons(tmp_path / name) == []


def test_ranks_that_have_a_node_each_import_first_and_compute_the_same(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    runs = {"plain": ("0", "auto"), "first": ("1", "auto")}
    two_workers = TRAINS.replace("num_workers=4", "num_workers=2")
    answers = answers_of(virtual_slurm, tmp_path, runs, two_workers, tasks_per_node=1)
    (plain, not_first), (ours, first) = (
        zip(*answers[name], strict=True) for name in ("plain", "first")
    )
    assert [rank["place"] for rank in plain] == [[0, 0], [1, 0]]
    assert ours == plain
    assert [did for did, *_ in (*not_first, *first)] == [False, False, True, True]
    assert _reasons(tmp_path / "first") == []


def test_ranks_are_forked_again_in_the_step_of_a_restart(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    job = Job(tmp_path, virtual_slurm, dies=1)
    first, second = job.ranks(1), job.ranks(2)
    assert job.end().split()[-1] == "2"
    for rank in (*first, *second):
        assert "hpctrain.worker.fork_server" in rank["parent"]
    assert {rank["step"] for rank in first} != {rank["step"] for rank in second}
    events = read_events(RunPaths(tmp_path / "run"))
    (restart,) = [event for event in events if event["event"] == "restart"]
    assert "rank 1" in restart["what"]
    assert "killed (SIGKILL)" in restart["what"]
    assert _reasons(tmp_path / "run") == []
    wait_until(lambda: not job.left(*OF_STEP), "processes of a step are left")


def test_restarts_in_a_row_leave_the_executor_and_the_agents_as_they_were(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    restarts = 5
    job = Job(tmp_path, virtual_slurm, dies=1, restarts=restarts)
    found = []
    for attempt in range(1, restarts + 2):
        ranks = job.ranks(attempt)
        assert "hpctrain.worker.fork_server" in ranks[3]["parent"]
        # What ranks have imported the next ones have from their servers.
        assert [rank["had"] for rank in ranks] == [attempt > 1] * 4
        executor = job.left(str(tmp_path / "wait.py"))
        agents = job.left("hpctrain.execute.agent")
        found.append({pid: held(pid) for pid in (*executor, *agents)})
        # What the last attempt has left may be ending.
        wait_until(lambda: len(job.left(*OF_STEP)) == 10, lambda: str(job.left(*OF_STEP)))
        (tmp_path / f"go-{attempt}").touch()
    assert job.end().split()[-1] == str(restarts + 1)
    # The same processes, with as many descriptors and hardly more memory.
    second, last = found[1], found[-1]
    assert len(second) == 3
    assert {pid: held[0] for pid, held in last.items()} == {
        pid: held[0] for pid, held in second.items()
    }
    for pid, (_, pages) in last.items():
        assert pages < second[pid][1] + 512
    assert _reasons(tmp_path / "run") == []


def test_the_end_of_a_step_is_that_of_its_forked_ranks(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    job = Job(tmp_path, virtual_slurm)
    (step,) = {rank["step"] for rank in job.ranks(1)}
    # Four ranks, their clients, and two servers.
    assert len(job.left(*OF_STEP)) == 10
    (executor,) = job.left(str(tmp_path / "wait.py"))
    # Neither the executor nor an agent ends them.
    os.kill(executor, signal.SIGSTOP)
    try:
        subprocess.run(["scancel", step], env=job.environ, check=True, timeout=60)
        wait_until(lambda: not job.left(*OF_STEP), lambda: f"left: {job.left(*OF_STEP)}")
    finally:
        os.kill(executor, signal.SIGCONT)
    assert "hpctrain.worker.fork_server" in job.ranks(2)[0]["parent"]
    assert job.end().split()[-1] == "2"


def test_why_a_server_of_a_step_does_not_serve_reaches_the_ledger_once(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").touch()
    (tmp_path / "go").touch()
    paths = filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])
    job = Job(tmp_path, virtual_slurm, PYTHONPATH=os.pathsep.join(paths))
    for rank in job.ranks(1):
        assert "hpctrain.worker.fork_server" not in rank["parent"]
    job.end()
    (reason,) = _reasons(tmp_path / "run")
    assert f"{tmp_path}/sitecustomize.py runs at the start of each interpreter" in reason


@pytest.fixture(scope="module")
def limited_slurm() -> Iterator[VirtualCluster]:
    """Provide a cluster that gives each task a cgroup of its own."""
    with cluster_with_limits() as cluster:
        yield cluster


def test_tasks_whose_cgroups_only_count_are_forked_within_the_limit_of_their_step(
    limited_slurm: VirtualCluster, tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    job = Job(tmp_path, limited_slurm)
    for rank in job.ranks(1):
        assert "hpctrain.worker.fork_server" in rank["parent"]
        assert f"/step_{rank['step'].partition('.')[2]}/task_" in rank["cgroup"]
    job.end()
    assert _reasons(tmp_path / "run") == []
