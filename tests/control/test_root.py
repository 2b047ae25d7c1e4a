"""The executor's end of the tree, with agents that send what a relay would send at bad moments."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from hpctrain.control.batches import pack, unpack
from hpctrain.control.proof import AGENT, EXECUTOR, Credentials
from hpctrain.control.root import Branch, Root
from hpctrain.control.wire import PROTOCOL, Frame, FrameSocket, encode_frame
from hpctrain.timeouts import TREE_JOIN_S

CREDENTIALS = Credentials(b"s" * 32, run="/runs/one", attempt=1)
NONCES = b"n" * 64


class Played:
    """A root, and the ends that agents have of its connections."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.received: list[tuple[int, Frame]] = []
        self.gone: list[int] = []
        self.arrived: list[int] = []
        self.branches: list[Branch] = []
        self.root = Root(
            self.selector,
            fanout=2,
            num_agents=6,
            silence_s=30.0,
            arrived=self._arrive,
            received=self._take,
        )
        self.ends: list[FrameSocket] = []

    def _arrive(self, branch: Branch) -> None:
        self.arrived.append(branch.index)
        self.branches.append(branch)

    def _take(self, branch: Branch, frames: list[Frame]) -> list[Frame]:
        self.received += [(branch.index, frame) for frame in frames]
        if branch.closed:
            self.gone.append(branch.index)
        return frames

    def connect(self) -> FrameSocket:
        mine, others = socket.socketpair()
        self.root.admit(others, CREDENTIALS.seal(EXECUTOR, NONCES))
        self.ends.append(FrameSocket(mine, CREDENTIALS.seal(AGENT, NONCES)))
        return self.ends[-1]

    def ask(self, end: FrameSocket, **question: Any) -> Frame:
        asked = {
            "protocol": PROTOCOL,
            "index": None,
            "direct": False,
            "addresses": ["n:1"],
            **question,
        }
        (answer,) = self.send(end, encode_frame({"op": "ask", **asked}))
        return answer

    def join(self, end: FrameSocket, node: int, count: int, received: int = 0) -> list[Frame]:
        header = {"node": node, "count": count, "received": received}
        return self.send(end, encode_frame({"op": "join", **header}))

    def send(self, end: FrameSocket, *raws: bytes) -> list[Frame]:
        """Return what the root answers at once."""
        for raw in raws:
            end.post(raw)
        self.poll()
        return end.receive()

    def poll(self) -> None:
        while ready := self.selector.select(0.0):
            for key, events in ready:
                key.data(events)

    def reports(self) -> list[tuple[int, int]]:
        return [(index, frame.header["number"]) for index, frame in self.received]


@pytest.fixture
def played() -> Iterator[Played]:
    played = Played()
    yield played
    played.root.close()
    for end in played.ends:
        end.close()
    played.selector.close()


def report(node: int, *numbers: int) -> bytes:
    items = [([node, n], encode_frame({"op": "report", "number": n})) for n in numbers]
    (batch,) = pack("up", items)
    return batch


def passed_on(frames: list[Frame]) -> list[list[Any]]:
    return [about for frame in frames if frame.op == "down" for about, _ in unpack(frame)]


def test_agents_are_numbered_as_they_come_and_get_the_parent_that_the_tree_says(played: Played):
    answers = [played.ask(played.connect()).header for _ in range(5)]
    assert [answer["index"] for answer in answers] == [0, 1, 2, 3, 4]
    assert [answer["parent"] for answer in answers] == [[], [], ["n:1"], ["n:1"], ["n:1"]]
    assert [answer["is_inner"] for answer in answers] == [True, True, False, False, False]
    assert played.arrived == []


def test_what_came_before_is_dropped_and_what_came_too_early_comes_again(played: Played):
    end = played.connect()
    played.ask(end)
    played.join(end, 0, 1)
    played.send(end, report(0, 1, 2), report(0, 2, 3), report(0, 5))
    assert played.reports() == [(0, 1), (0, 2), (0, 3)]
    # It has lost its way, and begins with what was not acknowledged.
    (joined,) = played.join(end, 0, 2)
    assert (joined.op, joined.header["number"]) == ("joined", 3)
    played.send(end, report(0, 3, 4, 5))
    assert played.reports() == [(0, number) for number in range(1, 6)]
    played.root.acknowledge()
    (ack,) = end.receive()
    assert (ack.op, ack.header["numbers"]) == ("ack", [[0, 5]])


def test_an_agent_gets_what_it_has_missed_when_it_joins_on_another_way(played: Played):
    first, second = played.connect(), played.connect()
    for end in (first, second):
        index = played.ask(end).header["index"]
        played.join(end, index, 1)
    played.ask(asking := played.connect())
    # Agent 2 is below agent 0.
    played.join(first, 2, 1)
    for number in range(3):
        played.root.post(encode_frame({"op": "slot", "number": number}), played.branches)
    played.root.post(b"for one", [played.branches[2]])
    assert passed_on(first.receive()) == [[1, None], [2, None], [3, None], [4, [2]]]
    first.close()
    played.poll()
    assert played.gone == [0]
    # Of these it has had the first one. What is for others only is not sent.
    played.root.post(b"for another", [played.branches[1]])
    missed = played.join(asking, 2, 2, received=1)
    assert [frame.op for frame in missed] == ["joined", "down"]
    assert passed_on(missed) == [[2, [2]], [3, [2]], [4, [2]]]
    assert played.arrived == [0, 1, 2]


