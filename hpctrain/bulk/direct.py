"""Files read and written past the page cache, where the filesystem lets one."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType

from hpctrain.bulk.page_cache import is_cached
from hpctrain.bulk.striping import prepare_stripes

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
        return os.open(path, flags | os.O_DIRECT, 0o666)
    except OSError as error:
        # tmpfs before Linux 6.6, and some that are mounted over a network or through FUSE.
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o666)


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
    while memory:
        try:
            done = os.pwrite(descriptor, memory, position)
        except OSError as error:
            if error.errno != errno.EINVAL or not _leave_direct(descriptor):
                raise
            continue
        position, memory = position + done, memory[done:]


def _leave_direct(descriptor: int) -> bool:
    """Go on through the page cache; False if that is what was done."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if not flags & os.O_DIRECT:
        return False
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
    return True


class FileReader:
    """A file that is read block by block: what is in the page cache from there, the rest past it.

    What was written a moment ago is in the cache and perhaps nowhere else; reading it past the
    cache would wait for the disk twice. A context, which closes the file.

    Parameters
    ----------
    path
        Of the file.
    """

    def __init__(self, path: Path) -> None:
        self._cached = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._direct: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        except OSError:
            self._direct = None

    def read(self, memory: memoryview, position: int) -> int:
        """Fill `memory` as far as the file goes; return how many bytes that are. Not collective.

        Parameters
        ----------
        memory
            Begins on a page and consists of pages.
        position
            In the file, in bytes; a multiple of a page.
        """
        done = 0
        if self._direct is not None and not is_cached(self._cached, position, len(memory)):
            try:
                done = os.preadv(self._direct, [memory], position)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                os.close(self._direct)
                self._direct = None
        while done < len(memory):
            more = os.preadv(self._cached, [memory[done:]], position + done)
            if not more:
                break
            done += more
        return done

    def __enter__(self) -> FileReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._cached)
        if self._direct is not None:
            os.close(self._direct)
