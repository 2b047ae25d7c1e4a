"""Statistics of columns that ranks can merge: each is one pass over a shard, and one reduction.

All sums are taken in float64. Values that are NaN are left out, as scikit-learn does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from hpctrain.errors import ConfigError, HpctrainError
from hpctrain.preprocessors.batches import Array, Rows, flat_rows
from hpctrain.preprocessors.categories import count_elements, is_missing
from hpctrain.preprocessors.kernels import reduced, sums_about
from hpctrain.world import Communicator

# Rows whose mean is what sums are taken about.
_SHIFT_ROWS = 256

S = TypeVar("S", bound="Statistic")


class Statistic(Protocol):
    """What is known of a column from the rows that were seen."""

    def update(self, values: Array) -> None:
        """Take rows into account. Not collective."""

    def merge(self: S, other: S) -> S:
        """Return what is known from the rows of both; neither changes. Not collective."""


class Moments:
    """Count, mean and variance of each component of a column.

    Partial sums of squares are about a point near the mean, and meet by the formula of Chan, Golub
    and LeVeque (1979), so no digits cancel, however far from 0 the values are.
    """

    def __init__(self) -> None:
        self.shape: tuple[int, ...] | None = None
        """Shape of one row; None before the first rows."""
        self.count: Array = np.zeros(0)
        """Values that are not NaN."""
        self.mean: Array = np.zeros(0)
        self.deviation: Array = np.zeros(0)
        """Sum of the squared distances from the mean."""
        self._expects_nan = False

    @property
    def variance(self) -> Array:
        """Of all the values as a population; NaN where there is none."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.deviation / self.count

    def update(self, values: Array) -> None:
        """Take rows into account. Not collective.

        Raises
        ------
        ConfigError
            If a value is infinite, or so large that its square is.
        """
        rows = as_numbers(values)
        shape = _same_shape(self.shape, values.shape[1:])
        if not len(rows):
            return
        seen = self._of(rows)
        self.shape = shape
        if not self.count.size:
            self.count, self.mean, self.deviation = seen
        else:
            mine = (self.count, self.mean, self.deviation)
            self.count, self.mean, self.deviation = _merge_moments(mine, seen)

    def merge(self, other: Moments) -> Moments:
        """Return what is known from the rows of both. Not collective."""
        if other.shape is None or self.shape is None:
            return self if other.shape is None else other
        merged = Moments()
        merged.shape = _same_shape(self.shape, other.shape)
        merged.count, merged.mean, merged.deviation = _merge_moments(
            (self.count, self.mean, self.deviation), (other.count, other.mean, other.deviation)
        )
        return merged

    def _of(self, rows: Array) -> tuple[Array, Array, Array]:
        with np.errstate(invalid="ignore", over="ignore"):
            head = np.array(rows[:_SHIFT_ROWS], dtype=np.float64)
            present = np.isfinite(head)
            shift = np.where(present, head, 0.0).sum(axis=0) / np.maximum(present.sum(axis=0), 1)
            sums = sums_about(shift, rows, leave_out_nan=self._expects_nan)
            if not self._expects_nan and not np.isfinite(sums[2]).all():
                sums = sums_about(shift, rows, leave_out_nan=True)
                self._expects_nan = bool((sums[0] < len(rows)).any())
        count, total, squares = sums
        if not np.isfinite(squares).all():
            raise ConfigError(
                "values are infinite, or larger than 1e154, so that mean and variance do not "
                "exist. Drop or clip them first, for example with a BatchMapper."
            )
        nonzero = np.maximum(count, 1)
        offset = total / nonzero
        return count, shift + offset, np.maximum(squares - total * offset, 0.0)


def _merge_moments(
    a: tuple[Array, Array, Array], b: tuple[Array, Array, Array]
) -> tuple[Array, Array, Array]:
    count = a[0] + b[0]
    of_b = b[0] / np.maximum(count, 1)
    apart = b[1] - a[1]
    return count, a[1] + apart * of_b, a[2] + b[2] + apart**2 * a[0] * of_b


