"""`short_switch_interval`: threads that move blocks get the GIL when they need it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# A thread that runs Python keeps the lock for 5 ms once another one wants it, by default. That is
# twice as long as a disk takes for a block, and each block needs the lock a few times.
_BACKGROUND_S = 0.0002
# A caller that waits for the blocks has nothing else to do; training would be interrupted more.
_AWAITED_S = 0.00002

_lock = threading.Lock()
_active: list[float] = []
_interval_before_s = 0.0


@contextmanager
def short_switch_interval(*, awaited: bool = False) -> Iterator[None]:
    """Let threads of this process hand Python's lock over soon. Not collective.

    Other threads lose some microseconds whenever one that moves blocks wants the lock.

    Parameters
    ----------
    awaited
        Whether the caller waits for the blocks: then sooner still.
    """
    global _interval_before_s
    interval_s = _AWAITED_S if awaited else _BACKGROUND_S
    with _lock:
        if not _active:
            _interval_before_s = sys.getswitchinterval()
        _active.append(interval_s)
        sys.setswitchinterval(min(_interval_before_s, *_active))
    try:
        yield
    finally:
        with _lock:
            _active.remove(interval_s)
            sys.setswitchinterval(min([_interval_before_s, *_active]))
