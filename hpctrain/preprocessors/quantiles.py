"""Exact quantiles of columns that are distributed over ranks, in bounded memory.

The k-th smallest value is found as in a radix sort. Floating-point numbers are mapped to unsigned
integers of the same order. A pass counts the leading bits; the sum of the counts of all ranks shows
in which bin the k-th value lies; the next pass counts the following bits of the values in that bin
only. When few values are left, they are gathered. So the result is exact, and memory holds little
but counts: two passes for some million rows, at most five for one column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpctrain.preprocessors.batches import Array, Rows
from hpctrain.preprocessors.statistics import as_numbers, collect, infinite_values, same_shape
from hpctrain.world import Communicator

MAX_COUNTERS = 2**22
"""Counters of all columns in a pass: 32 MiB per rank."""
MAX_GATHERED = 2**20
"""Values of all columns and ranks that are gathered in a pass: 8 MiB per rank."""
_BITS = 64
_MAX_BITS_OF_A_PASS = 16
_SIGN = np.uint64(1 << 63)


def quantiles_of(
    rows: Rows, columns: Sequence[str], quantiles: Sequence[float], comm: Communicator
) -> dict[str, Array]:
    """Return exact quantiles of columns, interpolated linearly, as ``numpy.nanquantile`` does.

    Collective. Makes two or more passes over the shard; fewer rows need fewer passes.

    Parameters
    ----------
    rows
        This rank's shard.
    columns
        Their names. Each component of a column has its own quantiles.
    quantiles
        Numbers between 0 and 1.
    comm
        The communicator of the ranks.

    Returns
    -------
    dict[str, Array]
        By column, shape ``(quantiles, *shape of a row)``; NaN where there is no value.

    Raises
    ------
    ConfigError
        If a column holds no numbers, or infinite ones, or rows of different shapes.
    """
    searches = {column: _Search(quantiles, share=1 / len(columns)) for column in columns}
    while wanted := {column: s.next_pass() for column, s in searches.items() if not s.is_done}:
        for column, found in collect(rows, wanted, comm).items():
            searches[column].learn(found)
    return {column: search.result() for column, search in searches.items()}


@dataclass
class _Target:
    """A value to find: the one at a place in the order of a component's values."""

    component: int
    place: int
    """Place among the values whose leading bits are `prefix`, from 0."""
    prefix: int = 0
    left: int = 0
    """How many values have that prefix."""
    value: float = math.nan


class _Search:
    """The quantiles of one column, from pass to pass."""

    def __init__(self, quantiles: Sequence[float], *, share: float) -> None:
        self._quantiles = quantiles
        self._share = share
        self._depth = 0
        self._shape: tuple[int, ...] = ()
        self._targets: list[_Target] | None = None
        self._counts: list[int] = []
        self.is_done = False

    def next_pass(self) -> Callable[[], _Selection]:
        """Return a function that makes the statistic of the next pass."""
        if self._targets is None:
            return lambda: _Histogram(0, None, self._max_counters)
        prefixes = self._open_prefixes()
        left = {(t.component, t.prefix): t.left for t in self._targets}
        if sum(left.values()) <= max(1, int(MAX_GATHERED * self._share)):
            return lambda: _Gathered(self._depth, prefixes)
        return lambda: _Histogram(self._depth, prefixes, self._max_counters)

    def learn(self, found: _Selection) -> None:
        """Narrow the search with the result of a pass."""
        if self._targets is None:
            self._shape = found.shape or ()
            self._targets = self._first_targets(found)
        if isinstance(found, _Gathered):
            for target in self._targets:
                keys = np.sort(found.keys[target.component, target.prefix])
                target.value = _to_float(keys[target.place])
            self.is_done = True
        elif isinstance(found, _Histogram):
            for target in self._targets:
                counts = found.counts[target.component, target.prefix]
                below = np.cumsum(counts)
                chosen = int(np.searchsorted(below, target.place, side="right"))
                target.left = int(counts[chosen])
                target.place -= int(below[chosen]) - target.left
                target.prefix = (target.prefix << found.bits) | chosen
            self._depth += found.bits
            if self._depth == _BITS:
                for target in self._targets:
                    target.value = _to_float(np.uint64(target.prefix))
            self.is_done = self._depth == _BITS or not self._targets

    def result(self) -> Array:
        """Return the quantiles, shape ``(quantiles, *shape of a row)``."""
        if not self._counts:
            # No rank has a row, so the shape of a row is unknown.
            return np.full(len(self._quantiles), np.nan)
        values = {
            (t.component, name): t.value
            for t, name in zip(self._targets or (), self._names, strict=True)
        }
        result = np.full((len(self._quantiles), len(self._counts)), np.nan)
        for component, count in enumerate(self._counts):
            for index, quantile in enumerate(self._quantiles if count else ()):
                low, high, part = _around(quantile, count)
                a, b = values[component, low], values[component, high]
                # As NumPy does, so that the ends are exact.
                if a == b:
                    result[index, component] = a
                elif part < 0.5:
                    result[index, component] = a + (b - a) * part
                else:
                    result[index, component] = b - (b - a) * (1 - part)
        return result.reshape(len(self._quantiles), *self._shape)

    @property
    def _max_counters(self) -> int:
        return max(2, int(MAX_COUNTERS * self._share))

    def _open_prefixes(self) -> dict[int, list[int]]:
        prefixes: dict[int, set[int]] = {}
        for target in self._targets or ():
            prefixes.setdefault(target.component, set()).add(target.prefix)
        return {component: sorted(found) for component, found in prefixes.items()}

    def _first_targets(self, found: _Selection) -> list[_Target]:
        assert isinstance(found, _Histogram)
        components = max((component for component, _ in found.counts), default=-1) + 1
        self._counts = [int(found.counts[component, 0].sum()) for component in range(components)]
        self._names: list[int] = []
        targets = []
        for component, count in enumerate(self._counts):
            around = [_around(quantile, count) for quantile in self._quantiles] if count else []
            for place in sorted({place for low, high, _ in around for place in (low, high)}):
                targets.append(_Target(component, place))
                self._names.append(place)
        return targets


