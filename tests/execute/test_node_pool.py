"""Whether a run can go on without a node, and does when it is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from hpctrain.config import ScalingConfig, SlurmConfig
from hpctrain.execute.node_pool import NodePool
from hpctrain.plan.resources import NodeShape, node_range, place_workers
from tests.plans import make_plan


class Nodes:
    """Nodes that all live."""

    def __init__(self, count: int) -> None:
        self._names = [f"node{number}" for number in range(1, count + 1)]

    def usable(self) -> Mapping[str, bool]:
        return dict.fromkeys(self._names, False)

    def starts_a_process(self, node: str) -> bool:
        return True


def make_pool(workers: int | tuple[int, int], *, nodes: int, spare: int = 0) -> NodePool:
    """Return the pool of a run with a worker on each node."""
    scaling = ScalingConfig(num_workers=workers, slurm=SlurmConfig(spare_nodes=spare))
    placement = place_workers(scaling, NodeShape(cpus=1, gpus=0))
    plan: Any = make_plan("slurm")
    plan = replace(plan, placement=placement, job_nodes=node_range(scaling, placement))
    return NodePool(plan, source=Nodes(nodes), note=lambda event, **_: None)


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
