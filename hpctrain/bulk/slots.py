"""`Slots`: memory for blocks that are copied ahead of their writing."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from hpctrain.bulk.ring import map_pages
from hpctrain.bulk.state_file import BLOCK_BYTES


class Slots:
    """A place for each block of a file; several blocks share one where memory is short.

    Unlike those of a ring, blocks come to lie where they lay the last time, so that a copy of many
    can be prepared once. Pages come with their first use, and stay.

    Parameters
    ----------
    blocks
        Number of places.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.memory = map_pages(blocks * BLOCK_BYTES)
        """All of it, place after place."""
        self.change = threading.Condition()
        """Is notified when a place becomes free; copies may use it for more."""
        self._places = [
            self.memory[first : first + BLOCK_BYTES]
            for first in range(0, len(self.memory), BLOCK_BYTES)
        ]
        self._numbers = {id(place): number for number, place in enumerate(self._places)}
        self._is_free = [True] * blocks
        # Of a header, while all places may wait for the writer that writes it.
        self._spare = map_pages(BLOCK_BYTES)

    def place(self, block: int) -> memoryview:
        """Return the place of a block. Not collective."""
        return self._places[block % self.blocks]

    def are_free(self, blocks: Iterable[int]) -> bool:
        """Return whether the places of blocks are free. Not collective; `change` is held."""
        return all(self._is_free[block % self.blocks] for block in blocks)

    def occupy(self, blocks: Iterable[int]) -> None:
        """Record that the places of blocks are in use. Not collective; `change` is held."""
        for block in blocks:
            self._is_free[block % self.blocks] = False

    def release(self, blocks: Iterable[int]) -> None:
        """Record that the places of blocks are free. Not collective."""
        with self.change:
            for block in blocks:
                self._is_free[block % self.blocks] = True
            self.change.notify_all()

    def take(self) -> memoryview:
        """Return memory for what is no block. Not collective; for one writer at a time."""
        return self._spare

    def give(self, memory: memoryview) -> None:
        """Give back what `take` or `place` returned. Not collective."""
        number = self._numbers.get(id(memory))
        if number is not None:
            self.release([number])