def _around(quantile: float, count: int) -> tuple[int, int, float]:
    """Return the positions around a quantile, and its distance from the first."""
    at = (count - 1) * quantile
    low = min(max(math.floor(at), 0), count - 1)
    return low, min(low + 1, count - 1), at - low


class _Selection:
    """Result of one pass over the values with certain leading bits."""

    def __init__(self, depth: int, prefixes: dict[int, list[int]] | None) -> None:
        self.shape: tuple[int, ...] | None = None
        self._depth = depth
        self._prefixes = prefixes

    def update(self, values: Array) -> None:
        """Add rows. Not collective."""
        if not len(values):
            return
        rows = as_numbers(values)
        is_first = self.shape is None
        self.shape = same_shape(self.shape, values.shape[1:])
        if is_first:
            self.begin(rows.shape[1])
        for component in range(rows.shape[1]):
            keys = _to_keys(rows[:, component])
            prefixes = {0: [0]} if self._prefixes is None else self._prefixes
            if self._depth == 0:
                self.take(component, 0, keys)
                continue
            leading = keys >> np.uint64(_BITS - self._depth)
            for prefix in prefixes.get(component, ()):
                self.take(component, prefix, keys[leading == np.uint64(prefix)])

    def begin(self, width: int) -> None:
        """Prepare for this number of components, before the first values."""

    def take(self, component: int, prefix: int, keys: Array) -> None:
        """Add values that begin with a prefix."""

    def merge(self, other: Any) -> Any:
        """Return the result for the rows of both."""


class _Histogram(_Selection):
    """Counts of values, by the bits that follow a prefix."""

    def __init__(
        self, depth: int, prefixes: dict[int, list[int]] | None, max_counters: int
    ) -> None:
        super().__init__(depth, prefixes)
        self._max_counters = max_counters
        self.bits = 0
        self.counts: dict[tuple[int, int], Array] = {}

    def begin(self, width: int) -> None:
        """Choose how many bits to count by: the same number on every rank."""
        prefixes = self._prefixes
        if prefixes is None:
            prefixes = {component: [0] for component in range(width)}
        bins = sum(map(len, prefixes.values()))
        room = max(1, int(math.log2(max(2, self._max_counters // max(bins, 1)))))
        self.bits = min(room, _MAX_BITS_OF_A_PASS, _BITS - self._depth)
        for component, found in prefixes.items():
            for prefix in found:
                self.counts[component, prefix] = np.zeros(2**self.bits, dtype=np.int64)

    def take(self, component: int, prefix: int, keys: Array) -> None:
        """Count the values that begin with a prefix."""
        following = (keys << np.uint64(self._depth)) >> np.uint64(_BITS - self.bits)
        counts = self.counts[component, prefix]
        counts += np.bincount(following.astype(np.int64), minlength=2**self.bits)

    def merge(self, other: _Histogram) -> _Histogram:
        """Return the sum of both."""
        if other.shape is None or self.shape is None:
            return self if other.shape is None else other
        merged = _Histogram(self._depth, self._prefixes, self._max_counters)
        merged.shape, merged.bits = same_shape(self.shape, other.shape), self.bits
        merged.counts = {
            place: counts + other.counts[place] for place, counts in self.counts.items()
        }
        return merged


class _Gathered(_Selection):
    """The values themselves."""

    def __init__(self, depth: int, prefixes: dict[int, list[int]]) -> None:
        super().__init__(depth, prefixes)
        self.keys: dict[tuple[int, int], Array] = {}

    def take(self, component: int, prefix: int, keys: Array) -> None:
        """Keep the values that begin with a prefix."""
        found = self.keys.get((component, prefix))
        self.keys[component, prefix] = keys if found is None else np.concatenate([found, keys])

    def merge(self, other: _Gathered) -> _Gathered:
        """Return the values of both."""
        assert self._prefixes is not None
        merged = _Gathered(self._depth, self._prefixes)
        merged.shape = self.shape
        if other.shape is not None:
            merged.shape = same_shape(self.shape, other.shape)
        merged.keys = dict(self.keys)
        for (component, prefix), keys in other.keys.items():
            merged.take(component, prefix, keys)
        return merged


def _to_keys(values: Array) -> Array:
    """Return unsigned integers of the same order as the numbers; NaN is left out."""
    numbers = np.ascontiguousarray(values, dtype=np.float64)
    finite = np.isfinite(numbers)
    if not finite.all():
        if np.isinf(numbers).any():
            raise infinite_values()
        numbers = numbers[finite]
    bits = numbers.view(np.uint64)
    return np.where(bits >= _SIGN, ~bits, bits | _SIGN)


def _to_float(key: Any) -> float:
    bits = np.uint64(key)
    bits = bits & ~_SIGN if bits >= _SIGN else ~bits
    return float(np.array([bits], dtype=np.uint64).view(np.float64)[0])
