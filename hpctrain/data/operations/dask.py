"""Conversion to Dask and back, for data that does not fit into the memory of one process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from hpctrain.data.operations.combined import Combined
from hpctrain.data.operations.description import Description
from hpctrain.data.optional import require
from hpctrain.data.pandas_batches import to_pandas
from hpctrain.data.stream import windows


def to_dask(dataset: Description) -> Any:
    """Return a data frame of Dask, a partition for each range that is read at once.

    Not collective.
    """
    dask = require("dask.dataframe", to="for to_dask()", extra="dask")
    everything = [range(dataset.source.num_rows)]
    row_bytes = dataset.read_schema.row_bytes
    ranges = list(windows(dataset.source, everything, row_bytes)) or everything
    return dask.from_map(partial(_partition, dataset), ranges, meta=_partition(dataset, range(0)))


def _partition(dataset: Description, rows: range) -> Any:
    return to_pandas(Combined.take_ranges(dataset, [rows]).all_rows())


def partitions_of(frame: Any) -> Sequence[Any]:
    """Return the partitions of a data frame of Dask, computed. Not collective."""
    dask = require("dask", to="for from_dask()", extra="dask")
    return list(dask.compute(*frame.to_delayed()))
