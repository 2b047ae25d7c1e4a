"""A dataset with its steps as a source, to combine with others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import numpy as np

from hpctrain.data.batch import Batch
from hpctrain.data.conform import conform, empty
from hpctrain.data.operations.description import Description
from hpctrain.data.prefetch import clock_stopped
from hpctrain.data.schema import Column, Schema
from hpctrain.data.source import Blocks, Source, at_epoch, read_rows
from hpctrain.data.types import common_type
from hpctrain.errors import ConfigError

_ADVICE = "Give the column one type in all datasets, with map_batches()."


@dataclass(frozen=True, kw_only=True)
class DerivedSource:
    """The rows of a dataset, after steps that keep their number, in the types of a schema.

    A column that the dataset lacks is missing in all of its rows.
    """

    dataset: Description
    schema: Schema
    _one_at_a_time: Lock = field(default_factory=Lock, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the lock."""
        return {"dataset": self.dataset, "schema": self.schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state, with a new lock."""
        for name, value in {**state, "_one_at_a_time": Lock()}.items():
            object.__setattr__(self, name, value)

    @property
    def parts(self) -> tuple[Source, ...]:
        """The source below."""
        return (self.dataset.source,)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.dataset.source.num_rows

    @property
    def unit_rows(self) -> int:
        """Rows of a unit of the source below."""
        return self.dataset.source.unit_rows

    def blocks(self) -> Blocks:
        """Return the blocks of the source below. Not collective."""
        return self.dataset.source.blocks()

    def at_epoch(self, epoch: int) -> DerivedSource:
        """Return the rows in the order of an epoch. Not collective."""
        source = at_epoch(self.dataset.source, epoch)
        if source is self.dataset.source:
            return self
        return DerivedSource(dataset=replace(self.dataset, source=source), schema=self.schema)

    def read(self, rows: range, columns: Sequence[str] | None) -> Batch:
        """Return rows, in order. Not collective."""
        schema = self.schema.select(columns)
        batch = read_rows(self.dataset.source, rows, self.dataset.columns_read)
        if self.dataset.steps:
            with clock_stopped(), self._one_at_a_time:
                batch = self.dataset.apply(batch)
        if not rows:
            return empty(schema)
        batch = batch | {
            name: missing_rows(column, len(rows))
            for name, column in schema.items()
            if name not in batch
        }
        where = f"rows {rows.start} to {rows.stop} of {self.dataset!r}"
        return conform(batch, schema, where=where, advice=_ADVICE)


def as_source(dataset: Description, schema: Schema | None = None) -> Source:
    """Return a source of the rows of a dataset, whose number must be known.

    Not collective.

    Parameters
    ----------
    schema
        Columns and types to return; None is those of the dataset.
    """
    if schema is None:
        schema = dataset.schema()
    if not dataset.steps and schema == dataset.source.schema:
        return dataset.source
    return DerivedSource(dataset=dataset, schema=schema)


def union_schema(schemas: Sequence[Schema]) -> Schema:
    """Return the columns of all schemas, each in a type that can hold the values of all.

    Not collective.

    Raises
    ------
    ConfigError
        If a column has no such type, or rows of different shapes.
    """
    found: dict[str, Column] = {}
    for name in dict.fromkeys(name for schema in schemas for name in schema):
        columns = [schema[name] for schema in schemas if name in schema]
        shapes = {column.shape for column in columns}
        if len(shapes) > 1:
            raise ConfigError(
                f"rows of column {name!r} have shapes "
                f"{', '.join(map(str, sorted(shapes)))}. Give them one shape."
            )
        kinds = [column.dtype for column in columns]
        dtype = kinds[0] if len(set(kinds)) == 1 else common_type(kinds, name)
        if len(columns) < len(schemas):
            dtype = _missing_type(dtype)
        size = max(column.object_bytes for column in columns)
        found[name] = Column(dtype=dtype, shape=columns[0].shape, object_bytes=size)
    return Schema(tuple(found.items()))


def _missing_type(dtype: np.dtype) -> np.dtype:
    if dtype.kind in "fcMmO":
        return dtype
    return np.dtype(np.float64) if dtype.kind in "iu" else np.dtype(object)


def missing_rows(column: Column, rows: int) -> np.ndarray:
    """Return rows of a column that are all missing. Not collective."""
    nothing = {"M": "NaT", "m": "NaT", "O": None}.get(column.dtype.kind, np.nan)
    return np.full((rows, *column.shape), nothing, column.dtype)