def test_what_has_been_on_its_way_for_long_changes_no_way(played: Played):
    first, second = played.connect(), played.connect()
    for end in (first, second):
        index = played.ask(end).header["index"]
        played.join(end, index, 1)
    played.ask(played.connect())
    played.join(first, 2, 1)
    played.join(second, 2, 2)
    # The former parent's word of both arrives now.
    played.join(first, 2, 1)
    played.send(first, encode_frame({"op": "gone", "node": 2, "count": 1}))
    assert played.gone == []
    played.root.post(b"for one", [played.branches[2]])
    assert passed_on(first.receive()) == []
    assert passed_on(second.receive()) == [[1, [2]]]
    played.send(second, encode_frame({"op": "gone", "node": 2, "count": 2}))
    assert played.gone == [2]


def test_an_agent_that_was_given_up_gets_no_place_and_is_not_listened_to(played: Played):
    end, asking = played.connect(), played.connect()
    played.ask(end)
    played.join(end, 0, 1)
    played.ask(played.connect())
    played.ask(played.connect())
    played.join(end, 2, 1)
    played.branches[1].close()
    (drop,) = end.receive()
    assert (drop.op, drop.header["node"]) == ("drop", 2)
    played.send(end, report(2, 1))
    played.join(end, 2, 2)
    assert played.reports() == []
    assert played.ask(asking, index=2).op == "refused"
    # Others get no parent that is given up.
    assert played.ask(played.connect(), index=2, direct=True).op == "refused"


def test_what_has_reached_all_is_not_kept(played: Played):
    end = played.connect()
    played.ask(end)
    played.join(end, 0, 1)
    played.root.post(b"one", played.branches)
    played.root.post(b"two", played.branches)
    sent = played.send(end, encode_frame({"op": "beats"}, b'{"0":[1,null,1]}'))
    assert passed_on(sent) == [[1, None], [2, None]]
    played.root.acknowledge()
    assert passed_on(played.join(end, 0, 2, received=0)) == [[2, [0]]]


def test_the_late_end_of_an_old_connection_does_not_lose_an_agent_that_has_joined_on_another(
    played: Played,
):
    old = played.connect()
    played.ask(old)
    played.join(old, 0, 1)
    new = played.connect()
    played.ask(new, index=0, direct=True)
    played.join(new, 0, 2)
    old.close()
    played.poll()
    assert played.gone == []
    played.send(new, report(0, 1))
    assert played.reports() == [(0, 1)]
    new.close()
    played.poll()
    assert played.gone == [0]


def test_an_agent_that_has_only_asked_is_cut_off_after_a_time_and_one_that_has_joined_is_not(
    played: Played,
):
    joined, asked, silent = (played.connect() for _ in range(3))
    played.ask(joined)
    played.join(joined, 0, 1)
    played.ask(asked)
    for now in (1000.0, 1000.0 + TREE_JOIN_S):
        played.root.drop_silent(now)
        assert played.root.num_connections == 3
    played.root.drop_silent(1000.1 + TREE_JOIN_S)
    assert played.root.num_connections == 1
    assert [asked.receive(), silent.receive()] == [[], []]
    assert (asked.closed, silent.closed, joined.closed) == (True, True, False)
    # It can ask again.
    again = played.connect()
    assert played.ask(again, index=1).op == "placed"


@pytest.mark.parametrize("node", [-1, 1, 7, "0", None])
def test_a_frame_of_an_agent_that_is_not_there_costs_its_sender_alone(played: Played, node: Any):
    good, bad = played.connect(), played.connect()
    played.ask(good)
    played.join(good, 0, 1)
    played.join(bad, node, 1)
    assert bad.closed
    assert played.gone == []
    played.send(good, report(0, 1))
    assert played.reports() == [(0, 1)]


def test_an_agent_of_another_version_gets_no_place(played: Played):
    for protocol in (PROTOCOL + 1, None):
        answer = played.ask(played.connect(), protocol=protocol)
        assert answer.op == "refused"
        assert "it imports another hpctrain than the executor" in answer.header["reason"]


def test_an_agent_that_was_given_up_meanwhile_is_cut_off_when_it_joins(played: Played):
    first, second = played.connect(), played.connect()
    for end, node in ((first, 0), (second, 1)):
        played.ask(end)
        played.join(end, node, 1)
    played.branches[0].closed = True
    (answer,) = played.join(second, 0, 2)
    assert (answer.op, answer.header["node"]) == ("drop", 0)


def test_a_frame_for_all_that_live_names_none_of_them(played: Played):
    first, second = played.connect(), played.connect()
    for end in (first, second):
        played.join(end, played.ask(end).header["index"], 1)
    played.ask(played.connect())
    played.join(first, 2, 1)
    # One is given up by the owner, and one loses its connection.
    played.branches[2].close()
    first.receive()
    played.root.post(b"for both", played.branches[:2])
    assert passed_on(first.receive()) == [[1, None]]
    first.close()
    played.poll()
    assert played.gone == [0]
    played.root.post(b"for the last", [played.branches[1]])
    assert passed_on(second.receive()) == [[1, None], [2, None]]
