"""Datasets in HDF5 files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from hpctrain.data.files import Paths, describe_all, find_files
from hpctrain.data.formats import Batch
from hpctrain.data.hdf5_reader import Hdf5Reader
from hpctrain.data.open_files import OpenFiles
from hpctrain.data.optional import require
from hpctrain.data.schema import Column, Schema, check_columns
from hpctrain.data.source import Blocks, Source, block_rows
from hpctrain.data.together import concatenate_sources
from hpctrain.errors import ConfigError

SUFFIXES = (".h5", ".hdf5", ".hdf", ".he5", ".nc")

# HDF5's own: deflate, shuffle, fletcher32, szip, nbit, scaleoffset; and h5py's lzf.
_BUILT_IN_FILTERS = {1, 2, 3, 4, 5, 6, 32000}


@dataclass(frozen=True, kw_only=True)
class Hdf5Source:
    """Datasets of an HDF5 file that have a row per element of their first axis."""

    path: str
    datasets: tuple[tuple[str, str], ...]
    """Columns, and where in the file they are."""
    rows: int
    unit_rows: int
    """Rows of a chunk; 1 where there are no chunks."""
    schema: Schema
    needs_plugin: bool = False
    """Whether a dataset is compressed with a filter that hdf5plugin has."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.rows

    def blocks(self) -> Blocks:
        """Return some MiB each, in whole chunks. Not collective."""
        whole = -(-block_rows(self.schema) // self.unit_rows) * self.unit_rows
        return Blocks([(self.rows, whole)])

    def read(self, rows: range, columns: Sequence[str] | None) -> Batch:
        """Return rows, in order. Not collective."""
        schema = self.schema.select(columns)
        batch = {n: np.empty((len(rows), *c.shape), c.dtype) for n, c in schema.items()}
        self.read_into(rows, batch)
        return batch

    def read_into(self, rows: range, out: Batch) -> None:
        """Read rows into arrays that have an element for each. Not collective.

        May be called by several threads.
        """
        if self.needs_plugin:
            require("hdf5plugin", to=f"to read {self.path}")
        reader = _readers.get(self.path)
        where = dict(self.datasets)
        for name, array in out.items():
            try:
                reader.read_into(where[name], rows, array)
            except OSError as error:
                raise ConfigError(
                    f"{self.path}: rows {rows.start} to {rows.stop} of {where[name]!r} cannot be "
                    f"read: {error}. The file is damaged or cut off; write it again."
                ) from error


def open_hdf5(
    paths: Paths,
    *,
    columns: Sequence[str] | None,
    datasets: Mapping[str, str] | None,
    group: str,
) -> Source:
    """Return the rows of HDF5 files. Not collective.

    Raises
    ------
    ConfigError
        If a file is missing or damaged, has no such group or dataset, needs a filter that is not
        installed, or if lengths or columns are unlike.
    """
    if columns is not None and datasets is not None:
        raise ConfigError(
            "read_hdf5() was given columns= and datasets=. datasets= names the columns already."
        )
    require("h5py", to="to read HDF5 files")
    files = find_files(paths, SUFFIXES)
    return concatenate_sources(
        describe_all(files, lambda path: _describe(path, columns, datasets, group))
    )


def _describe(
    path: str, columns: Sequence[str] | None, datasets: Mapping[str, str] | None, group: str
) -> Hdf5Source:
    with _open(path) as file:
        places = dict(datasets or _datasets_of(path, file, columns, group))
        found = {name: _dataset(path, file, place) for name, place in places.items()}
        lengths = {place: len(found[name]) for name, place in places.items()}
        if len(set(lengths.values())) > 1:
            raise ConfigError(
                f"{path}: datasets have unlike numbers of rows: "
                f"{', '.join(f'{p!r} {n}' for p, n in lengths.items())}. Name those that belong "
                f"together with columns=[...] or datasets={{...}}."
            )
        schema = Schema(
            tuple((n, Column(dtype=_dtype(d), shape=d.shape[1:])) for n, d in found.items())
        )
        chunk = max((d.chunks[0] for d in found.values() if d.chunks), default=1)
        return Hdf5Source(
            path=path,
            datasets=tuple((name, found[name].name) for name in found),
            rows=next(iter(lengths.values())),
            unit_rows=chunk,
            schema=schema,
            needs_plugin=bool(sum(_needs_plugin(path, d) for d in found.values())),
        )


def _datasets_of(path: str, file: Any, columns: Sequence[str] | None, group: str) -> dict[str, str]:
    """Return name and place of the datasets of a group that have rows."""
    h5py = require("h5py", to="to read HDF5 files")
    try:
        node = file[group]
    except KeyError:
        node = None
    if not isinstance(node, h5py.Group):
        raise ConfigError(f"{path} has no group {group!r}. It has {_names(file)}.")
    members = {n: m for n, m in node.items() if isinstance(m, h5py.Dataset) and m.ndim}
    if not members:
        raise ConfigError(
            f"{path}: group {group!r} has no dataset with rows. The file has {_names(file)}; "
            f"choose with group= or datasets={{...}}."
        )
    if columns is not None:
        try:
            check_columns(columns, list(members))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
    return {name: members[name].name for name in columns or members}


def _dataset(path: str, file: Any, place: str) -> Any:
    h5py = require("h5py", to="to read HDF5 files")
    found = file.get(place)
    if not isinstance(found, h5py.Dataset):
        raise ConfigError(f"{path} has no dataset {place!r}. It has {_names(file)}.")
    if found.ndim == 0:
        raise ConfigError(f"{path}: dataset {place!r} is a single value, it has no rows.")
    if found.dtype.kind == "O" and h5py.check_string_dtype(found.dtype) is None:
        raise ConfigError(
            f"{path}: the rows of dataset {place!r} are arrays of unlike length or references, "
            f"which a batch cannot hold. Name the other datasets with columns=[...]."
        )
    _check_virtual(path, found)
    return found


def _names(file: Any) -> str:
    names: list[str] = []
    file.visit(names.append)
    shown = ", ".join(map(repr, names[:20]))
    return f"{shown}{' and more' if len(names) > 20 else ''}" or "nothing"


def _dtype(dataset: Any) -> np.dtype:
    dtype: np.dtype = dataset.dtype
    return np.dtype(object) if dtype.kind == "O" else dtype


def _needs_plugin(path: str, dataset: Any) -> bool:
    """Return whether hdf5plugin is needed; refuse a dataset that cannot be decoded here."""
    h5py = require("h5py", to="to read HDF5 files")
    properties = dataset.id.get_create_plist()
    needed = False
    for index in range(properties.get_nfilters()):
        number, _, _, name = properties.get_filter(index)
        if number in _BUILT_IN_FILTERS:
            continue
        needed = True
        require("hdf5plugin", to=f"to read {path}, which is compressed with HDF5 filter {number}")
        if not h5py.h5z.filter_avail(number):
            raise ConfigError(
                f"{path}: dataset {dataset.name!r} is compressed with HDF5 filter {number} "
                f"({name.decode(errors='replace')}), which neither HDF5 nor hdf5plugin has here."
            )
    return needed


def _check_virtual(path: str, dataset: Any) -> None:
    """Refuse a virtual dataset that lacks a file: HDF5 would give zeros instead."""
    if not dataset.is_virtual:
        return
    for mapping in dataset.virtual_sources():
        name = mapping.file_name
        if name == "." or "%b" in name:
            continue
        if not (Path(path).parent / name).exists():
            raise ConfigError(
                f"{path}: the virtual dataset {dataset.name!r} takes rows from {name}, which does "
                f"not exist. Put it there, or make the virtual dataset again."
            )


def open_file(path: str | PathLike[str], mode: str) -> Any:
    """Return an open ``h5py.File``. Not collective."""
    h5py = require("h5py", to="for HDF5 files")
    try:
        # Many parallel filesystems are mounted without locks, and HDF5 would refuse to open there.
        return h5py.File(path, mode, locking="best-effort")
    except ValueError:
        # Before 1.10.7 HDF5 could not be told.
        return h5py.File(path, mode)


def _open(path: str) -> Any:
    try:
        return open_file(path, "r")
    except OSError as error:
        size = os.path.getsize(path) if os.path.exists(path) else 0
        raise ConfigError(
            f"{path} ({size} bytes) cannot be read as HDF5: {error}. It is cut off, still being "
            f"written, or in another format; write it again."
        ) from error


_readers = OpenFiles(partial(Hdf5Reader, open_file=_open))
