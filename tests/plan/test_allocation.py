from __future__ import annotations

from typing import Any

import pytest

from hpctrain import ConfigError, ScalingConfig, SlurmConfig
from hpctrain.plan.allocation import AllocatedNode, place_in_allocation


def nodes(
    cpus: tuple[int, ...] | None = None,
    tasks: tuple[int, ...] | None = None,
    gpus: tuple[int, ...] | None = None,
    number: int = 2,
) -> dict[str, AllocatedNode]:
    """Return an allocation with these numbers for its nodes, which are n1, n2 and so on."""
    number = next((len(given) for given in (cpus, tasks, gpus) if given), number)
    unknown = (None,) * number
    return {
        f"n{index}": AllocatedNode(cpus=on_node[0], tasks=on_node[1], gpus=on_node[2])
        for index, on_node in enumerate(
            zip(cpus or unknown, tasks or unknown, gpus or unknown, strict=True), 1
        )
    }


def scaling(num_workers: Any, *, slurm: dict[str, Any] | None = None, **fields: Any):
    return ScalingConfig(num_workers=num_workers, slurm=SlurmConfig(**(slurm or {})), **fields)


TWO_BY_FOUR = nodes(cpus=(4, 4), tasks=(4, 4))
WITHOUT_TASKS = nodes(cpus=(4, 4))
GPUS = {"use_gpu": True}
TWO_CPUS = {"resources_per_worker": {"CPU": 2}}


@pytest.mark.parametrize(
    ("num_workers", "allocation", "fields", "counts"),
    [
        # salloc -N2 -n4, 4 CPUs a node: what srun would start.
        (4, nodes(cpus=(3, 1), tasks=(3, 1)), {}, {"n1": 3, "n2": 1}),
        (3, nodes(cpus=(3, 1), tasks=(3, 1)), {}, {"n1": 3}),
        (1, nodes(cpus=(3, 1), tasks=(3, 1)), {}, {"n1": 1}),
        (4, nodes(cpus=(1, 3), tasks=(1, 3)), {}, {"n1": 1, "n2": 3}),
        # salloc -N4 --ntasks-per-node=1
        (1, nodes(cpus=(1,) * 4, tasks=(1,) * 4), {}, {"n1": 1}),
        (3, nodes(cpus=(1,) * 4, tasks=(1,) * 4), {}, {"n1": 1, "n2": 1, "n3": 1}),
        # salloc -N2 --ntasks-per-node=4
        (2, TWO_BY_FOUR, {}, {"n1": 2}),
        (5, TWO_BY_FOUR, {}, {"n1": 3, "n2": 2}),
        # salloc -n5, without the number of nodes.
        (5, nodes(cpus=(4, 1), tasks=(4, 1)), {}, {"n1": 4, "n2": 1}),
        # salloc -N2 -n5 --exclusive: the tasks, although the CPUs would do for more on the first.
        (5, nodes(cpus=(4, 4), tasks=(3, 2)), {}, {"n1": 3, "n2": 2}),
        # salloc -N2 --exclusive: nobody has said how many tasks there are.
        (2, WITHOUT_TASKS, {}, {"n1": 2}),
        (5, WITHOUT_TASKS, {}, {"n1": 3, "n2": 2}),
        # salloc -N2 --ntasks-per-node=1 -c4: more workers than tasks, and CPUs for them.
        (2, nodes(cpus=(4, 4), tasks=(1, 1)), {}, {"n1": 1, "n2": 1}),
        (3, nodes(cpus=(4, 4), tasks=(1, 1)), {}, {"n1": 3}),
        (6, nodes(cpus=(4, 4), tasks=(1, 1)), {}, {"n1": 3, "n2": 3}),
        # Workers with more CPUs than tasks.
        (3, nodes(cpus=(4, 2), tasks=(4, 2)), TWO_CPUS, {"n1": 2, "n2": 1}),
        (2, nodes(cpus=(4, 4), tasks=(2, 2)), TWO_CPUS, {"n1": 2}),
        (2, nodes(cpus=(1, 5), tasks=(1, 5)), TWO_CPUS, {"n2": 2}),
        # Nodes of unlike kinds.
        (60, nodes(cpus=(64, 16)), {}, {"n1": 60}),
        (70, nodes(cpus=(64, 16)), {}, {"n1": 54, "n2": 16}),
        (4, nodes(cpus=(8, 8), gpus=(3, 1)), GPUS, {"n1": 3, "n2": 1}),
        (2, nodes(cpus=(8, 8), gpus=(1, 4)), GPUS, {"n2": 2}),
        (3, nodes(cpus=(8, 8), gpus=(4, 0)), GPUS, {"n1": 3}),
        (
            3,
            nodes(cpus=(8, 8), gpus=(4, 2)),
            {**GPUS, "resources_per_worker": {"GPU": 2}},
            {"n1": 2, "n2": 1},
        ),
        # GPUs that nobody counts, CPUs of which nothing is known: as few on each as possible.
        (4, nodes(cpus=(8, 8)), GPUS, {"n1": 2, "n2": 2}),
        (3, nodes(), {}, {"n1": 2, "n2": 1}),
        (3, nodes(), {"placement_strategy": "STRICT_PACK"}, {"n1": 3}),
        # What the user says of nodes.
        (4, TWO_BY_FOUR, {"slurm": {"nodes": 2}}, {"n1": 2, "n2": 2}),
        (3, TWO_BY_FOUR, {"slurm": {"nodes": 1}}, {"n1": 3}),
        (4, TWO_BY_FOUR, {"slurm": {"tasks_per_node": 3}}, {"n1": 2, "n2": 2}),
        (2, TWO_BY_FOUR, {"slurm": {"tasks_per_node": 1}}, {"n1": 1, "n2": 1}),
        (4, nodes(cpus=(4, 2, 3)), {"slurm": {"nodes": 2}}, {"n1": 2, "n3": 2}),
        # The strategies of Ray Train: spread as far as there are nodes, or strictly.
        (2, TWO_BY_FOUR, {"placement_strategy": "SPREAD"}, {"n1": 1, "n2": 1}),
        (5, TWO_BY_FOUR, {"placement_strategy": "SPREAD"}, {"n1": 3, "n2": 2}),
        (3, nodes(cpus=(3, 1)), {"placement_strategy": "SPREAD"}, {"n1": 2, "n2": 1}),
        (1, TWO_BY_FOUR, {"placement_strategy": "SPREAD"}, {"n1": 1}),
        (2, TWO_BY_FOUR, {"placement_strategy": "STRICT_SPREAD"}, {"n1": 1, "n2": 1}),
        (3, nodes(cpus=(1, 4)), {"placement_strategy": "STRICT_PACK"}, {"n2": 3}),
        (4, nodes((4, 4), tasks=(2, 2)), {"placement_strategy": "STRICT_PACK"}, {"n1": 4}),
        # Spare nodes: the smallest, and of equal ones the last.
        (4, nodes(cpus=(4, 4, 4)), {"slurm": {"spare_nodes": 1}}, {"n1": 4}),
        (6, nodes(cpus=(4, 4, 4)), {"slurm": {"spare_nodes": 1}}, {"n1": 3, "n2": 3}),
        (3, nodes(cpus=(1, 3)), {"slurm": {"spare_nodes": 1}}, {"n2": 3}),
        (
            4,
            nodes(cpus=(4, 4, 4)),
            {"slurm": {"spare_nodes": 1}, "placement_strategy": "SPREAD"},
            {"n1": 2, "n2": 2},
        ),
        # Elastic runs have as many as there is room for.
        ((2, 7), TWO_BY_FOUR, {}, {"n1": 4, "n2": 3}),
        ((2, 9), TWO_BY_FOUR, {}, {"n1": 4, "n2": 4}),
        ((2, 9), nodes(cpus=(3, 1), tasks=(3, 1)), {}, {"n1": 3, "n2": 1}),
        ((2, 8), nodes(cpus=(4, 4), tasks=(1, 1)), {}, {"n1": 4, "n2": 4}),
    ],
)
def test_workers_go_where_an_allocation_has_room_for_them(num_workers, allocation, fields, counts):
    placement, _ = place_in_allocation(scaling(num_workers, **fields), allocation)
    names = placement.nodes or tuple(allocation)
    assert dict(zip(names, placement.tasks_per_node, strict=True)) == counts


