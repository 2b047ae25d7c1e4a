"""The executor's end: all ranks, through one connection a node; those of its own each by one."""

from __future__ import annotations

import selectors
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpctrain.control import local_socket
from hpctrain.control.event_loop import events_of
from hpctrain.control.hangups import Hangups
from hpctrain.control.listener import listen_tcp
from hpctrain.control.memory import MemoryWatch
from hpctrain.control.node_use import NodeMeter, gpus_here
from hpctrain.control.open_files import OTHER_FILES, raise_limit_of_files
from hpctrain.control.proof import Credentials, Seal
from hpctrain.control.strangers import Strangers
from hpctrain.control.wire import UNKNOWN_RANK, Frame, FrameSocket, ProtocolError, encode_frame
from hpctrain.own_time import OwnTime

if TYPE_CHECKING:
    from hpctrain.control.root import Branch, Root

SECRET_BYTES = 32
AGENT_SILENCE_S = 30.0
"""Seconds after which a silent node is given up: it has lost its power, or its network."""
BEAT_INTERVAL_S = 2.0
"""Seconds after which agents are asked for a sign of life."""
_BACKLOG = 4096


@dataclass
class _Peer:
    """One connection: a rank's own, or an agent's with several ranks behind it."""

    frames: FrameSocket | Branch
    is_agent: bool = False
    ranks: set[int] = field(default_factory=set)
    node: str = ""
    last_heard: float = 0.0
    memory: dict[str, Any] | None = None


