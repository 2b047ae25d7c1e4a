"""Datasets in HDF5 files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from glob import escape, glob
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from hpctrain.checks import check_text
from hpctrain.data.arguments import mapping, one_name
from hpctrain.data.batch import Batch
from hpctrain.data.conform import check_unchanged
from hpctrain.data.files import Paths, describe_all, find_files
from hpctrain.data.hdf5_reader import Hdf5Reader, column_of
from hpctrain.data.layout import source_name
from hpctrain.data.open_files import OpenFiles
from hpctrain.data.optional import require
from hpctrain.data.schema import Schema, check_columns
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
    has_others: bool = False
    """Whether rows are in other files: a dataset is virtual, external or behind a link."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.rows

    def files(self) -> list[str]:
        """Return the file, and the sources of its virtual datasets. Not collective."""
        if not self.has_others:
            return [self.path]
        return _files_with_rows(self.path, [place for _, place in self.datasets])

    def blocks(self) -> Blocks:
        """Return blocks of some MiB, in whole chunks. Not collective."""
        whole = -(-block_rows(self.schema) // self.unit_rows) * self.unit_rows
        return Blocks([(self.rows, whole)])

    def read(self, rows: range, columns: Sequence[str] | None) -> Batch:
        """Return rows, in order. Not collective."""
        schema = self.schema.select(columns)
        batch = {n: np.empty((len(rows), *c.shape), c.dtype) for n, c in schema.items()}
        self.read_into(rows, batch)
        return batch

    def read_into(self, rows: range, out: Batch) -> None:
        """Read rows into arrays of as many elements. Not collective.

        May be called by several threads.
        """
        if self.needs_plugin:
            require("hdf5plugin", to=f"to read {self.path}")
        where = dict(self.datasets)
        with _readers.use(self.path) as reader:
            for name, array in out.items():
                try:
                    self._check(reader, name, where[name])
                    reader.read_into(where[name], rows, array)
                except ConfigError as error:
                    raise ConfigError(f"{self.path}: {where[name]!r}: {error}") from error
                except OSError as error:
                    raise ConfigError(
                        f"{self.path}: rows {rows.start} to {rows.stop} of {where[name]!r} cannot "
                        f"be read: {error}. The file is damaged or truncated; write it again."
                    ) from error

    def _check(self, reader: Hdf5Reader, name: str, place: str) -> None:
        """Check once for each reader that the column is the one the dataset was made of."""
        if reader.checked.get(place) is not self:
            if self.has_others:
                _check_virtual(self.path, reader.dataset(place))
            found = reader.column(place)
            check_unchanged(self.path, name, rows=self.rows, column=self.schema[name], found=found)
            reader.checked[place] = self


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
        installed, or if lengths or columns differ.
    """
    if columns is not None and datasets is not None:
        raise ConfigError(
            "read_hdf5() was given columns= and datasets=. Give datasets= alone: it names the "
            "columns."
        )
    check_text("group", group)
    if datasets is not None:
        for name, place in mapping("datasets", datasets, example="{'x': '/train/x'}").items():
            one_name("a name of datasets=", name)
            check_text(f"datasets[{name!r}]", place)
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
                f"{path}: datasets have different numbers of rows: "
                f"{', '.join(f'{p!r} {n}' for p, n in lengths.items())}. Name those that belong "
                f"together with columns=[...] or datasets={{...}}."
            )
        schema = Schema(tuple((n, column_of(d.dtype, d.shape[1:])) for n, d in found.items()))
        chunk = max((d.chunks[0] for d in found.values() if d.chunks), default=1)
        return Hdf5Source(
            path=path,
            datasets=tuple(places.items()),
            rows=next(iter(lengths.values())),
            unit_rows=chunk,
            schema=schema,
            needs_plugin=bool(sum(_needs_plugin(path, d) for d in found.values())),
            has_others=any(
                d.is_virtual or d.external or d.file.filename != path for d in found.values()
            ),
        )


def _datasets_of(path: str, file: Any, columns: Sequence[str] | None, group: str) -> dict[str, str]:
    """Return name and place of the datasets of a group that have rows."""
    h5py = require("h5py", to="to read HDF5 files")
    try:
        node = file[group]
    except KeyError:
        node = None
    if not isinstance(node, h5py.Group):
        raise ConfigError(
            f"{path} has no group {group!r}. It has {_names(file)}; choose with group=."
        )
    # The target of a link may be missing.
    members = {n: m for n in node if isinstance(m := node.get(n), h5py.Dataset) and m.ndim}
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
    # h5py gives a dataset of another file the name that it has there, not the name of the link.
    return {name: f"{group.rstrip('/')}/{name}" for name in columns or members}


def _dataset(path: str, file: Any, place: str) -> Any:
    h5py = require("h5py", to="to read HDF5 files")
    found = file.get(place)
    if not isinstance(found, h5py.Dataset):
        raise ConfigError(
            f"{path} has no dataset {place!r}. It has {_names(file)}; choose with datasets={{...}}."
        )
    if found.ndim == 0:
        raise ConfigError(
            f"{path}: dataset {place!r} is a single value without rows. Leave it out of "
            f"datasets={{...}}."
        )
    if found.dtype.kind == "O" and h5py.check_string_dtype(found.dtype) is None:
        raise ConfigError(
            f"{path}: the rows of dataset {place!r} are references, or arrays of different "
            f"lengths, which a batch cannot hold. Name the other datasets with columns=[...]."
        )
    _check_virtual(path, found)
    return found


def _names(file: Any) -> str:
    names: list[str] = []
    file.visit(names.append)
    shown = ", ".join(map(repr, names[:20]))
    return f"{shown}{' and more' if len(names) > 20 else ''}" or "nothing"


def _needs_plugin(path: str, dataset: Any) -> bool:
    """Return whether hdf5plugin is needed; raise if the dataset cannot be decoded here."""
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
                f"({name.decode(errors='replace')}), which neither HDF5 nor hdf5plugin has here. "
                f"Install the filter's plugin, or compress with another filter: h5repack does it."
            )
    return needed


def _check_virtual(path: str, dataset: Any) -> None:
    """Raise if a file of a virtual dataset is missing: HDF5 would return fill values instead."""
    if not dataset.is_virtual:
        return
    for source in dataset.virtual_sources():
        name = source_name(source.file_name)
        if name in (None, "."):
            continue
        if not (Path(dataset.file.filename).parent / name).exists():
            raise ConfigError(
                f"{path}: the virtual dataset {dataset.name!r} takes rows from {name}, which does "
                f"not exist. Put it there, or make the virtual dataset again."
            )


def _files_with_rows(path: str, places: Sequence[str]) -> list[str]:
    """Return all files that the rows of some datasets are in, this one first."""
    files = [path]
    with _open(path) as file:
        datasets = [file[place] for place in places if place in file]
        folders = [Path(dataset.file.filename).absolute().parent for dataset in datasets]
        virtual: dict[str, list[str]] = {}
        for dataset, folder in zip(datasets, folders, strict=True):
            files.append(dataset.file.filename)
            files += [str(Path(name)) for name, _, _ in dataset.external or ()]
            for mapping in dataset.virtual_sources() if dataset.is_virtual else ():
                inner = source_name(mapping.dset_name)
                for other in _source_files(dataset.file.filename, folder, mapping.file_name):
                    virtual.setdefault(other, []).extend([] if inner is None else [inner])
    for other in sorted(set(virtual) - {path}):
        files += _files_with_rows(other, virtual[other]) if is_hdf5(other) else [other]
    return list(dict.fromkeys(files))


def _source_files(own: str, folder: Path, name: str) -> list[str]:
    """Return the paths of the files that a virtual dataset of a file in a folder names."""
    if name == ".":
        return [own]
    if (plain := source_name(name)) is not None:
        return [str(folder / plain)]
    pattern = re.sub("%[%b]", lambda found: "%" if found[0] == "%%" else "*", escape(name))
    return glob(f"{escape(str(folder))}/{pattern}")


def check_names(names: Iterable[str]) -> None:
    """Check that names are not paths in HDF5. Not collective.

    Raises
    ------
    ConfigError
        If one is.
    """
    for name in names:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise ConfigError(
                f"column {name!r} cannot be written to HDF5, where its name is a path. Rename it, "
                f"or write Parquet."
            )


def is_text(value: Any) -> bool:
    """Return whether HDF5 can store a value as text. Not collective."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def hdf5_type(dtype: np.dtype) -> Any:
    """Return the type in which HDF5 stores the values of a column; None if there is none.

    Not collective. Times have h5py's opaque type: bytes tagged with the name of NumPy's type.
    """
    h5py = require("h5py", to="for HDF5 files")
    if dtype.kind in "OU":
        return h5py.string_dtype()
    if dtype.kind in "Mm":
        return h5py.opaque_dtype(dtype)
    return dtype if dtype.kind in "biufcS" else None


def as_in_hdf5(array: np.ndarray) -> np.ndarray:
    """Return a column as h5py writes it. Not collective."""
    return array.view(hdf5_type(array.dtype)) if array.dtype.kind in "Mm" else array


def is_hdf5(path: str) -> bool:
    """Return whether a path is that of an HDF5 file. Not collective."""
    h5py = require("h5py", to="for HDF5 files")
    return bool(os.path.exists(path) and h5py.is_hdf5(path))


def open_file(path: str | PathLike[str], mode: str) -> Any:
    """Return an open ``h5py.File``. Not collective."""
    h5py = require("h5py", to="for HDF5 files")
    try:
        # Many parallel filesystems are mounted without locks; there HDF5 would not open a file.
        return h5py.File(path, mode, locking="best-effort")
    except ValueError:
        # HDF5 before 1.10.7 has no such option.
        return h5py.File(path, mode)


def _open(path: str) -> Any:
    try:
        return open_file(path, "r")
    except OSError as error:
        size = os.path.getsize(path) if os.path.exists(path) else 0
        raise ConfigError(
            f"{path} ({size} bytes) cannot be read as HDF5: {error}. It is truncated, still being "
            f"written, or in another format; write it again."
        ) from error


def _open_reader(path: str) -> Hdf5Reader:
    return Hdf5Reader(path, _open, _readers)


_readers = OpenFiles(_open_reader)