def test_nodes_are_named_unless_all_of_them_get_the_same():
    for num_workers, names in ((8, ()), (6, ()), (5, ("n1", "n2")), (4, ("n1",))):
        assert place_in_allocation(scaling(num_workers), TWO_BY_FOUR)[0].nodes == names


@pytest.mark.parametrize(
    ("num_workers", "allocation", "fields", "shares"),
    [
        (4, nodes(cpus=(3, 1), tasks=(3, 1)), {}, True),
        (5, TWO_BY_FOUR, {}, True),
        (3, nodes(cpus=(4, 2)), TWO_CPUS, True),
        # By its CPUs alone srun would put two workers on each.
        (4, nodes(cpus=(8, 8), gpus=(3, 1)), GPUS, False),
        (4, nodes(cpus=(4, 4), tasks=(3, 1)), {}, False),
        (3, nodes(), {}, False),
    ],
)
def test_it_is_known_whether_srun_itself_would_come_to_the_same(
    num_workers, allocation, fields, shares
):
    placement, _ = place_in_allocation(scaling(num_workers, **fields), allocation)
    assert placement.srun_shares_out == shares


def test_how_many_workers_each_node_holds_is_kept_for_the_loss_of_another():
    allocation = nodes(cpus=(4, 2, 4), tasks=(4, 2, 4))
    placement, slots = place_in_allocation(scaling((1, 4)), allocation)
    assert (placement.nodes, placement.tasks_per_node) == (("n1",), (4,))
    assert slots == {"n1": 4, "n2": 2, "n3": 4}


