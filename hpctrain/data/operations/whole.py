"""Operations on all rows: Arrow computes them at the first read, once in each process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol

import numpy as np

from hpctrain.data.batch import Batch, num_rows
from hpctrain.data.categories import plain
from hpctrain.data.memory import MemorySource
from hpctrain.data.operations.arrow import to_arrow_with_missing
from hpctrain.data.operations.description import Description
from hpctrain.data.optional import require
from hpctrain.data.prefetch import clock_stopped
from hpctrain.data.schema import Schema
from hpctrain.data.source import Blocks, SingleRows, Source
from hpctrain.errors import ConfigError


class Operation(Protocol):
    """Computes rows from all rows of a dataset. A frozen value; each process gets the same rows."""

    @property
    def keeps_rows(self) -> bool:
        """Whether it only changes the order of the rows."""

    def __call__(self, dataset: Description) -> Batch:
        """Return all rows. Not collective."""


@dataclass(frozen=True, kw_only=True)
class WholeSource(SingleRows):
    """The result of an operation on all rows of a dataset.

    It pickles as the description of that dataset: each rank computes the same rows, and keeps them
    in memory. Write a dataset that is too large for that to files first.
    """

    dataset: Description
    operation: Operation
    _computed: list[MemorySource] = field(
        default_factory=list, init=False, repr=False, compare=False
    )
    _once: Lock = field(default_factory=Lock, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the rows, and the lock."""
        return {"dataset": self.dataset, "operation": self.operation}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state, with a new lock."""
        for name, value in {**state, "_computed": [], "_once": Lock()}.items():
            object.__setattr__(self, name, value)

    @property
    def parts(self) -> tuple[Source, ...]:
        """The source below."""
        return (self.dataset.source,)

    @property
    def rows(self) -> MemorySource:
        """The rows, computed at first use."""
        with clock_stopped(), self._once:
            if not self._computed:
                self._computed.append(MemorySource(arrays=self.operation(self.dataset)))
        return self._computed[0]

    @property
    def _is_known(self) -> bool:
        return self.operation.keeps_rows and self.dataset.keeps_rows

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.dataset.source.num_rows if self._is_known else self.rows.num_rows

    @property
    def schema(self) -> Schema:
        """Columns."""
        if self.operation.keeps_rows and not self.dataset.steps and not self._computed:
            return self.dataset.read_schema
        return self.rows.schema

    def blocks(self) -> Blocks:
        """Return blocks of some MiB. Not collective."""
        return self.rows.blocks()

    def read(self, rows: range, columns: Sequence[str] | None) -> Batch:
        """Return rows, in order. Not collective."""
        return self.rows.read(rows, columns)


@dataclass(frozen=True)
class AllRows:
    """All rows unchanged, so that their number is known."""

    keeps_rows: bool = True

    def __call__(self, dataset: Description) -> Batch:
        """Return all rows. Not collective."""
        return dataset.all_rows()


@dataclass(frozen=True)
class Sort:
    """The rows in the order of some columns; equal ones stay in theirs, missing ones are last."""

    keys: tuple[str, ...]
    descending: tuple[bool, ...]
    keeps_rows: bool = True

    def __call__(self, dataset: Description) -> Batch:
        """Return all rows, sorted. Not collective."""
        batch = dataset.all_rows()
        order = sorted_rows(batch, self.keys, self.descending)
        return {name: array[order] for name, array in batch.items()}


def sorted_rows(batch: Batch, keys: Sequence[str], descending: Sequence[bool]) -> np.ndarray:
    """Return the numbers of rows in the order of some columns.

    Not collective.

    Raises
    ------
    ConfigError
        If Arrow cannot sort one of them.
    """
    pyarrow = require("pyarrow", to="to sort")
    compute = require("pyarrow.compute", to="to sort")
    if not num_rows(batch):
        return np.zeros(0, np.int64)
    table = to_arrow_with_missing(plain({name: batch[name] for name in keys}))
    orders = ["descending" if down else "ascending" for down in descending]
    try:
        # Arrow's default puts missing values last in both directions.
        order = compute.sort_indices(table, sort_keys=list(zip(keys, orders, strict=True)))
    except (pyarrow.ArrowException, TypeError) as error:
        raise ConfigError(
            f"a column of {', '.join(map(repr, keys))} cannot be sorted: {error}. Sort by columns "
            f"of numbers, times, bools or texts."
        ) from error
    found: np.ndarray = order.to_numpy()
    return found


def with_known_rows(dataset: Any) -> Any:
    """Return a dataset whose number of rows is known, after a pass over the data if need be.

    Not collective. The first read makes that pass.
    """
    if dataset.keeps_rows:
        return dataset
    return dataset.of_source(WholeSource(dataset=dataset, operation=AllRows()))
