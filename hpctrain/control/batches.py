"""Several frames in one, as they travel between the executor and agents that relay.

The header of a batch has, for each frame in it, some words about its way, and its size; the body
has the frames one after the other, as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hpctrain.control.wire import Frame, ProtocolError, encode_frame

BATCH_BYTES = 2**18
"""A batch ends with the frame that takes it above so much."""
_MAX_WORDS = 2**16
"""A header may have 1 MiB, and a number of a frame or a node takes up to 11 bytes of it."""


def pack(op: str, items: Iterable[tuple[list[Any], bytes]]) -> Iterator[bytes]:
    """Return frames, encoded, that hold others in order.

    Parameters
    ----------
    op
        What these frames are.
    items
        Words about each frame, as JSON has them, and the frame.
    """
    words: list[list[Any]] = []
    body: list[bytes] = []
    size = num_words = 0
    for about, raw in items:
        words.append([*about, len(raw)])
        body.append(raw)
        size += len(raw)
        num_words += 2 + sum(len(word) if isinstance(word, list) else 1 for word in about)
        if size >= BATCH_BYTES or num_words >= _MAX_WORDS:
            yield encode_frame({"op": op, "items": words}, b"".join(body))
            words, body, size, num_words = [], [], 0, 0
    if words:
        yield encode_frame({"op": op, "items": words}, b"".join(body))


def unpack(batch: Frame) -> Iterator[tuple[list[Any], bytes]]:
    """Return the items of a batch, as `pack` takes them.

    Raises
    ------
    ProtocolError
        If the sizes do not fit the body.
    """
    start = 0
    for *about, size in batch.header["items"]:
        end = start + size
        if not start <= end <= len(batch.body):
            raise ProtocolError(f"a batch of {len(batch.body)} bytes with a frame up to byte {end}")
        yield about, batch.body[start:end]
        start = end
