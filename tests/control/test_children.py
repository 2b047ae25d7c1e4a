from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from hpctrain.control.batches import pack, unpack
from hpctrain.control.children import MAX_PENDING_BYTES, Child, Children
from hpctrain.control.event_loop import EventLoop
from hpctrain.control.proof import AGENT, EXECUTOR, Credentials
from hpctrain.control.wire import Frame, FrameSocket, decode_frame, encode_frame

CREDENTIALS = Credentials(b"s" * 32, run="/runs/one", attempt=1)
NONCES = b"n" * 64


class Parent:
    """Two children, with the numbers 3 and 4; agent 7 is below the first one."""

    def __init__(self) -> None:
        self.loop = EventLoop()
        self.lost: list[int | None] = []
        self.children = Children(
            self.loop,
            take=self._take,
            changed=lambda: None,
            lost=lambda child: self.lost.append(child.index),
        )
        self.ends = [self.connect() for _ in range(2)]
        for end, index in ((0, 3), (1, 4), (0, 7)):
            self.ends[end].post(encode_frame({"op": "join", "node": index, "count": 1}))
        while self.children.num_below < 3:
            self.loop.turn(10.0)

    def connect(self) -> FrameSocket:
        mine, others = socket.socketpair()
        self.children.admit(others, CREDENTIALS.seal(EXECUTOR, NONCES))
        return FrameSocket(mine, CREDENTIALS.seal(AGENT, NONCES))

    def _take(self, child: Child, frame: Frame) -> None:
        self.children.note_join(child, frame.header["node"], frame.header["count"])

    def confirm(self, *nodes: int) -> None:
        for node in nodes:
            joined = encode_frame({"op": "joined", "node": node, "count": 1, "number": 0})
            self.children.confirm(decode_frame(joined))

    def pass_on(self, number: int, nodes: list[int] | None) -> None:
        (raw,) = pack("down", [([number, nodes], b"x")])
        if nodes is None:
            self.children.pass_batch(decode_frame(raw))
        else:
            self.children.pass_items([([number, nodes], b"x")])

    def received(self, end: int) -> list[object]:
        frames = self.ends[end].receive()
        return [
            [about for about, _ in unpack(frame)] if frame.op == "down" else frame.op
            for frame in frames
        ]


@pytest.fixture
def parent() -> Iterator[Parent]:
    parent = Parent()
    yield parent
    parent.children.close()
    for end in parent.ends:
        end.close()
    parent.loop.close()


def test_a_child_gets_nothing_before_the_executor_knows_of_it_on_this_way(parent: Parent):
    parent.pass_on(1, None)
    parent.pass_on(2, [3, 4, 7])
    parent.confirm(3, 7)
    parent.pass_on(3, None)
    parent.pass_on(4, [4, 7])
    assert parent.received(0) == ["joined", "joined", [[3, None]], [[4, [7]]]]
    assert parent.received(1) == []
    # Nor again after this agent has got another parent.
    parent.children.ask_to_join()
    parent.pass_on(5, None)
    parent.confirm(4)
    parent.pass_on(6, None)
    assert parent.received(0) == ["moved"]
    assert parent.received(1) == ["moved", "joined", [[6, None]]]


def test_an_answer_to_a_join_before_the_last_one_does_not_count(parent: Parent):
    parent.ends[1].post(encode_frame({"op": "join", "node": 4, "count": 2}))
    parent.loop.turn(10.0)
    parent.confirm(4)
    parent.pass_on(1, None)
    assert parent.received(1) == ["joined"]


def test_a_child_that_is_gone_is_known_and_so_is_what_was_below_it(parent: Parent):
    parent.ends[0].close()
    while not parent.lost:
        parent.loop.turn(10.0)
    assert parent.lost == [3]
    assert parent.children.num_below == 1


def test_an_agent_that_is_given_up_is_cut_off_by_its_parent_alone(parent: Parent):
    parent.children.cut_off(decode_frame(encode_frame({"op": "drop", "node": 7})))
    parent.children.cut_off(decode_frame(encode_frame({"op": "drop", "node": 4})))
    assert parent.received(0) == ["drop"]
    assert parent.received(1) == []
    assert parent.ends[1].closed
    # The executor knows already.
    assert parent.lost == []


def test_a_child_that_takes_nothing_is_cut_off_and_one_that_is_slow_is_not(parent: Parent):
    parent.confirm(3, 4)
    (raw,) = pack("down", [([1, None], bytes(2 * MAX_PENDING_BYTES))])
    parent.children.pass_batch(decode_frame(raw))
    assert parent.children.is_full
    for _ in range(4):
        # The first one reads a little; what can be sent then is.
        parent.ends[0].receive()
        parent.children.flush()
        parent.children.drop_stuck(2)
    assert parent.children.num_below == 2
    assert not parent.ends[0].closed
    parent.ends[1].receive()
    assert parent.ends[1].closed


def test_a_child_that_does_not_join_is_cut_off(parent: Parent):
    end = parent.connect()
    for _ in range(3):
        parent.children.drop_stuck(2)
    end.receive()
    assert end.closed
    assert parent.children.num_below == 3
    end.close()
