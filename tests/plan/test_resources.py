from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpctrain import ConfigError, ScalingConfig, SlurmConfig
from hpctrain.plan.gpus import SeenGpus, assign_gpus, check_gpus_of_ranks
from hpctrain.plan.resources import (
    NodeShape,
    make_placement,
    node_range,
    place_on_nodes,
    place_on_one_node,
    place_workers,
)


def place(
    num_workers: int, node: NodeShape | None = None, *, slurm=None, num_nodes=None, **fields
) -> tuple[int, ...]:
    scaling = ScalingConfig(num_workers=num_workers, slurm=SlurmConfig(**(slurm or {})), **fields)
    return place_workers(scaling, node or NodeShape(), num_nodes=num_nodes).tasks_per_node


@pytest.mark.parametrize(
    ("num_workers", "node", "slurm", "counts"),
    [
        (8, NodeShape(cpus=4), {}, (4, 4)),
        (5, NodeShape(cpus=4), {}, (3, 2)),
        (10, NodeShape(cpus=4), {}, (4, 3, 3)),
        (3, NodeShape(cpus=64), {}, (3,)),
        (8, NodeShape(cpus=64), {"nodes": 4}, (2, 2, 2, 2)),
        (6, NodeShape(cpus=64), {"nodes": 4}, (2, 2, 1, 1)),
        (8, NodeShape(), {"tasks_per_node": 2}, (2, 2, 2, 2)),
        (3, NodeShape(), {"tasks_per_node": 2}, (2, 1)),
        (3, NodeShape(), {"tasks_per_node": 4}, (3,)),
        (8, NodeShape(), {"nodes": 2, "tasks_per_node": 4}, (4, 4)),
        (5, NodeShape(), {"nodes": 2, "tasks_per_node": 4}, (3, 2)),
    ],
)
def test_workers_are_packed_on_as_few_nodes_as_hold_them(num_workers, node, slurm, counts):
    assert place(num_workers, node, slurm=slurm) == counts


def test_gpus_limit_how_many_workers_a_node_holds():
    node = NodeShape(cpus=64, gpus=4)
    assert place(8, node, use_gpu=True) == (4, 4)
    assert place(6, node, use_gpu=True) == (3, 3)
    assert place(4, node, use_gpu=True, resources_per_worker={"GPU": 2}) == (2, 2)


@pytest.mark.parametrize("strategy", ["SPREAD", "STRICT_SPREAD"])
def test_spread_is_one_worker_on_each_node(strategy: str):
    assert place(3, NodeShape(cpus=64), placement_strategy=strategy) == (1, 1, 1)


@pytest.mark.parametrize(
    ("slurm", "counts"),
    [({}, (2, 1, 1, 1)), ({"spare_nodes": 1}, (2, 2, 1)), ({"nodes": 2}, (3, 2))],
)
def test_spread_uses_all_nodes_where_there_are_fewer_than_workers(slurm, counts):
    assert place(5, placement_strategy="SPREAD", num_nodes=4, slurm=slurm) == counts


def test_strict_pack_is_one_node():
    assert place(8, NodeShape(cpus=8), placement_strategy="STRICT_PACK") == (8,)


def test_a_node_is_asked_for_what_the_fullest_one_needs():
    scaling = ScalingConfig(
        num_workers=5,
        use_gpu=True,
        resources_per_worker={"GPU": 2, "memory": 2**30},
        slurm=SlurmConfig(nodes=2),
    )
    placement = place_workers(scaling, NodeShape())
    assert (placement.num_workers, placement.num_nodes) == (5, 2)
    assert (placement.max_tasks_per_node, placement.is_even) == (3, False)
    assert (placement.gpus_per_node, placement.mem_mib_per_node) == (6, 3072)
    named = replace(placement, nodes=("a", "b"))
    assert [named.gpus_on(node) for node in ("a", "b", "spare")] == [6, 4, 6]


