"""Which node gets a packed environment from which."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

import pytest

from hpctrain.plan.pack_tree import FANOUT, PackTree


def test_the_first_node_reads_and_the_others_get_it_from_those_that_have_it() -> None:
    tree = PackTree(fanout=2)
    for node in range(6):
        tree.add(node)
    assert tree.assign() == [(0, None)]
    assert tree.assign() == []
    tree.complete(0)
    assert tree.assign() == [(1, 0), (2, 0)]
    tree.complete(1)
    # The one that has less to do is asked first.
    assert tree.assign() == [(3, 1), (4, 0), (5, 1)]
    assert tree.num_given == 1


def test_while_readers_are_slow_one_more_node_reads_at_a_time() -> None:
    tree = PackTree(fanout=2)
    for node in range(5):
        tree.add(node)
    assert tree.assign(is_late=True) == [(0, None)]
    assert tree.assign() == []
    assert tree.assign(is_late=True) == [(1, None)]
    assert tree.assign(is_late=True) == [(2, None)]
    tree.complete(1)
    # Now they get it from that one, however late the first one is.
    assert tree.assign(is_late=True) == [(3, 1), (4, 1)]
    tree.add(5)
    assert tree.assign(is_late=True) == []


def test_a_reader_that_is_lost_is_replaced_by_one_that_waits() -> None:
    tree = PackTree(fanout=2)
    tree.add(0)
    tree.add(1)
    assert tree.assign() == [(0, None)]
    tree.remove(0)
    assert tree.assign() == [(1, None)]


def test_who_fails_is_given_another_one_first_of_all_and_then_the_shared_file() -> None:
    tree = PackTree(fanout=2)
    for node in range(3):
        tree.add(node)
    tree.assign()
    tree.complete(0)
    assert tree.assign() == [(1, 0), (2, 0)]
    tree.complete(1)
    tree.fail(2)
    assert tree.assign() == [(2, 1)]
    tree.fail(2)
    assert tree.assign() == [(2, None)]


def test_who_has_failed_waits_for_one_that_gets_it_and_holds_up_no_one() -> None:
    tree = PackTree(fanout=2)
    for node in range(3):
        tree.add(node)
    tree.assign()
    tree.complete(0)
    tree.assign()
    tree.fail(1)
    tree.add(3)
    # Node 2 will have it; node 3 has no reason to wait.
    assert tree.assign() == [(3, 0)]
    tree.complete(2)
    assert tree.assign() == [(1, 2)]


def test_a_node_from_which_two_others_cannot_get_it_gives_it_to_no_more() -> None:
    tree = PackTree(fanout=2)
    for node in range(3):
        tree.add(node)
    tree.assign()
    tree.complete(0)
    tree.assign()
    tree.fail(1)
    tree.fail(2)
    # None is left that has it, so one of them reads, and the other one waits for that.
    assert tree.assign() == [(1, None)]
    tree.complete(1)
    assert tree.assign() == [(2, 1)]


@pytest.mark.parametrize("fanout", [2, 3, 32])
@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_lost_all_others_have_it_at_the_end(fanout: int, seed: int) -> None:
    draw = Random(seed)
    tree, nodes = PackTree(fanout), set(range(200))
    busy: dict[int, int | None] = {}
    has: set[int] = set()
    num_reads = 0
    risk = draw.choice([0.0, 0.02, 0.3])
    for node in nodes:
        tree.add(node)
    for _ in range(20_000):
        for node, source in tree.assign():
            assert node not in busy
            assert source is None or source in has
            num_reads += source is None
            busy[node] = source
        given = Counter(source for source in busy.values() if source is not None)
        assert max(given.values(), default=0) <= fanout
        if not busy:
            break
        node = draw.choice(sorted(busy))
        if draw.random() < risk / 4:
            nodes.discard(node)
            tree.remove(node)
        elif busy[node] is not None and draw.random() < risk:
            tree.fail(node)
        else:
            tree.complete(node)
            has.add(node)
        del busy[node]
        if has and draw.random() < risk / 4:
            gone = draw.choice(sorted(has))
            has.discard(gone)
            nodes.discard(gone)
            tree.remove(gone)
    assert has == nodes
    assert risk or num_reads == 1


def transfers(fanout: int, num_nodes: int) -> float:
    """Return when all nodes have it, if a network card shares its bandwidth among those it serves.

    The unit is the time of one transfer by an idle card.
    """
    tree = PackTree(fanout)
    for node in range(num_nodes):
        tree.add(node)
    tree.assign()
    tree.complete(0)
    sources: dict[int, int | None] = {}
    left: dict[int, float] = {}
    now = 0.0
    while True:
        for node, source in tree.assign():
            sources[node], left[node] = source, 1.0
        if not left:
            return now
        shared = Counter(sources[node] for node in left)
        step = min(left[node] * shared[sources[node]] for node in left)
        now += step
        left = {node: part - step / shared[sources[node]] for node, part in left.items()}
        for node in [node for node, part in left.items() if part < 1e-9]:
            del left[node]
            tree.complete(node)


@pytest.mark.parametrize("fanout", [1, 2, 3, 4, 32])
def test_it_takes_the_time_of_the_formula(fanout: int) -> None:
    rounds = math.ceil(math.log(500, 1 + fanout))
    assert fanout * (rounds - 1) < transfers(fanout, 500) <= fanout * rounds


def test_500_nodes_have_it_after_13_transfers() -> None:
    assert transfers(FANOUT, 500) == pytest.approx(13)
