"""Files that stay open between reads, in each thread and process of its own."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol


class _Closable(Protocol):
    def close(self) -> None: ...


class OpenFiles:
    """The files that this thread has read last; the oldest is closed when there are many.

    Parameters
    ----------
    opener
        Opens a path.
    at_most
        How many files each thread keeps open.
    """

    def __init__(self, opener: Callable[[str], Any], *, at_most: int = 8) -> None:
        self._opener = opener
        self._at_most = at_most
        self._local = threading.local()

    def get(self, path: str) -> Any:
        """Return the open file of a path. Not collective."""
        # A child of fork() shares file positions with its parent, so it opens its own.
        if getattr(self._local, "pid", None) != os.getpid():
            self._local.pid = os.getpid()
            self._local.files = OrderedDict()
        files: OrderedDict[str, _Closable] = self._local.files
        if path in files:
            files.move_to_end(path)
            return files[path]
        opened = files[path] = self._opener(path)
        if len(files) > self._at_most:
            files.popitem(last=False)[1].close()
        return opened
