"""`Deletions`: deletes directories in the background, as a checkpoint takes the disk a while."""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path

from hpctrain import timeouts
from hpctrain.log import log
from hpctrain.own_time import Deadline
from hpctrain.rundir.removal import remove_tree

_MOST_AT_ONCE = 4
"""More would hold the descriptors that a commit needs, and let deleted checkpoints pile up."""
_LOOK_INTERVAL_S = 0.2


class Deletions:
    """Deletes directories in threads: the ranks of the next attempt need not wait for it.

    Where deletions are slower than saves, the next one waits a while for the oldest: on a disk that
    deletes at all, there are never more than a few checkpoints beyond those that are kept. What a
    process that ends leaves half deleted is for the next one to delete.
    """

    def __init__(self) -> None:
        self._threads: dict[Path, threading.Thread] = {}
        self._left: deque[Path] = deque()

    def begin(self, path: Path) -> None:
        """Delete a directory that is read no more; never raises. Not collective.

        Where there may be no more threads it is gone when this returns. With as many deletions as
        there may be at once the oldest is waited for; if it takes long, a later call begins this
        one.

        Parameters
        ----------
        path
            It may be given again while it is being deleted.
        """
        self._begin_left()
        if path in self._threads or path in self._left:
            return
        self._left.append(path)
        if len(self._threads) >= _MOST_AT_ONCE:
            # Meanwhile the executor answers no rank and no agent.
            next(iter(self._threads.values())).join(timeouts.DELETION_ROOM_S)
        self._begin_left()

    @property
    def is_at_work(self) -> bool:
        """Whether something is being deleted, or is to be."""
        return bool(self._left) or any(thread.is_alive() for thread in self._threads.values())

    def finish(self) -> None:
        """Wait until all of them are deleted. Not collective.

        A disk that does not answer is not waited for: what is left is for the next process.
        """
        deadline = Deadline(timeouts.DELETIONS_S)
        while self.is_at_work:
            if deadline.is_over:
                log(
                    f"{next(iter(self._threads))} is not deleted after "
                    f"{timeouts.describe(timeouts.DELETIONS_S)}. The next executor of the run "
                    f"deletes it; or remove it yourself, once the disk answers."
                )
                return
            self._begin_left()
            for thread in self._threads.values():
                thread.join(min(deadline.left_s, _LOOK_INTERVAL_S))

    def _begin_left(self) -> None:
        self._threads = {p: t for p, t in self._threads.items() if t.is_alive()}
        while self._left and len(self._threads) < _MOST_AT_ONCE:
            self._begin(self._left.popleft())

    def _begin(self, path: Path) -> None:
        thread = threading.Thread(
            target=remove_tree, args=(path,), name="hpctrain-delete", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            remove_tree(path)
            return
        self._threads[path] = thread
