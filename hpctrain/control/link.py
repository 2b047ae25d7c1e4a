"""A rank's connection to the agent of its node (or to the executor, on one machine)."""

from __future__ import annotations

import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hpctrain import timeouts
from hpctrain.control.interfaces import address_of_name, is_loopback
from hpctrain.control.wire import Frame, FrameSocket, ProtocolError, encode_frame, join_frame
from hpctrain.log import log_traceback
from hpctrain.own_time import Deadline

if TYPE_CHECKING:
    from hpctrain.control.proof import Credentials, Seal

_FLUSH_INTERVAL_S = 0.02
_MAX_PENDING_BYTES = 16 * 2**20
_RETRY_INTERVAL_S = 0.01


class LinkTimeoutError(Exception):
    """No answer came in time."""


class Link:
    """A rank's end. One daemon thread receives; any thread posts.

    Parameters
    ----------
    sock
        Connected.
    attempt
        Number of the attempt.
    on_lost
        Called from the thread of the link when the executor is gone.
    seal
        The MACs of the frames; what `connect_tcp` returns.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        attempt: int,
        on_lost: Callable[[], None],
        seal: Seal | None = None,
    ) -> None:
        self._frames = FrameSocket(sock, seal)
        self._attempt = attempt
        self._on_lost = on_lost
        self._rank = -1
        self._report_header = b""
        self._lock = threading.Lock()
        self._last_flush = 0.0
        self._armed = False
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._commands: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._handlers: dict[str, Callable[[Frame], None]] = {}
        self._signals: list[str] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="hpctrain-link", daemon=True)
        # A child of this rank (a DataLoader worker) must not keep the connection open: its end
        # is how the executor learns of the rank's death.
        os.register_at_fork(after_in_child=self._frames.close)
        self._thread.start()

    def introduce(self, rank: int, details: Mapping[str, Any]) -> None:
        """Send which rank this is. Not collective."""
        self._rank = rank
        self._report_header = encode_header(rank, self._attempt)
        self.post("hello", **details)

    def handle(self, op: str, handler: Callable[[Frame], None]) -> None:
        """Call `handler` from the link's thread for commands of this kind. Not collective.

        What it raises is logged: the next command has to reach this rank all the same.
        """
        self._handlers[op] = handler

    def post(self, op: str, body: bytes = b"", **details: Any) -> None:
        """Send a frame soon, without waiting for it. Not collective."""
        header = {"op": op, "rank": self._rank, "attempt": self._attempt, **details}
        raw = encode_frame(header, body)
        with self._lock:
            self._frames.queue(raw)
            self._flush()

    def post_report(self, line: bytes) -> None:
        """Send a report's metrics within 20 ms. Not collective. Costs a few microseconds.

        Waits only when the executor is 16 MiB behind.
        """
        raw = join_frame(self._report_header, line)
        with self._lock:
            self._frames.queue(raw)
            if time.monotonic() - self._last_flush >= _FLUSH_INTERVAL_S:
                self._flush()
            elif not self._armed:
                self._arm()
        if self._frames.pending_bytes > _MAX_PENDING_BYTES:
            self.drain(timeout_s=timeouts.FULL_LINK_S)

    def post_signal(self, name: str) -> None:
        """Pass a signal on. Not collective. Safe in a signal handler: takes no lock."""
        self._signals.append(name)
        self._wake()

    def drain(self, *, timeout_s: float) -> bool:
        """Wait until everything is sent; return whether it was. Not collective."""
        deadline = Deadline(timeout_s)
        while not self._frames.closed:
            with self._lock:
                if self._frames.flush():
                    return True
            left = deadline.left_s
            if left <= 0:
                return False
            self._frames.await_room(min(left, 0.5))
        return False

    def next_command(self) -> Frame | None:
        """Wait for a command; None means that the executor is gone. Not collective."""
        return self._commands.get()

    def close(self, *, timeout_s: float = timeouts.LAST_FRAMES_S) -> None:
        """Send what is left and close. Not collective."""
        if self._closing:
            return
        self._closing = True
        self.drain(timeout_s=timeout_s)
        os.write(self._wake_writer, b"x")
        self._thread.join(timeout=timeouts.THREAD_END_S)
        with self._lock:
            self._frames.close()
            os.close(self._wake_reader)
            os.close(self._wake_writer)

    def _wake(self) -> None:
        # What has the number of a closed descriptor may be a file of the user by now.
        if not self._closing:
            os.write(self._wake_writer, b"x")

    def _flush(self) -> None:
        self._last_flush = time.monotonic()
        if not self._frames.flush() and not self._armed:
            self._arm()

    def _arm(self) -> None:
        self._armed = True
        self._wake()

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            # Whatever ends it: a rank that receives no more would outlive its executor.
            self._commands.put(None)
            if not self._closing:
                self._on_lost()

    def _serve(self) -> None:
        poller = select.poll()
        poller.register(self._frames, select.POLLIN)
        poller.register(self._wake_reader, select.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._wake_reader in ready:
                os.read(self._wake_reader, 64)
                if self._closing:
                    return
                while self._signals:
                    self.post("signal", name=self._signals.pop(0))
                self._send_behind()
            if self._frames.fileno() in ready:
                for frame in self._receive():
                    self._follow(frame)
            if self._frames.closed:
                return

    def _follow(self, command: Frame) -> None:
        handler = self._handlers.get(command.op)
        if handler is None:
            self._commands.put(command)
            return
        try:
            handler(command)
        except Exception as error:
            log_traceback(error)

    def _receive(self) -> list[Frame]:
        try:
            return self._frames.receive()
        except ProtocolError:
            # The peer is no longer our executor.
            self._frames.close()
            return []

    def _send_behind(self) -> None:
        """Send what reports left behind, a batch every 20 ms."""
        select.select([], [], [], _FLUSH_INTERVAL_S)
        while not self._frames.closed:
            with self._lock:
                self._last_flush = time.monotonic()
                if self._frames.flush():
                    self._armed = False
                    return
            self._frames.await_room(_FLUSH_INTERVAL_S)


def encode_header(rank: int, attempt: int) -> bytes:
    """Return the header of a report's frame. Not collective."""
    return b'{"op":"report","rank":%d,"attempt":%d}' % (rank, attempt)


