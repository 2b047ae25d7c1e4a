"""A node loses its power while a run is on it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from hpctrain.testing.slurm import VirtualCluster

pytestmark = pytest.mark.slurm

MakeCluster = Callable[..., VirtualCluster]
StartRun = Callable[..., Any]

OPEN_MPI = shutil.which("mpiexec.openmpi")

# What most sites have: within the time of a test Slurm itself does not notice that a node is dead.
SITE = {"slurmd_timeout_s": 300}


@pytest.mark.matrix("lost node")
def test_a_run_shrinks_from_four_nodes_to_three_and_sees_every_row_once_an_epoch(
    make_cluster: MakeCluster, start_run: StartRun
):
    cluster = make_cluster(**SITE)
    run = start_run(cluster, (2, 4), tasks_per_node=1)
    run.wait_for_epoch(1)
    cluster.power_off("node3")
    result = run.finish()
    assert len(result.job_ids) == 1
    assert [(e["node"], e["reason"]) for e in run.events("node-lost")] == [("node3", "silent")]
    first, *_, last = run.diary
    assert sorted(first["nodes"]) == ["node1", "node2", "node3", "node4"]
    assert sorted(last["nodes"]) == ["node1", "node2", "node4"]
    run.check_that_every_row_was_seen_once_an_epoch(6)


def test_a_node_that_slurm_itself_says_is_down_is_not_used_again(
    make_cluster: MakeCluster, start_run: StartRun
):
    cluster = make_cluster(slurmd_timeout_s=5)
    run = start_run(cluster, (2, 3), tasks_per_node=1)
    run.wait_for_epoch(1)
    cluster.run_on("head", ["scontrol", "update", "nodename=node2", "state=down", "reason=test"])
    result = run.finish()
    assert len(result.job_ids) == 1
    assert [e["node"] for e in run.events("node-lost")] == ["node2"]
    assert sorted(run.diary[-1]["nodes"]) == ["node1", "node3"]
    run.check_that_every_row_was_seen_once_an_epoch(6)


def test_a_run_with_a_spare_node_goes_on_at_full_size(
    make_cluster: MakeCluster, start_run: StartRun
):
    cluster = make_cluster(num_nodes=3, **SITE)
    run = start_run(cluster, 2, nodes=2, spare_nodes=1)
    run.wait_for_epoch(1)
    cluster.power_off("node2")
    result = run.finish()
    assert len(result.job_ids) == 1
    assert sorted(run.diary[0]["nodes"]) == ["node1", "node2"]
    assert sorted(run.diary[-1]["nodes"]) == ["node1", "node3"]
    run.check_that_every_row_was_seen_once_an_epoch(6)
    restart = "node node2 is lost: silent; restart 1 from checkpoint "
    assert result.status.last_restart.startswith(restart)
    history = run.history()
    assert history.startswith("run: finished, 2 attempts, 1 restart, 1 job ")
    assert "ended node node2 is lost: silent " in history
    assert result.status.last_restart in history
    assert "nodes node[1-2] from the beginning" in history
    assert "nodes node[1,3] from checkpoint" in history


def test_a_run_grows_again_when_a_node_is_back(make_cluster: MakeCluster, start_run: StartRun):
    cluster = make_cluster(num_nodes=3, **SITE)
    run = start_run(
        cluster,
        (4, 6),
        epochs=30,
        epoch_s=0.4,
        asks=True,
        preload=("hpctrain.worker.main", "numpy"),
        tasks_per_node=2,
    )
    run.wait_for_epoch(1)
    cluster.unplug("node2")
    run.wait("the run is smaller", lambda: run.diary[-1]["attempt"] == 2)
    cluster.plug("node2")
    result = run.finish()
    assert len(result.job_ids) == 1
    assert [e["nodes"] for e in run.events("nodes-back")] == [["node2"]]
    sizes = list(dict.fromkeys((e["attempt"], len(e["nodes"])) for e in run.diary))
    assert sizes == [(1, 6), (2, 4), (3, 6)]
    # The ranks of each attempt have imported once a node.
    assert all(all(entry["forked"]) for entry in run.diary)
    assert run.events("not-forked") == []
    # Those of the larger group have waited for the smaller one to leave.
    last = next(entry for entry in reversed(run.diary) if entry["attempt"] == 2)
    first = next(entry for entry in run.diary if entry["attempt"] == 3)
    assert max(first["born"]) < max(last["now"])
    # Ranks that ask should_stop() lose nothing when the run grows.
    ended = {e["attempt"]: e["reports"] for e in run.events("attempt-ended")}
    began = {e["attempt"]: e["first_report"] for e in run.events("attempt-started")}
    assert began[3] == ended[2]
    run.check_that_every_row_was_seen_once_an_epoch(30)


@pytest.mark.skipif(
    OPEN_MPI is None, reason="no mpiexec.openmpi on PATH: apt-get install openmpi-bin"
)
def test_a_run_grows_again_where_the_mpiexec_of_open_mpi_starts_its_ranks(
    make_cluster: MakeCluster, start_run: StartRun, monkeypatch: pytest.MonkeyPatch
):
    # The wheel in this environment would be loaded before the site's library.
    monkeypatch.setenv("MPI4PY_LIBMPI", "libmpi.so.40")
    cluster = make_cluster(num_nodes=3, **SITE)
    run = start_run(
        cluster, (4, 6), epochs=30, epoch_s=0.4, asks=True, tasks_per_node=2, mpi=OPEN_MPI
    )
    run.wait_for_epoch(1)
    cluster.unplug("node2")
    run.wait("the run is smaller", lambda: run.diary[-1]["attempt"] == 2)
    cluster.plug("node2")
    result = run.finish()
    assert len(result.job_ids) == 1
    assert [e["nodes"] for e in run.events("nodes-back")] == [["node2"]]
    sizes = list(dict.fromkeys((e["attempt"], len(e["nodes"])) for e in run.diary))
    assert sizes == [(1, 6), (2, 4), (3, 6)]
    # Only srun starts ranks that wait: those of the larger group come when the others have left.
    last = next(entry for entry in reversed(run.diary) if entry["attempt"] == 2)
    first = next(entry for entry in run.diary if entry["attempt"] == 3)
    assert min(first["born"]) > max(last["now"])
    # Ranks that ask should_stop() lose nothing when the run grows.
    ended = {e["attempt"]: e["reports"] for e in run.events("attempt-ended")}
    began = {e["attempt"]: e["first_report"] for e in run.events("attempt-started")}
    assert began[3] == ended[2]
    run.check_that_every_row_was_seen_once_an_epoch(30)


def test_a_run_trains_on_where_a_node_is_lost_again_before_its_ranks_wait(
    make_cluster: MakeCluster, start_run: StartRun
):
    cluster = make_cluster(num_nodes=3, **SITE)
    run = start_run(cluster, (2, 3), epochs=200, epoch_s=0.4, asks=True, tasks_per_node=1)
    run.wait_for_epoch(1)
    cluster.unplug("node2")
    run.wait("the run is smaller", lambda: run.diary[-1]["attempt"] == 2)
    cluster.plug("node2")
    run.wait("the node is back", lambda: run.events("nodes-back"))
    cluster.unplug("node2")
    run.wait("the node is lost again", lambda: len(run.events("node-lost")) == 2)
    assert run.events("node-lost")[1]["reason"] == "no agent has come from there"
    # Nobody was asked to leave.
    epoch = run.diary[-1]["epoch"]
    run.wait_for_epoch(epoch + 2)
    assert run.diary[-1]["attempt"] == 2
    cluster.plug("node2")
    run.wait("the run grows", lambda: run.diary[-1]["attempt"] == 3)
    assert len(run.diary[-1]["nodes"]) == 3


def test_a_node_that_cannot_be_used_is_left_out(make_cluster: MakeCluster, start_run: StartRun):
    cluster = make_cluster(num_nodes=3)
    full = cluster.run_on("node2", ["mount", "-t", "tmpfs", "-o", "size=64k", "full", "/dev/shm"])
    assert full.returncode == 0, full.stderr
    run = start_run(cluster, (2, 3), epochs=3, epoch_s=0.1, tasks_per_node=1)
    result = run.finish()
    assert len(result.job_ids) == 1
    assert [event["node"] for event in run.events("node-bad")] == ["node2"]
    assert sorted(run.diary[-1]["nodes"]) == ["node1", "node3"]


def test_a_run_whose_job_slurm_has_queued_again_is_shown_as_submitted(
    make_cluster: MakeCluster, start_run: StartRun
):
    def shown(*words: str) -> str:
        argv = [sys.executable, "-m", "hpctrain.cli", *words, str(run.path)]
        environ = {**os.environ, **cluster.environ}
        return subprocess.run(argv, env=environ, capture_output=True, text=True, check=True).stdout

    def view() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(shown("status", "--json"))
        return found

    cluster = make_cluster(num_nodes=1, **SITE)
    run = start_run(cluster, 1, epochs=1000)
    run.wait_for_epoch(0)
    assert (view()["state"], view()["job_state"]) == ("running", "RUNNING")
    # No process of the run writes anything more, and there is no other node.
    cluster.power_off("node1")
    cluster.run_on("head", ["scontrol", "update", "nodename=node1", "state=down", "reason=test"])
    run.wait("the job is queued again", lambda: view()["job_state"] == "PENDING")
    seen = view()
    assert (seen["state"], seen["live"], seen["phase"]) == ("submitted", True, "")
    assert shown("status").startswith("run: submitted\n")
    # Slurm gives its reason when it has looked for nodes.
    run.wait("Slurm says why", lambda: "\n  queue       waits (" in shown("status"))
    assert shown("top", "--once").startswith("run: submitted")


def test_a_run_of_fixed_size_leaves_its_job_before_slurm_knows(
    make_cluster: MakeCluster, start_run: StartRun
):
    # Slurm queues the job again only when it knows of all its nodes that they are free or down.
    cluster = make_cluster(num_nodes=3, slurmd_timeout_s=20)
    run = start_run(cluster, 2, nodes=2, epochs=3)
    run.wait_for_epoch(0)
    cluster.power_off("node2")
    result = run.finish()
    assert len(run.events("requeued")) == 1
    assert [a.cause.split(":")[0] for a in result.attempts] == ["NodeLostError", "finished"]
    assert sorted(run.diary[-1]["nodes"]) == ["node1", "node3"]
    run.check_that_every_row_was_seen_once_an_epoch(3)