class Hub:
    """All ranks of one attempt at a time, as the executor sees them. Used from one thread.

    Parameters
    ----------
    attempt
        Number of the attempt; frames of another are dropped.
    silence_s
        Seconds after which a silent node is given up, while this process itself listens.
    """

    def __init__(self, *, attempt: int, silence_s: float = AGENT_SILENCE_S) -> None:
        self._attempt = attempt
        self._silence_s = silence_s
        self._time = OwnTime(time.monotonic())
        self._beat_at = 0.0
        self._silence_checked_at = 0.0
        self.nodes: set[str] = set()
        """Nodes whose agents have come."""
        self.lost_nodes: dict[str, bool] = {}
        """Nodes that are lost; true if they are silent, false if only their agent's connection
        has ended."""
        self._selector = selectors.DefaultSelector()
        self._hangups = Hangups()
        self._listeners: list[socket.socket] = []
        self._peers: dict[int, _Peer] = {}
        self._peer_of: dict[int, _Peer] = {}
        self._strangers: Strangers | None = None
        self._root: Root | None = None
        self._memory = MemoryWatch()
        self._meter: NodeMeter | None = None
        self._use: dict[str, dict[str, Any]] = {}
        self._waiting: defaultdict[str, list[bytes]] = defaultdict(list)

    def listen_locally(self, name: str, *, measures: bool = True) -> None:
        """Accept ranks of this machine and user, which connect to a local socket of that name.

        Parameters
        ----------
        measures
            Whether it is measured what they use of this machine.
        """
        if measures:
            self._meter = NodeMeter(self._memory, gpus=gpus_here())
        self._listen(local_socket.listen(name, backlog=_BACKLOG), self._accept_local)

    def listen_tcp(
        self,
        credentials: Credentials,
        *,
        only_here: bool = False,
        fanout: int | None = None,
        num_agents: int = 0,
    ) -> list[str]:
        """Accept agents, or ranks, that prove themselves; return the addresses to try.

        Parameters
        ----------
        credentials
            What they have to know. This end proves itself by them, too.
        only_here
            Whether all of them are on this machine.
        fanout
            Connections that this end, and each agent, has to agents below it in a tree. None is
            for one to each agent.
        num_agents
            How many of them there are, so that each may have a connection: at first those of a tree
            have one, too.
        """
        if num_agents:
            raise_limit_of_files(num_agents + OTHER_FILES)
        admit: Callable[[socket.socket, Seal], object] = self._add
        if fanout is not None:
            from hpctrain.control.root import Root

            self._root = Root(
                self._selector,
                fanout=fanout,
                num_agents=num_agents,
                silence_s=self._silence_s,
                arrived=self._add_branch,
                received=self._take_of_branch,
            )
            admit = self._root.admit
        strangers = Strangers(self._selector, credentials, admit)
        self._strangers = strangers
        listener, addresses = listen_tcp(backlog=_BACKLOG, only_here=only_here)
        self._listen(listener, lambda listener: strangers.accept(listener, self._time.now))
        return addresses

    def watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Call back from `poll` when a descriptor becomes readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, lambda _: callback())

    def unwatch(self, descriptor: int) -> None:
        """Undo `watch`."""
        self._selector.unregister(descriptor)

    def poll(self, timeout_s: float) -> list[Frame]:
        """Return the frames that have arrived, in order of arrival of each connection.

        A connection that ends gives a frame ``lost`` for each rank behind it that has not sent that
        it leaves.
        """
        events: list[Frame] = []
        ready = self._hangups.put_in_order(self._selector.select(timeout_s))
        now = self._time.look(time.monotonic())
        for key, mask in ready:
            events += key.data(mask) or ()
        if self._strangers is not None:
            self._strangers.drop_silent(now)
        events += self._drop_silent_agents()
        self._memory.sample()
        if now - self._beat_at > BEAT_INTERVAL_S:
            self._beat_at = now
            self.send_agents("beat")
            if self._root is not None:
                self._root.acknowledge()
                self._root.drop_silent(now)
        # What a dying rank has sent, and its death, precede what its peers report of it.
        lost = {frame.header["rank"] for frame in events if frame.op == "lost"}
        return sorted(events, key=lambda frame: frame.header.get("rank") not in lost)

    def begin_attempt(self, attempt: int, *, spare: str = "") -> None:
        """Serve another attempt with the agents that are there. The ranks of the last are gone.

        Parameters
        ----------
        spare
            Which of the ranks that wait are its own; the others leave.
        """
        self._attempt = attempt
        self._waiting.clear()
        self.nodes = set()
        self.lost_nodes = {}
        self._use = {}
        self._peer_of.clear()
        for peer in self._peers.values():
            peer.ranks.clear()
        self.send_agents("begin", spare=spare)

    def send(
        self, op: str, body: bytes = b"", *, ranks: Collection[int] | None = None, **details: Any
    ) -> None:
        """Send a command to some ranks, or to all that are connected."""
        header: dict[str, Any] = {"op": op, "attempt": self._attempt, **details}
        if ranks is not None:
            header["ranks"] = sorted(ranks)
        raw = encode_frame(header, body)
        peers = (
            self._peer_of.values()
            if ranks is None
            else (self._peer_of[rank] for rank in ranks if rank in self._peer_of)
        )
        # Not a look at all peers: a write slot goes to one rank of perhaps ten thousand nodes.
        self._post(raw, list({id(peer): peer for peer in peers if not peer.frames.closed}.values()))

    def send_agents(self, op: str, **details: Any) -> None:
        """Send a command to the agents themselves."""
        raw = encode_frame({"op": op, "attempt": self._attempt, **details})
        self._post(raw, [peer for peer in self._peers.values() if peer.is_agent])

    def _post(self, raw: bytes, peers: list[_Peer]) -> None:
        branches = []
        for peer in peers:
            if not isinstance(peer.frames, FrameSocket):
                branches.append(peer.frames)
            else:
                peer.frames.post(raw)
                self._update(peer)
        if branches:
            assert self._root is not None
            self._root.post(raw, branches)

    def node_use(self) -> dict[str, dict[str, Any]]:
        """Return what ranks use of each node, as `NodeMeter.read` does, by the node's name.

        It came with the heartbeats of the agents; ranks of this machine are measured now.
        """
        if self._meter is not None and (use := self._meter.read()):
            return {socket.gethostname(): use}
        return dict(self._use)

    @property
    def num_ranks(self) -> int:
        """Number of ranks that are connected and have not sent that they leave."""
        return len(self._peer_of)

    def waiting(self, spare: str) -> list[bytes]:
        """Return what those of some ranks have sent that wait until their attempt begins."""
        return self._waiting[spare]

    @property
    def num_connections(self) -> int:
        """Number of connections to agents and ranks."""
        own = sum(isinstance(peer.frames, FrameSocket) for peer in self._peers.values())
        return own + (0 if self._root is None else self._root.num_connections)

    @property
    def local_pids(self) -> list[int]:
        """Processes of the ranks that are connected directly."""
        return self._memory.pids

    @property
    def num_agents(self) -> int:
        """Number of agents that are connected."""
        return sum(peer.is_agent for peer in self._peers.values())

    @property
    def num_remote(self) -> int:
        """Number of connections over TCP whose other end has proved itself."""
        own = (p.frames for p in self._peers.values() if isinstance(p.frames, FrameSocket))
        return sum(frames.has_seal for frames in own)

    def close(self) -> None:
        """Close everything; ranks that are left see that their executor is gone."""
        if self._root is not None:
            self._root.close()
        for peer in list(self._peers.values()):
            self._drop(peer)
        # Listeners, and peers that have not proved themselves yet.
        for key in list((self._selector.get_map() or {}).values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        self._hangups.close()

    def _listen(self, listener: socket.socket, accept: Callable[[socket.socket], None]) -> None:
        listener.setblocking(False)
        self._listeners.append(listener)
        self._selector.register(listener, selectors.EVENT_READ, lambda _: accept(listener))

    def _accept_local(self, listener: socket.socket) -> None:
        if (sock := local_socket.accept(listener)) is not None:
            self._memory.add(self._add(sock), sock)

    def _add(self, sock: socket.socket, seal: Seal | None = None) -> FrameSocket:
        frames = FrameSocket(sock, seal)
        peer = _Peer(frames, last_heard=self._time.now)
        self._peers[id(peer)] = peer
        self._selector.register(frames, selectors.EVENT_READ, lambda mask: self._serve(peer, mask))
        self._hangups.add(frames.fileno())
        return frames

    def _serve(self, peer: _Peer, mask: int) -> list[Frame]:
        assert isinstance(peer.frames, FrameSocket)
        if mask & selectors.EVENT_WRITE:
            peer.frames.flush()
            self._update(peer)
        if not mask & selectors.EVENT_READ:
            return []
        try:
            frames = peer.frames.receive()
        except ProtocolError:
            frames, peer.frames.closed = [], True
        return self._take(peer, frames)

    def _take(self, peer: _Peer, frames: list[Frame]) -> list[Frame]:
        peer.last_heard = self._time.now
        # Of an attempt that has not begun.
        for frame in frames:
            if frame.op == "waiting":
                self._waiting[str(frame.header.get("spare"))].append(frame.body)
        events = [frame for frame in frames if frame.header.get("attempt") == self._attempt]
        for frame in events:
            self._note(peer, frame)
        if peer.frames.closed:
            if peer.is_agent:
                self.lost_nodes[peer.node] = False
            self._drop(peer)
            events += [self._lost(peer, rank) for rank in sorted(peer.ranks)]
        return [frame for frame in events if frame.op not in ("agent", "beat")]

    def _add_branch(self, branch: Branch) -> None:
        self._peers[id(branch)] = _Peer(branch, last_heard=self._time.now)

    def _take_of_branch(self, branch: Branch, frames: list[Frame]) -> list[Frame]:
        return self._take(self._peers[id(branch)], frames)

    def _note(self, peer: _Peer, frame: Frame) -> None:
        if frame.op == "starting" and not peer.is_agent:
            peer.ranks.add(UNKNOWN_RANK)
        elif frame.op == "agent":
            peer.is_agent = True
            peer.node = str(frame.header["node"])
            self.nodes.add(peer.node)
        elif frame.op == "beat" and peer.is_agent:
            if isinstance(use := frame.header.get("use"), dict) and use:
                self._use[peer.node] = use
        elif frame.op == "hello":
            rank = int(frame.header["rank"])
            peer.ranks.discard(UNKNOWN_RANK)
            peer.ranks.add(rank)
            self._peer_of[rank] = peer
        elif frame.op in ("bye", "lost"):
            rank = int(frame.header["rank"])
            peer.ranks.discard(rank)
            self._peer_of.pop(rank, None)

    def _drop_silent_agents(self) -> list[Frame]:
        """Give a node up whose agent, which sends a frame every two seconds, has not for long."""
        events: list[Frame] = []
        if self._time.now - self._silence_checked_at < self._silence_s / 20:
            return events
        self._silence_checked_at = self._time.now
        for peer in list(self._peers.values()):
            if peer.is_agent and self._time.now - peer.last_heard > self._silence_s:
                self.lost_nodes[peer.node] = True
                self._drop(peer)
                events += [self._lost(peer, rank) for rank in sorted(peer.ranks)]
        return events

    def _lost(self, peer: _Peer, rank: int) -> Frame:
        self._peer_of.pop(rank, None)
        header = {"op": "lost", "rank": rank, "attempt": self._attempt, "agent": peer.is_agent}
        header["memory"] = peer.memory
        return Frame(header, b"", b"")

    def _update(self, peer: _Peer) -> None:
        if peer.frames.closed or not isinstance(peer.frames, FrameSocket):
            return
        events = events_of(peer.frames, is_read=True)
        key = self._selector.get_key(peer.frames)
        if key.events != events:
            self._selector.modify(peer.frames, events, key.data)

    def _drop(self, peer: _Peer) -> None:
        if not isinstance(peer.frames, FrameSocket):
            if self._peers.pop(id(peer.frames), None) is not None:
                self._use.pop(peer.node, None)
                peer.frames.close()
        elif self._peers.pop(id(peer), None) is not None:
            peer.memory = self._memory.remove(peer.frames)
            self._use.pop(peer.node, None)
            self._selector.unregister(peer.frames)
            self._hangups.remove(peer.frames.fileno())
            peer.frames.close()
