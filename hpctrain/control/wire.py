"""Frames: a JSON header and a body of bytes, over a stream socket."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

_LENGTHS = struct.Struct(">II")
_MAX_HEADER_BYTES = 2**20
_MAX_BODY_BYTES = 2**30
_READ_BYTES = 2**18
_MAX_READS = 16

NONCE_BYTES = 32
UNKNOWN_RANK = -1
"""Stands for a rank that has begun and does not know its number yet."""


# Not a dataclass: their module costs an agent a third of its imports.
class Frame(NamedTuple):
    """A message: what it says, and bytes that only its reader understands."""

    header: Mapping[str, Any]
    body: bytes
    raw: bytes
    """Header and body as they were on the wire, for those that only pass them on."""

    @property
    def op(self) -> str:
        """What the message is."""
        return str(self.header.get("op", ""))


class ProtocolError(Exception):
    """The other side does not speak this protocol."""


def encode_frame(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Return a frame as bytes. Not collective."""
    return join_frame(json.dumps(header, separators=(",", ":")).encode(), body)


def join_frame(header: bytes, body: bytes) -> bytes:
    """Return a frame whose header is encoded already. Not collective."""
    return _LENGTHS.pack(len(header), len(body)) + header + body


def answer_challenge(secret: bytes, nonce: bytes) -> bytes:
    """Return the proof that one knows `secret`. Not collective."""
    import hmac  # its libraries are large, and ranks of one machine do not need it

    return hmac.digest(secret, nonce, "sha256")


class FrameSocket:
    """A non-blocking socket with a buffer in each direction.

    Parameters
    ----------
    sock
        Connected. Owned by this object from here on.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._inbox = bytearray()
        self._outbox = bytearray()
        self.closed = False
        """Whether the other side is gone."""

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait to be sent."""
        return len(self._outbox)

    def post(self, raw: bytes) -> None:
        """Queue a frame and send what can be sent without waiting."""
        self._outbox += raw
        self.flush()

    def queue(self, raw: bytes) -> None:
        """Queue a frame for a later `flush`."""
        self._outbox += raw

    def flush(self) -> bool:
        """Send without waiting; return whether nothing is left to send."""
        while self._outbox and not self.closed:
            try:
                sent = self._socket.send(self._outbox)
            except BlockingIOError:
                return False
            except OSError:
                # What the other side sent before it went is still to be read.
                self._outbox.clear()
                return True
            del self._outbox[:sent]
        return True

    def receive(self) -> list[Frame]:
        """Return the frames that have arrived; sets `closed` at the end of the stream."""
        try:
            # Up to the end of what is there, so that an end of the stream is seen at once; but not
            # for ever, if the other side writes faster than this one reads.
            for _ in range(_MAX_READS):
                chunk = self._socket.recv(_READ_BYTES)
                if not chunk:
                    self.closed = True
                    break
                self._inbox += chunk
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True
        return self._split()

    def close(self) -> None:
        """Close the socket."""
        self.closed = True
        self._socket.close()

    def _split(self) -> list[Frame]:
        frames = []
        start, available = 0, len(self._inbox)
        while available - start >= _LENGTHS.size:
            header_bytes, body_bytes = _LENGTHS.unpack_from(self._inbox, start)
            if header_bytes > _MAX_HEADER_BYTES or body_bytes > _MAX_BODY_BYTES:
                raise ProtocolError(f"a frame of {header_bytes} + {body_bytes} bytes")
            body_start = start + _LENGTHS.size + header_bytes
            end = body_start + body_bytes
            if end > available:
                break
            raw = bytes(self._inbox[start:end])
            try:
                header = json.loads(raw[_LENGTHS.size : _LENGTHS.size + header_bytes])
            except ValueError as error:
                raise ProtocolError(f"a header that is not JSON: {error}") from error
            frames.append(Frame(header, raw[_LENGTHS.size + header_bytes :], raw))
            start = end
        del self._inbox[:start]
        return frames
