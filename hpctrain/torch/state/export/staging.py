"""`staging`: a directory beside an export, which the next export removes if this one is killed.

It holds a file that is locked as long as the export goes on: a lock ends with its process, whatever
ends that.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hpctrain.log import log
from hpctrain.own_files import DIRECTORY_MODE, create_file, name_beside

_LOCK = "lock"
_MADE = "made"


@contextmanager
def staging(target: Path) -> Iterator[Path]:
    """Give an empty directory below a hidden one beside `target`. Not collective.

    Afterwards nothing of it is there. After a kill it is, and the next one for the same target
    removes it.

    Raises
    ------
    OSError
        If it cannot be made.
    """
    while (begun := _begin(target)) is None:
        pass
    outer, lock = begun
    try:
        made = outer / _MADE
        made.mkdir(DIRECTORY_MODE)
        yield made
    finally:
        shutil.rmtree(outer, ignore_errors=True)
        os.close(lock)


def remove_dead(target: Path) -> None:
    """Remove what killed exports to a target have left, and name what may be of one that goes on.

    Not collective.
    """
    # As `name_beside` calls it.
    name = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{16}}")
    with suppress(OSError):
        for found in sorted(filter(name.fullmatch, os.listdir(target.parent))):
            path = target.parent / found
            if _is_own_directory(path) and not _remove_if_dead(path):
                log(
                    f"note: {path} is of an export to {target} that goes on, or that was killed. "
                    f"If none goes on, remove it."
                )


def _begin(target: Path) -> tuple[Path, int] | None:
    """Make a directory and lock it; None if another export took it for a dead one meanwhile."""
    outer = name_beside(target)
    outer.mkdir(DIRECTORY_MODE)
    try:
        lock = create_file(outer / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(lock), os.stat(outer / _LOCK)):
            raise FileNotFoundError
    except (BlockingIOError, PermissionError, FileNotFoundError):
        os.close(lock)
        return None
    except OSError:
        # No locks on this filesystem: whether its process is dead cannot be known.
        pass
    return outer, lock


def _remove_if_dead(path: Path) -> bool:
    """Remove a directory if its lock shows that its process is dead; return whether it is gone."""
    try:
        # For writing: NFS has no exclusive lock on a file that is open for reading.
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        # An earlier export that was about to be replaced, or one of an older version.
        return not path.exists()
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # While it is locked: an export that has just begun finds it taken, and begins another one.
        shutil.rmtree(path)
    except OSError:
        return not path.exists()
    finally:
        os.close(lock)
    return True


def _is_own_directory(path: Path) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
