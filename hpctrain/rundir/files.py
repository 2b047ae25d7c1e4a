"""Writing files that survive: beside-and-rename, fsync, append."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from hpctrain.bulk.unreadable import is_passing
from hpctrain.own_files import (
    DIRECTORY_MODE,
    FILE_MODE,
    create_file,
    is_beside,
    name_beside,
    open_log,
)
from hpctrain.own_time import ANY_GAP_S, Deadline
from hpctrain.rundir.reading import damaged

T = TypeVar("T")

_PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
_PAUSE_S = 0.5


def may_pass(error: OSError) -> bool:
    """Return whether a call may go well later: a full disk, a quota, a server that fails over.

    Not collective.
    """
    return error.errno in _PASSING or is_passing(error)


def retry(call: Callable[[], T], *, patience_s: float) -> T:
    """Call, and call again as long as it fails for a reason that may pass. Not collective.

    Parameters
    ----------
    call
        Reads or writes files. It may be called any number of times.
    patience_s
        Seconds after which its error is raised.
    """
    deadline = Deadline(patience_s, longest_gap_s=ANY_GAP_S)
    while True:
        try:
            return call()
        except OSError as error:
            if not may_pass(error) or deadline.is_over:
                raise
        time.sleep(_PAUSE_S)


def write_atomic(
    path: Path, content: bytes, *, mode: int = FILE_MODE, durable: bool = False
) -> None:
    """Write a file so that a reader sees the old or the new content, never a part.

    Not collective.

    Parameters
    ----------
    durable
        Whether the content is on disk when this returns; costs a flush of the disk.

    Raises
    ------
    OSError
        If it cannot be written, with the name of the file itself.
    """
    with replacing(path, mode=mode, durable=durable) as file:
        file.write(content)


def remove_unfinished(*paths: Path) -> None:
    """Remove what killed processes have left beside files that they were replacing.

    Not collective. No process may be replacing one of them now.
    """
    for path in paths:
        for beside in path.parent.glob(f".{path.name}.*"):
            if is_beside(beside, path):
                with contextlib.suppress(OSError):
                    beside.unlink()


@contextlib.contextmanager
def replacing(
    path: Path, *, mode: int = FILE_MODE, durable: bool = False
) -> Iterator[io.BufferedWriter]:
    """Write a file as `write_atomic` does, in parts: it appears when the block is over.

    Not collective. If the block raises, it is as before.

    Parameters
    ----------
    durable
        Whether the content is on disk when the block is over; costs a flush of the disk.

    Raises
    ------
    OSError
        If it cannot be written, with the name of the file itself.
    """
    beside = name_beside(path)
    try:
        descriptor = create_file(beside, mode=mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(beside, path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        # Not of the hidden name beside it, which is gone, nor without any.
        raise OSError(error.errno, error.strerror, str(path)) from error
    if durable:
        fsync_directory(path.parent)


def make_directory(directory: Path, *, below: Path) -> None:
    """Make a directory, and those between `below` and it, where they are not there yet.

    Not collective.

    Parameters
    ----------
    below
        A directory that must be there: a run that was removed does not come back as an empty one.
    """
    for parent in reversed([directory, *directory.parents]):
        if below in parent.parents:
            parent.mkdir(DIRECTORY_MODE, exist_ok=True)


def exchange_directory(new: Path, target: Path, *, aside: Path) -> None:
    """Rename a directory to the name of another one, which gets a new name. Not collective.

    rename() replaces no directory that holds something. Between its two calls nothing has the name
    `target`; if the second one fails, the other directory gets it back.

    Parameters
    ----------
    aside
        The new name, which nothing has.
    """
    os.rename(target, aside)
    try:
        os.rename(new, target)
    except BaseException:
        os.rename(aside, target)
        raise


def write_unseen(path: Path, content: bytes) -> None:
    """Write a file durably, in a directory that no process reads yet. Not collective."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, FILE_MODE), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def fsync_file(path: Path) -> None:
    """Make the content of a file durable, whichever process wrote it. Not collective."""
    with open(path, "rb", buffering=0) as file:
        os.fsync(file.fileno())


def fsync_directory(path: Path) -> None:
    """Make the names in a directory durable. Not collective."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_append(path: Path) -> int:
    """Return a descriptor that appends; each `os.write` of one line survives our death.

    Not collective. A torn last line, which a kill or a full disk can leave, is ended first.

    Raises
    ------
    DamagedFileError
        If it is a symbolic link, a directory or a FIFO.
    """
    try:
        descriptor = open_log(path, os.O_RDWR)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR):
            raise
        what = "a symbolic link" if error.errno == errno.ELOOP else "a directory"
        raise damaged(path, f"it is {what}, not a file") from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise damaged(path, "it is not a regular file")
    size = found.st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        os.write(descriptor, b"\n")
    return descriptor


def append_durably(path: Path, content: bytes) -> None:
    """Append whole lines to a file, in one write. Not collective. Durable when this returns.

    Raises
    ------
    OSError
        If not all of it can be written. Readers leave the torn line out, and the next call ends it.
    DamagedFileError
        As `open_append`.
    """
    descriptor = open_append(path)
    try:
        if os.write(descriptor, content) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
