"""The executor's end of a tree of agents: one connection to each agent that is its child.

The other end is `hpctrain.control.relay`; docs/design/hub-tree has the rules. An agent is numbered
as it comes, and gets a parent (`hpctrain.control.hub_tree`). From then on each is a `Branch`.
"""

from __future__ import annotations

import selectors
import socket
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from hpctrain import timeouts
from hpctrain.control.batches import pack, unpack
from hpctrain.control.beats import decode_beats
from hpctrain.control.children import encode_numbers
from hpctrain.control.event_loop import events_of
from hpctrain.control.hub_tree import EXECUTOR, children_of, parent_of
from hpctrain.control.unacknowledged import Unacknowledged
from hpctrain.control.wire import (
    PROTOCOL,
    Frame,
    FrameSocket,
    ProtocolError,
    decode_frame,
    encode_frame,
)

if TYPE_CHECKING:
    from hpctrain.control.proof import Seal

_TICK_S = 2.0
_ANOTHER_VERSION = (
    "it imports another hpctrain than the executor of the run, as it was installed anew while the "
    "run was on; fit() with the same name resumes the run with the new one"
)
_ACKNOWLEDGE_BYTES = 2**20
"""Received from one agent after which that is acknowledged at once."""


class _Trunk:
    """A connection, of an agent that is a child of the executor or asks for its place."""

    def __init__(self, frames: FrameSocket) -> None:
        self.frames = frames
        self.index: int | None = None
        """Of the child; None before it has joined."""
        self.since: float | None = None
        """When it was first seen without one."""


class Branch:
    """One agent, wherever it is in the tree."""

    def __init__(self, index: int, addresses: list[str], close: Callable[[Branch], None]) -> None:
        self.index = index
        self.addresses = addresses
        """Where its children reach it."""
        self.closed = False
        """Whether it is given up."""
        self.trunk: _Trunk | None = None
        """The connection on which it has joined last; None while it looks for another parent."""
        self.has_joined = False
        self.num_joins = 0
        self.received = 0
        """Number of the last frame that came from it."""
        self.acknowledged = 0
        self.unacknowledged_bytes = 0
        self.reached = 0
        """Number of a frame up to which all that are for it have arrived there."""
        self._close = close

    def close(self) -> None:
        """Give it up."""
        if not self.closed:
            self.closed = True
            self._close(self)