class Extremes:
    """The smallest and the largest value of each component of a column."""

    def __init__(self) -> None:
        self.shape: tuple[int, ...] | None = None
        """Shape of one row; None before the first rows."""
        self.minimum: Array = np.zeros(0)
        """NaN where there is no value."""
        self.maximum: Array = np.zeros(0)
        """NaN where there is no value."""

    def update(self, values: Array) -> None:
        """Take rows into account. Not collective."""
        rows = as_numbers(values)
        shape = _same_shape(self.shape, values.shape[1:])
        if not len(rows):
            return
        self.minimum, self.maximum = self._joined(
            reduced(np.fmin, rows).astype(np.float64), reduced(np.fmax, rows).astype(np.float64)
        )
        self.shape = shape

    def merge(self, other: Extremes) -> Extremes:
        """Return what is known from the rows of both. Not collective."""
        if other.shape is None or self.shape is None:
            return self if other.shape is None else other
        merged = Extremes()
        merged.shape = _same_shape(self.shape, other.shape)
        merged.minimum, merged.maximum = self._joined(other.minimum, other.maximum)
        return merged

    def _joined(self, minimum: Array, maximum: Array) -> tuple[Array, Array]:
        if self.shape is None:
            return minimum, maximum
        return np.fmin(self.minimum, minimum), np.fmax(self.maximum, maximum)


class Counts:
    """How often each value of a column occurs.

    Parameters
    ----------
    count
        Counts the values that a column's rows hold; by default each row is one.
    """

    def __init__(self, count: Callable[[Array], Counter[Any]] = count_elements) -> None:
        self._count = count
        self.counts: Counter[Any] = Counter()
        """Values that are not missing."""
        self.missing = 0
        """Missing values."""

    def update(self, values: Array) -> None:
        """Take rows into account. Not collective."""
        seen = self._count(values)
        for value in [value for value in seen if is_missing(value)]:
            self.missing += seen.pop(value)
        self.counts.update(seen)

    def merge(self, other: Counts) -> Counts:
        """Return what is known from the rows of both. Not collective."""
        return _rebuild_counts(self.counts + other.counts, self.missing + other.missing)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel between ranks without the function that counts, which may be a user's own."""
        return _rebuild_counts, (self.counts, self.missing)


def _rebuild_counts(counts: Counter[Any], missing: int) -> Counts:
    rebuilt = Counts()
    rebuilt.counts, rebuilt.missing = counts, missing
    return rebuilt


@dataclass
class _Partial:
    """What a rank brings to a reduction: its statistics, or why it has none."""

    found: Mapping[str, Any]
    error: str | None = None


def collect(rows: Rows, make: Mapping[str, Callable[[], S]], comm: Communicator) -> dict[str, S]:
    """Return statistics of columns over the rows of all ranks, the same on every rank.

    Collective. One pass over the shard, one reduction.

    Parameters
    ----------
    rows
        This rank's shard.
    make
        Makes the empty statistic, by column.
    comm
        The ranks.

    Raises
    ------
    ConfigError
        If the pass failed on any rank: on every rank, so that none waits for it.
    """
    own: Exception | None = None
    partial = _Partial({column: empty() for column, empty in make.items()})
    try:
        for batch in rows():
            for column, statistic in partial.found.items():
                update_named(column, statistic, batch[column])
    except Exception as error:
        own = error
        said = (
            str(error) if isinstance(error, HpctrainError) else f"{type(error).__name__}: {error}"
        )
        partial = _Partial({}, said)
    merged: _Partial = comm.allreduce(partial, op=_merge_partials)
    if own is not None:
        raise own
    if merged.error is not None:
        raise ConfigError(f"on another rank: {merged.error}")
    return dict(merged.found)


def update_named(column: str, statistic: Statistic, values: Array) -> None:
    """Take rows into account, and name the column if that fails. Not collective.

    Raises
    ------
    ConfigError
        If the statistic refuses the values.
    """
    try:
        statistic.update(values)
    except ConfigError as error:
        raise ConfigError(f"column {column!r}: {error}") from error


def _merge_partials(a: _Partial, b: _Partial) -> _Partial:
    if a.error is not None or b.error is not None:
        return a if a.error is not None else b
    return _Partial({column: found.merge(b.found[column]) for column, found in a.found.items()})


def as_numbers(values: Array) -> Array:
    """Return the rows as vectors of numbers, without a copy where that is possible.

    Not collective.

    Raises
    ------
    ConfigError
        If they hold no numbers.
    """
    if values.dtype == object:
        try:
            values = values.astype(np.float64)
        except (TypeError, ValueError):
            pass
    if values.dtype.kind not in "biuf":
        raise ConfigError(
            f"it holds {_kind(values)}, and numbers are needed. Encode it first, or leave it out "
            f"of `columns`."
        )
    return flat_rows(values)


def _kind(values: Array) -> str:
    if values.dtype.kind in "US":
        return "text"
    if values.dtype == object and len(values):
        return f"values like {values[0]!r}"
    return f"values of type {values.dtype}"


def _same_shape(known: tuple[int, ...] | None, new: tuple[int, ...]) -> tuple[int, ...]:
    if known is not None and known != new:
        raise ConfigError(
            f"rows have shapes {known} and {new}. All rows of a column need one shape: pad or crop "
            f"them first."
        )
    return new
