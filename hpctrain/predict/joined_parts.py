"""Joins the files of the parts into one file, for the formats that need it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpctrain.errors import ConfigError
from hpctrain.own_files import create_file
from hpctrain.predict.part_files import CsvPart, Hdf5Part, NumpyPart, PartFile

_COPY_BYTES = 8 * 2**20


def join_parts(part_type: type[PartFile], parts: Sequence[Path], target: Path) -> None:
    """Join the files of the parts into one, in their order. Not collective.

    HDF5 parts stay where they are: the file has virtual datasets over them. Parquet needs no such
    file: its output is the directory of the parts.

    Parameters
    ----------
    part_type
        Class of the parts.
    target
        The file, which must not exist.

    Raises
    ------
    ConfigError
        If columns or types of the parts differ.
    """
    _JOIN[part_type](parts, target)


def _check_alike(path: Path, found: Any, first: Any) -> None:
    if first and found != first:
        raise ConfigError(
            f"{path} has {found}, but the parts before it have {first}, so they are not of one "
            f"prediction. Remove the parts and predict again."
        )


def _join_hdf5(parts: Sequence[Path], target: Path) -> None:
    """Write virtual datasets over those of the parts."""
    import h5py

    shapes: dict[str, list[tuple[Path, tuple[int, ...]]]] = {}
    dtypes: dict[str, Any] = {}
    for path in parts:
        with h5py.File(path, "r") as file:
            _check_alike(path, {n: d.dtype for n, d in file.items()}, dtypes)
            for name, dataset in file.items():
                shapes.setdefault(name, []).append((path, dataset.shape))
                dtypes[name] = dataset.dtype
    with h5py.File(target, "x", libver="latest") as file:
        for name, found in shapes.items():
            rows = sum(shape[0] for _, shape in found)
            layout = h5py.VirtualLayout((rows, *found[0][1][1:]), dtype=dtypes[name])
            start = 0
            for path, shape in found:
                # A path relative to the virtual file, so that both can be moved together.
                # HDF5 reads both names as formats, in which %% is a percent sign.
                relative = f"{path.parent.name}/{path.name}".replace("%", "%%")
                source = h5py.VirtualSource(relative, name.replace("%", "%%"), shape=shape)
                layout[start : start + shape[0]] = source
                start += shape[0]
            file.create_virtual_dataset(name, layout)


def _join_lines(parts: Sequence[Path], target: Path) -> None:
    first = b""
    with open(create_file(target), "wb") as joined:
        for path in parts:
            with open(path, "rb") as file:
                names = file.readline()
                if path == parts[0]:
                    first = names
                    joined.write(names)
                _check_alike(path, names, first)
                shutil.copyfileobj(file, joined, _COPY_BYTES)


def _join_arrays(parts: Sequence[Path], target: Path) -> None:
    first = np.load(parts[0], mmap_mode="r")
    rows = 0
    for path in parts:
        # A map keeps its file open, and a process may have only about 1000 open files.
        array = np.load(path, mmap_mode="r")
        _check_alike(path, (array.dtype, array.shape[1:]), (first.dtype, first.shape[1:]))
        rows += len(array)
    header = {
        "descr": np.lib.format.dtype_to_descr(first.dtype),
        "fortran_order": False,
        "shape": (rows, *first.shape[1:]),
    }
    with open(create_file(target), "wb") as joined:
        np.lib.format.write_array_header_1_0(joined, header)
        for path in parts:
            array = np.load(path, mmap_mode="r")
            joined.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


_JOIN: Mapping[type[PartFile], Callable[[Sequence[Path], Path], None]] = {
    Hdf5Part: _join_hdf5,
    CsvPart: _join_lines,
    NumpyPart: _join_arrays,
}
