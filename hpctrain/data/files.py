"""Which files a path stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from glob import glob, has_magic
from os import PathLike, fspath, scandir
from pathlib import Path
from typing import TypeVar

from hpctrain.data import arguments
from hpctrain.errors import ConfigError

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]

_OpenedT = TypeVar("_OpenedT")


def find_files(paths: Paths, suffixes: Sequence[str]) -> list[str]:
    """Return absolute paths of the files that paths stand for.

    Not collective. A directory stands for the files below it with one of the suffixes, in the order
    of their names and of numbers in them; names that begin with ``_`` or ``.`` (Spark's
    ``_SUCCESS``) are left out. ``*`` and ``**`` are expanded; a directory that they match
    stands for its files, as by itself.

    Parameters
    ----------
    paths
        A file, a directory, a pattern, or a list of these.
    suffixes
        Endings of names, as in ``[".h5"]``.

    Raises
    ------
    ConfigError
        If there is no such file, or a directory may not be listed.
    """
    found: list[str] = []
    endings = ", ".join(suffixes)
    for item in arguments.paths(paths):
        path = Path(fspath(item)).expanduser().absolute()
        if path.is_dir():
            matches = sorted(_files_below(path, tuple(suffixes)), key=_by_number)
            what = f"has no file that ends with {endings}"
        elif has_magic(str(path)) and not path.exists():
            matches = sorted(_files_matching(path, tuple(suffixes)), key=_by_number)
            what = f"matches no file, nor a directory with files that end with {endings}"
        else:
            matches = [str(path)] if path.exists() else []
            what = "does not exist"
        if not matches:
            raise ConfigError(f"{path} {what}. Give a file, a directory, a pattern, or a list.")
        found += matches
    if not found:
        raise ConfigError("an empty list of paths was given. Give at least one file.")
    return found


def _by_number(path: str) -> tuple[list[tuple[str, int]], str]:
    """Sort ``part.2`` before ``part.10``: Dask numbers parts like that."""
    parts = [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", path)]
    # ``part.1`` and ``part.01`` have the same number, but all processes need the same order.
    return parts, path


def _files_matching(pattern: Path, suffixes: tuple[str, ...]) -> set[str]:
    literal = next(number for number, part in enumerate(pattern.parts) if has_magic(part))
    files = set()
    for match in map(Path, glob(str(pattern), recursive=True)):
        if not match.is_dir():
            files.add(str(match))
        elif not any(part.startswith(("_", ".")) for part in match.parts[literal:]):
            # ``**`` also matches the directories of files that it matches: each file counts once.
            files.update(_files_below(match, suffixes))
    return files


def _files_below(directory: Path, suffixes: tuple[str, ...]) -> Iterable[str]:
    # scandir reports directories without another filesystem call.
    try:
        with scandir(directory) as scanned:
            entries = list(scanned)
    except PermissionError as error:
        raise ConfigError(
            f"{directory} may not be listed: {error.strerror}. Let its owner give you the right to "
            f"(chmod o+rx, or setfacl), or name the files that are to be read."
        ) from error
    for entry in entries:
        if entry.name.startswith(("_", ".")):
            continue
        if entry.is_dir():
            yield from _files_below(Path(entry.path), suffixes)
        elif entry.name.endswith(suffixes):
            yield entry.path


def describe_all(files: Sequence[str], describe: Callable[[str], _OpenedT]) -> list[_OpenedT]:
    """Return the result of `describe` for each file, in order; several files are open at a time.

    Not collective.
    """
    if len(files) < 2:
        return list(map(describe, files))
    # Opening a file waits for the filesystem, not for a CPU.
    with ThreadPoolExecutor(min(len(files), 16)) as pool:
        return list(pool.map(describe, files))