@pytest.mark.parametrize(
    ("num_workers", "node", "fields", "message"),
    [
        (
            1,
            NodeShape(),
            {"slurm": {"nodes": 2}},
            "num_workers=1 leaves some of 2 nodes empty. Use 2 workers or more, or change nodes.",
        ),
        (
            5,
            NodeShape(),
            {"placement_strategy": "STRICT_SPREAD", "slurm": {"nodes": 2}},
            "num_workers=5, but nodes=2 with tasks_per_node=1 is 2. Drop one of the three, or "
            "make them agree.",
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
            "num_workers=8, but the number of workers per node is unknown. Give "
            "SlurmConfig(nodes=...) or SlurmConfig(tasks_per_node=...), or a site profile with "
            "SlurmConfig(site=...).",
        ),
        (
            8,
            NodeShape(cpus=64),
            {"use_gpu": True},
            "num_workers=8, but the number of workers per node is unknown. Give "
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
            "resources_per_worker CPU=8, but a node has 4. A worker runs on one node: request "
            "less, or choose another partition or node type.",
        ),
        (
            1,
            NodeShape(cpus=64, gpus=4),
            {"use_gpu": True, "resources_per_worker": {"GPU": 8}},
            "resources_per_worker GPU=8, but a node has 4. A worker runs on one node: request "
            "less, or choose another partition or node type.",
        ),
        (
            8,
            NodeShape(cpus=4),
            {"slurm": {"nodes": 1}},
            "8 workers a node need 8 CPUs, but a node has 4. Use more nodes, or less CPU per "
            "worker.",
        ),
        (
            8,
            NodeShape(cpus=4),
            {"placement_strategy": "STRICT_PACK"},
            "8 workers a node need 8 CPUs, but a node has 4. Use placement_strategy='PACK', or "
            "less CPU per worker.",
        ),
        (
            8,
            NodeShape(cpus=64, gpus=4),
            {"use_gpu": True, "slurm": {"nodes": 1}},
            "8 workers a node need 8 GPUs, but a node has 4. Use more nodes, or less GPU per "
            "worker.",
        ),
        (
            8,
            NodeShape(cpus=64, mem_mib=4096),
            {"resources_per_worker": {"memory": 2**30}, "slurm": {"nodes": 1}},
            "8 workers a node need 8192 MiB of memory, but a node has 4096. Use more nodes, or "
            "less memory per worker.",
        ),
        (
            1,
            NodeShape(cpus=64, mem_mib=4096),
            {"resources_per_worker": {"memory": 2**33}},
            "resources_per_worker memory=8589934592, but a node has 4294967296. A worker runs on "
            "one node: request less, or choose another partition or node type.",
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


def test_workers_are_packed_as_densely_as_memory_allows():
    memory = {"memory": 3 * 2**30}
    assert place(8, NodeShape(cpus=64, mem_mib=10_000), resources_per_worker=memory) == (3, 3, 2)
    assert place(8, NodeShape(cpus=64, mem_mib=10_000)) == (8,)


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
    assert placement.tasks_per_node == (max(num_workers, 1),)


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


def test_a_node_without_gpus_is_refused_with_what_asks_for_them():
    with pytest.raises(ConfigError, match="use_gpu=True gives each worker 2 GPUs") as no:
        assign_gpus((), local_rank=0, local_world_size=2, gpus_per_worker=2)
    for named in ("GRES", "gpu_request=", "SlurmConfig(partition=...)", "use_gpu=False"):
        assert named in str(no.value)


@pytest.mark.parametrize("visible", [("0",), ("0", "1", "2")])
def test_too_few_visible_gpus_are_refused(visible: tuple[str, ...]):
    with pytest.raises(ConfigError, match=r"2 workers on this node with 2 GPUs each, but"):
        assign_gpus(visible, local_rank=0, local_world_size=2, gpus_per_worker=2)


def see(node: int, mask: str, *devices: str) -> SeenGpus:
    return SeenGpus(
        hostname=f"n{node}",
        node_rank=node,
        mask=f"CUDA_VISIBLE_DEVICES={mask}",
        visible=tuple(filter(None, mask.split(","))),
        devices=devices,
    )


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param([see(0, "0,1")] * 2 + [see(1, "0,1")] * 2, id="gpus-per-node"),
        pytest.param([see(0, "0"), see(0, "1"), see(1, "0")], id="gpus-per-task"),
        pytest.param([see(0, "0", "nvidia0"), see(0, "0", "nvidia1")], id="ConstrainDevices"),
        # Both see it as their first.
        pytest.param(
            [
                replace(see(0, "0"), mask="ROCR_VISIBLE_DEVICES=4"),
                replace(see(0, "0"), mask="ROCR_VISIBLE_DEVICES=5"),
            ],
            id="AMD",
        ),
    ],
)
def test_ranks_that_see_gpus_of_their_own_are_started(ranks: list[SeenGpus]):
    check_gpus_of_ranks(ranks, 1)
    check_gpus_of_ranks(ranks, 0)


@pytest.mark.parametrize(
    ("ranks", "each", "words"),
    [
        ([see(0, "0,1")] * 2 + [see(1, "0")] * 2, 1, "2 ranks on n1 need 2 GPUs, and see 1 "),
        ([see(0, "0", "nvidia0")] * 2, 1, "2 ranks on n0 need 2 GPUs, and see 1 "),
        ([see(0, "0"), see(1, "")], 1, "rank 1 on n1 needs 1 GPU, and sees 0 "),
        ([see(0, "0,1")] * 2, 2, "2 ranks on n0 need 4 GPUs, and see 2 "),
    ],
)
def test_ranks_that_would_share_a_gpu_are_refused(ranks: list[SeenGpus], each: int, words: str):
    with pytest.raises(ConfigError) as refused:
        check_gpus_of_ranks(ranks, each)
    assert words in str(refused.value)


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
    placement = place_on_nodes(full, dict.fromkeys(living, 9), fewest=6)
    if used is None:
        assert placement is None
    else:
        assert placement.nodes == tuple(used)
        assert placement.num_nodes == len(used)
        assert placement.tasks_per_node == (4,) * len(used)


def node_range_of(num_workers: Any, counts: tuple[int, ...], *, slots=(), spare: int = 0):
    scaling = ScalingConfig(num_workers=num_workers, slurm=SlurmConfig(spare_nodes=spare))
    return node_range(scaling, make_placement(scaling, counts), slots=slots)


@pytest.mark.parametrize(
    ("num_workers", "counts", "slots", "spare", "fewest_enough_most"),
    [
        (5, (3, 2), (), 0, (2, 2, 2)),
        (6, (2, 1, 1, 1, 1), (), 0, (5, 5, 5)),
        (5, (3, 2), (), 1, (3, 2, 3)),
        ((3, 5), (3, 2), (), 0, (1, 1, 2)),
        ((4, 5), (3, 2), (), 0, (2, 2, 2)),
        # An allocation: without the first node too few are left, without the last one not.
        ((3, 4), (3, 1), (3, 1), 0, (1, 1, 2)),
        ((7, 8), (4, 2, 2), (4, 2, 2), 0, (3, 3, 3)),
    ],
)
def test_what_a_run_on_unequal_nodes_can_do_without(
    num_workers, counts, slots, spare, fewest_enough_most
):
    nodes = node_range_of(num_workers, counts, slots=slots, spare=spare)
    assert (nodes.fewest, nodes.enough, nodes.most) == fewest_enough_most


@pytest.mark.parametrize(
    ("counts", "slots", "fewest", "left"),
    [
        # A spare node takes the place of any.
        ((3, 2), {"b": 3, "c": 3}, 5, {"b": 3, "c": 2}),
        # Of a smaller node less is asked, although it has the name of a larger one.
        ((3, 1), {"b": 1, "c": 3}, 4, {"b": 1, "c": 3}),
        # More nodes than at full size, where those that are left are small.
        ((4,), {"b": 2, "c": 2}, 4, {"b": 2, "c": 2}),
        ((3, 1), {"b": 1}, 1, {"b": 1}),
        ((3, 1), {"b": 1}, 2, None),
        ((3, 1), {}, 1, None),
        # Spread stays spread.
        ((2, 1, 1), {"a": 9, "b": 9, "c": 9}, 4, {"a": 2, "b": 1, "c": 1}),
    ],
)
def test_workers_go_where_the_nodes_that_are_left_have_room(counts, slots, fewest, left):
    full = make_placement(ScalingConfig(), counts)
    placement = place_on_nodes(full, slots, fewest=fewest)
    if left is None:
        assert placement is None
    else:
        assert dict(zip(placement.nodes, placement.tasks_per_node, strict=True)) == left
