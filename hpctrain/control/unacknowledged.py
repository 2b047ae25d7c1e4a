"""What was sent in a numbered stream, and may have to be sent again. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Unacknowledged(Generic[Item]):
    """Items with numbers from 1, until all with a number up to theirs have arrived.

    Examples
    --------
    >>> sent = Unacknowledged()
    >>> [sent.add(word, num_bytes=len(word)) for word in ("one", "two", "three")]
    [1, 2, 3]
    >>> sent.acknowledge(1)
    >>> list(sent.after(1)), sent.num_bytes
    ([(2, 'two'), (3, 'three')], 8)
    """

    def __init__(self) -> None:
        self._items: deque[tuple[int, Item, int]] = deque()
        self.last = 0
        """Number of the newest item."""
        self.num_bytes = 0
        """Size of all items that are kept."""

    def __len__(self) -> int:
        """Return the number of items that are kept."""
        return len(self._items)

    def add(self, item: Item, *, num_bytes: int) -> int:
        """Keep the next item; return its number."""
        self.last += 1
        self._items.append((self.last, item, num_bytes))
        self.num_bytes += num_bytes
        return self.last

    def acknowledge(self, number: int) -> None:
        """Forget all up to a number."""
        while self._items and self._items[0][0] <= number:
            self.num_bytes -= self._items.popleft()[2]

    def after(self, number: int) -> Iterator[tuple[int, Item]]:
        """Return what is kept of all after a number, in order."""
        return ((own, item) for own, item, _ in self._items if own > number)
