"""`Channel`: how a rank's session reaches its executor."""

from __future__ import annotations

from typing import Protocol


class Channel(Protocol):
    """How a session reaches its executor."""

    def report(self, line: bytes) -> None:
        """Pass a report's metrics on, soon."""

    def announce(self, line: bytes) -> None:
        """Pass a report on, at once, whose part of a checkpoint follows."""

    def part(self, report: int, part: bytes) -> None:
        """Pass a staged part of a checkpoint on, at once."""

    def ask(self, report: int) -> None:
        """Ask for all checkpoints up to a report."""

    def slot(self, number: int, wanted: bool) -> None:
        """Ask for a slot to write, or give it back."""

    def progress(self, op: str, **details: str | int) -> None:
        """Pass on that this rank goes on, waits, or has returned.

        ``heartbeat``, ``phase``; ``waits`` for other ranks, ``awaits`` a tuner; ``returned``.
        """
