"""`PackExchange`: lets nodes get a packed environment from one another, where sbcast does not.

Each of them runs `hpctrain.pack.node_peer`, and keeps a connection to here until all have the file.
Here no byte of the file is read or sent: it is only said who gets it from whom
(`hpctrain.plan.pack_tree`). A node that loses this connection, or receives nothing, reads the
shared file.
"""

from __future__ import annotations

import json
import resource
import secrets
import selectors
import socket
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from hpctrain import timeouts
from hpctrain.control.event_loop import EventLoop
from hpctrain.control.listener import listen_tcp
from hpctrain.control.open_files import OTHER_FILES, raise_limit_of_files
from hpctrain.control.proof import Credentials, Seal
from hpctrain.control.strangers import Strangers
from hpctrain.own_time import OwnTime
from hpctrain.pack.header import EnvironmentPack
from hpctrain.pack.node_peer import TO_EXECUTOR
from hpctrain.plan.pack_tree import FANOUT, PackTree

_PEER = Path(__file__).parents[1] / "pack/node_peer.py"
_SECRET_BYTES = 32
_BACKLOG = 4096
_LOOK_INTERVAL_S = 0.5
_BEAT_INTERVAL_S = 5.0
_MOST_LINE_BYTES = 2**16


class _Node:
    """The connection of one node."""

    def __init__(self, sock: socket.socket, received_at: float) -> None:
        self.sock = sock
        self.received_at = received_at
        self.address = ""
        self.received = b""


class PackExchange:
    """Says which node gets the file from which, in a thread, until it is closed.

    Parameters
    ----------
    pack
        The file.
    num_nodes
        How many may come.

    Raises
    ------
    OSError
        If it cannot listen.
    """

    def __init__(self, pack: EnvironmentPack, *, num_nodes: int) -> None:
        secret, run = secrets.token_bytes(_SECRET_BYTES), f"pack {pack.sha256}"
        self._listener, addresses = listen_tcp(backlog=_BACKLOG)
        self._listener.setblocking(False)
        self.program = _program(pack, addresses, secret=secret, run=run)
        """Standard input of the Python of each node."""
        self._limit = raise_limit_of_files(num_nodes + OTHER_FILES)
        self._loop = EventLoop()
        self._time = OwnTime(time.monotonic())
        credentials = Credentials(secret, run=run, attempt=TO_EXECUTOR)
        self._strangers = Strangers(self._loop.selector, credentials, self._admit)
        self._loop.watch(
            self._listener,
            selectors.EVENT_READ,
            lambda _: self._strangers.accept(self._listener, self._time.now),
        )
        self._tree = PackTree(FANOUT)
        self._nodes: dict[int, _Node] = {}
        self._num_admitted = 0
        self._beat_at = self._read_at = 0.0
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="hpctrain-pack", daemon=True)
        self._thread.start()

    @property
    def num_given(self) -> int:
        """How many nodes have got the file from another one."""
        return self._tree.num_given

    def close(self) -> None:
        """Let all nodes go: none gives the file to others any more."""
        self._is_closing = True
        self._loop.post(lambda: None)
        self._thread.join(timeouts.THREAD_END_S)

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._loop.turn(_LOOK_INTERVAL_S)
                now = self._time.look(time.monotonic())
                self._strangers.drop_silent(now)
                if now - self._beat_at > _BEAT_INTERVAL_S:
                    self._beat_at = now
                    self._beat(now)
        finally:
            # Nodes that wait read the shared file then, whatever ended this.
            for number in list(self._nodes):
                self._lose(number)
            self._strangers.close()
            self._listener.close()
            self._loop.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, self._limit)

    def _beat(self, now: float) -> None:
        for number, node in list(self._nodes.items()):
            is_silent = now - node.received_at > timeouts.PACK_WORD_S
            if is_silent and self._tree.is_busy(number):
                self._lose(number)
            else:
                self._post(number)
        self._assign()

    def _admit(self, sock: socket.socket, seal: Seal) -> None:
        # Without the secret the answers to a node are useless, and the file has its digest: the
        # lines need no MACs.
        del seal
        number = self._num_admitted
        self._num_admitted += 1
        self._nodes[number] = _Node(sock, self._time.now)
        self._loop.watch(sock, selectors.EVENT_READ, partial(self._receive, number))

    def _receive(self, number: int, _: int) -> None:
        if (node := self._nodes.get(number)) is None:
            return
        try:
            received = node.sock.recv(_MOST_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        node.received_at = self._time.now
        *lines, node.received = (node.received + received).split(b"\n")
        try:
            for line in lines:
                self._take(number, node, json.loads(line))
            is_open = bool(received) and len(node.received) < _MOST_LINE_BYTES
        except (ValueError, TypeError, AttributeError, OSError):
            is_open = False
        if not is_open:
            self._lose(number)
        self._assign()

    def _take(self, number: int, node: _Node, line: dict[str, Any]) -> None:
        """Take what a node has sent of itself."""
        if line.get("port") and not node.address:
            # The address by which it has come: by that network others reach it, too.
            node.address = f"{node.sock.getpeername()[0]}:{int(line['port'])}"
            self._tree.add(number)
        elif self._tree.is_busy(number) and "failed" in line:
            self._tree.fail(number)
        elif self._tree.is_busy(number) and "has" in line:
            self._tree.complete(number)

    def _assign(self) -> None:
        now = self._time.now
        is_late = now - self._read_at > timeouts.PACK_READ_S
        for number, source in self._tree.assign(is_late=is_late):
            self._nodes[number].received_at = now
            if source is None:
                self._read_at = now
                self._post(number, read=True)
            else:
                self._post(number, parent=self._nodes[source].address)

    def _post(self, number: int, **line: Any) -> None:
        try:
            self._nodes[number].sock.send(json.dumps(line).encode() + b"\n")
        except OSError:
            # It reads nothing, or is gone: then that is received, too.
            pass

    def _lose(self, number: int) -> None:
        node = self._nodes.pop(number)
        self._tree.remove(number)
        self._loop.forget(node.sock)
        node.sock.close()


def _program(pack: EnvironmentPack, addresses: list[str], *, secret: bytes, run: str) -> bytes:
    offer = {
        "addresses": addresses,
        "secret": secret.hex(),
        "run": run,
        "fanout": FANOUT,
        "file": pack.path,
        "size": pack.size,
        "total": pack.total_bytes,
        "sha256": pack.sha256,
        "silence_s": float(timeouts.PACK_WORD_S),
        "stall_s": float(timeouts.PACK_BYTES_S),
        "connection_s": float(timeouts.TCP_CONNECTION_S),
        "proof_s": float(timeouts.PEER_PROOF_S),
        "stranger_s": float(timeouts.STRANGER_S),
    }
    return f"{_PEER.read_text(encoding='utf-8')}\n\nmain({offer!r})\n".encode()