class Root:
    """All agents of a tree.

    Parameters
    ----------
    selector
        That of the owner, which calls back what is registered, and gets frames from it.
    fanout
        Largest number of children of the executor, and of each agent.
    num_agents
        How many agents are expected.
    silence_s
        Seconds after which the owner gives a silent agent up.
    arrived
        Gets an agent that has joined for the first time.
    received
        Gets what an agent has sent, or nothing from one that is `closed` because its connection has
        ended; returns what the owner's caller is to have of it.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        *,
        fanout: int,
        num_agents: int,
        silence_s: float,
        arrived: Callable[[Branch], None],
        received: Callable[[Branch, list[Frame]], list[Frame]],
    ) -> None:
        self._selector = selector
        self._fanout = fanout
        self._num_agents = num_agents
        self._silence_s = silence_s
        self._arrived = arrived
        self._deliver = received
        self._branches: list[Branch] = []
        # Of those that have joined and are not given up.
        self._num_living = 0
        self._trunks: list[_Trunk] = []
        self._sent: Unacknowledged[tuple[frozenset[int] | None, bytes]] = Unacknowledged()

    @property
    def num_connections(self) -> int:
        """Number of connections to agents."""
        return len(self._trunks)

    def admit(self, sock: socket.socket, seal: Seal) -> None:
        """Take an agent that has proved itself."""
        trunk = _Trunk(FrameSocket(sock, seal))
        self._trunks.append(trunk)
        self._selector.register(
            trunk.frames, selectors.EVENT_READ, lambda events: self._serve(trunk, events)
        )

    def post(self, raw: bytes, branches: Collection[Branch]) -> None:
        """Send a frame to some agents, or to all."""
        nodes = None if len(branches) == self._num_living else frozenset(b.index for b in branches)
        number = self._sent.add((nodes, raw), num_bytes=len(raw))
        ways: dict[_Trunk, list[int] | None] = {}
        if nodes is None:
            ways = {trunk: None for trunk in self._trunks if trunk.index is not None}
        else:
            named: defaultdict[_Trunk, list[int]] = defaultdict(list)
            for branch in branches:
                if branch.trunk is not None:
                    named[branch.trunk].append(branch.index)
            ways.update(named)
        for trunk, theirs in ways.items():
            for batch in pack("down", [([number, theirs], raw)]):
                self._post(trunk, batch)

    def acknowledge(self) -> None:
        """Let agents forget what has arrived, and forget what has reached all of them."""
        living = [branch for branch in self._branches if branch.has_joined and not branch.closed]
        if living:
            self._sent.acknowledge(min(branch.reached for branch in living))
        self._acknowledge([b for b in living if b.received > b.acknowledged])

    def drop_silent(self, now: float) -> None:
        """Free the descriptors of those that have asked for a place, and have lost their power."""
        for trunk in list(self._trunks):
            if trunk.index is not None:
                continue
            if trunk.since is None:
                trunk.since = now
            elif now - trunk.since > timeouts.TREE_JOIN_S:
                self._drop(trunk)

    def close(self) -> None:
        """Close all connections."""
        for trunk in list(self._trunks):
            self._drop(trunk)

    def _serve(self, trunk: _Trunk, events: int) -> list[Frame]:
        if trunk.frames.closed:
            return []
        if events & selectors.EVENT_WRITE:
            trunk.frames.flush()
            self._watch(trunk)
        taken: list[Frame] = []
        if events & selectors.EVENT_READ:
            try:
                for frame in trunk.frames.receive():
                    taken += self._take(trunk, frame)
            except ProtocolError:
                trunk.frames.closed = True
            if trunk.frames.closed:
                taken += self._end(trunk)
        return taken

    def _take(self, trunk: _Trunk, frame: Frame) -> list[Frame]:
        if frame.op == "up":
            return self._take_items(frame)
        if frame.op == "beats":
            return self._take_beats(frame)
        if frame.op == "ask":
            self._place(trunk, frame.header)
        elif frame.op == "join":
            self._join(trunk, frame.header)
        elif frame.op == "gone":
            branch = self._branch(frame.header["node"])
            # It may have joined on another way meanwhile.
            if branch.num_joins == frame.header["count"]:
                return self._lose(branch)
        return []

    def _place(self, trunk: _Trunk, question: Any) -> None:
        if question.get("protocol") != PROTOCOL:
            self._post(trunk, encode_frame({"op": "refused", "reason": _ANOTHER_VERSION}))
            return
        index = question["index"]
        if index is None:
            index = len(self._branches)
            self._branches.append(Branch(index, question["addresses"], self._give_up))
        branch = self._branch(index)
        if branch.closed:
            self._post(trunk, encode_frame({"op": "refused"}))
            return
        parent = EXECUTOR if question["direct"] else parent_of(index, self._fanout)
        addresses: list[str] = []
        if parent != EXECUTOR and not self._branches[parent].closed:
            addresses = self._branches[parent].addresses
        answer = {
            "index": index,
            "parent": addresses,
            "is_inner": bool(children_of(index, self._fanout, self._num_agents)),
            "number": self._sent.last,
            "silence_s": self._silence_s,
            "tick_s": min(_TICK_S, self._silence_s / 12),
        }
        self._post(trunk, encode_frame({"op": "placed", **answer}))

    def _join(self, trunk: _Trunk, header: Any) -> None:
        branch = self._branch(header["node"])
        if branch.closed:
            # It was given up while no way led to it.
            self._post(trunk, encode_frame({"op": "drop", "node": branch.index}))
            return
        if header["count"] <= branch.num_joins:
            # It has been on its way while its sender looked for another way.
            return
        if trunk.index is None:
            trunk.index = branch.index
        branch.num_joins, branch.trunk = header["count"], trunk
        branch.reached = max(branch.reached, header["received"])
        joined = {"node": branch.index, "count": branch.num_joins, "number": branch.received}
        self._post(trunk, encode_frame({"op": "joined", **joined}))
        missed = [
            ([number, [branch.index]], raw)
            for number, (nodes, raw) in self._sent.after(header["received"])
            if nodes is None or branch.index in nodes
        ]
        for batch in pack("down", missed):
            self._post(trunk, batch)
        if not branch.has_joined:
            branch.has_joined = True
            self._num_living += 1
            self._arrived(branch)

    def _take_items(self, batch: Frame) -> list[Frame]:
        received: defaultdict[Branch, list[Frame]] = defaultdict(list)
        for (index, number), raw in unpack(batch):
            branch = self._branch(index)
            # Skip duplicates, and frames after a gap: the sender resends them when it rejoins.
            if branch.closed or number != branch.received + 1:
                continue
            branch.received = number
            branch.unacknowledged_bytes += len(raw)
            received[branch].append(decode_frame(raw))
        self._acknowledge([b for b in received if b.unacknowledged_bytes > _ACKNOWLEDGE_BYTES])
        return [f for branch, frames in received.items() for f in self._deliver(branch, frames)]

    def _take_beats(self, frame: Frame) -> list[Frame]:
        taken: list[Frame] = []
        for index, (attempt, use, reached) in decode_beats(frame).items():
            branch = self._branch(index)
            if branch.has_joined and not branch.closed:
                branch.reached = max(branch.reached, reached)
                header = {"op": "beat", "attempt": attempt, "use": use}
                taken += self._deliver(branch, [Frame(header, b"", b"")])
        return taken

    def _acknowledge(self, branches: list[Branch]) -> None:
        numbers: defaultdict[_Trunk, dict[int, int]] = defaultdict(dict)
        for branch in branches:
            branch.unacknowledged_bytes = 0
            if branch.trunk is not None:
                branch.acknowledged = branch.received
                numbers[branch.trunk][branch.index] = branch.received
        for trunk, theirs in numbers.items():
            self._post(trunk, encode_numbers("ack", theirs))

    def _lose(self, branch: Branch) -> list[Frame]:
        """Give an agent up whose connection to its parent has ended."""
        if branch.closed:
            return []
        branch.closed = True
        self._give_up(branch)
        return self._deliver(branch, []) if branch.has_joined else []

    def _give_up(self, branch: Branch) -> None:
        """Let nothing more come from an agent, nor from what it may still have to pass on."""
        self._num_living -= branch.has_joined
        trunk, branch.trunk = branch.trunk, None
        if trunk is None or trunk.frames.closed:
            return
        if trunk.index == branch.index:
            self._drop(trunk)
        else:
            self._post(trunk, encode_frame({"op": "drop", "node": branch.index}))

    def _end(self, trunk: _Trunk) -> list[Frame]:
        self._drop(trunk)
        # Those behind it are not lost with it: they join again.
        if trunk.index is None or self._branches[trunk.index].trunk is not None:
            # The end that its agent saw came first, and it has joined on another connection since.
            return []
        return self._lose(self._branches[trunk.index])

    def _branch(self, index: Any) -> Branch:
        if not (isinstance(index, int) and 0 <= index < len(self._branches)):
            raise ProtocolError(f"a frame is of agent {index!r}, of {len(self._branches)}")
        return self._branches[index]

    def _post(self, trunk: _Trunk, raw: bytes) -> None:
        if not trunk.frames.closed:
            trunk.frames.post(raw)
            self._watch(trunk)

    def _watch(self, trunk: _Trunk) -> None:
        events = events_of(trunk.frames, is_read=True)
        key = self._selector.get_key(trunk.frames)
        if key.events != events:
            self._selector.modify(trunk.frames, events, key.data)

    def _drop(self, trunk: _Trunk) -> None:
        if trunk in self._trunks:
            self._trunks.remove(trunk)
            self._selector.unregister(trunk.frames)
            trunk.frames.close()
            # One that only asked for a place leads nowhere.
            for branch in self._branches if trunk.index is not None else ():
                if branch.trunk is trunk:
                    branch.trunk = None
