"""What a node runs to get a packed environment from another node, and to give it to further ones.

Neither the environment nor hpctrain is on the node yet: it gets this text on standard input, below
it a call of `main`, and runs it with a ``python3`` of its own, from 3.6 on. So nothing but the
standard library is imported, and no newer syntax is used.

The executor (`hpctrain.execute.pack_exchange`) says who gets the file from whom, and is asked over
a connection that lasts until all nodes have it. Each line is a JSON object::

    node ── {"port": PORT} ─────► executor    where it gives the file to others
         ◄─ {"parent": ADDRESS} ─             get it there; or {"read": true}: read the shared file
         ── {"failed": WHY} ────►             not from there; or {"has": true}
         ◄─ {} ─────────────────►             nothing else for some seconds

Between nodes the bytes of the file follow the proofs. Its digest is known to each node from before.
"""

import hashlib
import hmac
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

# As in hpctrain.control.proof; and which connection it is, in the place of an attempt.
_EXECUTOR, _AGENT = "executor", "agent"
_NONCE_BYTES = _PROOF_BYTES = 32
TO_EXECUTOR, TO_NODE = 0, 1

_BLOCK_BYTES = 2**20
_LINE_BYTES = 2**12
_SENT_INTERVAL_S = 5.0
# As in hpctrain.own_time.
_LOOK_INTERVAL_S, _LONGEST_GAP_S = 0.25, 1.0
_RETRY_INTERVAL_S = 0.2
_STRANGERS = 32

_Returned = TypeVar("_Returned")


class PeerError(Exception):
    """The file does not come from where it was to come from."""


class _Deadline:
    """The end of a wait, in seconds in which this process ran: it may have been suspended.

    Parameters
    ----------
    seconds
        From now on.
    longest_gap_s
        Seconds between two looks of a running process; the excess does not count.
    """

    def __init__(self, seconds: float, longest_gap_s: float = _LONGEST_GAP_S) -> None:
        self._left, self._longest_gap_s = seconds, longest_gap_s
        self._looked_at = time.monotonic()

    def is_over(self) -> bool:
        """Return whether the time is over. To be called often."""
        now = time.monotonic()
        self._left -= min(now - self._looked_at, self._longest_gap_s)
        self._looked_at = now
        return self._left <= 0

    def wait(
        self, sock: "socket.socket", call: "Callable[[Any], _Returned]", argument: "object"
    ) -> "_Returned":
        """Return what a method of a socket returns; raise ``socket.timeout`` at the end."""
        while not self.is_over():
            sock.settimeout(_LOOK_INTERVAL_S)
            try:
                return call(argument)
            except socket.timeout:  # noqa: UP041  (before Python 3.10 another class)
                continue
        raise socket.timeout("timed out")  # noqa: UP041


