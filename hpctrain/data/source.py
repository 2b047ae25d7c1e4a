"""`Source`: where the rows of a dataset come from, as paths and row ranges."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Protocol, runtime_checkable

from hpctrain.checks import shown
from hpctrain.data.batch import Batch, concatenate
from hpctrain.data.packed import Packed, pack, unpack
from hpctrain.data.schema import Schema
from hpctrain.errors import ConfigError

BLOCK_BYTES = 8 * 2**20
"""Size of a block if the format has none of its own: large enough for a parallel filesystem."""


class Blocks(Sequence[range]):
    """Blocks of rows, stored as runs of equal size.

    Parameters
    ----------
    runs
        Rows of a run of blocks, and rows of each of its blocks; the last block may be smaller.

    Examples
    --------
    >>> list(Blocks([(5, 2), (3, 3)]))
    [range(0, 2), range(2, 4), range(4, 5), range(5, 8)]
    """

    def __init__(self, runs: Sequence[tuple[int, int]]) -> None:
        self._runs = [(rows, max(size, 1)) for rows, size in runs if rows]
        self._first_row = [0, *accumulate(rows for rows, _ in self._runs)]
        self._first_block = [0, *accumulate(-(-rows // size) for rows, size in self._runs)]

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Rows of each run, and of each of its blocks."""
        return self._runs

    def __len__(self) -> int:
        """Return the number of blocks."""
        return self._first_block[-1]

    def __getitem__(self, index: Any) -> Any:
        """Return the rows of a block."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        run = bisect_right(self._first_block, index) - 1
        rows, size = self._runs[run]
        start = (index - self._first_block[run]) * size
        offset = self._first_row[run]
        return range(offset + start, offset + min(start + size, rows))

    def block_with(self, row: int) -> range:
        """Return the block that has a row. Not collective."""
        run = bisect_right(self._first_row, row) - 1
        if row < 0 or run >= len(self._runs):
            raise IndexError(row)
        rows, size = self._runs[run]
        offset = self._first_row[run]
        start = (row - offset) // size * size
        return range(offset + start, offset + min(start + size, rows))


@runtime_checkable
class Source(Protocol):
    """Rows that are read by range. A frozen value that pickles to paths and numbers."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""

    @property
    def schema(self) -> Schema:
        """Columns."""

    @property
    def unit_rows(self) -> int:
        """Rows that can only be read together: those of a row group or a chunk; else 1."""

    def blocks(self) -> Blocks:
        """Return the blocks of rows that are cheap to read, in order; each is some whole units.

        Not collective. Together they hold all rows.
        """

    def read(self, rows: range, columns: Sequence[str] | None) -> Batch:
        """Return rows, in order. Not collective. May be called by several threads.

        Parameters
        ----------
        rows
            A range of step 1.
        columns
            Columns to read, in this order; None is all.
        """


class SingleRows:
    """What a source has that can read each row by itself."""

    @property
    def unit_rows(self) -> int:
        """Always 1."""
        return 1

    def blocks(self: Source) -> Blocks:
        """Return blocks of some MiB. Not collective."""
        return Blocks([(self.num_rows, block_rows(self.schema))])


def check_range(rows: range, num_rows: int) -> range:
    """Return a range of rows after checking that it is contiguous and within the rows.

    Not collective.

    Raises
    ------
    ConfigError
        If its step is not 1, or it goes past the first or the last row.
    """
    if not isinstance(rows, range):
        raise ConfigError(
            f"{shown(rows)} is not a range of rows. Give one of step 1 in range(0, {num_rows})."
        )
    if rows and (rows.step != 1 or rows.start < 0 or rows.stop > num_rows):
        raise ConfigError(
            f"{rows} is not within {num_rows} rows. Give a range of step 1 in range(0, {num_rows})."
        )
    # An empty range may begin and end anywhere.
    return rows or range(0)


def read_rows(source: Source, rows: range, columns: Sequence[str] | None) -> Batch:
    """Return rows of a source, after checking their number. Not collective.

    Raises
    ------
    ConfigError
        If the source returns fewer rows, or more.
    """
    batch = source.read(rows, columns)
    for name, array in batch.items():
        if len(array) != len(rows):
            raise ConfigError(
                f"{getattr(source, 'path', type(source).__name__)} returned {len(array)} rows of "
                f"column {name!r} for the {len(rows)} from {rows.start} to {rows.stop}. Its data "
                f"has changed since the dataset was made: make the dataset again."
            )
    return batch


