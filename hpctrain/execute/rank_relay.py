"""`RankRelay`: passes frames between the ranks of a node and the executor, over one connection.

The agent of a node is one, with a process of its own (`hpctrain.execute.agent`). Where the user has
started the ranks, one of each node has one in a thread (`hpctrain.launch.node_relay`).
"""

from __future__ import annotations

import selectors
import socket
from typing import TYPE_CHECKING

from hpctrain.control import local_socket
from hpctrain.control.children import MAX_PENDING_BYTES
from hpctrain.control.event_loop import events_of
from hpctrain.control.hangups import Hangups
from hpctrain.control.memory import MemoryWatch
from hpctrain.control.wire import UNKNOWN_RANK, Frame, FrameSocket, ProtocolError, encode_frame
from hpctrain.temporary_checkpoint import remove_temporary_checkpoints

if TYPE_CHECKING:
    from hpctrain.control.proof import Seal

BEAT_INTERVAL_S = 2.0
"""Seconds of silence after which it sends a sign of life."""
BACKLOG = 1024
"""Ranks of a node that may wait to be accepted."""


class RankRelay:
    """The frames of one node's ranks. Notices when one of these dies.

    Parameters
    ----------
    attempt
        Number of the attempt.
    uplink
        Connected to the executor.
    seal
        The MACs of the frames between them.
    name
        By which the executor knows this node.
    """

    def __init__(
        self, *, attempt: int, uplink: socket.socket, seal: Seal | None = None, name: str
    ) -> None:
        self._name = name
        self._attempt = attempt
        self._uplink = FrameSocket(uplink, seal)
        self._ranks: dict[FrameSocket, int | None] = {}
        self._memory = MemoryWatch()
        self._temporary: dict[FrameSocket, tuple[str, str]] = {}
        self._waiting: dict[FrameSocket, str] = {}
        self._begun_spare = ""
        self._selector = selectors.DefaultSelector()
        self._hangups = Hangups()
        self._is_full = False
        """Whether the executor has so much to receive that ranks are not read."""

    def serve(self, listener: socket.socket) -> None:
        """Pass frames on until the executor is gone, or ends it; then close all connections.

        Parameters
        ----------
        listener
            Of the socket for the ranks. Owned by this object from here on.
        """
        try:
            self._selector.register(listener, selectors.EVENT_READ)
            self._selector.register(self._uplink, selectors.EVENT_READ)
            self._introduce()
            while not self._uplink.closed:
                self._step(listener)
                self._after_step()
        finally:
            self._end()

    def _introduce(self) -> None:
        self._send("agent", node=self._name)

    def _after_step(self) -> None:
        """Do what is due from time to time."""

    def _end(self) -> None:
        # Ranks that are left see the end of their stream, and leave.
        for frames in self._ranks:
            frames.close()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, (FrameSocket, socket.socket)):
                key.fileobj.close()
        self._selector.close()
        self._hangups.close()

    def _step(self, listener: socket.socket) -> None:
        ready = self._hangups.put_in_order(self._selector.select(BEAT_INTERVAL_S))
        if not ready:
            self._send("beat")
        self._memory.sample()
        for key, mask in ready:
            if key.fileobj is listener:
                self._accept(listener)
                continue
            frames = key.fileobj
            assert isinstance(frames, FrameSocket)
            if mask & selectors.EVENT_WRITE:
                frames.flush()
            if mask & selectors.EVENT_READ:
                if frames is self._uplink:
                    self._pass_down()
                else:
                    self._pass_up(frames)
            if not frames.closed:
                self._watch(frames)

    def _accept(self, listener: socket.socket) -> None:
        if (sock := local_socket.accept(listener)) is None:
            return
        frames = FrameSocket(sock)
        self._memory.add(frames, sock)
        self._add(frames)

    def _add(self, frames: FrameSocket) -> None:
        """Pass on what comes over a connection, until its end."""
        self._ranks[frames] = None
        self._selector.register(frames, selectors.EVENT_READ)
        self._hangups.add(frames.fileno())

    def _pass_up(self, frames: FrameSocket) -> None:
        try:
            received = frames.receive()
        except ProtocolError:
            # One rank's fault is not to end the others of the node.
            received, frames.closed = [], True
        for frame in received:
            self._note(frames, frame)
            self._uplink.queue(frame.raw)
        if frames.closed:
            rank = self._ranks.pop(frames)
            memory = self._memory.remove(frames)
            temporary = self._temporary.pop(frames, None)
            self._waiting.pop(frames, None)
            if frames in self._selector.get_map():
                self._selector.unregister(frames)
            self._hangups.remove(frames.fileno())
            frames.close()
            if rank is not None:
                self._send("lost", rank=rank, memory=memory)
                if temporary is not None:
                    remove_temporary_checkpoints(*temporary)
        self._uplink.flush()
        self._watch(self._uplink)

    def _note(self, frames: FrameSocket, frame: Frame) -> None:
        """Note what a rank sends of itself."""
        if frame.op == "starting":
            self._ranks[frames] = UNKNOWN_RANK
        elif frame.op == "hello":
            self._ranks[frames] = int(frame.header["rank"])
            self._temporary[frames] = frame.header["tmp"], frame.header["tmp_owner"]
        elif frame.op == "bye":
            self._ranks[frames] = None
        elif frame.op == "waiting":
            # Not of this attempt: nothing is for it, and its end is no loss.
            self._waiting[frames] = frame.header["spare"]
            self._memory.set_aside(frames)
            if frame.header["spare"] == self._begun_spare:
                self._let_begin(frames)

    def _begin_spare(self, spare: str) -> None:
        """Let the ranks that wait for an attempt begin, or leave if it is not theirs."""
        self._begun_spare = spare
        for frames, name in [*self._waiting.items()]:
            if name == spare:
                self._let_begin(frames)
            else:
                frames.post(encode_frame({"op": "exit", "attempt": self._attempt}))
                self._watch(frames)

    def _let_begin(self, frames: FrameSocket) -> None:
        del self._waiting[frames]
        self._memory.take_back(frames)
        frames.post(encode_frame({"op": "begin", "attempt": self._attempt}))
        self._watch(frames)

    def _pass_down(self) -> None:
        try:
            received = self._uplink.receive()
        except ProtocolError:
            # A third party changes what the executor sends. It is lost to this node.
            self._uplink.close()
            return
        for frame in received:
            if self._obey(frame):
                if self._uplink.closed:
                    return
                continue
            wanted = frame.header.get("ranks")
            for frames, rank in self._ranks.items():
                if rank is not None and (wanted is None or rank in wanted):
                    frames.post(frame.raw)
                    self._watch(frames)

    def _obey(self, frame: Frame) -> bool:
        """Do what the executor asks of the relay itself; return False if it asks the ranks."""
        if frame.op == "beat":
            self._send("beat")
        return frame.op == "beat"

    def _send(self, op: str, **details: object) -> None:
        self._uplink.post(encode_frame({"op": op, "attempt": self._attempt, **details}))

    def _watch(self, frames: FrameSocket) -> None:
        if frames.closed:
            return
        if frames is self._uplink and self._is_full != (
            is_full := frames.pending_bytes > MAX_PENDING_BYTES
        ):
            self._is_full = is_full
            for of_rank in self._ranks:
                self._watch(of_rank)
        events = events_of(frames, is_read=frames is self._uplink or not self._is_full)
        key = self._selector.get_map().get(frames)
        if key is None:
            if events:
                self._selector.register(frames, events)
        elif not events:
            self._selector.unregister(frames)
        elif key.events != events:
            self._selector.modify(frames, events)
