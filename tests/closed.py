"""A directory that its owner has closed to the user of this process."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

_NOBODY = 65534


@contextlib.contextmanager
def closed_directory(closed: str) -> Iterator[Path]:
    """Yield a storage path in which, or below which, this process may not look at `closed`.

    Root may look at everything, and is another user for the time of the block.

    Parameters
    ----------
    closed
        ``storage``, or ``run`` for the directory of that name in it.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        storage = Path(folder, "storage")
        (storage / "run").mkdir(parents=True)
        place = storage if closed == "storage" else storage / closed
        place.chmod(0)
        user = os.geteuid()
        if user == 0:
            os.seteuid(_NOBODY)
        try:
            yield storage
        finally:
            os.seteuid(user)
            place.chmod(0o755)
