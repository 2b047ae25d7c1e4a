"""How long a node waits for its executor, for another node, and for who connects to it."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain.pack import node_peer
from hpctrain.pack.node_peer import Peer, PeerError

OFFER = {
    "secret": "00" * 32,
    "run": "a pack",
    "total": 3,
    "silence_s": 60.0,
    "stall_s": 30.0,
    "stranger_s": 10.0,
    "proof_s": 3.0,
    "connection_s": 3.0,
}
SUSPENDED_S = 3600.0


class Clock:
    """In place of `time`; the process may be suspended for an hour."""

    def __init__(self) -> None:
        self.now = self.ran = 0.0
        self.suspended_in_s = math.inf

    def monotonic(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let the process wait; a timeout of the system is over after a suspension."""
        seconds = min(seconds, self.suspended_in_s)
        self.ran += seconds
        self.now += seconds
        self.suspended_in_s -= seconds
        if self.suspended_in_s == 0:
            self.suspended_in_s = math.inf
            self.now += SUSPENDED_S
            raise TimeoutError("timed out")


class OtherEnd:
    """A socket to whose other end something happens every `interval_s`, `content` at a time."""

    def __init__(self, clock: Clock, interval_s: float, content: bytes = b"x") -> None:
        self._clock, self._interval_s, self._content = clock, interval_s, content
        self._next_at = clock.ran + interval_s
        self._timeout_s = 60.0
        self.is_closed = False

    def settimeout(self, seconds: float) -> None:
        self._timeout_s = seconds

    def _await(self) -> None:
        seconds = self._next_at - self._clock.ran
        self._clock.advance(min(seconds, self._timeout_s))
        if seconds > self._timeout_s:
            raise TimeoutError("timed out")
        self._next_at = self._clock.ran + self._interval_s

    def recv(self, count: int) -> bytes:
        self._await()
        return self._content[:count]

    def send(self, content: bytes) -> int:
        self._await()
        return len(content)

    def sendall(self, content: bytes) -> None:
        """Send what has room at once."""

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(node_peer, "time", clock)
    return clock


@pytest.fixture
def peer(tmp_path: Path, clock: Clock) -> Iterator[Any]:
    peer: Any = Peer(OFFER, str(tmp_path / "copy"), "node1")
    peer._listener.close()
    (tmp_path / "copy").write_bytes(b"abc")
    peer._file = os.open(tmp_path / "copy", os.O_RDONLY)
    yield peer
    os.close(peer._file)


def receive_from_node(peer: Any, sock: OtherEnd) -> bytes:
    taken = []
    peer._connect = lambda *_: sock
    peer._take = lambda read, _: taken.append(read(1))
    peer._get_from_node("node2:1")
    return taken[0]


def next_line(peer: Any, sock: OtherEnd) -> dict[str, Any]:
    peer._link = sock
    return peer._next_line()


@pytest.mark.parametrize("suspended_in_s", [2.0, math.inf])
def test_a_suspension_does_not_count_as_silence(
    peer: Any, clock: Clock, suspended_in_s: float
) -> None:
    clock.suspended_in_s = suspended_in_s
    assert next_line(peer, OtherEnd(clock, 50.0, b'{"read": true}\n')) == {"read": True}
    clock.suspended_in_s = suspended_in_s
    assert receive_from_node(peer, OtherEnd(clock, 25.0)) == b"x"
    clock.suspended_in_s = suspended_in_s
    peer._send_file(OtherEnd(clock, 25.0))
    num_suspensions = 3 if suspended_in_s == 2 else 0
    assert clock.now == clock.ran + num_suspensions * SUSPENDED_S


@pytest.mark.parametrize("suspended_in_s", [2.0, math.inf])
def test_silence_ends_a_wait(peer: Any, clock: Clock, suspended_in_s: float) -> None:
    clock.suspended_in_s = suspended_in_s
    with pytest.raises(PeerError, match="the executor has sent nothing for 60 s"):
        next_line(peer, OtherEnd(clock, 70.0))
    with pytest.raises(PeerError, match="node2:1 has sent nothing for 30 s"):
        receive_from_node(peer, OtherEnd(clock, 40.0))
    with pytest.raises(TimeoutError):
        peer._send_file(OtherEnd(clock, 40.0))
    assert clock.ran == pytest.approx(60 + 30 + 30, abs=1)


def test_who_sends_a_byte_a_second_has_no_more_time_to_prove_itself(
    peer: Any, clock: Clock
) -> None:
    stranger = OtherEnd(clock, 1.0)
    peer._give(stranger)
    assert stranger.is_closed
    assert clock.ran == pytest.approx(OFFER["stranger_s"], abs=1)


def test_a_node_tries_another_address_soon_if_one_sends_a_byte_a_second(
    peer: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = OtherEnd(clock, 1.0)
    monkeypatch.setattr(socket, "create_connection", lambda *_: slow)
    with pytest.raises(TimeoutError):
        peer._connect_once("127.0.0.1:1", node_peer.TO_NODE)
    assert slow.is_closed
    assert clock.ran == pytest.approx(OFFER["proof_s"], abs=1)
