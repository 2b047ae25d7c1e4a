"""Signals that tell a process that its job is about to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager


@contextmanager
def warnings_of_slurm(
    note: Callable[[str], None],
    *,
    signals: Collection[signal.Signals] = (signal.SIGUSR1, signal.SIGUSR2),
) -> Iterator[None]:
    """Take a signal that would end this process for a warning, as in ``--signal=B:USR1@60``.

    Not collective. The batch shell gets it, and a script that ends with ``exec python train.py`` is
    that shell. What this process handles or ignores stays as it is.

    Parameters
    ----------
    note
        Is called with the name of a signal that has come.
    signals
        Those that are taken.
    """
    # Python lets no other thread take signals.
    may_take = threading.current_thread() is threading.main_thread()
    taken = [
        number for number in signals if may_take and signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in taken:
        signal.signal(number, lambda n, _: note(signal.Signals(n).name))
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
