"""Whether a file is of the directory that it lies in, or of another one that was copied."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The directory that a file was written for, as its writer saw it."""

    path: str
    device: int
    inode: int
    is_of_this_host: bool
    """Whether its writer was on this host."""

    def is_at(self, root: Path) -> bool:
        """Return whether it is this directory, be it moved, as far as can be known.

        Not collective.
        """
        if not self.path:
            return True
        has_path = str(root.absolute()) == self.path
        if has_path and not self.is_of_this_host:
            return True
        try:
            here = os.stat(root)
        except OSError:
            # It is not known.
            return True
        # Other hosts give other numbers to devices, and this one does when they are mounted anew.
        if here.st_dev != self.device and has_path:
            return True
        is_comparable = here.st_dev == self.device or not self.is_of_this_host
        return (is_comparable and here.st_ino == self.inode) or (
            not has_path and _is_same(self.path, root)
        )


def _is_same(path: str, root: Path) -> bool:
    try:
        return os.path.samefile(path, root)
    except OSError:
        return False
