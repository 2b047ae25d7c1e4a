"""`remove_tree`: delete a directory with all that it holds."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from hpctrain.log import log


def remove_tree(path: str | Path) -> None:
    """Delete a directory, read-only folders of it too; never raises. Not collective.

    What stays is logged.
    """
    shutil.rmtree(path, ignore_errors=True)
    if not os.path.lexists(path):
        return
    # A copy of a read-only directory is read-only, too.
    _let_change(path)
    for folder, names, _ in os.walk(path):
        for name in names:
            _let_change(os.path.join(folder, name))
    shutil.rmtree(path, ignore_errors=True)
    if os.path.lexists(path):
        log(f"warning: {path} cannot be deleted as a whole, and holds room on the disk.")


def _let_change(folder: str | Path) -> None:
    with suppress(OSError):
        mode = os.lstat(folder).st_mode
        if stat.S_ISDIR(mode):
            os.chmod(folder, stat.S_IMODE(mode) | stat.S_IRWXU)
