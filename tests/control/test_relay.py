"""Hub and relays, with real sockets on the loopback interface; tests play agents and ranks."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hpctrain.control.hub import SECRET_BYTES, Hub
from hpctrain.control.hub_tree import children_of
from hpctrain.control.link import connect_once, connect_tcp
from hpctrain.control.place import PlaceRefusedError, find_place
from hpctrain.control.proof import Credentials
from hpctrain.control.relay_thread import RelayThread
from hpctrain.control.strangers import Strangers
from hpctrain.control.wire import Frame, FrameSocket, encode_frame

PATIENCE_S = 30.0
SECRET = b"s" * SECRET_BYTES
CREDENTIALS = Credentials(SECRET, run="/runs/one", attempt=2)

# The agent of a node in a process of its own, which can be killed.
PROCESS = """
import select, sys
from hpctrain.control.link import connect_tcp
from hpctrain.control.proof import Credentials
from hpctrain.control.relay_thread import RelayThread
from hpctrain.control.wire import FrameSocket, encode_frame

credentials = Credentials(b"s" * 32, run="/runs/one", attempt=2)
thread = RelayThread(*connect_tcp([sys.argv[1]], credentials, timeout_s=30.0), credentials)
thread.start()
frames = FrameSocket(thread.uplink)
frames.post(encode_frame({"op": "agent", "attempt": 2, "node": sys.argv[2]}))
while not frames.closed:
    select.select([frames], [], [])
    for frame in frames.receive():
        if frame.op == "beat":
            frames.post(encode_frame({"op": "beat", "attempt": 2}))
        elif frame.op == "begin":
            frames.post(encode_frame({"op": "health", "attempt": 2, "node": sys.argv[2]}))
