"""`Bulk`: how the bytes of a checkpoint are copied and read back."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from hpctrain.bulk.copy import Copied, Copier
from hpctrain.bulk.digest import digest_file
from hpctrain.bulk.pace import Pace
from hpctrain.own_files import create_file
from hpctrain.regular_file import open_regular

# linux/fs.h: _IOW(0x94, 9, int)
_FICLONE = 0x40049409


class Bulk:
    """Copies and reads files. Used by ranks when they stage.

    All copies go to one filesystem, that of the run.

    Parameters
    ----------
    pace
        How fast copies may be written; None is as fast as they can.
    """

    def __init__(self, pace: Pace | None = None) -> None:
        self._copier = Copier(pace)
        self._cannot_share: set[int] = set()

    def copy(self, source: Path, target: Path) -> Copied | None:
        """Copy a file's content into a new file. Not collective.

        Returns
        -------
        Copied or None
            What was copied; None if the two share their blocks (reflink), of which nothing was
            read. In neither case is it durable.

        Raises
        ------
        FileExistsError
            If there is a target already, which stays as it is.
        """
        device = os.stat(source).st_dev
        if device not in self._cannot_share:
            if clone(source, target):
                return None
            self._cannot_share.add(device)
        return self._copier.copy(source, target)

    def digest(self, path: Path, *, durable: bool = False) -> tuple[int, str]:
        """Return size in bytes and xxh3_128 digest of a file. Not collective.

        Parameters
        ----------
        durable
            Whether the content is on disk when this returns.
        """
        return digest_file(path, durable=durable)


BULK = Bulk()


def clone(source: Path, target: Path) -> bool:
    """Let a new file share the blocks of another (reflink); return whether the filesystem could.

    Not collective. If it could not, there is no `target`.

    Raises
    ------
    FileExistsError
        If there is a target already, which stays as it is.
    """
    if os.stat(source).st_dev != os.stat(target.parent).st_dev:
        return False
    with (
        open_regular(source, follow_links=True) as reader,
        open(create_file(target), "wb") as writer,
    ):
        try:
            fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
        except OSError:
            # No reflink here: ext4, NFS, Lustre.
            target.unlink()
            return False
    return True
