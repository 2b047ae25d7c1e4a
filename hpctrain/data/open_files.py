"""Files that stay open between the reads of an epoch, and are closed after the last one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakSet


class Identity(NamedTuple):
    """Values that change with the content of a file."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


def identity_of(file: str | int) -> Identity | None:
    """Return the identity of a path or descriptor, None if there is no file.

    Not collective.
    """
    try:
        found = os.stat(file)
    except OSError:
        return None
    return Identity(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@dataclass(frozen=True, eq=False)
class _Opened:
    path: str
    identity: Identity | None
    file: Any


class OpenFiles:
    """Open files that are not in use; one thread at a time uses a file.

    A path that stands for another file than before, or whose file was written to, is opened again.

    Parameters
    ----------
    opener
        Opens a path; what it returns has ``close()``.
    at_most
        How many files stay open. The one that was used least recently is closed first.
    """

    def __init__(self, opener: Callable[[str], Any], *, at_most: int = 40) -> None:
        self._opener = opener
        self._at_most = at_most
        self._free: list[_Opened] = []
        _pools.add(self)

    def use(self, path: str) -> _Use:
        """Return a context that gives the open file of a path. Not collective."""
        return _Use(self, path)

    def take(self, path: str) -> _Opened:
        """Return an open file for exclusive use. Not collective."""
        identity = identity_of(path)
        old: list[_Opened] = []
        with _epochs.lock:
            free = self._free
            for index in range(len(free) - 1, -1, -1):
                if free[index].path == path:
                    opened = free.pop(index)
                    if opened.identity == identity:
                        return opened
                    old.append(opened)
        # Close before opening it again: HDF5 would reuse the cached state of an open file.
        for opened in old:
            opened.file.close()
        return _Opened(path, identity, self._opener(path))

    def give_back(self, opened: _Opened) -> None:
        """Keep a file for its next user, or close it. Not collective."""
        with _epochs.lock:
            if _epochs.num_running:
                self._free.append(opened)
                if len(self._free) <= self._at_most:
                    return
                opened = self._free.pop(0)
        opened.file.close()

    def take_all(self) -> list[_Opened]:
        """Return the unused files, for the caller to close. Not collective."""
        files, self._free = self._free, []
        return files


class _Use:
    """A file in use. ``contextlib.contextmanager`` would take as long as a small read."""

    def __init__(self, pool: OpenFiles, path: str) -> None:
        self._pool = pool
        self._path = path

    def __enter__(self) -> Any:
        self._opened = self._pool.take(self._path)
        return self._opened.file

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._pool.give_back(self._opened)
        else:
            self._opened.file.close()


class _Epochs:
    """How many epochs are being read in this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.num_running = 0

    def after_fork(self) -> None:
        """Drop the parent's files in a child process: the two would share file positions."""
        self.lock = threading.Lock()
        self.num_running = 0
        for pool in list(_pools):
            _of_parent.extend(pool.take_all())


_pools: WeakSet[OpenFiles] = WeakSet()
_epochs = _Epochs()
_of_parent: list[_Opened] = []
"""Never closed: a thread of the parent may have held a lock of their library at the fork."""

os.register_at_fork(after_in_child=_epochs.after_fork)


@contextmanager
def kept_open() -> Iterator[None]:
    """Keep files open between reads until the end of this context, or of another one.

    Not collective. After that they can be written to. The end of another context closes them too,
    because an iterator that is left in the middle may never end; its next read opens them again.
    """
    lock = _epochs.lock
    with lock:
        _epochs.num_running += 1
    try:
        yield
    finally:
        unused: list[_Opened] = []
        with lock:
            # A child that was forked meanwhile has another lock, and nothing to close.
            if lock is _epochs.lock:
                _epochs.num_running -= 1
                unused = [opened for pool in list(_pools) for opened in pool.take_all()]
        for opened in unused:
            opened.file.close()
