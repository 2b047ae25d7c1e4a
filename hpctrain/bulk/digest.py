"""`digest_file`: the digest of a file's content, which is read once and not kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import xxhash

from hpctrain.bulk.direct import LARGE_BYTES, FileReader
from hpctrain.bulk.ring import make_ring
from hpctrain.regular_file import open_regular


def digest_file(path: Path, *, durable: bool = False) -> tuple[int, str]:
    """Return size in bytes and xxh3_128 digest of a file. Not collective.

    A large file is read past the page cache, as far as it is not there already.

    Parameters
    ----------
    durable
        Whether the content is on disk when this returns.
    """
    with open_regular(path, follow_links=True) as file:
        # One open for all: on a parallel filesystem each is a question to a server.
        if os.fstat(file.fileno()).st_size < LARGE_BYTES:
            content = file.readall()
            found = len(content), xxhash.xxh3_128_hexdigest(content)
        else:
            found = _digest_large(path)
        if durable:
            os.fsync(file.fileno())
        return found


def _digest_large(path: Path) -> tuple[int, str]:
    digest, size = xxhash.xxh3_128(), 0
    with FileReader(path) as reader:
        for block in _blocks(reader):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def _blocks(reader: FileReader) -> Iterator[memoryview]:
    """Yield a file's blocks, each of which is good until the next; one is read ahead."""
    ring = make_ring(2)
    block, position = ring.take(), 0
    with ThreadPoolExecutor(1, "hpctrain-read") as ahead:
        coming = None
        if ring.blocks > 1:
            with suppress(RuntimeError):
                # Unless there is no memory for its stack.
                coming = ahead.submit(reader.read, block, position)
        if coming is None:
            while count := reader.read(block, position):
                position += count
                yield block[:count]
            return
        other = ring.take()
        while count := coming.result():
            position += count
            coming = ahead.submit(reader.read, other, position)
            yield block[:count]
            block, other = other, block
