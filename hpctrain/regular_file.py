"""`open_regular`: open files that another user may have put there."""

from __future__ import annotations

import errno
import os
import stat
from functools import partial
from io import FileIO
from pathlib import Path


def open_regular(path: Path, *, follow_links: bool = False, directory: int | None = None) -> FileIO:
    """Open a regular file for reading, without a buffer. Not collective.

    A FIFO would block the reader until another process writes, and a device such as ``/dev/zero``
    never ends.

    Parameters
    ----------
    follow_links
        Whether the path may be a symbolic link to a regular file.
    directory
        Descriptor of the directory that a relative path begins in; None is the working directory.

    Raises
    ------
    OSError
        If it cannot be opened, or is not a regular file.
    """
    opener = partial(_open_at_most_linked if follow_links else _open, directory=directory)
    return open(path, "rb", buffering=0, opener=opener)


def _open_at_most_linked(path: str, flags: int, *, directory: int | None) -> int:
    # O_NONBLOCK: without it, opening a FIFO waits for a writer. It does not affect regular files.
    descriptor = os.open(path, flags | os.O_NONBLOCK, dir_fd=directory)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    kind = _KINDS.get(stat.S_IFMT(mode), "something else")
    raise OSError(errno.EINVAL, f"it is {kind}, not a file", path)


def _open(path: str, flags: int, *, directory: int | None) -> int:
    try:
        return _open_at_most_linked(path, flags | os.O_NOFOLLOW, directory=directory)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(error.errno, "it is a symbolic link, not a file", path) from None
        raise


_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
