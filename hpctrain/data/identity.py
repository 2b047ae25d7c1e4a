"""Digests of files, which tell later whether the files have changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import xxhash

from hpctrain.bulk.digest import digest_file
from hpctrain.data.dataset import Dataset
from hpctrain.data.files import describe_all
from hpctrain.data.source import files_of_source

DIGEST_BYTES = 16 * 2**20
"""Files of at most this total size are read: sizes and times can stay the same by chance."""

_SECOND_NS = 10**9
_MANY = 16


def files_of(dataset: Any) -> list[str]:
    """Return all files that the rows of a `Dataset` are in; none for anything else.

    Not collective.
    """
    return files_of_source(dataset.source) if isinstance(dataset, Dataset) else []


def files_below(directory: Path) -> list[str]:
    """Return all files below a directory, in order. Not collective."""
    return sorted(str(path) for path in directory.rglob("*") if path.is_file())


def identify_files(files: Iterable[str]) -> str:
    """Return a digest that changes with the content of files.

    Not collective. Small files are read. Of large ones the digest covers the size and the time of
    the last change, in nanoseconds. A time of whole seconds, which some filesystems and archivers
    write, is too coarse; then it also covers the time of the inode's last change (ctime).

    Examples
    --------
    >>> identify_files([]) == identify_files(["/no/such/file"])
    False
    """
    paths = list(files)
    # Starting threads takes longer than a few stat calls.
    look: Any = describe_all if len(paths) >= _MANY else _one_by_one
    found = dict(zip(paths, look(paths, _stat), strict=True))
    total = sum(entry.st_size for entry in found.values() if entry is not None)
    if total <= DIGEST_BYTES:
        stamps: list[Any] = look(paths, _content)
    else:
        stamps = [_times(entry) for entry in found.values()]
    return xxhash.xxh3_128_hexdigest(repr(list(zip(paths, stamps, strict=True))).encode())


def newest(files: Iterable[str]) -> str | None:
    """Return the file that was changed last, if there is one. Not collective."""
    found = [(entry.st_mtime_ns, path) for path in files if (entry := _stat(path)) is not None]
    return max(found)[1] if found else None


def _one_by_one(paths: list[str], look: Callable[[str], Any]) -> list[Any]:
    return list(map(look, paths))


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _content(path: str) -> tuple[int, str] | None:
    try:
        return digest_file(Path(path))
    except OSError:
        return None


def _times(entry: os.stat_result | None) -> tuple[int, ...] | None:
    if entry is None:
        return None
    if entry.st_mtime_ns % _SECOND_NS:
        return entry.st_size, entry.st_mtime_ns
    return entry.st_size, entry.st_mtime_ns, entry.st_ctime_ns
