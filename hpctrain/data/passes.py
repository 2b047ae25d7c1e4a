"""Iterables for several passes, as in Ray Data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Passes(Generic[T]):
    """An iterable for many passes; each ``iter()`` begins a new pass.

    ``next()`` works too, as on an iterator: a loop continues after it, once.

    Parameters
    ----------
    begin
        Begins a pass.
    """

    def __init__(self, begin: Callable[[], Iterator[T]]) -> None:
        self._begin = begin
        self._by_next: Iterator[T] | None = None
        self._is_over = False

    def __iter__(self) -> Iterator[T]:
        """Begin a pass, or continue the one that ``next()`` began."""
        begun, over = self._by_next, self._is_over
        self._by_next, self._is_over = None, False
        return self._begin() if begun is None or over else begun

    def __next__(self) -> T:
        """Return the next item of a pass that no loop has taken over."""
        if self._by_next is None:
            self._by_next = self._begin()
        try:
            return next(self._by_next)
        except StopIteration:
            self._is_over = True
            raise


class SizedPasses(Passes[T]):
    """Passes of known length.

    Parameters
    ----------
    begin
        Begins a pass.
    length
        Items of a whole pass. A pass that resumes in the middle has fewer.
    """

    def __init__(self, begin: Callable[[], Iterator[T]], length: int) -> None:
        super().__init__(begin)
        self._length = length

    def __len__(self) -> int:
        """Return how many items a whole pass has."""
        return self._length


def passes(begin: Callable[[], Iterator[T]], length: int | None) -> Passes[T]:
    """Return passes that have a ``len()`` if it is known. Not collective."""
    return Passes(begin) if length is None else SizedPasses(begin, length)
