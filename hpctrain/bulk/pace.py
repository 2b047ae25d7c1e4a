"""`Pace`: no more bytes a second than that."""

from __future__ import annotations

import threading
import time


class Pace:
    """Lets threads wait so that together they write no faster than they may.

    Parameters
    ----------
    bytes_per_s
        How fast that is.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._next = 0.0

    def spend(self, size: int) -> None:
        """Wait until `size` bytes may be written. Not collective."""
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._next)
            self._next = begin + size / self._bytes_per_s
        if begin > now:
            time.sleep(begin - now)