def connect_tcp(
    addresses: list[str], credentials: Credentials, *, timeout_s: float
) -> tuple[socket.socket, Seal]:
    """Connect to the executor; it proves itself, and so does this end. Not collective.

    Parameters
    ----------
    addresses
        ``host:port``, in the order in which they are tried.
    credentials
        What both ends know.
    timeout_s
        Seconds until it is given up.

    Returns
    -------
    tuple
        The connection, and the MACs of its frames.

    Raises
    ------
    LinkTimeoutError
        If the executor answers at none of them in time.
    """
    deadline = Deadline(
        timeout_s, longest_gap_s=timeouts.TCP_CONNECTION_S + timeouts.PEER_PROOF_S + 1.0
    )
    errors: dict[str, str] = {}
    while not deadline.is_over:
        for address in addresses:
            try:
                return connect_once(address, credentials)
            except OSError as error:
                errors[address] = str(error)
        select.select([], [], [], 0.1)
    raise LinkTimeoutError(
        f"{socket.gethostname()} cannot reach the executor after {timeouts.describe(timeout_s)}: "
        + "; ".join(f"{address}: {error}" for address, error in errors.items())
    )


def connect_once(address: str, credentials: Credentials) -> tuple[socket.socket, Seal]:
    """Connect to one address, as `connect_tcp` does, without a second try. Not collective.

    Raises
    ------
    OSError
        If no process answers there, or not the one that is sought.
    """
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((_resolve(host), int(port)), timeouts.TCP_CONNECTION_S)
    try:
        return sock, _shake_hands(sock, credentials)
    except OSError:
        sock.close()
        raise


def _resolve(host: str) -> str:
    """Return the address of a host, but no loopback address that its name stands for here."""
    address = address_of_name(host)
    if address is None:
        raise OSError(f"{host} is unknown here")
    if is_loopback(address) and address != host:
        raise OSError(f"{host} is {address} here, which is {socket.gethostname()}")
    return address


def _shake_hands(sock: socket.socket, credentials: Credentials) -> Seal:
    from hpctrain.control.proof import AGENT, EXECUTOR, NONCE_BYTES, PROOF_BYTES

    # In all: a peer that sends a byte now and then must not keep others from being tried.
    deadline = Deadline(timeouts.PEER_PROOF_S, longest_gap_s=timeouts.PEER_PROOF_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    own = os.urandom(NONCE_BYTES)
    nonces = _receive_exactly(sock, NONCE_BYTES, deadline) + own
    sock.sendall(own + credentials.prove(AGENT, nonces))
    if not credentials.is_proved(EXECUTOR, nonces, _receive_exactly(sock, PROOF_BYTES, deadline)):
        raise ConnectionError("it does not know the secret of the run")
    return credentials.seal(AGENT, nonces)


def _receive_exactly(sock: socket.socket, count: int, deadline: Deadline) -> bytes:
    content = b""
    while len(content) < count:
        if deadline.is_over:
            raise TimeoutError("it listens, and does not prove that it is the executor")
        sock.settimeout(max(deadline.left_s, 0.001))
        chunk = sock.recv(count - len(content))
        if not chunk:
            raise ConnectionError("it closes the connection before it proves who it is")
        content += chunk
    return content
