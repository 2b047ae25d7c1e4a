"""`Question`: what Slurm is asked on a thread of its own, as ranks do not wait for the answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Question(Generic[T]):
    """Asks once, in the background.

    Parameters
    ----------
    ask
        Returns the answer.
    name
        Of the thread.
    """

    def __init__(self, ask: Callable[[], T], *, name: str) -> None:
        self.answer: T | None = None
        """What `ask` returned; None before, and if it raised."""
        self.error: Exception | None = None
        """What it raised."""
        self._ask = ask
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            # Where there may be no more threads at this moment.
            self.error = error

    @property
    def is_open(self) -> bool:
        """Whether there is no answer yet."""
        return self._thread.is_alive()

    def wait(self, timeout_s: float) -> None:
        """Wait for the answer, for a while. Not collective."""
        if self.is_open:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self.answer = self._ask()
        # Whatever it is, it must not pass for an answer.
        except Exception as error:
            self.error = error
