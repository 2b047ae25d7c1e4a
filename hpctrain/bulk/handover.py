"""`prompt_handover`: threads that move blocks get Python's lock when they need it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# A thread that runs Python keeps the lock for 5 ms once another one wants it, by default. That is
# twice as long as a disk takes for a block, and each block needs the lock a few times.
_INTERVAL_S = 0.00002

_lock = threading.Lock()
_users = 0
_interval_before_s = 0.0


@contextmanager
def prompt_handover() -> Iterator[None]:
    """Let threads of this process hand Python's lock over soon. Not collective.

    Other threads lose some microseconds whenever one that moves blocks wants the lock.
    """
    global _users, _interval_before_s
    with _lock:
        _users += 1
        if _users == 1:
            _interval_before_s = sys.getswitchinterval()
            sys.setswitchinterval(min(_INTERVAL_S, _interval_before_s))
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                sys.setswitchinterval(_interval_before_s)
