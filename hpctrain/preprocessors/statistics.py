"""Statistics of columns that ranks can merge: one pass over a shard, and one reduction.

All sums are computed in float64. NaN is ignored, as in scikit-learn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from hpctrain.errors import ConfigError, HpctrainError
from hpctrain.missing import is_missing
from hpctrain.preprocessors.batches import Array, Rows, flat_rows
from hpctrain.preprocessors.categories import count_elements
from hpctrain.preprocessors.kernels import reduced, sums_about
from hpctrain.world import Communicator

# The point that sums are taken about is chosen from the first rows: at most _HEAD_ROWS, and about
# one in _HEAD_PART of a small batch.
_HEAD_ROWS = 256
_HEAD_PART = 64

S = TypeVar("S", bound="Statistic")


class Statistic(Protocol):
    """Statistics of a column over the rows so far."""

    def update(self, values: Array) -> None:
        """Add rows. Not collective."""

    def merge(self: S, other: S) -> S:
        """Return the statistics of the rows of both; neither changes. Not collective."""


class Moments:
    """Count, mean and variance of each component of a column.

    Sums are taken about a value of the column near its mean, and merged by the formula of Chan,
    Golub and LeVeque (1979). The mean is stored as its distance from that value, and the difference
    of two values that are near each other is exact: so no digits are lost, however far from 0 the
    values are, and the variance of equal values is 0.
    """

    def __init__(self) -> None:
        self.shape: tuple[int, ...] | None = None
        """Shape of one row; None before the first rows."""
        self._sums = _Sums(np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0))
        self._expects_nan = False

    @property
    def count(self) -> Array:
        """Values that are not NaN."""
        return self._sums.count

    @property
    def mean(self) -> Array:
        """Mean of the values; 0 if there is none."""
        mean: Array = self._sums.origin + self._sums.offset
        return mean

    @property
    def variance(self) -> Array:
        """Population variance of the values; NaN if there is none."""
        with np.errstate(invalid="ignore", divide="ignore"):
            variance: Array = self._sums.deviation / self._sums.count
        return variance

    def update(self, values: Array) -> None:
        """Add rows. Not collective.

        Raises
        ------
        ConfigError
            If a value or its square is infinite.
        """
        if not len(values):
            return
        rows = as_numbers(values)
        shape = same_shape(self.shape, values.shape[1:])
        seen = self._of(rows)
        self._sums = seen if self.shape is None else _merge_sums(self._sums, seen)
        self.shape = shape

    def merge(self, other: Moments) -> Moments:
        """Return the statistics of the rows of both. Not collective."""
        if other.shape is None or self.shape is None:
            return self if other.shape is None else other
        merged = Moments()
        merged.shape = same_shape(self.shape, other.shape)
        merged._sums = _merge_sums(self._sums, other._sums)
        return merged

    def _of(self, rows: Array) -> _Sums:
        with np.errstate(invalid="ignore", over="ignore"):
            origin = _origin_of(rows)
            sums = sums_about(origin, rows, leave_out_nan=self._expects_nan)
            if not self._expects_nan and not np.isfinite(sums[2]).all():
                sums = sums_about(origin, rows, leave_out_nan=True)
                self._expects_nan = bool((sums[0] < len(rows)).any())
        count, total, squares = sums
        if not np.isfinite(squares).all():
            raise ConfigError(
                "values are infinite, or larger than 1e154, so that mean and variance do not "
                "exist. Drop or clip them first, for example with a BatchMapper."
            )
        offset = total / np.maximum(count, 1)
        return _Sums(count, origin, offset, np.maximum(squares - total * offset, 0.0))


@dataclass(frozen=True)
class _Sums:
    """Statistics of each component of a column."""

    count: Array
    origin: Array
    """A value of the column, 0 if there is none."""
    offset: Array
    """Distance of the mean from it."""
    deviation: Array
    """Sum of the squared distances from the mean."""


def _origin_of(rows: Array) -> Array:
    """Return for each column a value near its mean, 0 if all are NaN or infinite."""
    head = rows[: min(_HEAD_ROWS, len(rows) // _HEAD_PART + 4)].astype(np.float64)
    components = np.arange(rows.shape[1])
    total = head.sum(axis=0)
    origin: Array
    if np.isfinite(total).all():
        origin = head[np.abs(head - total / len(head)).argmin(axis=0), components]
        return origin
    present = np.isfinite(head)
    mean = np.where(present, head, 0.0).sum(axis=0) / np.maximum(present.sum(axis=0), 1)
    distance = np.where(present, np.abs(head - mean), np.inf)
    origin = head[distance.argmin(axis=0), components]
    if len(others := np.flatnonzero(~np.isfinite(origin))):
        # The first rows of these columns have no finite value: search all rows.
        columns = rows[:, others].astype(np.float64)
        first = np.isfinite(columns).argmax(axis=0)
        origin[others] = np.nan_to_num(
            columns[first, np.arange(len(others))], posinf=0.0, neginf=0.0
        )
    return origin


def _merge_sums(a: _Sums, b: _Sums) -> _Sums:
    count = a.count + b.count
    of_b = b.count / np.maximum(count, 1)
    apart = (b.origin - a.origin) + (b.offset - a.offset)
    is_first = a.count == 0
    return _Sums(
        count,
        np.where(is_first, b.origin, a.origin),
        np.where(is_first, b.offset, a.offset + apart * of_b),
        a.deviation + b.deviation + apart**2 * a.count * of_b,
    )


class Extremes:
    """The smallest and the largest value of each component of a column; both are finite."""

    def __init__(self) -> None:
        self.shape: tuple[int, ...] | None = None
        """Shape of one row; None before the first rows."""
        self.minimum: Array = np.zeros(0)
        """NaN if there is no value."""
        self.maximum: Array = np.zeros(0)
        """NaN if there is no value."""

    def update(self, values: Array) -> None:
        """Add rows. Not collective.

        Raises
        ------
        ConfigError
            If a value is infinite.
        """
        if not len(values):
            return
        rows = as_numbers(values)
        shape = same_shape(self.shape, values.shape[1:])
        extremes = [reduced(f, rows).astype(np.float64) for f in (np.fmin, np.fmax)]
        if np.isinf(extremes).any():
            raise infinite_values()
        self.minimum, self.maximum = self._joined(*extremes)
        self.shape = shape

    def merge(self, other: Extremes) -> Extremes:
        """Return the statistics of the rows of both. Not collective."""
        if other.shape is None or self.shape is None:
            return self if other.shape is None else other
        merged = Extremes()
        merged.shape = same_shape(self.shape, other.shape)
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
        Counts the values in the rows of a column; by default each row is one value.
    """

    def __init__(self, count: Callable[[Array], Counter[Any]] = count_elements) -> None:
        self._count = count
        self.counts: Counter[Any] = Counter()
        """Values that are not missing."""
        self.missing = 0
        """Missing values."""

    def update(self, values: Array) -> None:
        """Add rows. Not collective."""
        seen = self._count(values)
        for value in [value for value in seen if is_missing(value)]:
            self.missing += seen.pop(value)
        self.counts.update(seen)

    def merge(self, other: Counts) -> Counts:
        """Return the statistics of the rows of both. Not collective."""
        return _rebuild_counts(self.counts + other.counts, self.missing + other.missing)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the counting function, which may be the user's."""
        return _rebuild_counts, (self.counts, self.missing)


