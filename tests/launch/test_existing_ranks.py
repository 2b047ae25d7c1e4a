"""Ranks that were started elsewhere, over real connections, in threads of this process."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpctrain.control.link import Link
from hpctrain.control.proof import Credentials
from hpctrain.control.wire import Frame
from hpctrain.launch import node_relay
from hpctrain.launch.existing_ranks import ExistingRanks
from hpctrain.launch.node_relay import NodeRelay, connect_rank, connect_to_rank_0
from hpctrain.rundir.paths import RunPaths
from hpctrain.worker.bootstrap import hello_details
from hpctrain.world import World
from tests.waiting import wait_until
from tests.worlds import make_world

LIMIT_S = 30.0


class Started:
    """Rank 0's end, and the links of all ranks."""

    def __init__(self, root: Path, *, size: int = 2, num_nodes: int = 1) -> None:
        self.size, self.num_nodes = size, num_nodes
        self.nodes: list[tuple[str, ...]] = []
        self.ranks = ExistingRanks(
            RunPaths(root), attempt=1, world=self.world(0), on_complete=self.nodes.append
        )
        self.credentials = Credentials(self.ranks.address.secret, run=str(root), attempt=1)
        self.relays: dict[int, NodeRelay] = {}
        self.links: dict[int, Link] = {}
        self.cut_off: list[int] = []
        self.received: list[Frame] = []

    def world(self, rank: int) -> World:
        return make_world(rank, self.size, num_nodes=self.num_nodes)

    def connect(self, rank: int) -> None:
        sock, seal = connect_rank(self.ranks.address, self.credentials, self.world(rank))
        self.links[rank] = Link(
            sock, attempt=1, on_lost=lambda: self.cut_off.append(rank), seal=seal
        )
        self.links[rank].introduce(rank, hello_details(self.world(rank)))

    def come_back(self, rank: int) -> Link:
        """Connect a rank again, without a relay."""
        sock, seal = connect_to_rank_0(self.ranks.address, self.credentials)
        link = Link(sock, attempt=1, on_lost=lambda: None, seal=seal)
        link.introduce(rank, hello_details(self.world(rank)))
        return link

    def relay(self, rank: int) -> None:
        self.relays[rank] = NodeRelay(self.ranks.address, self.credentials, self.world(rank))

    def during(self, *steps: Callable[[], None]) -> None:
        """Do something at the ranks' end, for which rank 0's end has to listen."""
        threads = [threading.Thread(target=step) for step in steps]
        for thread in threads:
            thread.start()
        wait_until(lambda: self.poll() and not any(thread.is_alive() for thread in threads))

    def connect_all(self) -> None:
        leaders = [rank for rank in range(self.size) if self.world(rank).local_rank == 0]
        self.during(*(lambda rank=rank: self.relay(rank) for rank in leaders[1:]))
        self.during(*(lambda rank=rank: self.connect(rank) for rank in reversed(range(self.size))))
        wait_until(lambda: self.poll() and len(self.ranks.workers) == self.size)

    def poll(self) -> bool:
        self.received += self.ranks.poll(0.05)
        return True

    def await_frames(self, *ops: str, count: int) -> list[tuple[str, int]]:
        def found() -> list[tuple[str, int]]:
            return [(f.op, f.header["rank"]) for f in self.received if f.op in ops]

        wait_until(lambda: self.poll() and len(found()) >= count, lambda: str(self.received))
        return found()

    def close(self) -> None:
        for link in self.links.values():
            link.close(timeout_s=0.0)
        self.ranks.dismiss("finished", b"", patience_s=0.0)
        for relay in self.relays.values():
            relay.join(timeout_s=LIMIT_S)


