"""Files read and written past the page cache, where the filesystem lets one."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path

from hpctrain.bulk.page_cache import CachedPages
from hpctrain.bulk.state_file import PAGE_BYTES
from hpctrain.bulk.striping import prepare_stripes
from hpctrain.own_files import FILE_MODE

LARGE_BYTES = 2**20
"""From this size on a file is copied faster past the page cache, and with half the CPU time."""


def open_new(path: Path, size: int) -> int:
    """Return a descriptor of a new, empty file, past the page cache if that is possible.

    Not collective. A file that is there already is emptied.

    Parameters
    ----------
    size
        Bytes that will be written, or about as many: on Lustre, large files get more stripes.
    """
    prepare_stripes(path, size)
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECT, FILE_MODE)
    except OSError as error:
        # tmpfs before Linux 6.6, and some that are mounted over a network or through FUSE.
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, FILE_MODE)


def write_at(descriptor: int, memory: memoryview, position: int) -> None:
    """Write all of `memory`. Not collective.

    Parameters
    ----------
    memory
        Begins on a page and consists of pages, or else is written through the page cache, as is all
        that comes later.
    position
        In the file, in bytes; a multiple of a page.
    """
    may_leave = True
    while memory:
        try:
            done = os.pwrite(descriptor, memory, position)
        except OSError as error:
            if error.errno != errno.EINVAL or not may_leave:
                raise
            # Once in each call: another thread, whose write was refused too, may have done it.
            may_leave = False
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
            continue
        if done == 0:
            raise OSError(errno.EIO, "nothing was written")
        position, memory = position + done, memory[done:]


class FileReader:
    """A file that is read block by block: what is in the page cache from there, the rest past it.

    What was written a moment ago is in the cache and perhaps nowhere else; reading it past the
    cache would wait for the disk twice. A context, which closes the file. Any number of threads may
    read.

    Parameters
    ----------
    path
        Of the file.
    aligned
        Whether what is read begins on pages of the file; if not, nothing is read past the cache.
    """

    def __init__(self, path: Path, *, aligned: bool = True) -> None:
        # Not their descriptors: a closed file's number may soon be that of another one.
        self._cached = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by `close`
        self._direct: FileIO | None = None
        self._pages: CachedPages | None = None
        self._refuses = False
        if not aligned:
            return
        with suppress(OSError):
            self._direct = open(path, "rb", buffering=0, opener=_open_direct)  # noqa: SIM115
            self._pages = CachedPages(self._cached.fileno())
            # Whoever asks whether a page is in the cache may bring it there: it alone, then.
            os.posix_fadvise(self._cached.fileno(), 0, 0, os.POSIX_FADV_RANDOM)

    def is_cached(self, position: int, size: int) -> bool:
        """Return whether a part is in the page cache, or all is read through it. Not collective."""
        return self._refuses or self._pages is None or self._pages.has(position, size)

    def read(self, memory: memoryview, position: int) -> int:
        """Fill `memory` as far as the file goes; return how many bytes that are. Not collective.

        Parameters
        ----------
        memory
            Begins on a page and consists of pages.
        position
            In the file, in bytes; a multiple of a page, if parts are aligned.
        """
        if self.is_cached(position, len(memory)):
            return self.read_cached([memory], position)
        return self.read_past(memory, position)

    def read_past(self, memory: memoryview, position: int) -> int:
        """Do as `read` does, past the page cache if that is possible. Not collective."""
        done, direct = 0, None if self._refuses else self._direct
        try:
            # Of the end of the file the disk gives less than a page.
            while direct is not None and done % PAGE_BYTES == 0 and done < len(memory):
                more = os.preadv(direct.fileno(), [memory[done:]], position + done)
                if not more:
                    break
                done += more
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._refuses = True
            os.posix_fadvise(self._cached.fileno(), 0, 0, os.POSIX_FADV_NORMAL)
        return done + self.read_cached([memory[done:]], position + done)

    def read_cached(self, memories: Sequence[memoryview], position: int) -> int:
        """Fill memories, one after the other, through the page cache. Not collective."""
        done = 0
        left = [memory for memory in memories if len(memory)]
        while left:
            more = os.preadv(self._cached.fileno(), left, position + done)
            if not more:
                break
            done, left = done + more, _after(left, more)
        return done

    def close(self) -> None:
        """Close the file. Not collective."""
        if self._pages is not None:
            self._pages.close()
        self._cached.close()
        if self._direct is not None:
            self._direct.close()

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open_direct(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_DIRECT | os.O_CLOEXEC)


def _after(memories: list[memoryview], count: int) -> list[memoryview]:
    """Return what is left of memories when some bytes of them are filled."""
    for index, memory in enumerate(memories):
        if count < len(memory):
            return [memory[count:], *memories[index + 1 :]]
        count -= len(memory)
    return []
