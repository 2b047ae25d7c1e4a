"""Trials are packed on nodes so that nothing is given twice and none waits for ever."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

import numpy as np
import pytest

from hpctrain import ConfigError, ScalingConfig
from hpctrain.config import SlurmConfig
from hpctrain.tune.node_slots import NodeShare, NodeSlots, need_on_nodes
from hpctrain.tune.slots import Need, NoRoomLeftError, Slot

FOUR = {f"node{i}": NodeShare(cpus=4, gpus=4) for i in range(1, 5)}


def draw_need(rng: np.random.Generator) -> Need:
    workers = int(rng.integers(1, 7))
    cpus, gpus, mem = rng.integers(1, 4), rng.choice([0, 0, 1, 2]), rng.choice([0, 0, 1, 3])
    shape = rng.integers(4)
    return Need(
        cpus=int(cpus) * workers,
        gpus=int(gpus) * workers,
        mem_bytes=int(mem) * workers,
        workers=workers,
        num_nodes=int(rng.integers(1, 4)) if shape == 1 else None,
        most_per_node=int(rng.integers(1, 3)) if shape == 2 else None,
        spreads=bool(shape == 3),
    )


def used(running: Mapping[str, tuple[Need, Slot]], node: str) -> tuple[int, int, int]:
    counts = [(need, slot.nodes.get(node, 0)) for need, slot in running.values()]
    return (
        sum(need.cpus_each * count for need, count in counts),
        sum(need.gpus_each * count for need, count in counts),
        sum(need.mem_bytes_each * count for need, count in counts),
    )


def holds(slots: NodeSlots, need: Need) -> bool:
    try:
        return slots.take("alone", need) is not None
    except ConfigError:
        return False


def test_nothing_is_given_twice_and_nothing_is_lost_whatever_comes_and_goes(
    each_example: Callable[[Callable[[Any], None]], None],
) -> None:
    def check(rng: np.random.Generator) -> None:
        nodes = {
            f"n{i}": NodeShare(
                cpus=int(rng.integers(1, 9)),
                gpus=int(rng.integers(0, 5)),
                mem_bytes=inf if rng.random() < 0.5 else int(rng.integers(1, 12)),
                cpus_per_core=int(rng.choice([1, 1, 2])),
            )
            for i in range(rng.integers(1, 5))
        }
        most = int(rng.integers(1, 6)) if rng.random() < 0.3 else inf
        slots, running = NodeSlots(nodes, most_trials=most), dict[str, tuple[Need, Slot]]()
        lost = set[str]()
        for step in range(40):
            if running and rng.random() < 0.4:
                name = str(rng.choice(sorted(running)))
                slots.give_back(name)
                del running[name]
                continue
            if rng.random() < 0.05:
                node = str(rng.choice(sorted(nodes)))
                assert slots.leave_out(node, "silent") == (node not in lost)
                lost.add(node)
            need, name = draw_need(rng), f"t{step}"
            try:
                alone = fresh(nodes, lost, most).take(name, need)
            except (ConfigError, NoRoomLeftError):
                # Only what would fit without a loss waits for other nodes.
                is_held = holds(fresh(nodes, set(), most), need)
                with pytest.raises(NoRoomLeftError if is_held else ConfigError):
                    slots.take(name, need)
                continue
            assert alone is not None, "it is refused, or fits alone"
            slot = slots.take(name, need)
            if slot is None:
                assert running, "a trial never waits for nothing"
                continue
            running[name] = need, slot
            assert sum(slot.nodes.values()) == need.workers
            assert len(slot.nodes) == len(alone.nodes), "it is on as many nodes as if it were alone"
            assert not lost & slot.nodes.keys()
            assert max(slot.nodes.values()) <= (need.most_per_node or need.workers)
            assert need.num_nodes in (None, len(slot.nodes))
            assert len(running) <= most
            for node, share in nodes.items():
                cpus, gpus, mem = used(running, node)
                assert cpus <= share.cpus
                assert gpus <= share.gpus
                assert mem <= share.mem_bytes
        for name in running:
            slots.give_back(name)
        assert slots._free() == {n: s for n, s in nodes.items() if n not in lost}

    each_example(check)


def fresh(nodes: Mapping[str, NodeShare], lost: set[str], most: float) -> NodeSlots:
    slots = NodeSlots(nodes, most_trials=most)
    for node in lost:
        slots.leave_out(node, "silent")
    return slots


def test_whatever_waits_at_the_head_begins_once_what_runs_has_ended(
    each_example: Callable[[Callable[[Any], None]], None],
) -> None:
    def check(rng: np.random.Generator) -> None:
        slots, running, begun = NodeSlots(FOUR), list[str](), 0
        waiting = []
        while len(waiting) < 30:
            need = draw_need(rng)
            try:
                fresh(FOUR, set(), inf).take("t", need)
            except ConfigError:
                continue
            waiting.append(need)
        ended = 0
        while begun < len(waiting):
            if slots.take(f"t{begun}", waiting[begun]) is not None:
                running.append(f"t{begun}")
                begun += 1
                continue
            assert running
            slots.give_back(running.pop(int(rng.integers(len(running)))))
            ended += 1
        assert ended <= len(waiting)

    each_example(check)


def test_small_trials_fill_a_node_before_the_next_and_leave_others_to_large_ones() -> None:
    slots = NodeSlots(FOUR)
    one, wide = Need(cpus=1), Need(cpus=8, workers=2)
    taken = [slots.take(f"t{i}", one) for i in range(5)]
    assert [slot.nodes for slot in taken if slot] == 4 * [{"node1": 1}] + [{"node2": 1}]
    large = slots.take("large", wide)
    assert large is not None
    assert large.nodes == {"node3": 1, "node4": 1}
    # It is compared with trials on one node, and so waits for one.
    assert slots.take("pair", Need(cpus=4, workers=2)) is None
    slots.give_back("t4")
    again = slots.take("pair", Need(cpus=4, workers=2))
    assert again is not None
    assert again.nodes == {"node2": 2}


def test_a_worker_has_whole_cores() -> None:
    slots = NodeSlots({"a": NodeShare(cpus=4, cpus_per_core=2)})
    assert slots.take("one", Need(cpus=1)) is not None
    assert slots.take("three", Need(cpus=3)) is None
    assert slots.take("two", Need(cpus=2)) is not None
    assert not slots.fits(Need(cpus=1))


def test_a_trial_without_gpus_leaves_the_gpus_to_others() -> None:
    slots = NodeSlots({"a": NodeShare(cpus=4, gpus=4), "b": NodeShare(cpus=8)})
    first, second = slots.take("cpu", Need(cpus=2)), slots.take("gpu", Need(cpus=4, gpus=4))
    assert first is not None
    assert second is not None
    assert (first.nodes, second.nodes) == ({"b": 1}, {"a": 1})


@pytest.mark.parametrize(
    ("scaling", "nodes"),
    [
        (ScalingConfig(num_workers=4), {"node1": 4}),
        (ScalingConfig(num_workers=6), {"node1": 3, "node2": 3}),
        (ScalingConfig(num_workers=2, placement_strategy="SPREAD"), {"node1": 1, "node2": 1}),
        (ScalingConfig(num_workers=5, placement_strategy="SPREAD"), None),
        (ScalingConfig(num_workers=4, slurm=SlurmConfig(nodes=4)), None),
        (ScalingConfig(num_workers=(1, 8)), {"node1": 4, "node2": 4}),
    ],
)
def test_a_scaling_config_says_on_how_many_nodes_a_trial_is(
    scaling: ScalingConfig, nodes: dict[str, int] | None
) -> None:
    slot = NodeSlots(FOUR).take("t", need_on_nodes(scaling))
    assert slot is not None
    if nodes is None:
        assert list(slot.nodes) == list(FOUR)
    else:
        assert slot.nodes == nodes


@pytest.mark.parametrize(
    ("need", "message"),
    [
        (Need(cpus=17, workers=17), r"17 workers with 1 CPU each: the 4 nodes .* hold 4\(x4\)"),
        (Need(cpus=5), r"1 worker with 5 CPUs each: .* hold none of them"),
        (Need(cpus=4, workers=4, num_nodes=5), "each on 5 nodes: the 4 nodes"),
        (Need(cpus=2, workers=2, gpus=10), "1 CPU, 5 GPUs each"),
    ],
)
def test_what_an_empty_allocation_does_not_hold_is_refused(need: Need, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NodeSlots(FOUR).take("t", need)


def test_spare_nodes_are_refused() -> None:
    with pytest.raises(ConfigError, match="a sweep holds no nodes back"):
        need_on_nodes(ScalingConfig(slurm=SlurmConfig(spare_nodes=1)))


def test_a_lost_node_is_left_out_and_what_no_longer_fits_waits_for_others() -> None:
    slots = NodeSlots({"a": NodeShare(cpus=2), "b": NodeShare(cpus=2)})
    slots.keep("old", Need(cpus=2), Slot(nodes={"a": 1}))
    assert slots.take("t", Need(cpus=4, workers=2)) is None
    assert slots.leave_out("b", "silent")
    assert not slots.fits(Need(cpus=1))
    slots.give_back("old")
    assert slots.fits(Need(cpus=1))
    with pytest.raises(
        NoRoomLeftError, match=r"the 1 node of this allocation \(1 more is lost: b: s"
    ):
        slots.take("t", Need(cpus=4, workers=2, num_nodes=2))
    with pytest.raises(ConfigError, match="on 3 nodes"):
        slots.take("t", Need(cpus=6, workers=3, num_nodes=3))


def test_what_runs_in_another_allocation_takes_nothing_of_this_one() -> None:
    slots = NodeSlots({"a": NodeShare(cpus=1)})
    slots.keep("old", Need(cpus=1), Slot(nodes={"elsewhere": 1}))
    assert slots.take("t", Need(cpus=1)) == Slot(nodes={"a": 1})
