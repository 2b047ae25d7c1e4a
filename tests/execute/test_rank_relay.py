"""A relay between links of ranks and the end of an executor. As a process: test_agent.py."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hpctrain.control import local_socket
from hpctrain.control.children import MAX_PENDING_BYTES
from hpctrain.control.link import Link
from hpctrain.control.proof import Seal
from hpctrain.control.wire import Frame, FrameSocket, encode_frame
from hpctrain.execute.rank_relay import BACKLOG, RankRelay
from tests.waiting import wait_until

LIMIT_S = 30.0
KEYS = b"a" * 32, b"b" * 32


class HeldRelay(RankRelay):
    """Looks at nothing while its gate is closed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.gate = threading.Event()
        self.gate.set()

    def _after_step(self) -> None:
        self.gate.wait(LIMIT_S)


class Relayed:
    """A relay in a thread, and the executor's end of its connection."""

    def __init__(self) -> None:
        mine, uplink = socket.socketpair()
        self.raw = mine
        self.executor = FrameSocket(mine, Seal(*KEYS))
        self.name = local_socket.new_socket_name()
        listener = local_socket.listen(self.name, backlog=BACKLOG)
        self.relay = HeldRelay(attempt=1, uplink=uplink, seal=Seal(*KEYS[::-1]), name="node7")
        self.thread = threading.Thread(target=self.relay.serve, args=(listener,), daemon=True)
        self.thread.start()
        self.links: list[Link] = []
        self.received: list[Frame] = []

    def connect(self, rank: int) -> Link:
        sock = local_socket.connect(self.name, timeout_s=LIMIT_S)
        link = Link(sock, attempt=1, on_lost=lambda: None)
        link.introduce(rank, {"tmp": "/nowhere", "tmp_owner": ""})
        self.links.append(link)
        return link

    def await_frame(self, op: str) -> Frame:
        def look() -> Frame | None:
            self.received += self.executor.receive()
            return next((frame for frame in self.received if frame.op == op), None)

        found = wait_until(look, lambda: f"{op}, and not {self.received}")
        assert found is not None
        self.received.remove(found)
        return found

    def close(self) -> None:
        self.executor.close()
        self.thread.join(LIMIT_S)
        for link in self.links:
            link.close(timeout_s=0.0)


@pytest.fixture
def relayed() -> Iterator[Relayed]:
    relayed = Relayed()
    yield relayed
    relayed.close()
    assert not relayed.thread.is_alive()


def test_it_introduces_its_node_and_answers_for_a_heartbeat(relayed: Relayed):
    assert relayed.await_frame("agent").header["node"] == "node7"
    relayed.executor.post(encode_frame({"op": "beat", "attempt": 1}))
    assert relayed.await_frame("beat").header["attempt"] == 1


def test_frames_pass_in_both_directions_to_those_that_they_are_for(relayed: Relayed):
    links = [relayed.connect(rank) for rank in (4, 5)]
    for _ in links:
        relayed.await_frame("hello")
    links[0].post("part", b"x" * 2**20, report=3)
    part = relayed.await_frame("part")
    assert (part.header["rank"], part.header["report"], len(part.body)) == (4, 3, 2**20)
    relayed.executor.post(encode_frame({"op": "slot", "attempt": 1, "ranks": [5]}))
    relayed.executor.post(encode_frame({"op": "exit", "attempt": 1}))
    commands = [
        [link.next_command() for _ in range(n)] for link, n in zip(links, (1, 2), strict=True)
    ]
    assert [[c.op for c in of_rank if c is not None] for of_rank in commands] == [
        ["exit"],
        ["slot", "exit"],
    ]


def test_a_rank_that_leaves_is_not_lost_and_one_that_dies_is(relayed: Relayed):
    leaving, dying = relayed.connect(0), relayed.connect(1)
    for _ in range(2):
        relayed.await_frame("hello")
    leaving.post("bye")
    leaving.close()
    relayed.await_frame("bye")
    dying.close()
    assert relayed.await_frame("lost").header["rank"] == 1


def test_a_rank_that_breaks_the_protocol_is_lost_and_no_other(relayed: Relayed):
    broken, whole = local_socket.connect(relayed.name, timeout_s=LIMIT_S), relayed.connect(1)
    hello = {"op": "hello", "rank": 0, "attempt": 1, "tmp": "/nowhere", "tmp_owner": ""}
    with broken:
        broken.sendall(encode_frame(hello))
        for _ in range(2):
            relayed.await_frame("hello")
        broken.sendall(b"\xff" * 8)
        assert relayed.await_frame("lost").header["rank"] == 0
    whole.post("staged")
    assert relayed.await_frame("staged").header["rank"] == 1


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("reported", [(), (0,), (1,), (0, 1), (1, 0)])
def test_deaths_are_told_in_their_order(
    relayed: Relayed, first: int, reported: tuple[int, ...]
) -> None:
    links = [relayed.connect(rank) for rank in (0, 1)]
    for _ in links:
        relayed.await_frame("hello")
    relayed.relay.gate.clear()
    relayed.executor.post(encode_frame({"op": "beat", "attempt": 1}))
    relayed.await_frame("beat")
    for rank in reported:
        links[rank].post("staged")
        links[rank].drain(timeout_s=LIMIT_S)
    for rank in (first, 1 - first):
        links[rank].close()
    relayed.relay.gate.set()
    assert [relayed.await_frame("lost").header["rank"] for _ in links] == [first, 1 - first]


@pytest.mark.parametrize("how", ["it ends", "a third party changes it"])
def test_ranks_are_let_go_when_the_connection_is_not_the_executors_any_more(
    relayed: Relayed, how: str
):
    link = relayed.connect(0)
    relayed.await_frame("hello")
    if how == "it ends":
        relayed.executor.close()
    else:
        relayed.raw.sendall(b"\0\0\0\1x" + bytes(16))
    assert link.next_command() is None


def test_ranks_wait_while_the_executor_receives_nothing_and_nothing_is_lost(relayed: Relayed):
    links = [relayed.connect(rank) for rank in (0, 1)]
    for _ in links:
        relayed.await_frame("hello")
    reports, body = 12, b"x" * (MAX_PENDING_BYTES // 4)

    def send(link: Link) -> None:
        for number in range(reports):
            link.post("part", body, report=number)

    senders = [threading.Thread(target=send, args=(link,), daemon=True) for link in links]
    for sender in senders:
        sender.start()
    wait_until(lambda: relayed.relay._is_full, "the relay goes on reading")
    for sender in senders:
        sender.join(LIMIT_S)
    # It holds a small part of the 96 MiB. The rest is in the ranks.
    assert relayed.relay._uplink.pending_bytes <= 2 * MAX_PENDING_BYTES
    parts = [relayed.await_frame("part").header for _ in range(2 * reports)]
    for rank in (0, 1):
        assert [p["report"] for p in parts if p["rank"] == rank] == list(range(reports))
    links[1].close()
    assert relayed.await_frame("lost").header["rank"] == 1


def test_ranks_that_are_not_read_see_the_end_of_the_executor(relayed: Relayed):
    link = relayed.connect(0)
    relayed.await_frame("hello")
    body = b"x" * (2 * MAX_PENDING_BYTES)
    sender = threading.Thread(target=link.post, args=("part", body), daemon=True)
    sender.start()
    wait_until(lambda: relayed.relay._is_full, "the relay goes on reading")
    relayed.executor.close()
    assert link.next_command() is None
    sender.join(LIMIT_S)
    assert not sender.is_alive()
