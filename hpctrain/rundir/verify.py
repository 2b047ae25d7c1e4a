"""Whether the files of a checkpoint are those that were committed."""

from __future__ import annotations

import math
import os
import stat
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from hpctrain.bulk.digest import digest_file
from hpctrain.bulk.unreadable import UnreadableError, is_passing
from hpctrain.bulk.verify import verify_state_file
from hpctrain.errors import CheckpointError
from hpctrain.rundir.staging import StagedFile

TRY_AGAIN = (
    "That does not say that it is damaged, and nothing was changed: try again once it can be read."
)
"""Ends the message of an `UnreadableError`."""
_READERS = 4
"""Files that are verified at a time."""
_LOOK_INTERVAL_S = 1.0


def verify_files(
    directory: Path,
    files: Iterable[StagedFile],
    *,
    quick: bool,
    check_stop: Callable[[], None] = lambda: None,
) -> None:
    """Check sizes and digests of a checkpoint's files. Not collective.

    Parameters
    ----------
    directory
        The checkpoint; messages name it.
    files
        What was committed.
    quick
        Whether to look at the headers only of files that have digests of all else in them.
    check_stop
        Called between files, about once a second; raises what ends the look.

    Raises
    ------
    CheckpointError
        If a file is missing, differs, or cannot be read: `UnreadableError` if that may pass.
    """
    readers = ThreadPoolExecutor(_READERS, thread_name_prefix="hpctrain-verify")
    try:
        verify = partial(_verify, directory, quick=quick)
        looked_at = -math.inf
        # Raises what the first of them raised.
        for _ in readers.map(verify, files):
            if time.monotonic() - looked_at >= _LOOK_INTERVAL_S:
                check_stop()
                looked_at = time.monotonic()
    finally:
        readers.shutdown(cancel_futures=True)


def _verify(directory: Path, file: StagedFile, *, quick: bool) -> None:
    path = directory / file.path
    try:
        difference = _difference(path, file, quick=quick)
    except FileNotFoundError as error:
        raise CheckpointError(f"checkpoint {directory.name} has lost {path}.") from error
    except UnreadableError as error:
        raise UnreadableError(f"checkpoint {directory.name}: {error} {TRY_AGAIN}") from error
    except OSError as error:
        message = f"checkpoint {directory.name}: {path} cannot be read: {error.strerror}."
        if is_passing(error):
            raise UnreadableError(f"{message} {TRY_AGAIN}") from error
        raise CheckpointError(message) from error
    if difference is not None:
        raise CheckpointError(f"checkpoint {directory.name}: {difference}")


def _difference(path: Path, file: StagedFile, *, quick: bool) -> str | None:
    if file.kind == "header":
        return verify_state_file(path, file.digest, quick=quick)
    # Bytes that do not belong there need not be read.
    present = os.stat(path)
    if stat.S_ISREG(present.st_mode) and present.st_size > file.size:
        return (
            f"{path} has {present.st_size} bytes, but {file.size} bytes and digest "
            f"{file.digest} were committed."
        )
    size, digest = digest_file(path)
    if (size, digest) == (file.size, file.digest):
        return None
    return (
        f"{path} has {size} bytes and digest {digest}, but {file.size} bytes and digest "
        f"{file.digest} were committed."
    )