frames.close()
thread.join()
"""


class Node:
    """A node whose agent the test plays, with one rank."""

    def __init__(self, address: str, name: str, rank: int) -> None:
        self.name, self.rank = name, rank
        self.received: list[Frame] = []
        self._thread = threading.Thread(target=self._connect, args=(address,), daemon=True)
        self._thread.start()

    def _connect(self, address: str) -> None:
        connection = connect_tcp([address], CREDENTIALS, timeout_s=PATIENCE_S)
        self.relaying = RelayThread(*connection, CREDENTIALS)
        self.relaying.start()
        self.frames = FrameSocket(self.relaying.uplink)
        self.post("agent", node=self.name)
        self.post("hello", rank=self.rank)

    @property
    def is_connected(self) -> bool:
        return not self._thread.is_alive()

    def post(self, op: str, body: bytes = b"", **details: Any) -> None:
        self.frames.post(encode_frame({"op": op, "attempt": 2, **details}, body))

    def look(self) -> list[str]:
        """Return all that the rank has got so far; answer heartbeats as an agent does."""
        self.frames.flush()
        for frame in self.frames.receive():
            if frame.op == "beat":
                self.post("beat", use={"cpus": self.rank})
            elif frame.header.get("ranks") is None or self.rank in frame.header["ranks"]:
                self.received.append(frame)
        return [frame.op for frame in self.received]

    def close(self) -> None:
        self.frames.close()
        self.relaying.join(PATIENCE_S)
        assert not self.relaying.is_alive()


class Tree:
    """A hub, and nodes that come one after the other, so that their places are known."""

    def __init__(self, *, fanout: int = 2, silence_s: float = 30.0, num_agents: int = 7) -> None:
        self.hub = Hub(attempt=2, silence_s=silence_s)
        (self.address,) = self.hub.listen_tcp(
            CREDENTIALS, only_here=True, fanout=fanout, num_agents=num_agents
        )
        self.nodes: list[Node] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.frames: list[Frame] = []

    def poll(self, timeout_s: float = 0.02) -> None:
        self.frames += self.hub.poll(timeout_s)
        for node in self.nodes:
            if node.is_connected:
                node.look()

    def poll_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"only {said(self.frames)}"
            self.poll()

    def add(self, count: int) -> list[Node]:
        added = []
        for _ in range(count):
            number = len(self.nodes) + len(self.processes)
            node = Node(self.address, f"n{number}", number)
            self.nodes.append(node)
            self.poll_until(lambda: f"n{number}" in self.hub.nodes)  # noqa: B023
            added.append(node)
        self.poll_until(lambda: self.hub.num_ranks >= len(self.nodes))
        return added

    def add_process(self) -> subprocess.Popen[bytes]:
        number = len(self.nodes) + len(self.processes)
        command = [sys.executable, "-c", PROCESS, self.address, f"n{number}"]
        self.processes.append(subprocess.Popen(command))
        self.poll_until(lambda: f"n{number}" in self.hub.nodes)
        return self.processes[-1]

    def take(self, *ops: str) -> list[Frame]:
        """Return what has come so far of some kinds, and forget it."""
        taken = [frame for frame in self.frames if frame.op in ops]
        self.frames = [frame for frame in self.frames if frame.op not in ops]
        return taken

    def close(self) -> None:
        self.hub.close()
        for process in self.processes:
            process.kill()
            process.wait()
        for node in self.nodes:
            node.close()


def said(frames: list[Frame]) -> list[tuple[str, int]]:
    return [(frame.op, frame.header.get("rank", -1)) for frame in frames]


@pytest.fixture
def make_tree() -> Iterator[Callable[..., Tree]]:
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> Tree:
            tree = Tree(**options)
            stack.callback(tree.close)
            return tree

        yield make


def test_the_executor_has_connections_to_its_children_alone(make_tree: Callable[..., Tree]):
    tree = make_tree()
    tree.add(7)
    assert tree.hub.num_agents == 7
    tree.poll_until(lambda: tree.hub.num_connections == 2)
    assert tree.hub.lost_nodes == {}


def test_an_agent_finds_its_place_however_many_files_it_has_open(make_tree: Callable[..., Tree]):
    tree = make_tree(fanout=1)
    with contextlib.ExitStack() as stack:
        # select() takes no descriptor above 1023.
        for _ in range(1100):
            stack.enter_context(open(os.devnull))
        tree.add(2)
    assert tree.hub.num_agents == 2


def test_what_a_rank_sends_arrives_in_order_from_any_level(make_tree: Callable[..., Tree]):
    tree = make_tree()
    nodes = tree.add(7)
    body = os.urandom(2**21)
    for number in range(300):
        for node in nodes:
            node.post("report", b"%d" % number, rank=node.rank)
    nodes[-1].post("answer", body, rank=6)
    nodes[-1].post("bye", rank=6)
    tree.poll_until(lambda: tree.hub.num_ranks == 6)
    tree.poll_until(lambda: len([f for f in tree.frames if f.op == "report"]) == 7 * 300)
    reports = tree.take("report")
    for node in nodes:
        own = [int(frame.body) for frame in reports if frame.header["rank"] == node.rank]
        assert own == [*range(300)]
    assert [frame.body for frame in tree.take("answer")] == [body]
    assert said(tree.take("bye")) == [("bye", 6)]


def test_a_command_reaches_the_ranks_that_it_is_for_once(make_tree: Callable[..., Tree]):
    tree = make_tree()
    nodes = tree.add(7)
    tree.hub.send("call", b"body", ranks=[0, 5], call=7)
    tree.hub.send("freeze")
    tree.hub.send("slot", ranks=[6])
    tree.hub.send_agents("begin")
    tree.poll_until(lambda: all(node.look()[-1:] == ["begin"] for node in nodes))
    for node in nodes:
        expected = ["freeze", *(["slot"] if node.rank == 6 else []), "begin"]
        assert node.look() == (["call", *expected] if node.rank in (0, 5) else expected)
    assert nodes[5].received[0].body == b"body"


def test_heartbeats_come_with_what_each_node_uses(make_tree: Callable[..., Tree]):
    tree = make_tree()
    tree.add(7)
    expected = {f"n{number}": {"cpus": number} for number in range(7)}
    tree.poll_until(lambda: tree.hub.node_use() == expected)


def test_a_node_that_leaves_is_lost_at_once_and_alone(make_tree: Callable[..., Tree]):
    tree = make_tree()
    nodes = tree.add(5)
    nodes[4].post("failed", b"why", rank=4)
    nodes[4].frames.flush()
    nodes[4].frames.close()
    tree.poll_until(lambda: tree.hub.lost_nodes)
    assert tree.hub.lost_nodes == {"n4": False}
    # Its last words come before its death.
    assert said(tree.take("failed", "lost")) == [("failed", 4), ("lost", 4)]
    assert tree.hub.num_ranks == 4


@pytest.mark.parametrize("victims", [{0}, {2}, {0, 1}, {0, 2}])
def test_nothing_is_lost_or_doubled_when_inner_agents_are_killed(
    make_tree: Callable[..., Tree], victims: set[int]
):
    tree = make_tree(num_agents=12)
    for number in range(12):
        if number in victims:
            tree.add_process()
        else:
            tree.add(1)
    num_sent = 0

    def exchange() -> None:
        nonlocal num_sent
        for node in tree.nodes:
            node.post("report", b"%d" % num_sent, rank=node.rank)
        # To nodes with ranks, which the victims have not, and to all.
        send = tree.hub.send if num_sent % 2 else tree.hub.send_agents
        send("committed", number=num_sent)
        num_sent += 1

    def exchange_often() -> None:
        for _ in range(100):
            exchange()
            tree.poll(0.0)

    exchange_often()
    for process in tree.processes:
        os.kill(process.pid, signal.SIGKILL)
        exchange_often()
        tree.poll_until(lambda: all(n.look().count("committed") == num_sent for n in tree.nodes))
    tree.poll_until(
        lambda: sum(f.op == "report" for f in tree.frames) >= len(tree.nodes) * num_sent
    )
    reports = tree.take("report")
    for node in tree.nodes:
        own = [int(frame.body) for frame in reports if frame.header["rank"] == node.rank]
        assert own == [*range(num_sent)]
        assert [frame.header["number"] for frame in node.received] == [*range(num_sent)]
    assert tree.hub.lost_nodes == {f"n{number}": False for number in victims}
    assert tree.hub.num_ranks == len(tree.nodes)
    # The children of a victim are the executor's now, and theirs are still theirs.
    direct = {*range(12)} & {0, 1} - victims
    for victim in victims:
        direct |= {*children_of(victim, 2, 12)} - victims
    tree.poll_until(lambda: tree.hub.num_connections == len(direct))


def test_an_inner_agent_that_hangs_is_given_up_and_its_children_are_not(
    make_tree: Callable[..., Tree],
):
    tree = make_tree(silence_s=6.0)
    victim = tree.add_process()
    nodes = tree.add(4)
    os.kill(victim.pid, signal.SIGSTOP)
    for node in nodes:
        node.post("report", b"1", rank=node.rank)
    tree.hub.send("freeze")
    tree.poll_until(lambda: len([f for f in tree.frames if f.op == "report"]) == 4)
    tree.poll_until(lambda: all(node.look() == ["freeze"] for node in nodes))
    assert tree.hub.lost_nodes == {}
    tree.poll_until(lambda: tree.hub.lost_nodes)
    assert tree.hub.lost_nodes == {"n0": True}
    os.kill(victim.pid, signal.SIGCONT)
    # It is told that it was given up, and leaves.
    tree.poll_until(lambda: victim.poll() is not None)
    assert tree.hub.num_ranks == 4


def test_an_inner_agent_that_hung_for_a_while_does_not_take_its_children_for_dead(
    make_tree: Callable[..., Tree],
):
    tree = make_tree(silence_s=15.0)
    slow = tree.add_process()
    tree.add(3)
    os.kill(slow.pid, signal.SIGSTOP)
    # They have left it.
    tree.poll_until(lambda: tree.hub.num_connections == 4)
    os.kill(slow.pid, signal.SIGCONT)
    tree.hub.send_agents("begin")
    tree.poll_until(lambda: tree.take("health"))
    assert tree.hub.lost_nodes == {}
    assert tree.hub.num_agents == 4


def test_an_agent_that_cannot_reach_its_parent_gets_the_executor(make_tree: Callable[..., Tree]):
    tree = make_tree(fanout=1)
    (inner,) = tree.add(1)
    # A firewall lets nobody connect to it.
    inner.relaying.relay.close_listener()
    tree.add(2)
    assert tree.hub.lost_nodes == {}
    tree.poll_until(lambda: tree.hub.num_connections == 2)


def test_who_does_not_know_the_secret_of_the_run_cannot_be_a_child(
    make_tree: Callable[..., Tree],
):
    tree = make_tree()
    (inner,) = tree.add(1)
    (address,) = inner.relaying.relay.addresses
    for secret, run, attempt in (
        (b"x" * SECRET_BYTES, "/runs/one", 2),
        (SECRET, "/runs/two", 2),
        (SECRET, "/runs/one", 1),
    ):
        with pytest.raises(OSError, match="closes the connection before it proves who it is"):
            connect_once(address, Credentials(secret, run=run, attempt=attempt))
    connect_once(address, CREDENTIALS)[0].close()


def test_an_agent_has_no_parent_that_does_not_prove_itself(make_tree: Callable[..., Tree]):
    tree = make_tree(fanout=1)
    (inner,) = tree.add(1)
    (address,) = inner.relaying.relay.addresses
    inner.relaying.relay.close_listener()
    # Somebody else listens there now, and knows another secret.
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", int(address.rpartition(":")[2])))
        listener.listen()
        listener.setblocking(False)
        strangers = Strangers(
            selector := selectors.DefaultSelector(),
            Credentials(b"x" * SECRET_BYTES, run="/runs/one", attempt=2),
            lambda sock, seal: pytest.fail("it is admitted"),
        )
        selector.register(listener, selectors.EVENT_READ, lambda _: strangers.accept(listener, 0.0))
        is_over = threading.Event()

        def listen() -> None:
            while not is_over.is_set():
                for key, events in selector.select(0.05):
                    key.data(events)

        thread = threading.Thread(target=listen)
        thread.start()
        tree.add(1)
        is_over.set()
        thread.join()
        strangers.close()
        selector.close()
    tree.poll_until(lambda: tree.hub.num_connections == 2)
    assert tree.hub.num_agents == 2


def test_a_relay_keeps_no_more_than_some_megabytes(make_tree: Callable[..., Tree]):
    tree = make_tree()
    (node,) = tree.add(1)
    megabyte, count = bytes(2**20), 60
    for _ in range(count):
        node.frames.queue(encode_frame({"op": "answer", "attempt": 2, "rank": 0}, megabyte))
    # The executor is busy. What is taken of it stands still at some time, below the limit.
    taken, before = 0, -1
    while taken != before:
        before = taken
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            select.select([], [node.frames], [], 0.1)
            node.frames.flush()
        taken = count * 2**20 - node.frames.pending_bytes
    assert 8 * 2**20 < taken < 40 * 2**20
    tree.poll_until(lambda: len([f for f in tree.frames if f.op == "answer"]) == count)


def test_agents_are_let_go_when_the_executor_is_gone(make_tree: Callable[..., Tree]):
    tree = make_tree()
    nodes = tree.add(5)
    tree.hub.send_agents("agent-exit")
    tree.hub.close()
    for node in nodes:
        deadline = time.monotonic() + PATIENCE_S
        while not node.frames.closed:
            assert time.monotonic() < deadline
            select.select([node.frames], [], [], 0.1)
            node.look()
        assert node.look() == ["agent-exit"]


def test_a_place_is_refused_by_an_executor_that_is_gone_and_for_a_node_that_was_given_up(
    make_tree: Callable[..., Tree],
):
    tree = make_tree()
    nodes = tree.add(2)
    nodes[0].frames.close()
    tree.poll_until(lambda: tree.hub.lost_nodes)
    question = {"index": 0, "direct": True, "addresses": []}
    refused: list[BaseException] = []

    def ask() -> None:
        try:
            find_place(tree.address, CREDENTIALS, question)
        except PlaceRefusedError as error:
            refused.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    tree.poll_until(lambda: not thread.is_alive())
    assert "has given this node up" in str(refused.pop())
    tree.hub.close()
    ask()
    assert "refused" in str(refused.pop())


def test_an_agent_leaves_if_its_executor_is_gone_just_behind_its_place() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    selector = selectors.DefaultSelector()
    admitted: list[FrameSocket] = []
    strangers = Strangers(
        selector, CREDENTIALS, lambda sock, seal: admitted.append(FrameSocket(sock, seal))
    )
    selector.register(listener, selectors.EVENT_READ, lambda _: strangers.accept(listener, 0.0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    connections: list[Any] = []
    asking = threading.Thread(target=lambda: connections.append(connect_once(address, CREDENTIALS)))
    asking.start()
    deadline = time.monotonic() + PATIENCE_S
    while not admitted:
        assert time.monotonic() < deadline
        for key, _ in selector.select(0.1):
            key.data(None)
    asking.join(PATIENCE_S)
    # The agent reads its place and the end of the connection at once.
    place = {"index": 0, "parent": [], "is_inner": False, "number": 0}
    admitted[0].post(encode_frame({"op": "placed", **place, "silence_s": 6.0, "tick_s": 0.25}))
    admitted[0].close()
    listener.close()
    selector.close()
    relaying = RelayThread(*connections[0], CREDENTIALS)
    relaying.start()
    relaying.uplink.settimeout(PATIENCE_S)
    assert relaying.uplink.recv(1) == b""
    relaying.uplink.close()
    relaying.join(PATIENCE_S)
    assert not relaying.is_alive()
