"""An agent's connections in a tree of agents: frames go on to its parent, and to its children.

The agent itself has the other end of a socket pair, and need not know of the tree. The executor's
end is `hpctrain.control.root`; docs/design/hub-tree has the rules.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hpctrain import timeouts
from hpctrain.control.batches import pack, unpack
from hpctrain.control.beats import Beats
from hpctrain.control.children import MAX_PENDING_BYTES, Child, Children, decode_numbers
from hpctrain.control.event_loop import EventLoop, events_of
from hpctrain.control.interfaces import is_loopback
from hpctrain.control.listener import listen_tcp
from hpctrain.control.place import Place, PlaceRefusedError, find_place
from hpctrain.control.strangers import Strangers
from hpctrain.control.unacknowledged import Unacknowledged
from hpctrain.control.wire import Frame, FrameSocket, ProtocolError, encode_frame
from hpctrain.own_time import Deadline, OwnTime

if TYPE_CHECKING:
    from hpctrain.control.proof import Credentials, Seal

_BATCH_INTERVAL_S = 0.005
_FIRST_TICK_S = 1.0
_BACKLOG = 128


class Relay:
    """The connections of one agent in the tree, from one thread.

    Parameters
    ----------
    loop
        Calls it back.
    local
        The other end of the agent's uplink.
    first
        A connection to the executor, and its MACs.
    credentials
        What both ends of each connection know.
    """

    def __init__(
        self,
        loop: EventLoop,
        *,
        local: socket.socket,
        first: tuple[socket.socket, Seal],
        credentials: Credentials,
    ) -> None:
        self._loop = loop
        self._credentials = credentials
        host, port = first[0].getpeername()
        self._executor = f"{host}:{port}"
        self._local = FrameSocket(local)
        self._parent: FrameSocket | None = None
        self._is_direct = False
        self._children = Children(
            loop, take=self._take_up, changed=self._watch, lost=self._note_lost
        )
        self._index: int | None = None
        self._num_joins = 0
        self._sent: Unacknowledged[bytes] = Unacknowledged()
        self._received = 0
        self._items: list[tuple[list[Any], bytes]] = []
        self._is_batch_due = False
        self._beats = Beats(
            loop, send=self._post_up, num_senders=lambda: 1 + self._children.num_below
        )
        self._has_passed = False
        self._time = OwnTime(time.monotonic(), longest_gap_s=3.0)
        self._received_at = 0.0
        self._tick_s, self._silence_s = _FIRST_TICK_S, float("inf")
        self.ended = False
        """Whether the agent or its executor is gone, and all connections are closed."""
        self.refusal = ""
        """Why the executor cannot use this node, if that is why it got no place."""
        self._strangers = Strangers(loop.selector, credentials, self._children.admit)
        self._listener, self.addresses = listen_tcp(backlog=_BACKLOG, only_here=is_loopback(host))
        """Where children reach it."""
        self._listener.setblocking(False)
        loop.watch(
            self._listener,
            selectors.EVENT_READ,
            lambda _: self._accept(),
        )
        self._watch()
        loop.call_later(self._tick_s, self._tick)
        self._seek(first)

    @property
    def has_parent(self) -> bool:
        """Whether it is connected to its parent."""
        return self._parent is not None

    # Its place.

    def _seek(self, first: tuple[socket.socket, Seal] | None) -> None:
        """Find a parent, in a thread: children are served meanwhile."""
        question = {"index": self._index, "direct": first is None, "addresses": self.addresses}

        def find() -> None:
            found: Place | None = None
            try:
                found = find_place(
                    self._executor,
                    self._credentials,
                    question,
                    first=first,
                    is_over=lambda: self.ended,
                )
            except PlaceRefusedError as error:
                self.refusal = error.reason
            finally:
                self._loop.post(lambda: self._settle(found))

        threading.Thread(target=find, name="hpctrain-place", daemon=True).start()

    def _settle(self, place: Place | None) -> None:
        if self.ended or place is None:
            if place is not None:
                place.parent.close()
            self.end()
            return
        if self._index is None:
            self._index, self._received = place.answer["index"], place.answer["number"]
        self._tick_s, self._silence_s = place.answer["tick_s"], place.answer["silence_s"]
        if not place.answer["is_inner"]:
            self.close_listener()
        self._parent, self._is_direct = place.parent, place.is_direct
        self._received_at = self._time.now
        self._join()
        self._take_down(place.received)
        if self._parent.closed:
            # It was gone just behind its answer: no event will tell.
            self._leave_parent()
        else:
            self._watch()

    def _join(self) -> None:
        """Let the executor know of this way, and let those below do so, too."""
        self._num_joins += 1
        header = {"node": self._index, "count": self._num_joins, "received": self._received}
        self._post_up(encode_frame({"op": "join", **header}))
        self._items += [([self._index, number], raw) for number, raw in self._sent.after(0)]
        self._flush_items()
        self._children.ask_to_join()

    def _leave_parent(self) -> None:
        """Look for another parent. What this one had not passed on is sent again by its senders."""
        assert self._parent is not None
        self._loop.forget(self._parent)
        self._parent.close()
        self._parent = None
        self._items.clear()
        self._beats.clear()
        self._children.suspend()
        self._watch()
        self._seek(None)

    def _accept(self) -> None:
        # It may have been closed since it was found ready.
        if self._listener.fileno() >= 0:
            self._strangers.accept(self._listener, self._time.now)

    # Upward.

    def _serve_local(self, events: int) -> None:
        if self._local.closed:
            return
        if events & selectors.EVENT_WRITE:
            self._local.flush()
        if events & selectors.EVENT_READ:
            self._take_local(self._local.receive())
        if self._local.closed:
            self.end()
        else:
            self._watch()

    def _take_local(self, frames: list[Frame]) -> None:
        items = []
        for frame in frames:
            if frame.op != "beat":
                number = self._sent.add(frame.raw, num_bytes=len(frame.raw))
                items.append(([self._index, number], frame.raw))
            elif self._index is not None:
                self._beats.note(self._index, frame.header, self._received)
        self._queue_items(items)

    def _take_up(self, child: Child, frame: Frame) -> None:
        if frame.op == "up":
            self._queue_items(unpack(frame))
        elif frame.op == "beats":
            self._beats.take(frame)
        elif frame.op == "leave":
            child.index = None
        else:
            if frame.op == "join":
                self._children.note_join(child, frame.header["node"], frame.header["count"])
            elif frame.op == "gone":
                self._children.forget_way(child, frame.header["node"])
            self._post_up(frame.raw)

    def _note_lost(self, child: Child) -> None:
        if child.index is not None:
            header = {"node": child.index, "count": child.count}
            self._post_up(encode_frame({"op": "gone", **header}))

    def _queue_items(self, items: Iterable[tuple[list[Any], bytes]]) -> None:
        """Send frames at once, or with those of others that come within some milliseconds."""
        if self._parent is None:
            # They are not lost: their senders keep them, and join again when there is a parent.
            return
        self._items += items
        if self._items and not self._is_batch_due:
            self._is_batch_due = True
            self._loop.call_later(_BATCH_INTERVAL_S, self._end_batch)
            self._flush_items()

    def _end_batch(self) -> None:
        self._is_batch_due = False
        self._queue_items(())

    def _flush_items(self) -> None:
        items, self._items = self._items, []
        if self._parent is not None and items:
            for raw in pack("up", items):
                self._parent.queue(raw)
            self._parent.flush()
            self._watch()

    def _post_up(self, raw: bytes) -> None:
        self._flush_items()
        if self._parent is not None:
            self._parent.post(raw)
            self._watch()

    # Downward.

    def _serve_parent(self, events: int) -> None:
        parent = self._parent
        if parent is None or self.ended:
            return
        if events & selectors.EVENT_WRITE:
            parent.flush()
        if events & selectors.EVENT_READ:
            self._received_at = self._time.now
            try:
                self._take_down(parent.receive())
            except ProtocolError:
                parent.closed = True
        if parent.closed:
            self._leave_parent()
        else:
            self._watch()

    def _take_down(self, frames: list[Frame]) -> None:
        for frame in frames:
            if frame.op == "down":
                self._spread(frame)
            elif frame.op == "joined" and frame.header["node"] == self._index:
                self._sent.acknowledge(frame.header["number"])
            elif frame.op == "joined":
                self._children.confirm(frame)
            elif frame.op == "ack":
                numbers = decode_numbers(frame)
                if self._index in numbers:
                    self._sent.acknowledge(numbers.pop(self._index))
                self._children.pass_numbers("ack", numbers)
            elif frame.op == "moved":
                self._join()
            elif frame.op == "drop":
                self._children.cut_off(frame)

    def _spread(self, batch: Frame) -> None:
        items = list(unpack(batch))
        for (number, nodes), raw in items:
            if (nodes is None or self._index in nodes) and number > self._received:
                self._received = number
                self._local.queue(raw)
        self._local.flush()
        if all(nodes is None for (_, nodes), _ in items):
            self._has_passed = True
            self._children.pass_batch(batch)
        else:
            self._children.pass_items(items)

    # What is due, and the end.

    def _tick(self) -> None:
        if self.ended:
            return
        now = self._time.look(time.monotonic())
        self._strangers.drop_silent(now)
        if not self._has_passed:
            self._children.post_all(encode_frame({"op": "alive"}))
        self._has_passed = False
        patience_s = self._silence_s / 3
        if patience_s < float("inf"):
            self._children.drop_stuck(int(patience_s / self._tick_s))
        if self._children.is_full:
            # Nothing of the parent is read meanwhile.
            self._received_at = now
        if (
            self._parent is not None
            and not self._is_direct
            and now - self._received_at > patience_s
        ):
            # One that only was slow need not take the end of this connection for that of the node.
            self._parent.post(encode_frame({"op": "leave"}))
            self._leave_parent()
        self._loop.call_later(self._tick_s, self._tick)

    def end(self) -> None:
        """Send what is left, and close everything."""
        if self.ended:
            return
        self.ended = True
        self._flush_items()
        ends = [end for end in (self._local, self._parent) if end is not None]
        deadline = Deadline(timeouts.LAST_FRAMES_S)
        while not deadline.is_over:
            are_sent = [self._children.flush(), *(end.closed or end.flush() for end in ends)]
            if all(are_sent):
                break
            time.sleep(0.01)
        self.close_listener()
        self._strangers.close()
        self._children.close()
        for end in ends:
            self._loop.forget(end)
            end.close()

    def close_listener(self) -> None:
        """Take no children: the executor assigns none."""
        if self._listener.fileno() >= 0:
            self._loop.forget(self._listener)
            self._listener.close()

    def _watch(self) -> None:
        """Read as much as can be passed on."""
        is_up_full = False
        if self._parent is not None and not self._parent.closed:
            is_up_full = self._parent.pending_bytes > MAX_PENDING_BYTES
            events = events_of(self._parent, is_read=not self._children.is_full)
            self._loop.watch(self._parent, events, self._serve_parent)
        if not self._local.closed:
            has_room = not is_up_full and self._sent.num_bytes <= MAX_PENDING_BYTES
            self._loop.watch(
                self._local, events_of(self._local, is_read=has_room), self._serve_local
            )
        self._children.read(not is_up_full)
