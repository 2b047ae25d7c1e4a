"""Whose a directory or a file is that is closed to this user."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hpctrain.writers import name_of_user


def describe_closed(path: Path) -> str:
    """Return whose it is, or the first directory above that can be seen at all. Not collective."""
    absolute = path.absolute()
    for place in (absolute, *absolute.parents):
        try:
            found = os.stat(place)
        except OSError:
            continue
        what = "it" if place == absolute else str(place)
        mode = stat.S_IMODE(found.st_mode)
        return f"{what} belongs to {name_of_user(found.st_uid)}, and has mode {mode:04o}"
    return "its owner is not known"
