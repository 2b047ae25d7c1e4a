"""The functions that make datasets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from hpctrain.checks import shown
from hpctrain.data import arrow_batches, pandas_batches
from hpctrain.data.batch import Batch, concatenate
from hpctrain.data.dataset import Dataset
from hpctrain.data.files import Paths
from hpctrain.data.formats import from_any
from hpctrain.data.memory import MemorySource
from hpctrain.data.operations.scheduling import OF_READS, say_no_meaning
from hpctrain.errors import ConfigError


def read_parquet(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    **scheduling: Any,
) -> Dataset:
    """Return a dataset of Parquet files, such as the output of Dask or Spark.

    Not collective. Only the footers of the files are read now.

    Parameters
    ----------
    paths
        A file, a directory, a pattern, or a list of these.
    columns
        Which to read; None is all.
    **scheduling
        Arguments of Ray Data such as ``override_num_blocks`` and ``concurrency``: accepted, without
        effect.

    Raises
    ------
    ConfigError
        If a file is missing or damaged, or files have different columns.
    """
    say_no_meaning("read_parquet()", scheduling, OF_READS)
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
        If a file is missing or damaged, has no such dataset, or if columns differ.
    """
    from hpctrain.data.hdf5 import open_hdf5

    return Dataset(open_hdf5(paths, columns=columns, datasets=datasets, group=group))


def read_csv(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    delimiter: str = ",",
    names: Sequence[str] | None = None,
    **scheduling: Any,
) -> Dataset:
    """Return a dataset of CSV files.

    Not collective. Files are read once now, to count lines: Parquet and HDF5 need no such pass.
    Values must not contain line breaks.

    Parameters
    ----------
    paths
        A file, a directory, a pattern, or a list of these.
    columns
        Which to read; None is all.
    dtypes
        NumPy types of columns. Those of the others are guessed from the first MiB of the first
        file.
    delimiter
        Character between values.
    names
        Names of the columns, for files without a line of them.
    **scheduling
        As in `hpctrain.data.read_parquet`.

    Raises
    ------
    ConfigError
        If a file is missing or cannot be parsed, or files have different columns.
    """
    say_no_meaning("read_csv()", scheduling, OF_READS)
    from hpctrain.data.csv import open_csv

    source = open_csv(
        paths,
        columns=columns,
        dtypes={} if dtypes is None else dtypes,
        delimiter=delimiter,
        names=names,
    )
    return Dataset(source)


def read_numpy(
    paths: Paths | Mapping[str, Paths],
    *,
    columns: Sequence[str] | None = None,
    column: str = "data",
    **scheduling: Any,
) -> Dataset:
    """Return a dataset of ``.npy`` and ``.npz`` files.

    Not collective. Only their headers are read now; arrays of a compressed ``.npz`` are read whole.

    Parameters
    ----------
    paths
        A file, a directory, a pattern, or a list of these, whose rows follow each other; or a dict
        of such, by column: ``{"x": "samples.npy", "y": "labels.npy"}``.
    columns
        Which arrays of ``.npz`` files to read; None is all.
    column
        Name of the column that ``.npy`` files become.
    **scheduling
        As in `hpctrain.data.read_parquet`.

    Raises
    ------
    ConfigError
        If a file is missing or damaged, or files have different columns or numbers of rows.
    """
    say_no_meaning("read_numpy()", scheduling, OF_READS)
    from hpctrain.data.npy import open_numpy

    return Dataset(open_numpy(paths, column=column, columns=columns))


def from_numpy(arrays: Any) -> Dataset:
    """Return a dataset of arrays in memory.

    Not collective.

    Parameters
    ----------
    arrays
        A dict of arrays that have a row per element, or one array: the column ``data``; or a list
        of such, whose rows follow each other.

    Raises
    ------
    ConfigError
        If they have different numbers of rows, or those of a list have different columns.
    """
    return _in_memory(arrays, from_any)


def from_pandas(dfs: Any, **scheduling: Any) -> Dataset:
    """Return a dataset of the columns of a data frame, without its index.

    Not collective. Columns of category type keep it in batches in pandas and Arrow format.

    Parameters
    ----------
    dfs
        A data frame, or a list of them, whose rows follow each other.
    **scheduling
        As in `from_items`.
    """
    say_no_meaning("from_pandas()", scheduling, OF_READS)
    check = partial(_check_kind, "from_pandas", "a data frame", ("columns", "iloc"))
    return _in_memory(dfs, partial(pandas_batches.from_pandas, keep_categories=True), check)


def from_arrow(tables: Any, **scheduling: Any) -> Dataset:
    """Return a dataset of an Arrow table.

    Not collective. Dictionary columns have category type in batches in pandas format.

    Parameters
    ----------
    tables
        A table, or a list of them, whose rows follow each other.
    **scheduling
        As in `from_items`.
    """
    say_no_meaning("from_arrow()", scheduling, OF_READS)
    check = partial(_check_kind, "from_arrow", "an Arrow table", ("schema", "column"))
    return _in_memory(tables, partial(arrow_batches.from_arrow, keep_categories=True), check)


def from_dask(df: Any) -> Dataset:
    """Return a dataset of a data frame of Dask, which is computed now, into memory.

    Not collective. For data that does not fit into memory, use ``df.to_parquet(directory)`` and
    `read_parquet`.

    Raises
    ------
    ConfigError
        If Dask is not installed, or partitions have different columns.
    """
    from hpctrain.data.operations.dask import partitions_of

    _check_kind("from_dask", "a data frame of Dask", ("to_delayed", "columns"), df)
    return from_pandas(partitions_of(df))


def _check_kind(what: str, kind: str, attributes: Sequence[str], given: Any) -> None:
    if not all(hasattr(given, name) for name in attributes):
        raise ConfigError(
            f"{what}({shown(given)}): a {type(given).__name__} is not {kind}. Give {kind}, or a "
            f"list of them; from_items() takes rows, from_numpy() arrays."
        )


def _in_memory(
    given: Any, read: Callable[[Any], Batch], check: Callable[[Any], None] | None = None
) -> Dataset:
    """Return a dataset of one object, or of a list of them."""
    if check is not None:
        for one in given if isinstance(given, (list, tuple)) else [given]:
            check(one)
    if not isinstance(given, (list, tuple)):
        return Dataset(MemorySource(arrays=read(given)))
    batches = [read(item) for item in given]
    return Dataset(MemorySource(arrays=concatenate(batches) if batches else {}))


def from_torch(dataset: Any, *, columns: Sequence[str] | None = None) -> Dataset:
    """Return a dataset of a map-style dataset of torch.

    Not collective. Items are read one by one, or many at once with ``__getitems__``, as torch's
    DataLoader does: reading is no faster than they are. The dataset itself is pickled for the
    ranks.

    Parameters
    ----------
    dataset
        A dataset with ``__len__`` and ``__getitem__``; its items are dicts, tuples or tensors.
    columns
        Names of the values of an item; by default ``item``, ``label``.

    Raises
    ------
    ConfigError
        If it is a stream or is empty.
    """
    from hpctrain.data.foreign import open_torch

    return Dataset(open_torch(dataset, columns))


def from_huggingface(dataset: Any) -> Dataset:
    """Return a dataset of a ``datasets.Dataset``, one split.

    Not collective. Rows in its cache files stay there: the ranks must be able to read these files.

    Raises
    ------
    ConfigError
        If it is a stream, or several splits.
    """
    from hpctrain.data.foreign import open_huggingface

    return Dataset(open_huggingface(dataset))