@pytest.fixture
def make_started(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    made: list[Started] = []

    def make(**options: int) -> Started:
        made.append(Started(tmp_path, **options))
        made[-1].connect_all()
        return made[-1]

    yield make
    for started in made:
        started.close()


def test_ranks_that_connect_are_known_by_rank_and_their_nodes_once(tmp_path: Path):
    started = Started(tmp_path)
    assert len(started.ranks) == 2
    assert list(started.ranks.workers) == []
    started.connect_all()
    assert [worker.rank for worker in started.ranks.workers] == [0, 1]
    assert started.nodes == [("node1",)]
    assert started.ranks.exit_status() is None
    assert started.ranks.launcher_output() is None
    started.close()


@pytest.mark.parametrize(
    ("size", "num_nodes", "connections"), [(4, 1, 0), (4, 2, 1), (6, 3, 2), (3, 3, 2)]
)
def test_each_node_but_that_of_rank_0_has_one_connection(
    make_started: Callable[..., Started], size: int, num_nodes: int, connections: int
):
    started = make_started(size=size, num_nodes=num_nodes)
    assert started.ranks.num_connections == connections
    assert started.nodes == [tuple(f"node{number + 1}" for number in range(num_nodes))]


def test_rank_0_may_have_a_connection_to_each_of_many_nodes(tmp_path: Path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip(f"the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        Started(tmp_path, size=1500, num_nodes=1500).close()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 1756
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_frames_of_a_rank_come_with_its_number(
    make_started: Callable[..., Started], num_nodes: int
):
    started = make_started(size=4, num_nodes=num_nodes)
    started.links[3].post("heartbeat")
    assert started.await_frames("heartbeat", count=1) == [("heartbeat", 3)]


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_the_last_command_reaches_every_rank_which_then_leaves(
    make_started: Callable[..., Started], num_nodes: int
):
    started = make_started(size=4, num_nodes=num_nodes)
    received: dict[int, tuple[str, bytes]] = {}

    def leave(rank: int) -> None:
        link = started.links[rank]
        frame = link.next_command()
        assert frame is not None
        received[rank] = frame.op, frame.body
        link.post("bye")
        link.close()
        if rank in started.relays:
            started.relays[rank].join(timeout_s=LIMIT_S)

    threads = [threading.Thread(target=leave, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    started.ranks.dismiss("finished", b"result", patience_s=LIMIT_S)
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert received == dict.fromkeys(range(4), ("finished", b"result"))


def end_of_relay(started: Started, rank: int) -> None:
    """Let the connection of a node end as it does when the process of its relay is killed."""
    started.relays[rank]._relay._uplink.close()
    # It waits for what is ready.
    started.links[rank].post("heartbeat")


def test_of_a_relay_that_dies_the_others_are_cut_off_and_learn_why_all_the_same(
    make_started: Callable[..., Started],
):
    started = make_started(size=6, num_nodes=2)
    end_of_relay(started, 3)
    assert started.await_frames("lost", "cut-off", count=3) == [
        ("lost", 3),
        ("cut-off", 4),
        ("cut-off", 5),
    ]
    for frame in started.received:
        if frame.op in ("lost", "cut-off"):
            assert not frame.header["agent"], "no node is gone"
    assert {f.header["relay"] for f in started.received if f.op == "cut-off"} == {3}
    wait_until(lambda: len(started.cut_off) == 3)
    # One comes back before the verdict, one after it.
    back: dict[int, Link] = {}
    started.during(lambda: back.update({4: started.come_back(4)}))
    started.await_frames("hello", count=7)
    assert started.nodes == [("node1", "node2")]
    read: list[tuple[int, bytes]] = []

    def learn(rank: int) -> None:
        link = back.get(rank) or started.come_back(rank)
        frame = link.next_command()
        assert frame is not None
        read.append((rank, frame.body))
        link.post("bye")
        link.close()

    threads = [threading.Thread(target=learn, args=(rank,)) for rank in (4, 5)]
    threads[0].start()
    # Those of rank 0's node stay until the end, so that there is time for one that comes late.
    late = threading.Timer(0.3, threads[1].start)
    late.start()

    def leave() -> None:
        for thread in (late, *threads):
            thread.join(LIMIT_S)
        for rank in range(3):
            started.links[rank].post("bye")

    leaving = threading.Thread(target=leave)
    leaving.start()
    started.ranks.dismiss("run-failed", b"why", patience_s=LIMIT_S)
    leaving.join(LIMIT_S)
    assert sorted(read) == [(4, b"why"), (5, b"why")]


def test_a_rank_that_dies_behind_a_relay_is_lost_alone(make_started: Callable[..., Started]):
    started = make_started(size=4, num_nodes=2)
    started.links[3].close()
    assert started.await_frames("lost", "cut-off", count=1) == [("lost", 3)]
    assert started.ranks.num_connections == 1


def test_a_rank_that_cannot_reach_the_socket_of_its_node_connects_by_itself(
    make_started: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
):
    connect = node_relay.local_socket.connect

    def connect_elsewhere(name: str, *, timeout_s: float) -> object:
        # As in a container that has a network of its own.
        is_last = threading.current_thread().name == "last"
        return connect(f"{name}-elsewhere" if is_last else name, timeout_s=timeout_s)

    monkeypatch.setattr(node_relay.local_socket, "connect", connect_elsewhere)
    plain = Started.connect

    def connect_by_name(started: Started, rank: int) -> None:
        threading.current_thread().name = "last" if rank == 3 else "other"
        plain(started, rank)

    monkeypatch.setattr(Started, "connect", connect_by_name)
    started = make_started(size=4, num_nodes=2)
    assert started.ranks.num_connections == 2
    started.links[3].close()
    assert started.await_frames("lost", "cut-off", count=1) == [("lost", 3)]


def test_a_child_of_a_relay_keeps_no_connection_open(make_started: Callable[..., Started]):
    started = make_started(size=4, num_nodes=2)
    reading, writing = os.pipe()
    # As a DataLoader does that forks its workers.
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    try:
        end_of_relay(started, 2)
        assert started.await_frames("lost", "cut-off", count=2) == [("lost", 2), ("cut-off", 3)]
        wait_until(lambda: sorted(started.cut_off) == [2, 3])
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)


def test_a_relay_that_does_not_answer_is_named_with_those_behind_it(
    make_started: Callable[..., Started],
):
    started = make_started(size=6, num_nodes=2)
    started.ranks.examine({}, [3, 4, 5])
    started.await_frames("examined", count=1)
    reasons = [f.header.get("reason") for f in started.received if f.op == "examined"]
    assert "it does not answer, and ranks 4, 5 of its node are connected through it" in reasons
    # Those of rank 0's node have connections of their own.
    started.received.clear()
    started.ranks.examine({}, [0, 1, 4])
    started.poll()
    assert [f for f in started.received if f.op == "examined"] == []
