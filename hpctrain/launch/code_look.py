"""What git looks at in threads, while a run is submitted or started."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hpctrain import timeouts
from hpctrain.launch.code_tree import TreeState
from hpctrain.launch.code_tree import read_state as read_tree_state
from hpctrain.launch.git import Git, GitError

NO_ANSWER = (GitError, OSError, ValueError)
"""Of git itself, of files in the directory for temporary ones, of an answer in an unknown form."""
_recording: list[threading.Thread] = []


def start_recording(function: Callable[[], None]) -> threading.Thread:
    """Call a function in a thread that `await_records` waits for. Not collective."""
    thread = threading.Thread(target=function, name="hpctrain-code")
    _recording.append(thread)
    thread.start()
    return thread


def await_records() -> None:
    """Wait until this process has written what it records. Not collective."""
    while _recording:
        _recording.pop().join()


class TreeLook:
    """The state of a working tree, which git looks at in a thread.

    Parameters
    ----------
    top
        The tree.
    """

    def __init__(self, top: str) -> None:
        self.top = top
        self._state: TreeState | None = None
        self._error: str | None = None
        self._thread = start_recording(self._look)

    def result(self) -> tuple[TreeState | None, str | None]:
        """Wait for git; return the state, or None and why there is none. Not collective."""
        self._thread.join()
        return self._state, self._error

    def _look(self) -> None:
        try:
            self._state = read_tree_state(Git(self.top, timeouts.GIT_S), self.top)
        except NO_ANSWER as failed:
            self._error = str(failed)
