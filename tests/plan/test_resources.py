from __future__ import annotations

import pytest

from hpctrain import ConfigError, ScalingConfig, SlurmConfig
from hpctrain.plan.gpus import assign_gpus
from hpctrain.plan.resources import (
    NodeShape,
    node_range,
    place_on_nodes,
    place_on_one_node,
    place_workers,
)


def place(num_workers: int, node: NodeShape | None = None, *, slurm=None, **fields):
    scaling = ScalingConfig(num_workers=num_workers, slurm=SlurmConfig(**(slurm or {})), **fields)
    placement = place_workers(scaling, node or NodeShape())
    return placement.num_nodes, placement.tasks_per_node


@pytest.mark.parametrize(
    ("num_workers", "node", "slurm", "shape"),
    [
        (8, NodeShape(cpus=4), {}, (2, 4)),
        (3, NodeShape(cpus=64), {}, (1, 3)),
        (8, NodeShape(cpus=64), {"nodes": 4}, (4, 2)),
        (8, NodeShape(), {"tasks_per_node": 2}, (4, 2)),
        (8, NodeShape(), {"nodes": 2, "tasks_per_node": 4}, (2, 4)),
    ],
)
def test_workers_are_packed_on_as_few_nodes_as_hold_them(num_workers, node, slurm, shape):
    assert place(num_workers, node, slurm=slurm) == shape


def test_gpus_limit_how_many_workers_a_node_holds():
    node = NodeShape(cpus=64, gpus=4)
    assert place(8, node, use_gpu=True) == (2, 4)
    assert place(4, node, use_gpu=True, resources_per_worker={"GPU": 2}) == (2, 2)


@pytest.mark.parametrize("strategy", ["SPREAD", "STRICT_SPREAD"])
def test_spread_is_one_worker_on_each_node(strategy: str):
    assert place(3, NodeShape(cpus=64), placement_strategy=strategy) == (3, 1)


def test_strict_pack_is_one_node():
    assert place(8, NodeShape(cpus=8), placement_strategy="STRICT_PACK") == (1, 8)


@pytest.mark.parametrize(
    ("num_workers", "node", "fields", "message"),
    [
        (
            10,
            NodeShape(cpus=4),
            {},
            "num_workers=10 does not fill nodes of 4 workers. Use 8 or 12, or change "
            "tasks_per_node.",
        ),
        (
            3,
            NodeShape(),
            {"slurm": {"tasks_per_node": 4}},
            "num_workers=3 does not fill nodes of 4 workers. Use 4, or change tasks_per_node.",
        ),
        (
            10,
            NodeShape(),
            {"slurm": {"nodes": 4}},
            "num_workers=10 does not fill 4 nodes evenly. Use 8 or 12 workers, or change nodes.",
        ),
        (
            1,
            NodeShape(),
            {"slurm": {"nodes": 2}},
            "num_workers=1 does not fill 2 nodes evenly. Use 2 workers, or change nodes.",
        ),
        (
            8,
            NodeShape(),
            {"slurm": {"nodes": 2, "tasks_per_node": 2}},
            "num_workers=8, but nodes=2 with tasks_per_node=2 is 4. Drop one of the three, or "
            "make them agree.",
        ),
        (
            8,
            NodeShape(),
            {},
            "num_workers=8, and nothing says how many workers a node holds. Give "
            "SlurmConfig(nodes=...) or SlurmConfig(tasks_per_node=...), or a site profile with "
            "SlurmConfig(site=...).",
        ),
        (
            8,
            NodeShape(cpus=64),
            {"use_gpu": True},
            "num_workers=8, and nothing says how many workers a node holds. Give "
            "SlurmConfig(nodes=...) or SlurmConfig(tasks_per_node=...), or a site profile with "
            "SlurmConfig(site=...).",
        ),
        (
            4,
            NodeShape(cpus=64),
            {"placement_strategy": "STRICT_PACK", "slurm": {"nodes": 2}},
            "placement_strategy='STRICT_PACK' is one node, but nodes=2. Use 'PACK', or drop nodes.",
        ),
        (
            4,
            NodeShape(cpus=64),
            {"placement_strategy": "SPREAD", "slurm": {"tasks_per_node": 2}},
            "placement_strategy='SPREAD' is one worker a node, but tasks_per_node=2. Use 'PACK', "
            "or drop tasks_per_node.",
        ),
        (
            1,
            NodeShape(cpus=4),
            {"resources_per_worker": {"CPU": 8}},
            "resources_per_worker CPU=8, but a node has 4. A worker lives on one node: ask for "
            "less, or choose another partition or node type.",
        ),
        (
            1,
            NodeShape(cpus=64, gpus=4),
            {"use_gpu": True, "resources_per_worker": {"GPU": 8}},
            "resources_per_worker GPU=8, but a node has 4. A worker lives on one node: ask for "
            "less, or choose another partition or node type.",
        ),
        (
            8,
            NodeShape(cpus=4),
            {"slurm": {"nodes": 1}},
            "8 workers a node need 8 CPUs, but a node has 4. Use more nodes, or less CPU a worker.",
        ),
        (
            8,
            NodeShape(cpus=4),
            {"placement_strategy": "STRICT_PACK"},
            "8 workers a node need 8 CPUs, but a node has 4. Use placement_strategy='PACK', or "
            "less CPU a worker.",
        ),
        (
            8,
            NodeShape(cpus=64, gpus=4),
            {"use_gpu": True, "slurm": {"nodes": 1}},
            "8 workers a node need 8 GPUs, but a node has 4. Use more nodes, or less GPU a worker.",
        ),
        (
            0,
            NodeShape(cpus=4),
            {},
            "num_workers=0 runs in the interpreter that calls fit(), not on nodes. Use 1 or more.",
        ),
    ],
)
def test_a_request_that_fits_no_node_is_refused(num_workers, node, fields, message: str):
    with pytest.raises(ConfigError) as caught:
        place(num_workers, node, **fields)
    assert str(caught.value) == message


