"""Frames: a JSON header and a body of bytes, over a stream socket."""

from __future__ import annotations

import json
import select
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hpctrain.control.proof import Seal

_LENGTHS = struct.Struct(">II")
_MAX_HEADER_BYTES = 2**20
_MAX_BODY_BYTES = 2**30
MAX_CONTENT_BYTES = _MAX_BODY_BYTES - 2 * _MAX_HEADER_BYTES
"""What a body may have that is to travel in the body of a batch, too."""
MAX_TEXT_CHARS = 2**14
"""Of a text in a header that is a user's, and may be of any length."""
_READ_BYTES = 2**18
_MAX_READS = 16

PROTOCOL = 5
"""Number of what frames are called and hold: another one with each change of it."""

UNKNOWN_RANK = -1
"""Stands for a rank that has begun and does not know its number yet."""


# Not a dataclass: their module costs an agent a fifth of its imports.
class Frame(NamedTuple):
    """A message: its header, and bytes that only its reader understands."""

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
    """Return a frame as bytes, as `join_frame` does. Not collective."""
    return join_frame(json.dumps(header, separators=(",", ":")).encode(), body)


def join_frame(header: bytes, body: bytes) -> bytes:
    """Return a frame whose header is encoded already. Not collective.

    Raises
    ------
    ProtocolError
        If it is larger than the other side takes, which would end the connection.
    """
    _check_sizes(len(header), len(body))
    return _LENGTHS.pack(len(header), len(body)) + header + body


def _check_sizes(header_bytes: int, body_bytes: int) -> None:
    if header_bytes > _MAX_HEADER_BYTES or body_bytes > _MAX_BODY_BYTES:
        raise ProtocolError(
            f"a frame of {header_bytes} + {body_bytes} bytes, and {_MAX_HEADER_BYTES} + "
            f"{_MAX_BODY_BYTES} is the most"
        )


def decode_frame(raw: bytes) -> Frame:
    """Return a whole frame from its bytes. Not collective.

    Raises
    ------
    ProtocolError
        If its header is not JSON.
    """
    (header_bytes, _) = _LENGTHS.unpack_from(raw)
    body_start = _LENGTHS.size + header_bytes
    try:
        header = json.loads(raw[_LENGTHS.size : body_start])
    except ValueError as error:
        raise ProtocolError(f"a header that is not JSON: {error}") from error
    return Frame(header, raw[body_start:], raw)


class FrameSocket:
    """A non-blocking socket with a buffer in each direction.

    Parameters
    ----------
    sock
        Connected. Owned by this object from here on.
    seal
        Puts frames into records that have MACs. None where the kernel identifies the other side.
    """

    def __init__(self, sock: socket.socket, seal: Seal | None = None) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._seal = seal
        self._inbox = bytearray()
        self._outbox = bytearray()
        # Of a connection with records: what is not in one yet, and what has come of them.
        self._queued = self._outbox if seal is None else bytearray()
        self._received = self._inbox if seal is None else bytearray()
        self.closed = False
        """Whether the other side is gone."""

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def has_seal(self) -> bool:
        """Whether what is sent is in records that have MACs."""
        return self._seal is not None

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait to be sent."""
        return len(self._outbox) + (0 if self._seal is None else len(self._queued))

    def post(self, raw: bytes) -> None:
        """Queue a frame and send what can be sent without waiting."""
        self.queue(raw)
        self.flush()

    def queue(self, raw: bytes) -> None:
        """Queue a frame for a later `flush`."""
        self._queued += raw

    def flush(self) -> bool:
        """Send without waiting; return whether nothing is left to send."""
        if self._seal is not None and self._queued:
            self._seal.wrap(self._queued, self._outbox)
            self._queued.clear()
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

    def await_room(self, timeout_s: float) -> None:
        """Wait until more can be sent, or for so long. Safe with any descriptor (man 2 select)."""
        poller = select.poll()
        with suppress(ValueError):  # another thread has closed it
            poller.register(self, select.POLLOUT)
            poller.poll(timeout_s * 1e3)

    def receive(self) -> list[Frame]:
        """Return the frames that have arrived; sets `closed` at the end of the stream.

        Raises
        ------
        ProtocolError
            If the other side sends something else, or a third party does: no byte of a frame is
            looked at before its MAC is checked.
        """
        try:
            # Up to the end of what is there, so that an end of the stream is seen at once; but not
            # for ever, if the other side writes faster than this one reads.
            for _ in range(_MAX_READS):
                chunk = self._socket.recv(_READ_BYTES)
                if not chunk:
                    self.closed = True
                    break
                self._received += chunk
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True
        if self._seal is not None and not self._seal.unwrap(self._received, self._inbox):
            raise ProtocolError("a record whose MAC is not the one that it should have")
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
            _check_sizes(header_bytes, body_bytes)
            body_start = start + _LENGTHS.size + header_bytes
            end = body_start + body_bytes
            if end > available:
                break
            frames.append(decode_frame(bytes(self._inbox[start:end])))
            start = end
        del self._inbox[:start]
        return frames
