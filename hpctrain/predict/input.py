"""What can be predicted on: datasets, files by their endings, and what is in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from hpctrain.data.dataset import Dataset
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
    """Return what was given to predict on, as a dataset.

    Not collective.

    Parameters
    ----------
    data
        A `hpctrain.data.Dataset`; a path, or paths, whose ending says the format; an array, a dict
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
    """Return a dataset of files of one format, which their ending says.

    Not collective.

    Parameters
    ----------
    paths
        Files, directories, patterns.
    **options
        For the reader of the format.

    Raises
    ------
    ConfigError
        If there is nothing to read, or the ending says nothing.
    """
    from hpctrain.data import read

    if not paths:
        raise ConfigError("no input was given. Give at least one path.")
    first = Path(paths[0])
    suffix = first.suffix if first.suffix in _READERS else _suffix_inside(first)
    if suffix is None:
        raise ConfigError(
            f"input {fspath(paths[0])!r}: its ending says the format, one of "
            f"{', '.join(_READERS)}; a directory has to hold files with one of them."
        )
    reader = getattr(read, _READERS[suffix])
    dataset: Dataset = reader([fspath(path) for path in paths], **options)
    return dataset


def _suffix_inside(directory: Path) -> str | None:
    if not directory.is_dir():
        return None
    return next((p.suffix for p in sorted(directory.rglob("*")) if p.suffix in _READERS), None)
