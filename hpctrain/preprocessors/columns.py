"""`ColumnPreprocessor`: statistics of columns that the ranks compute together."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from hpctrain.preprocessors.batches import (
    BatchFormat,
    NumpyBatch,
    Rows,
    column_of,
    format_of,
    names_of,
    replace_columns,
    rows_of,
)
from hpctrain.preprocessors.preprocessor import Preprocessor, check_outputs
from hpctrain.world import Communicator, SerialComm

P = TypeVar("P", bound="ColumnPreprocessor")


class ColumnPreprocessor(Preprocessor, abc.ABC):
    """Learns statistics of columns from the shards of all ranks, and transforms columns with them.

    In a class of your own, store each parameter of the constructor under its own name, and define
    `_transform_columns`; define `_fit_columns` too if the class is fitted.
    """

    # What a subclass defines.

    def _fit_columns(self, rows: Rows, comm: Communicator) -> dict[str, Any]:
        """Return the statistics of the rows of all ranks. Collective."""
        raise NotImplementedError

    @abc.abstractmethod
    def _transform_columns(self, columns: NumpyBatch) -> Mapping[str, Any]:
        """Return the output columns for the input columns of a batch. Not collective."""

    def get_input_columns(self) -> list[str]:
        """Return the columns that are read. Not collective."""
        return list(getattr(self, "columns", ()))

    def get_output_columns(self) -> list[str]:
        """Return the columns that are made. Not collective."""
        outputs = getattr(self, "output_columns", None)
        return self.get_input_columns() if outputs is None else list(outputs)

    @classmethod
    def preferred_batch_format(cls) -> BatchFormat:
        """Return the format of batches that is fastest to transform. Not collective."""
        return "numpy"

    # Implementation.

    def _learns_from_whole(self) -> bool:
        return False

    def _fit_whole(self: P, dataset: Any) -> P:
        return self._fit_rows(rows_of(dataset, self._columns_to_read()), SerialComm())

    def _fit_rows(self: P, rows: Rows, comm: Communicator) -> P:
        if self._begin_fit():
            self.stats_ = None
            self.stats_ = self._fit_columns(rows, comm)
        return self

    def _columns_to_read(self) -> list[str] | None:
        return self.get_input_columns()

    def _transform_format(self) -> BatchFormat:
        return self.preferred_batch_format()

    def _transform(self, batch: Any) -> Any:
        format_of(batch)
        inputs = {name: column_of(batch, name) for name in self._columns_of(batch)}
        if not inputs:
            return batch
        outputs = self._transform_columns(inputs)
        dropped = [name for name in names_of(batch) if self._drops(name)]
        return replace_columns(batch, outputs, dropped=dropped)

    def _keeps_rows(self) -> bool:
        return True

    def _columns_of(self, batch: Any) -> list[str]:
        """Return the input columns of a batch."""
        return self.get_input_columns()

    def _names(self) -> Iterator[tuple[str, str]]:
        """Return each input column with its output column."""
        return zip(self.get_input_columns(), self.get_output_columns(), strict=True)


class _PerColumn(ColumnPreprocessor):
    """Makes a column of each column that it reads."""

    def _take_columns(self, columns: list[str], output_columns: list[str] | None) -> None:
        """Store the columns that are read, and the names of those that are made."""
        self.output_columns = check_outputs(columns, output_columns)
        self.columns = list(columns)