def test_a_worker_that_says_nothing_of_cpus_gets_those_of_its_gpus_on_every_node():
    allocation = nodes(cpus=(24, 6), gpus=(3, 1))
    for cpus_per_gpu, expected in ((7, 6), (4, 4), (None, 1)):
        request = scaling(4, use_gpu=True)
        placement, _ = place_in_allocation(request, allocation, cpus_per_gpu=cpus_per_gpu)
        assert (placement.tasks_per_node, placement.cpus_per_task) == ((3, 1), expected)
    said = scaling(4, use_gpu=True, resources_per_worker={"CPU": 2})
    assert place_in_allocation(said, allocation, cpus_per_gpu=7)[0].cpus_per_task == 2


def test_a_node_holds_no_more_workers_than_it_has_memory_for():
    with_memory = {
        f"n{n}": AllocatedNode(cpus=16, tasks=16, mem_mib=16384 * n) for n in range(1, 3)
    }
    memory = {"resources_per_worker": {"memory": 8 * 2**30}}
    placement, slots = place_in_allocation(scaling(6, **memory), with_memory)
    assert (placement.tasks_per_node, slots) == ((2, 4), {"n1": 2, "n2": 4})
    assert placement.srun_shares_out is False
    message = "num_workers=7 with 1 CPU and 8192 MiB of memory each: .* hold 2,4 of them"
    with pytest.raises(ConfigError, match=message):
        place_in_allocation(scaling(7, **memory), with_memory)


@pytest.mark.parametrize(
    ("num_workers", "allocation", "fields", "message"),
    [
        (
            5,
            nodes(cpus=(3, 1), tasks=(3, 1)),
            {},
            "num_workers=5 with 1 CPU each: the nodes of this allocation hold 3,1 of them. Use "
            "num_workers=4 or less, or make a larger allocation.",
        ),
        (
            (9, 12),
            TWO_BY_FOUR,
            {},
            "num_workers=(9, 12) with 1 CPU each: the nodes of this allocation hold 4(x2) of "
            "them. Use num_workers=8 or less, or make a larger allocation.",
        ),
        (
            3,
            nodes(cpus=(3, 1)),
            TWO_CPUS,
            "num_workers=3 with 2 CPU each: the nodes of this allocation hold 1,0 of them. Use "
            "num_workers=1 or less, or make a larger allocation.",
        ),
        (
            1,
            nodes(cpus=(1, 1)),
            TWO_CPUS,
            "num_workers=1 with 2 CPU each: the nodes of this allocation hold 0(x2) of them. "
            "Request less per worker, or make a larger allocation.",
        ),
        (
            4,
            nodes(cpus=(8, 8), gpus=(2, 1)),
            GPUS,
            "num_workers=4 with 1 CPU and 1 GPU each: the nodes of this allocation hold 2,1 of "
            "them. Use num_workers=3 or less, or make a larger allocation.",
        ),
        (
            5,
            TWO_BY_FOUR,
            {"placement_strategy": "STRICT_PACK"},
            "num_workers=5 with 1 CPU each and placement_strategy='STRICT_PACK': the nodes of "
            "this allocation hold 4,0 of them. Use num_workers=4 or less, or make a larger "
            "allocation.",
        ),
        (
            3,
            TWO_BY_FOUR,
            {"placement_strategy": "STRICT_SPREAD"},
            "num_workers=3 with 1 CPU each and placement_strategy='STRICT_SPREAD': the nodes of "
            "this allocation hold 1(x2) of them. Use num_workers=2 or less, or make a larger "
            "allocation.",
        ),
        (
            5,
            TWO_BY_FOUR,
            {"slurm": {"spare_nodes": 1}},
            "num_workers=5 with 1 CPU each: the nodes of this allocation hold 4,0 of them besides "
            "the spare ones. Use num_workers=4 or less, or make a larger allocation.",
        ),
        (
            2,
            TWO_BY_FOUR,
            {"slurm": {"spare_nodes": 2}},
            "num_workers=2 needs 3 nodes with the spare ones, but this allocation has 2. "
            "Request a larger one, or fewer nodes.",
        ),
        (
            4,
            TWO_BY_FOUR,
            {"slurm": {"nodes": 3}},
            "num_workers=4 needs 3 nodes, but this allocation has 2. Request a larger one, or"
            " fewer nodes.",
        ),
        (
            1,
            TWO_BY_FOUR,
            {"slurm": {"nodes": 2}},
            "num_workers=1 leaves some of 2 nodes empty. Use 2 workers or more, or change nodes.",
        ),
        (
            2,
            TWO_BY_FOUR,
            {"placement_strategy": "SPREAD", "slurm": {"tasks_per_node": 2}},
            "placement_strategy='SPREAD' is one worker a node, but tasks_per_node=2. Use 'PACK', "
            "or drop tasks_per_node.",
        ),
    ],
)
def test_what_an_allocation_does_not_hold_is_refused_with_what_it_does(
    num_workers, allocation, fields, message: str
):
    with pytest.raises(ConfigError) as caught:
        place_in_allocation(scaling(num_workers, **fields), allocation)
    assert str(caught.value) == message
