"""NumPy's own files: ``.npy``, one array each, and ``.npz``, several."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np

from hpctrain.data.arguments import one_name
from hpctrain.data.batch import Batch, check_lengths
from hpctrain.data.conform import check_unchanged
from hpctrain.data.files import Paths, describe_all, find_files
from hpctrain.data.open_files import OpenFiles
from hpctrain.data.schema import Column, Schema, check_columns
from hpctrain.data.source import SideBySide, SingleRows, Source
from hpctrain.data.together import concatenate_sources
from hpctrain.data.types import as_in_batches, type_in_batches
from hpctrain.errors import ConfigError

SUFFIXES = (".npy", ".npz")

_NOTHING = np.empty(0)


@dataclass(frozen=True, kw_only=True)
class NumpySource(SingleRows):
    """The arrays of a file."""

    path: str
    column: str
    """Name of the column of an array without a name."""
    rows: int
    schema: Schema

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.rows

    def files(self) -> list[str]:
        """Return the file. Not collective."""
        return [self.path]

    def read(self, rows: range, columns: Sequence[str] | None) -> Batch:
        """Return rows, in order. Not collective."""
        with _open_files.use(self.path) as opened:
            batch = {}
            for name, column in self.schema.select(columns).items():
                array = _read(opened, self.path, name, self.column)
                dtype = type_in_batches(array.dtype)
                found = len(array), Column(dtype=dtype, shape=array.shape[1:])
                check_unchanged(self.path, name, rows=self.rows, column=column, found=found)
                # Copy the rows of the memory map here, or they would be read where they are used.
                batch[name] = as_in_batches(array[rows.start : rows.stop].copy())
            return batch


def open_numpy(
    paths: Paths | Mapping[str, Paths], *, column: str, columns: Sequence[str] | None
) -> Source:
    """Return the rows of NumPy files. Not collective.

    Raises
    ------
    ConfigError
        If a file is missing, damaged or has Python objects, or files have different columns.
    """
    one_name("column", column)
    if isinstance(paths, Mapping):
        if columns is not None:
            raise ConfigError(
                "read_numpy() was given a dict of paths and columns=. Give the dict alone, without "
                "the columns that are not needed."
            )
        if not paths:
            raise ConfigError(
                "read_numpy() was given an empty dict of paths. Give one or more, as in "
                "{'x': 'samples.npy'}."
            )
        for name in paths:
            one_name("a name of paths=", name)
        return SideBySide(
            parts=tuple(_open_files_of(found, name, None) for name, found in paths.items())
        )
    return _open_files_of(paths, column, columns)


def _open_files_of(paths: Paths, column: str, columns: Sequence[str] | None) -> Source:
    files = find_files(paths, SUFFIXES)
    return concatenate_sources(describe_all(files, lambda path: _describe(path, column, columns)))


def _describe(path: str, column: str, columns: Sequence[str] | None) -> NumpySource:
    opened = _open(path)
    names = [name or column for name in opened.names]
    if not names:
        raise ConfigError(f"{path} has no arrays. Write at least one into it.")
    try:
        check_columns(names if columns is None else columns, names)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    # Of no columns at all, there are still rows.
    chosen = (names if columns is None else columns) or names[:1]
    arrays = {name: _read(opened, path, name, column) for name in chosen}
    for name, array in arrays.items():
        if array.ndim == 0:
            raise ConfigError(
                f"{path}: {name!r} is a single value without rows. Write an array of one value per "
                f"row."
            )
    try:
        described = Schema.of(arrays).select(columns)
        schema = Schema(
            tuple((n, replace(c, dtype=type_in_batches(c.dtype))) for n, c in described.items())
        )
        check_lengths(arrays)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    rows = len(next(iter(arrays.values())))
    return NumpySource(path=path, column=column, rows=rows, schema=schema)


def _read(opened: _Opened, path: str, name: str, column: str) -> np.ndarray:
    """Return an array by the name of its column; an array without a name is `column`."""
    stored = "" if name == column and "" in opened.names else name
    if stored not in opened.names:
        return _NOTHING
    try:
        return opened.read(stored)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise _unreadable(path, error) from error


class _Opened:
    """The arrays of a file, each read at first use; uncompressed ones are mapped, not read."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = path
        self._members: dict[str, zipfile.ZipInfo] = {}
        self._arrays: dict[str, np.ndarray] = {}
        if not zipfile.is_zipfile(path):
            self._arrays[""] = np.load(path, mmap_mode="r", allow_pickle=False)
            return
        with zipfile.ZipFile(path) as archive:
            self._members = {m.filename.removesuffix(".npy"): m for m in archive.infolist()}

    @property
    def names(self) -> list[str]:
        """Names of the arrays; that of a ``.npy`` file has none."""
        return list(self._members or self._arrays)

    def read(self, name: str) -> np.ndarray:
        """Return an array. Not collective."""
        if name not in self._arrays:
            member = self._members[name]
            with zipfile.ZipFile(self._path) as archive, archive.open(member) as file:
                self._arrays[name] = (
                    _map(self._path, file, member)
                    if member.compress_type == zipfile.ZIP_STORED
                    else np.lib.format.read_array(file, allow_pickle=False)
                )
        return self._arrays[name]

    def close(self) -> None:
        """Release the arrays. Not collective."""
        self._arrays.clear()


def _map(path: Any, file: Any, member: zipfile.ZipInfo) -> np.ndarray:
    """Return a memory map of an array in an uncompressed archive."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject or 0 in shape:
        file.seek(0)
        array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
        return array
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    with open(path, "rb") as whole:
        # The lengths of a member's name and of its extra field are in the header before it.
        whole.seek(member.header_offset + 26)
        lengths = int.from_bytes(whole.read(2), "little") + int.from_bytes(whole.read(2), "little")
    offset = member.header_offset + 30 + lengths + member.file_size - size
    return np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")


def _open(path: str) -> _Opened:
    try:
        return _Opened(path)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"{path} cannot be read as .npy or .npz: {error}. It is truncated or has Python objects: "
        f"write it again."
    )


_open_files = OpenFiles(_open)
