"""`digest_file`: the digest of a file's content, which is read once and not kept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

from hpctrain.bulk.direct import LARGE_BYTES, BlockReader
from hpctrain.bulk.ring import Ring


def digest_file(path: Path) -> tuple[int, str]:
    """Return size in bytes and xxh3_128 digest of a file. Not collective.

    A large file is read past the page cache, as far as it is not there already.
    """
    if path.stat().st_size < LARGE_BYTES:
        content = path.read_bytes()
        return len(content), xxhash.xxh3_128_hexdigest(content)
    digest, size = xxhash.xxh3_128(), 0
    ring = Ring(2)
    block, other = ring.take(), ring.take()
    with BlockReader(path) as reader, ThreadPoolExecutor(1, "hpctrain-read") as ahead:
        coming = ahead.submit(reader.read, block, 0)
        while count := coming.result():
            size += count
            coming = ahead.submit(reader.read, other, size)
            digest.update(block[:count])
            block, other = other, block
    return size, digest.hexdigest()
