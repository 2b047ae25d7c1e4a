"""The functions that make datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpctrain.data import formats
from hpctrain.data.dataset import Dataset
from hpctrain.data.files import Paths
from hpctrain.data.memory import MemorySource


def read_parquet(paths: Paths, *, columns: Sequence[str] | None = None) -> Dataset:
    """Return a dataset of Parquet files, such as the output of Dask or Spark.

    Not collective. Only the footers of the files are read now.

    Parameters
    ----------
    paths
        A file, a directory, a pattern, or a list of these.
    columns
        Which to read; None is all.

    Raises
    ------
    ConfigError
        If a file is missing or damaged, or files have unlike columns.
    """
    from hpctrain.data.parquet import open_parquet

    return Dataset(open_parquet(paths, columns=columns))


def read_hdf5(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    datasets: Mapping[str, str] | None = None,
    group: str = "/",
) -> Dataset:
    """Return a dataset of HDF5 files.

    Not collective. The columns are HDF5 datasets that have a row per element of their first axis:
    labels of shape ``[rows]``, samples of shape ``[rows, ...]``. They may be contiguous, chunked,
    compressed or virtual. Only descriptions are read now.

    Parameters
    ----------
    paths
        A file, a directory, a pattern, or a list of these.
    columns
        Which datasets of the group to read; None is all.
    datasets
        Instead: the place in the file of each column, as in ``{"x": "/train/x", "y": "/labels"}``.
    group
        Where in the file the datasets are.

    Raises
    ------
    ConfigError
        If a file is missing or damaged, has no such dataset, or if columns are unlike.
    """
    from hpctrain.data.hdf5 import open_hdf5

    return Dataset(open_hdf5(paths, columns=columns, datasets=datasets, group=group))


def from_numpy(arrays: Any) -> Dataset:
    """Return a dataset of arrays in memory.

    Not collective.

    Parameters
    ----------
    arrays
        A dict of arrays that have a row per element, or one array: the column ``data``.

    Raises
    ------
    ConfigError
        If they have unlike numbers of rows.
    """
    return Dataset(MemorySource(arrays=formats.from_any(arrays)))


def from_pandas(frame: Any) -> Dataset:
    """Return a dataset of the columns of a data frame, without its index. Not collective."""
    return Dataset(MemorySource(arrays=formats.from_pandas(frame)))


def from_arrow(table: Any) -> Dataset:
    """Return a dataset of an Arrow table. Not collective."""
    return Dataset(MemorySource(arrays=formats.from_arrow(table)))
