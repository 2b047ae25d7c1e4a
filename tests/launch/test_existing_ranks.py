"""Two ranks that were started elsewhere, over real connections, in threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpctrain.control.link import Link, connect_tcp
from hpctrain.control.proof import Credentials
from hpctrain.control.wire import Frame
from hpctrain.launch.existing_ranks import ExistingRanks
from hpctrain.rundir.paths import RunPaths
from hpctrain.worker.bootstrap import hello_details
from hpctrain.world import World
from tests.waiting import wait_until
from tests.worlds import make_world

LIMIT_S = 30.0


def world(rank: int) -> World:
    return make_world(rank, 2)


class Started:
    """Rank 0's end, and the links of both ranks."""

    def __init__(self, root: Path) -> None:
        self.nodes: list[tuple[str, ...]] = []
        self.root = root
        self.ranks = ExistingRanks(
            RunPaths(root), attempt=1, world=world(0), on_complete=self.nodes.append
        )
        self.links: dict[int, Link] = {}

    def connect(self, rank: int) -> None:
        credentials = Credentials(self.ranks.secret, run=str(self.root), attempt=1)
        sock, seal = connect_tcp(self.ranks.addresses, credentials, timeout_s=LIMIT_S)
        link = Link(sock, attempt=1, on_lost=lambda: None, seal=seal)
        link.introduce(rank, hello_details(world(rank)))
        self.links[rank] = link

    def connect_all(self) -> None:
        threads = [threading.Thread(target=self.connect, args=(rank,)) for rank in (1, 0)]
        for thread in threads:
            thread.start()
        wait_until(lambda: self.ranks.poll(0.05) is not None and len(self.ranks.workers) == 2)
        for thread in threads:
            thread.join(LIMIT_S)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    started = Started(tmp_path)
    yield started
    for link in started.links.values():
        link.close()
    started.ranks.dismiss("finished", b"", patience_s=0.0)


def test_ranks_that_connect_are_known_by_rank_and_their_nodes_once(started: Started):
    assert len(started.ranks) == 2
    assert list(started.ranks.workers) == []
    started.connect_all()
    assert [worker.rank for worker in started.ranks.workers] == [0, 1]
    assert started.nodes == [("node1",)]
    assert started.ranks.exit_status() is None
    assert started.ranks.launcher_output() is None


def test_frames_of_a_rank_come_with_its_number(started: Started):
    started.connect_all()
    started.links[1].post("heartbeat")
    received: list[Frame] = []

    def has_come() -> bool:
        received.extend(f for f in started.ranks.poll(0.05) if f.op == "heartbeat")
        return bool(received)

    wait_until(has_come)
    assert [frame.header["rank"] for frame in received] == [1]


def test_the_last_command_reaches_every_rank_which_then_leaves(started: Started):
    started.connect_all()
    received: dict[int, tuple[str, bytes]] = {}

    def leave(rank: int) -> None:
        link = started.links[rank]
        frame = link.next_command()
        assert frame is not None
        received[rank] = frame.op, frame.body
        link.post("bye")
        link.close()

    threads = [threading.Thread(target=leave, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    started.ranks.dismiss("finished", b"result", patience_s=LIMIT_S)
    for thread in threads:
        thread.join(LIMIT_S)
    assert received == dict.fromkeys((0, 1), ("finished", b"result"))
