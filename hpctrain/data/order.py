"""The order of the rows of an epoch.

It depends on the number of rows, a seed and the number of the epoch alone. So nothing is stored,
and each rank computes any part of it without the others.

::

    rows       slab 0 │ slab 1 │ slab 2 │ slab 3 │ slab 4 │ slab 5     one read each
    shuffled   slab 4 │ slab 0 │ slab 3 ║ slab 1 │ slab 5 │ slab 2     in an order by the seed
    window     rows of 4, 0, 3 permuted ║ rows of 1, 5, 2 permuted     small enough for the cache
    positions  0 ─────── rank 0 ────────────│─────── rank 1 ───────    every one has one rank

A *position* is the place of a row in that order. It does not depend on the number of ranks;
`hpctrain.data.split` maps positions to ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpctrain.errors import ConfigError

SLABS = 8
"""Slabs in a window: each row mixes with seven times as many rows from elsewhere on disk."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """Rows that are read together and permuted among each other."""

    number: int
    positions: range
    slabs: tuple[range, ...]
    """Rows of the dataset, a range for each slab, in the order they are read in."""
    key: tuple[int, ...]
    """Seed of its permutation."""

    def permutation(self) -> np.ndarray:
        """Return the row among all slabs for each position. Not collective."""
        return permutation(len(self.positions), self.key)

    def rows(self) -> np.ndarray:
        """Return the row of the dataset at each position. Not collective."""
        if not self.slabs:
            return np.empty(0, np.int64)
        rows: np.ndarray = np.concatenate([np.arange(s.start, s.stop) for s in self.slabs])
        shuffled: np.ndarray = rows[self.permutation()]
        return shuffled


@dataclass(frozen=True, kw_only=True)
class Shuffle:
    """The order of rows in one epoch.

    Raises
    ------
    ConfigError
        If a number is negative, or a slab has no rows.
    """

    num_rows: int
    slab_rows: int
    """Rows of one read. The last slab of the dataset may have fewer."""
    slabs_per_window: int = SLABS
    seed: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if min(self.num_rows, self.seed, self.epoch) < 0:
            raise ConfigError(
                f"num_rows={self.num_rows}, seed={self.seed}, epoch={self.epoch}: one is negative. "
                f"Give integers of 0 or more."
            )
        if min(self.slab_rows, self.slabs_per_window) < 1:
            raise ConfigError(
                f"slab_rows={self.slab_rows}, slabs_per_window={self.slabs_per_window}: one is "
                f"less than 1. Give integers of 1 or more."
            )

    @property
    def num_slabs(self) -> int:
        """Slabs of the dataset."""
        return -(-self.num_rows // self.slab_rows)

    @property
    def num_windows(self) -> int:
        """Windows of an epoch."""
        return -(-self.num_slabs // self.slabs_per_window)

    @property
    def window_rows(self) -> int:
        """Rows of the largest window."""
        return min(self.slab_rows * self.slabs_per_window, self.num_rows)

    @cached_property
    def _slabs(self) -> np.ndarray:
        # 4 bytes a slab: 40 MiB for 10 TiB in slabs of 1 MiB.
        return permutation(self.num_slabs, (self.seed, self.epoch, 0)).astype(np.uint32)

    @cached_property
    def _place_of_short(self) -> int:
        """Place of the slab that may have fewer rows."""
        return int(np.flatnonzero(self._slabs == self.num_slabs - 1)[0]) if self.num_slabs else 0

    def _position_of_slab(self, place: int) -> int:
        missing = self.num_slabs * self.slab_rows - self.num_rows
        return place * self.slab_rows - (missing if place > self._place_of_short else 0)

    def window(self, number: int) -> Window:
        """Return a window. Not collective."""
        if not 0 <= number < self.num_windows:
            raise IndexError(number)
        first = number * self.slabs_per_window
        last = min(first + self.slabs_per_window, self.num_slabs)
        starts = [int(slab) * self.slab_rows for slab in self._slabs[first:last]]
        return Window(
            number=number,
            positions=range(self._position_of_slab(first), self._position_of_slab(last)),
            slabs=tuple(range(at, min(at + self.slab_rows, self.num_rows)) for at in starts),
            key=(self.seed, self.epoch, 1 + number),
        )

    def window_at(self, position: int) -> Window:
        """Return the window that has a position. Not collective."""
        if not 0 <= position < self.num_rows:
            raise IndexError(position)
        # The short slab moves the borders of windows by less than a slab.
        number = position // (self.slab_rows * self.slabs_per_window)
        window = self.window(number)
        return window if position < window.positions.stop else self.window(number + 1)


def permutation(num_rows: int, key: Sequence[int]) -> np.ndarray:
    """Return the numbers below `num_rows` in an order that depends on a key alone.

    Not collective. It is the same with any version of NumPy, which guarantees a stable stream for
    bit generators, but not for ``Generator.permutation``.

    Parameters
    ----------
    key
        Not negative.
    """
    bits = max(num_rows - 1, 0).bit_length()
    below = np.uint64((1 << bits) - 1)
    # Sorting random numbers whose low bits are the row number is faster than shuffling.
    keys: np.ndarray = np.random.SFC64([*key, num_rows]).random_raw(num_rows)
    keys &= ~below
    keys |= np.arange(num_rows, dtype=np.uint64)
    keys.sort()
    keys &= below
    order: np.ndarray = keys.view(np.int64)
    return order
