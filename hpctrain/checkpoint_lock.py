"""Locks between the readers of a checkpoint and the run that deletes it.

A lock and not a file that says "in use": it ends with the process of the reader, whatever ends
that, and readers need no right to write.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hpctrain.checkpoint_files import MANIFEST_NAME
from hpctrain.errors import CheckpointError
from hpctrain.regular_file import open_regular


@contextmanager
def hold_for_reading(directory: Path) -> Iterator[None]:
    """Keep a committed checkpoint from being deleted. Not collective.

    Raises
    ------
    CheckpointError
        If it is deleted, or cannot be read.
    """
    gone = CheckpointError(
        f"{directory} was deleted: its run keeps others (CheckpointConfig). Take a newer one, or "
        f"keep more."
    )
    manifest = directory / MANIFEST_NAME
    try:
        file = open_regular(manifest)
    except FileNotFoundError:
        if not directory.is_dir():
            raise gone from None
        # A directory of the user's own.
        yield
        return
    except OSError as error:
        raise CheckpointError(f"{manifest} cannot be read: {error.strerror}.") from error
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise gone from None
        except OSError:
            # No locks on this filesystem.
            pass
        if not manifest.exists():
            raise gone
        yield
    finally:
        # Not by closing it alone: a child that was forked meanwhile has it open too.
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)
        file.close()


@contextmanager
def hold_for_deletion(directory: Path) -> Iterator[bool]:
    """Keep readers out of a checkpoint; give False if it is being read. Not collective."""
    try:
        # For writing: NFS has no exclusive lock on a file that is open for reading.
        descriptor = os.open(directory / MANIFEST_NAME, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield True
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            # fcntl(2), which NFS makes of it, may say EACCES for a lock that is held.
            yield False
            return
        except OSError:
            pass
        yield True
    finally:
        os.close(descriptor)