def _rebuild_counts(counts: Counter[Any], missing: int) -> Counts:
    rebuilt = Counts()
    rebuilt.counts, rebuilt.missing = counts, missing
    return rebuilt


@dataclass
class _Partial:
    """A rank's input to a reduction: its statistics, or its error."""

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
        The communicator of the ranks.

    Raises
    ------
    ConfigError
        If the pass fails on any rank, or shapes differ between ranks; it is raised on every rank,
        so that none waits for the other.
    """
    own: Exception | None = None
    partial = _Partial({column: empty() for column, empty in make.items()})
    try:
        for batch in rows():
            for column, statistic in partial.found.items():
                try:
                    statistic.update(batch[column])
                except ConfigError as error:
                    raise ConfigError(f"column {column!r}: {error}") from error
    except Exception as error:
        own = error
        partial = _Partial({}, f"on another rank: {_said(error)}")
    merged: _Partial = comm.allreduce(partial, op=_merge_partials)
    if own is not None:
        raise own
    if merged.error is not None:
        raise ConfigError(merged.error)
    return dict(merged.found)


def _merge_partials(a: _Partial, b: _Partial) -> _Partial:
    if a.error is not None or b.error is not None:
        return a if a.error is not None else b
    merged = {}
    for column, found in a.found.items():
        try:
            merged[column] = found.merge(b.found[column])
        except Exception as error:
            # MPI calls this on some ranks alone: if it raised there, the others would wait.
            return _Partial({}, f"column {column!r}: {_said(error)}")
    return _Partial(merged)


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, HpctrainError) else f"{type(error).__name__}: {error}"


def as_numbers(values: Array) -> Array:
    """Return the rows as vectors of numbers, without a copy where that is possible.

    Not collective.

    Raises
    ------
    ConfigError
        If they hold no numbers.
    """
    if values.dtype == object and not any(isinstance(v, (str, bytes)) for v in values.flat):
        try:
            values = values.astype(np.float64)
        except (TypeError, ValueError):
            pass
    if values.dtype.kind not in "biuf":
        raise ConfigError(
            f"it holds {_kind(values)}, but must hold numbers. Encode it first, or leave it out of "
            f"`columns`."
        )
    return flat_rows(values)


def named_numbers(column: str, values: Array) -> Array:
    """Return the rows of a column as vectors of numbers, and name it if that fails. Not collective.

    Raises
    ------
    ConfigError
        If they hold no numbers.
    """
    try:
        return as_numbers(values)
    except ConfigError as error:
        raise ConfigError(f"column {column!r}: {error}") from error


def in_shape(values: Array, shape: tuple[int, ...]) -> Array:
    """Return an empty column with rows of this shape; other columns unchanged. Not collective.

    In a data frame vectors are objects, so an empty column has lost the shape of its rows.
    """
    if len(values) or values.ndim > 1:
        return values
    return np.zeros((0, *shape), np.float64 if values.dtype == object else values.dtype)


def _kind(values: Array) -> str:
    if values.dtype.kind in "US" or any(isinstance(v, (str, bytes)) for v in values.flat):
        return "text"
    if values.dtype == object and len(values):
        return f"values like {values[0]!r}"
    return f"values of type {values.dtype}"


def finite_numbers(column: str, values: Array) -> Array:
    """Return the result of `named_numbers`, but raise for infinite values. Not collective."""
    numbers = named_numbers(column, values)
    if numbers.dtype.kind == "f" and np.isinf(numbers).any():
        raise ConfigError(f"column {column!r}: {infinite_values()}")
    return numbers


def infinite_values() -> ConfigError:
    """Return the error for values that cannot be fitted. Not collective."""
    return ConfigError(
        "values are infinite, or their range exceeds that of float64. Drop or clip them first, for "
        "example with a BatchMapper."
    )


def same_shape(known: tuple[int, ...] | None, new: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the rows of a column.

    Not collective.

    Raises
    ------
    ConfigError
        If it differs from the known one.
    """
    if known is not None and known != new:
        raise ConfigError(
            f"rows have shapes {known} and {new}. All rows of a column need one shape: pad or crop "
            f"them first."
        )
    return new
