"""Writing files that survive: beside-and-rename, fsync, append."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomic(path: Path, content: bytes, *, mode: int = 0o644, durable: bool = False) -> None:
    """Write a file so that a reader sees the old or the new content, never a part.

    Not collective.

    Parameters
    ----------
    durable
        Whether the content is on disk when this returns; costs a flush of the disk.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    if durable:
        fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    """Make the names in a directory durable. Not collective."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_append(path: Path) -> int:
    """Return a descriptor that appends; each `os.write` of one line survives our death."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
