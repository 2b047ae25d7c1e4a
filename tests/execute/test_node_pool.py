"""Whether a run can go on without a node, and does when it is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpctrain.config import ScalingConfig, SlurmConfig
from hpctrain.errors import LaunchError, RunStoppedError
from hpctrain.execute import node_pool
from hpctrain.execute.node_pool import NodePool, make_node_pool
from hpctrain.plan.launch_plan import LaunchPlan, StepLauncher
from hpctrain.plan.resources import NodeShape, node_range, place_workers
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.run_record import RunRecord
from hpctrain.slurm import client
from tests.plans import make_plan


class Nodes:
    """Nodes that all live."""

    def __init__(self, count: int) -> None:
        self._names = [f"node{number}" for number in range(1, count + 1)]

    def usable(self) -> Mapping[str, bool]:
        return dict.fromkeys(self._names, False)

    def starts_a_process(self, node: str) -> bool:
        return True


def plan_of(launcher: str, workers: int | tuple[int, int], *, spare: int = 0) -> LaunchPlan:
    scaling = ScalingConfig(num_workers=workers, slurm=SlurmConfig(spare_nodes=spare))
    placement = place_workers(scaling, NodeShape(cpus=1, gpus=0))
    job_nodes = node_range(scaling, placement)
    return replace(make_plan(launcher), placement=placement, job_nodes=job_nodes)


def make_pool(workers: int | tuple[int, int], *, nodes: int, spare: int = 0) -> NodePool:
    """Return the pool of a run with a worker on each node."""
    plan = plan_of("slurm", workers, spare=spare)
    return NodePool(plan, source=Nodes(nodes), note=lambda event, **_: None)


class AwayNodes(Nodes):
    """Nodes of a controller that is away, and then answers."""

    def __init__(self, count: int, *, outages: int) -> None:
        super().__init__(count)
        self._outages = outages

    def usable(self) -> Mapping[str, bool]:
        if self._outages:
            self._outages -= 1
            raise LaunchError("Unable to contact slurm controller", transient=True)
        return super().usable()


def test_slurm_is_asked_again_for_the_first_nodes_while_its_controller_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "_RETRY_INTERVAL_S", 0.0)
    noted: list[str] = []
    plan = plan_of("slurm", (2, 3))
    pool = NodePool(
        plan, source=AwayNodes(3, outages=9), note=lambda event, **_: noted.append(event)
    )
    placement, _ = pool.place()
    assert placement.nodes == ("node1", "node2", "node3")
    # Each would count as a failed start without progress, of which five end a run.
    assert noted == []


def test_a_run_is_stopped_while_the_controller_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_RETRY_INTERVAL_S", 0.0)
    looks = iter(range(3))

    def check_stop() -> None:
        if next(looks) == 2:
            raise RunStoppedError("it was asked to stop")

    plan, nodes = plan_of("slurm", (2, 3)), AwayNodes(3, outages=9)
    pool = NodePool(plan, source=nodes, note=lambda event, **_: None, check_stop=check_stop)
    with pytest.raises(RunStoppedError):
        pool.place()


@pytest.mark.parametrize(
    ("workers", "spare", "left"), [(2, 1, ("node1", "node3")), ((2, 3), 0, ("node1", "node3"))]
)
def test_a_node_that_is_left_out_is_replaced_or_not(workers: Any, spare: int, left: Any) -> None:
    pool = make_pool(workers, nodes=3, spare=spare)
    placement, _ = pool.place()
    assert "node2" in placement.nodes
    assert pool.why_kept("node2") == ""
    pool.leave_out("node2", "it is slow")
    placement, idle = pool.place()
    assert (placement.nodes, idle) == (left, ())
    # Now it has what it needs, and no more.
    kept = "without it there is room for 1 of the 2 workers that the run needs"
    assert pool.why_kept("node3") == kept


def test_a_node_that_is_left_out_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make_pool((2, 3), nodes=3)
    pool.place()
    pool.leave_out("node2", "it is slow")
    pool.place()
    monkeypatch.setattr("hpctrain.execute.node_pool.time.monotonic", lambda: 1e12)
    for _ in range(3):
        assert not pool.can_grow()
        if pool._look is not None:
            pool._look.join()


def test_a_run_of_fixed_size_keeps_every_node() -> None:
    pool = make_pool(3, nodes=3)
    pool.place()
    assert "fixed size and no spare node" in pool.why_kept("node2")


def test_a_run_on_one_machine_keeps_it() -> None:
    assert NodePool(make_plan("local"), source=None, note=print).why_kept("here") == (
        "the run has no other node"
    )


@pytest.mark.parametrize(("job_id", "left_out"), [("7", ["node2"]), ("8", [])])
def test_what_an_executor_of_this_job_has_left_out_stays_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job_id: str, left_out: list[str]
) -> None:
    """In another job the node may have been repaired."""
    paths = RunPaths(tmp_path)
    RunRecord(paths).append("node-left-out", node="node2", reason="it is slow", job_id="7")
    monkeypatch.setenv("SLURM_JOB_ID", job_id)
    monkeypatch.setattr(node_pool, "SlurmNodes", lambda job_id, *, only: Nodes(3))
    pool = make_node_pool(plan_of("slurm", (2, 3)), paths, mpiexec=None, note=print)
    placement, _ = pool.place()
    assert [node for node in ("node1", "node2", "node3") if node not in placement.nodes] == left_out


def test_the_nodes_are_those_of_a_hostfile_where_there_is_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    plan = replace(plan_of("mpiexec", (2, 3)), node_slots={"gpu1": 1, "gpu3": 1})
    mpiexec = StepLauncher(program="mpiexec", kind="hydra")
    pool = make_node_pool(plan, RunPaths(tmp_path), mpiexec=mpiexec, note=print)
    placement, _ = pool.place()
    assert placement.nodes == ("gpu1", "gpu3")
