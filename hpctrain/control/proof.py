"""Both ends of a TCP connection prove that they know the secret of the run; then all has MACs.

::

    executor ── nonce ──────────────────► agent, or rank
             ◄─ nonce, proof of "agent" ─
             ── proof of "executor" ────►

A proof is the HMAC-SHA256 of the role, the run, the attempt and both nonces, with the secret as its
key, so that one of another role, run, attempt or connection is worth nothing here. The keys of the
MACs, one for each direction, come from the same: a process that forwards a handshake can read the
frames after it, and neither change, repeat, drop nor add one. Imported by TCP connections only:
hashlib loads OpenSSL. A Python in FIPS mode refuses keyed BLAKE2.
"""

from __future__ import annotations

import hmac
import json
import struct
from hashlib import sha256
from typing import Any

NONCE_BYTES = 32
PROOF_BYTES = 32
MAC_BYTES = 16
_LENGTH = struct.Struct(">I")
_RECORD_BYTES = 2**16
"""Of content, at most: so much of a stranger's is kept until its MAC is checked."""

EXECUTOR = "executor"
AGENT = "agent"
"""The role of the side that connects to the executor: the agent of a node, or a rank."""


class Seal:
    """The records of one connection, as one of its ends writes and reads them.

    A record is a length (4 bytes, big-endian), some bytes of the stream of frames, and a MAC over
    the record's number and these. The numbers are not sent: both ends count. What is sent at once
    shares a record, so that frames that are sent together cost one MAC.

    Parameters
    ----------
    sending, receiving
        The keys of the two directions.
    """

    def __init__(self, sending: bytes, receiving: bytes) -> None:
        self._sending = _keyed(sending)
        self._receiving = _keyed(receiving)
        self._sent = 0
        self._received = 0

    def wrap(self, content: bytearray, outbox: bytearray) -> None:
        """Append the records of what is sent next to `outbox`."""
        with memoryview(content) as view:
            for start in range(0, len(view), _RECORD_BYTES):
                with view[start : start + _RECORD_BYTES] as piece:
                    outbox += _LENGTH.pack(len(piece))
                    outbox += piece
                    outbox += _mac(self._sending, self._sent, piece)
                self._sent += 1

    def unwrap(self, received: bytearray, inbox: bytearray) -> bool:
        """Take the records that are whole out of what was received; append their content.

        False if one of them has not the MAC that it should have.
        """
        start = 0
        with memoryview(received) as view:
            while len(view) - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(view, start)
                begin = start + _LENGTH.size
                end = begin + length
                if length > _RECORD_BYTES:
                    return False
                if end + MAC_BYTES > len(view):
                    break
                with view[begin:end] as piece, view[end : end + MAC_BYTES] as mac:
                    expected = _mac(self._receiving, self._received, piece)
                    if not hmac.compare_digest(mac, expected):
                        return False
                    inbox += piece
                self._received += 1
                start = end + MAC_BYTES
        del received[:start]
        return True


def _keyed(key: bytes) -> tuple[Any, Any]:
    """Return the two hashes of HMAC (RFC 2104), which have taken in the key.

    To copy them takes a fifth of the time of a copy of `hmac.HMAC`, and each frame needs one.
    """
    block = key.ljust(sha256().block_size, b"\0")
    inner, outer = bytes(byte ^ 0x36 for byte in block), bytes(byte ^ 0x5C for byte in block)
    return sha256(inner), sha256(outer)


def _mac(key: tuple[Any, Any], number: int, content: memoryview) -> bytes:
    inner, outer = (each.copy() for each in key)
    inner.update(number.to_bytes(8, "big"))
    inner.update(content)
    outer.update(inner.digest())
    return bytes(outer.digest()[:MAC_BYTES])


class Credentials:
    """What both ends of a connection know before it is made.

    Parameters
    ----------
    secret
        Of the attempt.
    run
        The run directory, as both ends write it.
    attempt
        Number of the attempt that began the connections.
    """

    def __init__(self, secret: bytes, *, run: str, attempt: int) -> None:
        self._secret = secret
        self._run = run
        self._attempt = attempt

    def prove(self, role: str, nonces: bytes) -> bytes:
        """Return the proof of an end; `nonces` is the executor's, then the other one's."""
        return self._hash("proof", role, nonces)

    def is_proved(self, role: str, nonces: bytes, proof: bytes) -> bool:
        """Return whether the other end, which has this role, has proved itself."""
        return hmac.compare_digest(self.prove(role, nonces), proof)

    def seal(self, role: str, nonces: bytes) -> Seal:
        """Return the MACs for the end of this role."""
        other = AGENT if role == EXECUTOR else EXECUTOR
        return Seal(self._hash("frames", role, nonces), self._hash("frames", other, nonces))

    def _hash(self, purpose: str, role: str, nonces: bytes) -> bytes:
        context = json.dumps([purpose, role, self._run, self._attempt]).encode()
        return hmac.digest(self._secret, context + nonces, "sha256")
