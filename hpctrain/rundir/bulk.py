"""How the bytes of a checkpoint are copied and read back. A faster way needs these two methods."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Protocol

import xxhash

# linux/fs.h: _IOW(0x94, 9, int)
_FICLONE = 0x40049409
_BLOCK_BYTES = 8 * 2**20


class Bulk(Protocol):
    """Copies and reads files. Used by ranks when they stage, and by the store when it verifies."""

    def copy(self, source: str, target: str) -> str:
        """Copy a file's content into a new file, and return `target`. Not collective."""

    def digest(self, path: Path, *, durable: bool = False) -> tuple[int, str]:
        """Return size in bytes and xxh3_128 digest of a file. Not collective.

        Parameters
        ----------
        durable
            Whether the content is on disk when this returns.
        """


class BufferedBulk:
    """Copies by reflink where the filesystem can, reads through the page cache."""

    def copy(self, source: str, target: str) -> str:
        """Copy a file's content into a new file, and return `target`. Not collective."""
        if not clone(source, target):
            # shutil copies inside the kernel.
            shutil.copyfile(source, target)
        return target

    def digest(self, path: Path, *, durable: bool = False) -> tuple[int, str]:
        """Return size in bytes and xxh3_128 digest of a file. Not collective."""
        digest = xxhash.xxh3_128()
        size = 0
        with open(path, "rb", buffering=0) as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
                size += len(block)
            if durable:
                os.fsync(file.fileno())
        return size, digest.hexdigest()


BUFFERED = BufferedBulk()


def clone(source: str, target: str) -> bool:
    """Let a new file share the blocks of another (reflink); return whether the filesystem could.

    Not collective. If it could not, `target` is empty.
    """
    with open(source, "rb") as reader, open(target, "wb") as writer:
        try:
            fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
        except OSError:
            # No reflink here: ext4, NFS, Lustre, another filesystem.
            return False
    return True