def block_rows(schema: Schema) -> int:
    """Return the rows of a block for a format without its own unit. Not collective."""
    return max(1, BLOCK_BYTES // max(schema.row_bytes, 1))


@dataclass(frozen=True, kw_only=True)
class Concatenated:
    """Sources of the same schema, one after another."""

    parts: tuple[Source, ...]

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self._starts[-1]

    @property
    def schema(self) -> Schema:
        """Columns, in the order of the first part."""
        return self.parts[0].schema

    @property
    def unit_rows(self) -> int:
        """Rows of the largest unit."""
        return max(part.unit_rows for part in self.parts)

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(part.num_rows for part in self.parts)]

    def __getstate__(self) -> dict[str, Any]:
        """Pack the parts, of which there may be thousands."""
        return {"parts": pack(self.parts) or self.parts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpack the parts."""
        parts = state["parts"]
        object.__setattr__(self, "parts", unpack(parts) if isinstance(parts, Packed) else parts)

    def blocks(self) -> Blocks:
        """Return the blocks of all parts. Not collective."""
        return Blocks([run for part in self.parts for run in part.blocks().runs])

    def locate(self, rows: range) -> Iterator[tuple[Source, range]]:
        """Return the parts that have the rows, and the range in each part. Not collective."""
        start = rows.start
        while start < rows.stop:
            index = bisect_right(self._starts, start) - 1
            stop = min(rows.stop, self._starts[index + 1])
            yield self.parts[index], range(start - self._starts[index], stop - self._starts[index])
            start = stop

    def at_epoch(self, epoch: int) -> Source:
        """Return the parts in the order of an epoch. Not collective."""
        parts = tuple(at_epoch(part, epoch) for part in self.parts)
        changed = any(new is not old for new, old in zip(parts, self.parts, strict=True))
        return Concatenated(parts=parts) if changed else self

    def read(self, rows: range, columns: Sequence[str] | None) -> Batch:
        """Return rows, in order. Not collective."""
        columns = self.schema.names if columns is None else columns
        pieces = [read_rows(part, part_rows, columns) for part, part_rows in self.locate(rows)]
        return concatenate(pieces) if pieces else self.parts[0].read(range(0), columns)


@dataclass(frozen=True, kw_only=True)
class RowRanges:
    """Some rows of a source, by ranges of step 1, in the order of the ranges."""

    source: Source
    ranges: tuple[range, ...]

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return sum(map(len, self.ranges))

    @property
    def schema(self) -> Schema:
        """Columns."""
        return self.source.schema

    @property
    def unit_rows(self) -> int:
        """Rows of a unit of the source."""
        return self.source.unit_rows

    def blocks(self) -> Blocks:
        """Return what is left of each block of the source. Not collective."""
        blocks = self.source.blocks()
        sizes = []
        for rows in self.ranges:
            start = rows.start
            while start < rows.stop:
                stop = min(blocks.block_with(start).stop, rows.stop)
                sizes.append(stop - start)
                start = stop
        return Blocks([(size, size) for size in sizes])

    def locate(self, rows: range) -> list[tuple[Source, range]]:
        """Return the source with each of its ranges that holds these rows. Not collective."""
        return [(self.source, part) for part in take_rows(self.ranges, rows)]

    def read(self, rows: range, columns: Sequence[str] | None) -> Batch:
        """Return rows, in order. Not collective."""
        pieces = [read_rows(self.source, part, columns) for part in take_rows(self.ranges, rows)]
        return concatenate(pieces) if pieces else self.source.read(range(0), columns)


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """Columns of sources that have the same number of rows.

    Raises
    ------
    ConfigError
        If numbers of rows differ, or two sources have a column of the same name.
    """

    parts: tuple[Source, ...]

    def __post_init__(self) -> None:
        """Check numbers of rows and names."""
        rows = {", ".join(map(repr, part.schema)): part.num_rows for part in self.parts}
        if len(set(rows.values())) > 1:
            raise ConfigError(
                f"columns have different numbers of rows: "
                f"{'; '.join(f'{names} {length}' for names, length in rows.items())}. Give files "
                f"of the same number of rows."
            )
        names = [name for part in self.parts for name in part.schema]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(
                f"more than one source has a column {', '.join(map(repr, twice))}. Give each "
                f"column a name of its own."
            )

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.parts[0].num_rows

    @property
    def schema(self) -> Schema:
        """Columns of all parts."""
        return Schema(tuple(item for part in self.parts for item in part.schema.items()))

    @property
    def unit_rows(self) -> int:
        """Rows of the largest unit."""
        return max(part.unit_rows for part in self.parts)

    def blocks(self) -> Blocks:
        """Return the blocks of the first part. Not collective."""
        return self.parts[0].blocks()

    def read(self, rows: range, columns: Sequence[str] | None) -> Batch:
        """Return rows, in order. Not collective."""
        wanted = self.schema.select(columns)
        batch: Batch = {}
        for part in self.parts:
            if mine := [name for name in wanted if name in part.schema]:
                batch |= read_rows(part, rows, mine)
        return {name: batch[name] for name in wanted}


def at_epoch(source: Any, epoch: int) -> Any:
    """Return a source for an epoch, with its rows in another order if each epoch shuffles it.

    Not collective. A source that selects rows by position, or puts columns side by side, keeps the
    order of epoch 0, so that a row of one part of a split is never in another.
    """
    return source.at_epoch(epoch) if epoch and hasattr(source, "at_epoch") else source


def in_one_order(source: Any) -> Any:
    """Return a source with its rows in the order of epoch 0 in each epoch. Not collective."""
    if at_epoch(source, 1) is source:
        return source
    return RowRanges(source=source, ranges=(range(source.num_rows),))


def memory_bytes(source: Any) -> int:
    """Return how many bytes of a source are in memory, not in files. Not collective."""
    if hasattr(source, "memory_bytes"):
        return int(source.memory_bytes)
    inner = [source.source] if hasattr(source, "source") else getattr(source, "parts", ())
    return sum(map(memory_bytes, inner))


def files_of_source(source: Any) -> list[str]:
    """Return the files that the rows of a source are in. Not collective."""
    if hasattr(source, "files"):
        return list(source.files())
    inner = [source.source] if hasattr(source, "source") else getattr(source, "parts", ())
    return list(dict.fromkeys(path for part in inner for path in files_of_source(part)))


def take_rows(ranges: Sequence[range], positions: range) -> list[range]:
    """Return the rows at some positions of ranges that follow each other.

    Not collective.

    Examples
    --------
    >>> take_rows([range(0, 4), range(10, 14)], range(2, 6))
    [range(2, 4), range(10, 12)]
    """
    taken, offset = [], 0
    for rows in ranges:
        start = max(positions.start - offset, 0)
        stop = min(positions.stop - offset, len(rows))
        if start < stop:
            taken.append(rows[start:stop])
        offset += len(rows)
    return taken
