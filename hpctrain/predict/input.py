"""Input of a prediction: datasets, files by their endings, and data in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from hpctrain.data.dataset import Dataset
from hpctrain.data.formats import from_any
from hpctrain.data.schema import Schema
from hpctrain.errors import ConfigError

_READERS: Mapping[str, str] = {
    ".h5": "read_hdf5",
    ".hdf5": "read_hdf5",
    ".parquet": "read_parquet",
    ".csv": "read_csv",
    ".npy": "read_numpy",
    ".npz": "read_numpy",
}


def as_dataset(data: Any) -> Dataset:
    """Return the input of a prediction as a dataset.

    Not collective.

    Parameters
    ----------
    data
        A `hpctrain.data.Dataset`; a path, or paths, whose ending gives the format; an array, a dict
        of arrays, a DataFrame or an Arrow table.

    Raises
    ------
    ConfigError
        If it is none of these, or cannot be read.
    """
    from hpctrain.data.read import from_numpy

    if isinstance(data, Dataset):
        return data
    if isinstance(data, (str, PathLike)):
        return open_dataset([data])
    if isinstance(data, (list, tuple)) and all(isinstance(p, (str, PathLike)) for p in data):
        return open_dataset(data)
    return from_numpy(data)


def open_dataset(paths: Sequence[str | PathLike[str]], **options: Any) -> Dataset:
    """Return a dataset of files of one format, given by their ending.

    Not collective.

    Parameters
    ----------
    paths
        Files, directories, patterns.
    **options
        Arguments of the reader of the format.

    Raises
    ------
    ConfigError
        If there is nothing to read, or the ending is unknown.
    """
    from hpctrain.data import read

    if not paths:
        raise ConfigError("no input was given. Give at least one path.")
    first = Path(paths[0])
    suffix = first.suffix if first.suffix in _READERS else _suffix_inside(first)
    if suffix is None:
        raise ConfigError(
            f"the format of input {fspath(paths[0])!r} is unknown. Give files, or a directory of "
            f"files, that end with one of {', '.join(_READERS)}."
        )
    reader = getattr(read, _READERS[suffix])
    dataset: Dataset = reader([fspath(path) for path in paths], **options)
    return dataset


def _suffix_inside(directory: Path) -> str | None:
    if not directory.is_dir():
        return None
    return next((p.suffix for p in sorted(directory.rglob("*")) if p.suffix in _READERS), None)


def schema_after(preprocessor: Any, dataset: Dataset) -> Schema:
    """Return the columns after the preprocessor, which is tried on two rows.

    Not collective.

    Raises
    ------
    ConfigError
        If the preprocessor does not accept the input, or no row is left.
    """
    if preprocessor is None:
        return dataset.schema()
    first = range(min(2, dataset.source.num_rows))
    rows = next(dataset.iter_batches(batch_size=2, rows=first), None)
    if rows is None:
        # Steps have dropped the first rows.
        rows = next(dataset.iter_batches(batch_size=2), None)
    if rows is None:
        raise ConfigError(
            "the steps of the input leave no rows, so there is nothing to predict. Check its "
            "filter()."
        )
    try:
        return Schema.of(from_any(preprocessor.transform_batch(rows)))
    except ConfigError as error:
        raise ConfigError(
            f"preprocessor {type(preprocessor).__name__} does not accept the input: {error}"
        ) from error
