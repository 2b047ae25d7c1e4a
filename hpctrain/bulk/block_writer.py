"""`BlockWriter`: a new file whose blocks other threads write, past the page cache."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from queue import SimpleQueue

from hpctrain.bulk.direct import open_new, write_at
from hpctrain.bulk.pace import Pace
from hpctrain.bulk.ring import BlockMemory
from hpctrain.bulk.state_file import whole_pages


class BlockWriter:
    """A new file that is being written; a context, which waits for the threads and closes it.

    Parameters
    ----------
    path
        Of the file; one that is there is emptied.
    size
        Of the file in bytes, or about.
    memory
        Which blocks are given back to, once they are written.
    threads
        How many write. Where there is no memory for their stacks, the caller writes.
    pace
        How fast they may; None is as fast as they can.

    Raises
    ------
    OSError
        If the file cannot be made.
    """

    def __init__(
        self,
        path: Path,
        size: int,
        *,
        memory: BlockMemory,
        threads: int,
        pace: Pace | None = None,
    ) -> None:
        self._memory, self._pace = memory, pace
        self._jobs: SimpleQueue[tuple[memoryview, int, int] | None] = SimpleQueue()
        self._error: BaseException | None = None
        self.written = 0
        """Bytes that the disk has taken, about."""
        self._descriptor = open_new(path, size)
        self._threads: list[threading.Thread] = []
        for number in range(threads):
            thread = threading.Thread(
                target=self._write_all, name=f"hpctrain-write-{number}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                break
            self._threads.append(thread)

    def put(self, block: memoryview, position: int, size: int) -> None:
        """Have a block written. Not collective.

        Parameters
        ----------
        block
            It is given back to its memory then, whatever comes of it.
        position
            Where it goes to in the file, in bytes; a multiple of a page.
        size
            Bytes of it that are written.

        Raises
        ------
        OSError
            If one before it could not be written.
        """
        whole = whole_pages(size)
        # The last page is written whole, as O_DIRECT wants it, and cut off by `finish`.
        block[size:whole] = bytes(whole - size)
        if self._threads:
            self._jobs.put((block, position, whole))
        else:
            self._write(block, position, whole)
        self._raise()

    def finish(self, size: int) -> None:
        """Wait for all blocks, and let the file end after `size` bytes. Not collective.

        The caller writes what is put after that.

        Raises
        ------
        OSError
            If one could not be written.
        """
        self._join()
        self._raise()
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        """Have on the disk what is written. Not collective.

        Raises
        ------
        OSError
            If the disk fails.
        """
        os.fsync(self._descriptor)

    def __enter__(self) -> BlockWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._join()
        os.close(self._descriptor)

    def _join(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _write_all(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._write(*job)

    def _write(self, block: memoryview, position: int, size: int) -> None:
        try:
            if self._error is None:
                if self._pace is not None:
                    self._pace.spend(size)
                write_at(self._descriptor, block[:size], position)
                self.written += size
        # Whatever it is: a file with a hole must not be finished.
        except BaseException as error:
            self._error = error
        finally:
            self._memory.give(block)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
