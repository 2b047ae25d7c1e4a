"""The name of a replay: one that is free, and taken before the run begins."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hpctrain import environ
from hpctrain.launch.storage import errors_of_storage
from hpctrain.own_files import DIRECTORY_MODE
from hpctrain.rundir.paths import RunPaths

_LONGEST_NAME = 128
_SUFFIX = re.compile(r"-replay-\d+$")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._+-]+")


@contextmanager
def taken_name(storage: Path, base: str, name: str | None) -> Iterator[str]:
    """Give the name of a new run; one that was not chosen is taken by its directory.

    Not collective. The directory is removed if the run has not begun at the end.

    Parameters
    ----------
    storage
        Directory of runs.
    base
        What a name is made of (`free_name`).
    name
        What the user chose, or None.

    Raises
    ------
    ConfigError
        If `storage` cannot be written.
    """
    if name is not None or environ.dry_run_requested():
        yield name or free_name(storage, base)
        return
    with errors_of_storage(RunPaths(storage / free_name(storage, base))):
        storage.mkdir(parents=True, exist_ok=True)
        while True:
            root = storage / free_name(storage, base)
            try:
                root.mkdir(DIRECTORY_MODE)
            except FileExistsError:
                # Another replay was quicker.
                continue
            break
    try:
        yield root.name
    finally:
        with suppress(OSError):
            # Once the run has begun, it is not empty.
            root.rmdir()


def free_name(storage: Path, base: str) -> str:
    """Return a name that no run has: ``NAME-replay-1``, or with the next number. Not collective.

    Examples
    --------
    >>> free_name(Path("/no/such/directory"), "fit-replay-3")
    'fit-replay-1'
    >>> free_name(Path("/no/such/directory"), "old run (2)")
    'old-run-2-replay-1'
    """
    # A directory that was moved has any name.
    base = _NOT_IN_NAMES.sub("-", _SUFFIX.sub("", base)).strip("._+-") or "run"
    number = 1
    while True:
        suffix = f"-replay-{number}"
        name = f"{base[: _LONGEST_NAME - len(suffix)]}{suffix}"
        if not os.path.lexists(storage / name):
            return name
        number += 1
