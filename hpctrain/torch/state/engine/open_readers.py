"""`OpenReaders`: the files of a state, of which few are open at a time."""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hpctrain.bulk.block_reader import BlockReader
from hpctrain.bulk.state_file import StateFile
from hpctrain.errors import CheckpointError

# A file has two descriptors, and a process often 1024 in all. More than all threads read at once.
_KEPT_OPEN = 64


@dataclass(frozen=True, kw_only=True)
class ReadFile:
    """A file of a state, as it is read."""

    path: Path
    layout: StateFile
    """With the digests of its blocks, if it has any."""


@dataclass(kw_only=True)
class _Opened:
    reader: BlockReader
    users: int = 0


class OpenReaders:
    """Readers of files, which any number of threads use.

    A state has a file of each rank that saved it: one process may read thousands. Those that were
    used last stay open.

    Parameters
    ----------
    files
        By number: at least those that are used.
    """

    def __init__(self, files: Mapping[int, ReadFile]) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._opened: OrderedDict[int, _Opened] = OrderedDict()

    def layout(self, number: int) -> StateFile:
        """Return what is in a file. Not collective."""
        return self._files[number].layout

    @contextmanager
    def use(self, number: int) -> Iterator[BlockReader]:
        """Give the reader of a file, which stays open meanwhile. Not collective.

        Raises
        ------
        CheckpointError
            If the file cannot be opened.
        """
        if (opened := self._take(number)) is None:
            file = self._files[number]
            # Without the lock, since a filesystem may not answer.
            opened = self._add(number, BlockReader(file.path, file.layout))
        try:
            yield opened.reader
        finally:
            with self._lock:
                opened.users -= 1

    def close(self) -> None:
        """Close all. Not collective."""
        with self._lock:
            while self._opened:
                self._opened.popitem()[1].reader.close()

    def _take(self, number: int) -> _Opened | None:
        with self._lock:
            if (opened := self._opened.get(number)) is not None:
                self._opened.move_to_end(number)
                opened.users += 1
            return opened

    def _add(self, number: int, reader: BlockReader) -> _Opened:
        with self._lock:
            if number in self._opened:
                # Another thread has opened it meanwhile.
                reader.close()
            opened = self._opened.setdefault(number, _Opened(reader=reader))
            opened.users += 1
            idle = [number for number, its in self._opened.items() if not its.users]
            for number in idle[: max(len(self._opened) - _KEPT_OPEN, 0)]:
                self._opened.pop(number).reader.close()
            return opened


def why_not_opened(error: CheckpointError) -> str:
    """Return the error of a file that cannot be opened, with the next step. Not collective."""
    if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EMFILE:
        return f"{error} Raise the limit of this process (ulimit -n)."
    return f"{error} Load another checkpoint."
