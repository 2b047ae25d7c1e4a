"""Explain why a run directory cannot be written, before anything is started."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpctrain.errors import ConfigError
from hpctrain.rundir.paths import RunPaths


@contextmanager
def errors_of_storage(paths: RunPaths) -> Iterator[None]:
    """Turn an error of the filesystem that a run is written to into one of its storage path.

    Not collective.

    Raises
    ------
    ConfigError
        With what is in the way.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None and not _is_about(Path(os.fsdecode(error.filename)), paths):
            raise
        raise ConfigError(
            f"RunConfig(storage_path={str(paths.root.parent)!r}): the run directory {paths.root} "
            f"cannot be written: {_explain(error, paths.root)}"
        ) from error


def check_storage(paths: RunPaths) -> None:
    """Refuse a run directory that could not be made, and make nothing. Not collective.

    Raises
    ------
    ConfigError
        With what is in the way.
    """
    there = _nearest(paths.root)
    with errors_of_storage(paths):
        if not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
        if not os.access(there, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(there))


def _nearest(root: Path) -> Path:
    """Return what there is of a path."""
    return next(path for path in (root, *root.parents) if os.path.lexists(path))


def _is_about(path: Path, paths: RunPaths) -> bool:
    return path.is_relative_to(paths.root) or paths.root.is_relative_to(path)


def _explain(error: OSError, root: Path) -> str:
    there = _nearest(root)
    if not there.is_dir():
        return f"{there} is not a directory. Move it away, or choose another storage_path."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return (
            f"user {os.geteuid()} may not write into {there} ({error.strerror}). Choose a "
            f"storage_path that is yours."
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.strerror}. Free some, or choose a storage_path on another filesystem."
    return f"{error.strerror or error}. Choose another storage_path."
