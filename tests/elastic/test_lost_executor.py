"""The node of the executor loses its power."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain.execute import lease
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, write_status
from hpctrain.testing.slurm import VirtualCluster
from tests.waiting import wait_until

MakeCluster = Callable[..., VirtualCluster]
StartRun = Callable[..., Any]


@pytest.mark.slurm
@pytest.mark.parametrize(
    ("workers", "slurm", "finder"),
    [
        ((2, 3), {"tasks_per_node": 1}, "node"),
        # The spare node has no worker, but an agent. In CI the chaos suite has such a job.
        pytest.param(2, {"nodes": 1, "spare_nodes": 1}, "node2", marks=pytest.mark.long),
    ],
)
def test_an_agent_on_another_node_lets_the_run_go_on(
    make_cluster: MakeCluster, start_run: StartRun, workers: Any, slurm: Any, finder: str
):
    cluster = make_cluster(slurmd_timeout_s=5)
    run = start_run(cluster, workers, epochs=8, **slurm)
    run.wait_for_epoch(1)
    cluster.power_off("node1")
    result = run.finish()
    (found,) = run.events("executor-lost")
    assert found["host"] == "node1"
    assert found["found_by"].startswith(finder)
    assert len(result.attempts) == 2
    assert "node1" not in run.diary[-1]["nodes"]
    assert len(run.diary[-1]["nodes"]) == len(run.diary[0]["nodes"])
    run.check_that_every_row_was_seen_once_an_epoch(8)


@pytest.mark.slurm
def test_a_run_whose_executor_s_node_is_booted_again_at_once_goes_on(
    make_cluster: MakeCluster, start_run: StartRun
):
    cluster = make_cluster(slurmd_timeout_s=5)
    run = start_run(cluster, (2, 3), epochs=6, tasks_per_node=1)
    run.wait_for_epoch(1)
    cluster.power_off("node1")
    cluster.power_on("node1")
    # Slurm or an agent sees to it, whoever notices first.
    result = run.finish()
    assert len(result.attempts) == 2
    run.check_that_every_row_was_seen_once_an_epoch(6)


# In CI the chaos suite has a job of fixed size whose executor's node goes.
@pytest.mark.long
@pytest.mark.slurm
def test_slurm_itself_queues_a_run_of_fixed_size_again(
    make_cluster: MakeCluster, start_run: StartRun
):
    cluster = make_cluster(num_nodes=3, slurmd_timeout_s=5)
    run = start_run(cluster, 2, nodes=2)
    run.wait_for_epoch(1)
    cluster.power_off("node1")
    result = run.finish()
    assert run.events("executor-lost") == []
    assert len(result.attempts) == 2
    assert sorted(run.diary[-1]["nodes"]) == ["node2", "node3"]
    run.check_that_every_row_was_seen_once_an_epoch(6)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path)
    write_status(paths, RunStatus(name="run", state=RunState.RUNNING, launcher="slurm", attempt=3))
    return paths


@pytest.fixture
def acted(monkeypatch: pytest.MonkeyPatch) -> list[RunPaths]:
    calls: list[RunPaths] = []
    monkeypatch.setattr(lease, "_continue_elsewhere", calls.append)
    monkeypatch.setattr(lease, "_LOOK_INTERVAL_S", 0.05)
    monkeypatch.setattr(lease, "_PAUSES_S", (0.05,))
    return calls


# An address of TEST-NET-1 (RFC 5737) belongs to nobody.
NOBODY = ("192.0.2.1", 9)


class Looks:
    """Counts how often agents have read the status of the run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count = 0
        read_status = lease.read_status

        def look(paths: RunPaths) -> RunStatus | None:
            found = read_status(paths)
            self._count += 1
            return found

        monkeypatch.setattr(lease, "read_status", look)

    def wait_for(self, count: int) -> None:
        wait_until(lambda: self._count >= count, f"look {count} of an agent")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "is_reachable", lambda _: False)


def test_of_several_agents_one_acts(paths: RunPaths, acted: list[RunPaths], monkeypatch):
    unreachable(monkeypatch)
    agents = [
        threading.Thread(target=lease.take_over, args=(paths.root, NOBODY), kwargs=LEASE)
        for _ in range(4)
    ]
    for agent in agents:
        agent.start()
    for agent in agents:
        agent.join()
    assert acted == [paths]
    (event,) = read_events(paths)
    assert (event["event"], event["attempt"]) == ("executor-lost", 3)


LEASE = {"lease_s": 0.3}


def test_a_run_that_somebody_else_looks_after_is_left_alone(
    paths: RunPaths, acted: list[RunPaths], looks: Looks, monkeypatch
):
    unreachable(monkeypatch)
    agent = threading.Thread(
        target=lease.take_over, args=(paths.root, NOBODY), kwargs={"lease_s": 5.0}
    )
    agent.start()
    looks.wait_for(1)
    write_status(paths, RunStatus(name="run", state=RunState.RUNNING, launcher="slurm", attempt=4))
    agent.join()
    assert acted == []


@pytest.fixture
def refusing() -> Iterator[Any]:
    """Return an address of this machine at which nobody listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield unused.getsockname()


def test_on_a_node_that_answers_the_executor_has_time_to_be_started_again(
    paths: RunPaths, acted, refusing, looks: Looks
):
    assert lease.is_reachable(refusing)
    agent = threading.Thread(target=lease.take_over, args=(paths.root, refusing), kwargs=LEASE)
    agent.start()
    # It sleeps before each further look: so the lease has ended long ago.
    looks.wait_for(2 + round(2 * LEASE["lease_s"] / lease._LOOK_INTERVAL_S))
    assert agent.is_alive()
    write_status(paths, RunStatus(name="run", state=RunState.STARTING, launcher="slurm", attempt=3))
    agent.join(10)
    assert not agent.is_alive()
    assert acted == []


def test_a_node_that_was_booted_again_has_lost_its_executor(
    paths: RunPaths, acted, refusing, monkeypatch
):
    monkeypatch.setattr("hpctrain.timeouts.EXECUTOR_RESTART_S", 0.6)
    lease.take_over(paths.root, refusing, **LEASE)
    assert acted == [paths]


def test_a_run_that_is_over_needs_no_executor(paths: RunPaths, acted, monkeypatch):
    unreachable(monkeypatch)
    write_status(paths, RunStatus(name="run", state=RunState.FINISHED, launcher="slurm", attempt=3))
    lease.take_over(paths.root, NOBODY, **LEASE)
    assert acted == []
