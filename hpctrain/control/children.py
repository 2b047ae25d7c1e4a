"""The agents whose parent an agent is: what it sends them, and which way leads to which."""

from __future__ import annotations

import selectors
import socket
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from hpctrain.control.batches import pack
from hpctrain.control.event_loop import EventLoop, events_of
from hpctrain.control.wire import Frame, FrameSocket, ProtocolError, encode_frame

if TYPE_CHECKING:
    from hpctrain.control.proof import Seal

MAX_PENDING_BYTES = 16 * 2**20
"""Bytes that may wait for one receiver before no more are read of what is for it."""


class Child:
    """The connection of one child."""

    def __init__(self, frames: FrameSocket) -> None:
        self.frames = frames
        self.index: int | None = None
        """Its number in the tree, once it has joined."""
        self.count = 0
        """How often it has joined."""
        self.is_live = False
        """Whether the executor knows of it on this way. Before that it would miss frames."""
        self.pending_bytes = 0
        """What waited for it at the last tick."""
        self.num_stuck = 0
        """Ticks in which it has taken nothing, though much waits, or has not joined."""


class Children:
    """The children of one agent, and the agents below them.

    Parameters
    ----------
    loop
        Calls back when one has sent something.
    take
        Gets each frame, and who has sent it.
    changed
        Called when more, or less, waits for children than before.
    lost
        Gets a child whose connection has ended.
    """

    def __init__(
        self,
        loop: EventLoop,
        *,
        take: Callable[[Child, Frame], object],
        changed: Callable[[], object],
        lost: Callable[[Child], object],
    ) -> None:
        self._loop = loop
        self._take = take
        self._changed = changed
        self._lost = lost
        self._are_read = True
        self._children: list[Child] = []
        self._via: dict[int, Child] = {}

    @property
    def num_below(self) -> int:
        """Number of agents below this one, at any level."""
        return len(self._via)

    @property
    def is_full(self) -> bool:
        """Whether much waits for one of them."""
        return any(child.frames.pending_bytes > MAX_PENDING_BYTES for child in self._children)

    def admit(self, sock: socket.socket, seal: Seal) -> None:
        """Take an agent that has proved itself."""
        child = Child(FrameSocket(sock, seal))
        self._children.append(child)
        self._watch(child)

    def read(self, are_read: bool) -> None:
        """Read what they send, or let it wait."""
        if are_read != self._are_read:
            self._are_read = are_read
            for child in self._children:
                self._watch(child)

    def note_join(self, child: Child, index: int, count: int) -> None:
        """Note that a child, or an agent below it, has joined on this way."""
        if child.index in (None, index):
            child.index, child.count = index, count
        self._via[index] = child

    def forget_way(self, child: Child, index: int) -> None:
        """Note that an agent is no longer on this way."""
        if self._via.get(index) is child:
            del self._via[index]

    def confirm(self, joined: Frame) -> None:
        """Pass it on that the executor knows of an agent on this way."""
        if (child := self._via.get(joined.header["node"])) is not None:
            if joined.header["node"] == child.index and joined.header["count"] == child.count:
                child.is_live = True
            self._post(child, joined.raw)

    def suspend(self) -> None:
        """Send them nothing until the executor knows of them on the new way."""
        for child in self._children:
            child.is_live = False

    def ask_to_join(self) -> None:
        """Let them, and those below them, join on the new way."""
        self.suspend()
        self.post_all(encode_frame({"op": "moved"}))

    def post_all(self, raw: bytes) -> None:
        """Send a frame of this connection itself to all."""
        for child in list(self._children):
            self._post(child, raw)

    def pass_batch(self, batch: Frame) -> None:
        """Pass a batch for all agents on, as it is."""
        for child in self._children:
            if child.is_live:
                self._post(child, batch.raw)

    def pass_items(self, items: Iterable[tuple[list[Any], bytes]]) -> None:
        """Pass frames on, each to the children that lead to the agents it is for."""
        parts: defaultdict[Child, list[tuple[list[Any], bytes]]] = defaultdict(list)
        for (number, nodes), raw in items:
            for child, named in self._ways(nodes).items():
                parts[child].append(([number, named], raw))
        for child, theirs in parts.items():
            for raw in pack("down", theirs) if child.is_live else ():
                child.frames.queue(raw)
            self._flush(child)

    def _ways(self, nodes: Collection[int] | None) -> dict[Child, list[int] | None]:
        if nodes is None:
            return dict.fromkeys(self._children)
        ways: dict[Child, list[int] | None] = {}
        for index in nodes:
            if (child := self._via.get(index)) is not None:
                named = ways.setdefault(child, [])
                assert named is not None
                named.append(index)
        return ways

    def pass_numbers(self, op: str, numbers: dict[int, int]) -> None:
        """Pass a number on to each of some agents."""
        parts: defaultdict[Child, dict[int, int]] = defaultdict(dict)
        for index, number in numbers.items():
            if (child := self._via.get(index)) is not None:
                parts[child][index] = number
        for child, theirs in parts.items():
            self._post(child, encode_numbers(op, theirs))

    def cut_off(self, drop: Frame) -> None:
        """End the connection of an agent that the executor has given up."""
        child = self._via.get(drop.header["node"])
        if child is not None and child.index == drop.header["node"]:
            self._drop(child)
        elif child is not None:
            self._post(child, drop.raw)

    def drop_stuck(self, max_ticks: int) -> None:
        """End connections of those that have taken nothing for so many ticks, though much waits.

        They hold up what is for the others. One that lives looks for another parent. So does one
        that has not joined.
        """
        for child in list(self._children):
            pending = child.frames.pending_bytes
            takes_nothing = pending > MAX_PENDING_BYTES and pending >= child.pending_bytes
            is_stuck = takes_nothing or child.index is None
            child.pending_bytes = pending
            child.num_stuck = child.num_stuck + 1 if is_stuck else 0
            if child.num_stuck > max_ticks:
                self._drop(child)

    def flush(self) -> bool:
        """Send what can be sent now; return whether nothing is left."""
        are_sent = [child.frames.closed or child.frames.flush() for child in self._children]
        return all(are_sent)

    def close(self) -> None:
        """End all connections."""
        for child in list(self._children):
            self._drop(child)

    def _serve(self, child: Child, events: int) -> None:
        if child.frames.closed:
            return
        if events & selectors.EVENT_WRITE:
            child.frames.flush()
            self._changed()
        if events & selectors.EVENT_READ:
            try:
                for frame in child.frames.receive():
                    self._take(child, frame)
            except ProtocolError:
                child.frames.closed = True
        if child.frames.closed:
            self._drop(child)
            self._lost(child)
        else:
            self._watch(child)

    def _post(self, child: Child, raw: bytes) -> None:
        child.frames.queue(raw)
        self._flush(child)

    def _flush(self, child: Child) -> None:
        if not child.frames.flush():
            self._changed()
        self._watch(child)

    def _watch(self, child: Child) -> None:
        if not child.frames.closed:
            events = events_of(child.frames, is_read=self._are_read)
            self._loop.watch(child.frames, events, partial(self._serve, child))

    def _drop(self, child: Child) -> None:
        if child in self._children:
            self._loop.forget(child.frames)
            child.frames.close()
            self._children.remove(child)
            self._via = {index: via for index, via in self._via.items() if via is not child}
            self._changed()


def encode_numbers(op: str, numbers: dict[int, int]) -> bytes:
    """Return a frame, encoded, with a number for each of some agents. Not collective."""
    return encode_frame({"op": op, "numbers": list(numbers.items())})


def decode_numbers(frame: Frame) -> dict[int, int]:
    """Return what `encode_numbers` has encoded. Not collective."""
    return dict(frame.header["numbers"])
