"""Columns in the names of directories, as Hive writes them: ``year=2024/part-0.parquet``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from glob import has_magic
from os import PathLike, fspath
from pathlib import Path
from typing import TypeAlias

import numpy as np

from hpctrain.data import arguments
from hpctrain.data.files import Paths, find_files
from hpctrain.data.optional import require
from hpctrain.errors import ConfigError

Keys: TypeAlias = tuple[tuple[str, int | str | None], ...]
"""Columns that have one value in the whole of a file."""


def find_partitions(paths: Paths, suffixes: Sequence[str]) -> list[tuple[str, Keys]]:
    """Return files as `find_files` does, and the columns in the directory names of each.

    Not collective. Spark's ``partitionBy`` and Dask's ``partition_on`` write such directories. The
    columns are in the directories below a given one, in those that a pattern matches, and in those
    in which the paths of a list differ.

    Raises
    ------
    ConfigError
        If there is no file.
    """
    given = arguments.paths(paths)
    if not given:
        find_files(given, suffixes)  # raises
    roots = [_root_of(item) for item in given]
    found = [find_files(item, suffixes) for item in given]
    everything = [file for files in found for file in files]
    common = Path(os.path.commonpath(roots))
    if len({tuple(_names_below(common, file)) for file in everything}) == 1:
        roots, found = [common], [everything]
    keys = [_keys_below(root, files) for root, files in zip(roots, found, strict=True)]
    return [
        (file, of_item.get(file, ()))
        for files, of_item in zip(found, keys, strict=True)
        for file in files
    ]


def _root_of(item: str | PathLike[str]) -> Path:
    """Return a path, of a pattern the directories that are fixed."""
    path = Path(fspath(item)).expanduser().absolute()
    while has_magic(str(path)) and not path.exists():
        path = path.parent
    return path


def _names_below(root: Path, file: str) -> list[str]:
    """Return the names of the columns in the directories of a file below a root."""
    parts = Path(file).parent.parts[len(root.parts) :]
    return [part.partition("=")[0] for part in parts if "=" in part]


def key_types(keys: Sequence[Keys]) -> dict[str, np.dtype]:
    """Return the types that columns have in all files together. Not collective."""
    values: dict[str, set[int | str | None]] = {}
    for name, value in (item for of_file in keys for item in of_file):
        values.setdefault(name, set()).add(value)
    return {name: _type_of(of_name) for name, of_name in values.items()}


def _keys_below(root: Path, files: Sequence[str]) -> dict[str, Keys]:
    if not any(_names_below(root, file) for file in files):
        return {}
    arrow = require("pyarrow.dataset", to="to read Parquet files")
    try:
        dataset = arrow.dataset(
            list(files), format="parquet", partitioning="hive", partition_base_dir=str(root)
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{root} cannot be read as a directory of partitions: {error}. A file is damaged or in "
            f"another format, or directories name different columns. Repair or remove them."
        ) from error
    found = {
        fragment.path: arrow.get_partition_keys(fragment.partition_expression)
        for fragment in dataset.get_fragments()
    }
    # In the order of the directories.
    return {
        path: tuple((name, keys[name]) for name in dataset.schema.names if name in keys)
        for path, keys in found.items()
    }


def _type_of(values: set[int | str | None]) -> np.dtype:
    if any(isinstance(value, str) for value in values) or values == {None}:
        return np.dtype(object)
    return np.dtype(np.float64 if None in values else np.int64)
