"""The user's modules as they were: Python files, packed into the spec of a run."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

MOST_SOURCE_BYTES = 32 * 2**20
"""Larger trees are not kept with a run."""
_LENGTH_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A Python file, as it was read."""

    path: str
    size: int
    """Bytes."""
    mtime_ns: int
    """Modification time, in nanoseconds since the epoch."""
    compressed: bytes
    """What it held, by zlib."""

    @classmethod
    def of(cls, path: str, content: bytes, *, mtime_ns: int) -> SourceFile:
        """Return a file with what it holds. Not collective."""
        compressed = zlib.compress(content, level=1)
        return cls(path=path, size=len(content), mtime_ns=mtime_ns, compressed=compressed)

    @property
    def content(self) -> bytes:
        """What it held."""
        return zlib.decompress(self.compressed)

    @property
    def is_package(self) -> bool:
        """Whether it is the ``__init__.py`` of a package."""
        return os.path.basename(self.path) == "__init__.py"

    def is_unchanged(self) -> bool:
        """Return whether the file is as it was: by size and time, as Python's caches look.

        Where the time differs, as after a checkout or a copy, what it holds decides.
        """
        try:
            state = os.stat(self.path)
            if state.st_size != self.size:
                return False
            if state.st_mtime_ns == self.mtime_ns:
                return True
            with open(self.path, "rb") as file:
                return file.read() == self.content
        except OSError:
            return False


def pack_sources(sources: Mapping[str, SourceFile]) -> bytes:
    """Return source files as bytes; none where they are too large. Not collective.

    Parameters
    ----------
    sources
        By the name for ``import``.
    """
    if not sources or sum(source.size for source in sources.values()) > MOST_SOURCE_BYTES:
        return b""
    index = {
        name: [source.path, source.size, source.mtime_ns, len(source.compressed)]
        for name, source in sources.items()
    }
    head = zlib.compress(json.dumps(index).encode(), level=1)
    contents = [source.compressed for source in sources.values()]
    return b"".join([len(head).to_bytes(_LENGTH_BYTES, "little"), head, *contents])


def unpack_sources(packed: bytes) -> dict[str, SourceFile]:
    """Return what `pack_sources` was given; contents stay compressed. Not collective."""
    if not packed:
        return {}
    end = _LENGTH_BYTES + int.from_bytes(packed[:_LENGTH_BYTES], "little")
    index = json.loads(zlib.decompress(packed[_LENGTH_BYTES:end]))
    sources = {}
    for name, (path, size, mtime_ns, length) in index.items():
        compressed = packed[end : end + length]
        end += length
        sources[name] = SourceFile(path=path, size=size, mtime_ns=mtime_ns, compressed=compressed)
    return sources