def test_a_worker_that_says_nothing_of_cpus_gets_those_of_its_gpus():
    node = NodeShape(cpus=56, gpus=8, cpus_per_gpu=7)
    silent = ScalingConfig(num_workers=4, use_gpu=True, resources_per_worker={"GPU": 2})
    said = ScalingConfig(num_workers=8, use_gpu=True, resources_per_worker={"CPU": 2})
    without = ScalingConfig(num_workers=8)
    assert place_workers(silent, node).cpus_per_task == 14
    assert place_workers(said, node).cpus_per_task == 2
    assert place_workers(without, node).cpus_per_task == 1
    # An allocation that was made with fewer.
    few = NodeShape(cpus=8, gpus=8, cpus_per_gpu=7)
    assert place_workers(silent, few).cpus_per_task == 2


@pytest.mark.parametrize(
    ("num_bytes", "mib"), [(2**20, 3), (2**20 + 1, 4), (1, 1), (1.5 * 2**30, 4608)]
)
def test_memory_of_a_node_is_rounded_up_to_mib(num_bytes: float, mib: int):
    scaling = ScalingConfig(
        num_workers=3, resources_per_worker={"memory": num_bytes}, slurm=SlurmConfig(nodes=1)
    )
    assert place_workers(scaling, NodeShape()).mem_mib_per_node == mib


def test_memory_is_left_to_the_site_where_nobody_asks():
    assert place_on_one_node(ScalingConfig(num_workers=4)).mem_mib_per_node is None


@pytest.mark.parametrize("num_workers", [0, 1, 4])
def test_without_a_job_all_workers_are_on_this_machine(num_workers: int):
    placement = place_on_one_node(ScalingConfig(num_workers=num_workers))
    assert (placement.num_nodes, placement.tasks_per_node) == (1, max(num_workers, 1))


@pytest.mark.parametrize(
    ("visible", "local_rank", "local_world_size", "each", "mine"),
    [
        ("0,1,2,3", 0, 4, 1, "0"),
        ("0,1,2,3", 3, 4, 1, "3"),
        ("0,1,2,3", 1, 2, 2, "2,3"),
        # The node has more than is asked for.
        ("0,1,2,3", 1, 2, 1, "1"),
        # A task that sees only its own.
        ("2", 1, 4, 1, "2"),
        ("0,1", 1, 4, 2, "0,1"),
        ("GPU-a,GPU-b", 1, 2, 1, "GPU-b"),
        ("0,1", 0, 2, 0, ""),
    ],
)
def test_each_worker_gets_its_block_of_the_visible_gpus(
    visible, local_rank, local_world_size, each, mine
):
    given = assign_gpus(
        tuple(visible.split(",")),
        local_rank=local_rank,
        local_world_size=local_world_size,
        gpus_per_worker=each,
    )
    assert ",".join(given) == mine


@pytest.mark.parametrize("visible", [(), ("0",), ("0", "1", "2")])
def test_too_few_visible_gpus_are_refused(visible: tuple[str, ...]):
    with pytest.raises(ConfigError, match=r"2 workers on this node with 2 GPUs each, but"):
        assign_gpus(visible, local_rank=0, local_world_size=2, gpus_per_worker=2)


ELASTIC = ScalingConfig(num_workers=(6, 16), slurm=SlurmConfig(tasks_per_node=4, spare_nodes=1))


def test_an_elastic_run_asks_for_what_it_needs_at_least_and_at_most():
    full = place_workers(ELASTIC, NodeShape())
    nodes = node_range(ELASTIC, full)
    assert (full.num_nodes, full.num_workers) == (4, 16)
    assert (nodes.fewest, nodes.enough, nodes.most, str(nodes)) == (2, 2, 5, "2-5")
    assert nodes.survives_loss


def test_a_fixed_run_survives_the_loss_of_a_node_only_with_a_spare_one():
    for spare in (0, 1):
        scaling = ScalingConfig(num_workers=4, slurm=SlurmConfig(nodes=2, spare_nodes=spare))
        nodes = node_range(scaling, place_workers(scaling, NodeShape()))
        assert (nodes.enough, nodes.most, str(nodes)) == (2, 2 + spare, str(2 + spare))
        assert nodes.survives_loss == (spare == 1)


@pytest.mark.parametrize(
    ("living", "used"),
    [
        (["a", "b", "c", "d", "e"], ["a", "b", "c", "d"]),
        (["a", "c", "d", "e"], ["a", "c", "d", "e"]),
        (["a", "d", "e"], ["a", "d", "e"]),
        (["b", "e"], ["b", "e"]),
        (["e"], None),
    ],
)
def test_workers_fill_the_living_nodes_and_spare_ones_only_when_needed(living, used):
    full = place_workers(ELASTIC, NodeShape())
    placement = place_on_nodes(full, living, enough=2)
    if used is None:
        assert placement is None
    else:
        assert placement.nodes == tuple(used)
        assert placement.num_nodes == len(used)
        assert placement.num_workers == 4 * len(used)
        assert placement.tasks_per_node == 4