class Peer:
    """One node of those that get the file from one another.

    Parameters
    ----------
    offer
        See `hpctrain.execute.pack_exchange`.
    copy
        Where the file is to be, on this node.
    node
        Its name.
    """

    def __init__(self, offer: "dict[str, Any]", copy: str, node: str) -> None:
        self._offer, self._copy, self._node = offer, copy, node
        self._secret = bytes.fromhex(offer["secret"])
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._link = self._listener
        self._received = b""
        self._sent_at = 0.0
        self._file = -1
        self._failed = ""

    def get(self) -> None:
        """Get the file from where the executor says; it has its digest then.

        Raises
        ------
        PeerError, OSError
            If it is not there: from no other node and not from the shared filesystem.
        """
        self._listener.bind(("", 0))
        self._listener.listen(self._offer["fanout"] + _STRANGERS)
        silence_s = self._offer["silence_s"]
        self._link = self._connect(self._offer["addresses"], TO_EXECUTOR, silence_s)
        self._send(port=self._listener.getsockname()[1])
        while True:
            task = self._next_line()
            if "parent" in task:
                try:
                    self._get_from_node(task["parent"])
                except PeerError as error:
                    self.discard()
                    self._failed = str(error)
                    self._print(f"{self._node}: {error}")
                    self._send(failed=self._failed)
                    continue
            elif "read" in task:
                self._read_shared()
            else:
                continue
            self._send(has=True)
            return

    def discard(self) -> None:
        """Remove what there is of the file."""
        if self._file >= 0:
            os.close(self._file)
            os.unlink(self._copy)
            self._file = -1

    def serve(self) -> None:
        """Give the file to other nodes, until the executor closes the connection."""
        threading.Thread(target=self._accept, daemon=True).start()
        try:
            while True:
                self._next_line()
        except (PeerError, OSError):
            # All have it; or the executor is gone.
            return

    def _send(self, **line: "object") -> None:
        self._sent_at = time.monotonic()
        try:
            self._link.sendall(json.dumps(line).encode() + b"\n")
        except OSError:
            # What is awaited next finds that the executor is gone. The file may come without it.
            pass

    def _next_line(self) -> "dict[str, Any]":
        seconds = self._offer["silence_s"]
        deadline = _Deadline(seconds)
        while b"\n" not in self._received:
            try:
                received = deadline.wait(self._link, self._link.recv, _LINE_BYTES)
            except socket.timeout:  # noqa: UP041
                raise PeerError(f"the executor has sent nothing for {seconds:g} s") from None
            if not received:
                raise PeerError("the executor has closed the connection")
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        found = json.loads(line.decode())
        return found if isinstance(found, dict) else {}

    def _get_from_node(self, address: str) -> None:
        sender = self._connect([address], TO_NODE, 0.0)
        seconds = self._offer["stall_s"]

        def read(count: int) -> bytes:
            try:
                return _Deadline(seconds).wait(sender, sender.recv, count)
            except socket.timeout:  # noqa: UP041
                raise PeerError(f"{address} has sent nothing for {seconds:g} s") from None
            except OSError as error:
                raise PeerError(f"{address}: {error}") from error

        try:
            self._take(read, address)
        finally:
            sender.close()

    def _read_shared(self) -> None:
        path = self._offer["file"]
        if self._failed:
            self._print(f"hpctrain-pack {self._node} gets it from no other node: {self._failed}")
        self._print(f"hpctrain-pack {self._node} reads the shared file: {path}")
        with open(path, "rb", buffering=0) as file:
            self._take(file.read, path)

    @staticmethod
    def _print(line: str) -> None:
        # One write: the lines of all nodes go into one file.
        os.write(1, f"{line}\n".encode(errors="replace"))

    def _take(self, read: "Callable[[int], bytes]", where: str) -> None:
        """Write what is read into the copy, if its digest is that of the pack."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(self._copy, flags, 0o600)
        digest, size, total, done = hashlib.sha256(), self._offer["size"], self._offer["total"], 0
        while done < total:
            data = read(min(_BLOCK_BYTES, total - done))
            if not data:
                raise PeerError(f"{where} ended after {done} of {total} bytes")
            # What follows the digested bytes is the digest itself.
            digest.update(data[: max(0, size - done)])
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
            done += len(data)
            if time.monotonic() - self._sent_at > _SENT_INTERVAL_S:
                self._send()
        if digest.hexdigest() != self._offer["sha256"]:
            raise PeerError(f"what came from {where} has another digest")

    def _accept(self) -> None:
        while True:
            try:
                receiver, _ = self._listener.accept()
            except OSError:
                # No descriptor is left for a moment.
                time.sleep(_RETRY_INTERVAL_S)
                continue
            if threading.active_count() > self._offer["fanout"] + _STRANGERS:
                receiver.close()
                continue
            threading.Thread(target=self._give, args=(receiver,), daemon=True).start()

    def _give(self, receiver: "socket.socket") -> None:
        try:
            nonce = os.urandom(_NONCE_BYTES)
            deadline = _Deadline(self._offer["stranger_s"])
            receiver.sendall(nonce)
            answer = self._receive(receiver, _NONCE_BYTES + _PROOF_BYTES, deadline)
            nonces = nonce + answer[:_NONCE_BYTES]
            expected = self._prove(_AGENT, TO_NODE, nonces)
            if not hmac.compare_digest(answer[_NONCE_BYTES:], expected):
                return
            receiver.sendall(self._prove(_EXECUTOR, TO_NODE, nonces))
            self._send_file(receiver)
        except (PeerError, OSError):
            # It tells the executor itself.
            pass
        finally:
            receiver.close()

    def _send_file(self, receiver: "socket.socket") -> None:
        # The descriptor is shared by those that get it, so its offset is not used.
        for offset in range(0, self._offer["total"], _BLOCK_BYTES):
            view = memoryview(os.pread(self._file, _BLOCK_BYTES, offset))
            deadline = _Deadline(self._offer["stall_s"])
            while view:
                view = view[deadline.wait(receiver, receiver.send, view) :]

    def _connect(self, addresses: "list[str]", kind: int, patience: float) -> "socket.socket":
        once_s = self._offer["connection_s"] + self._offer["proof_s"] + _LONGEST_GAP_S
        deadline = _Deadline(patience, longest_gap_s=once_s)
        while True:
            errors = []
            for address in addresses:
                try:
                    return self._connect_once(address, kind)
                except (PeerError, OSError) as error:
                    errors.append(f"{address}: {error}")
            if deadline.is_over():
                raise PeerError("cannot be reached: " + "; ".join(errors))
            time.sleep(_RETRY_INTERVAL_S)

    def _connect_once(self, address: str, kind: int) -> "socket.socket":
        host, _, port = address.rpartition(":")
        found = socket.gethostbyname(host)
        if found.startswith("127.") and found != host:
            raise PeerError("a loopback address here")
        sock = socket.create_connection((found, int(port)), self._offer["connection_s"])
        try:
            # For the whole proof: a peer that sends a byte now and then must not hold up the rest.
            deadline = _Deadline(self._offer["proof_s"])
            nonce = os.urandom(_NONCE_BYTES)
            nonces = self._receive(sock, _NONCE_BYTES, deadline) + nonce
            sock.sendall(nonce + self._prove(_AGENT, kind, nonces))
            answer = self._receive(sock, _PROOF_BYTES, deadline)
            if not hmac.compare_digest(answer, self._prove(_EXECUTOR, kind, nonces)):
                raise PeerError("it is not of this run")
        except BaseException:
            sock.close()
            raise
        return sock

    def _prove(self, role: str, kind: int, nonces: bytes) -> bytes:
        context = json.dumps(["proof", role, self._offer["run"], kind]).encode()
        return hmac.new(self._secret, context + nonces, "sha256").digest()

    @staticmethod
    def _receive(sock: "socket.socket", count: int, deadline: "_Deadline") -> bytes:
        received = b""
        while len(received) < count:
            data = deadline.wait(sock, sock.recv, count - len(received))
            if not data:
                raise PeerError("it closed the connection")
            received += data
        return received


def main(offer: "dict[str, Any]") -> None:
    """Get the file, and go on in the background; exit with 1, and why, if it does not come."""
    copy, node = sys.argv[1:]
    peer = Peer(offer, copy, node)
    try:
        peer.get()
    except (PeerError, OSError, ValueError) as error:
        peer.discard()
        os.write(2, f"{error}\n".encode(errors="replace"))
        os._exit(1)
    try:
        is_parent = os.fork() > 0
    except OSError:
        # This node has it; others get it elsewhere.
        is_parent = True
    if not is_parent:
        # What waits for the end of the output goes on.
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        peer.serve()
    os._exit(0)
