"""`WriteSlots`: which ranks may write at a time. Pure: no I/O, no clock."""

from __future__ import annotations


class WriteSlots:
    """Which ranks may write their parts of checkpoints at a time: in the order in which they ask.

    Parameters
    ----------
    limit
        Their greatest number; None is all.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._waiting: dict[int, int] = {}
        self._writing: dict[int, int] = {}

    def receive(self, rank: int, number: int, *, wanted: bool) -> None:
        """Take in that a rank wants its slot, or that it is over, or wanted no more.

        Parameters
        ----------
        number
            Of the rank's slot; a rank has one at a time.
        """
        if wanted:
            self._waiting[rank] = number
        else:
            self._waiting.pop(rank, None)
            self._writing.pop(rank, None)

    def grant(self) -> dict[int, int]:
        """Return the numbers of the slots that begin now, by rank."""
        free = len(self._waiting) if self._limit is None else self._limit - len(self._writing)
        granted = {rank: self._waiting[rank] for rank in list(self._waiting)[: max(free, 0)]}
        for rank, number in granted.items():
            del self._waiting[rank]
            self._writing[rank] = number
        return granted
