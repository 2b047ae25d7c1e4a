"""Copies of a checkpoint: as a directory, as bytes, and as a dict that holds those bytes.

A copy carries who can have written it (`hpctrain.writers`): its pickles are trusted as those of the
original. Every rank imports this module at its start: modules that copying needs come later.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from hpctrain import pickle_trust
from hpctrain.checkpoint_class import DictOf
from hpctrain.checkpoint_files import OF_THE_RUN
from hpctrain.constants import FS_CHECKPOINT_KEY
from hpctrain.own_files import write_own
from hpctrain.writers import COPIED_CONTENT, COPIED_NAME, hold_tree


def copy_directory(source: Path, target: Path) -> None:
    """Copy a checkpoint without what belongs to its run; `target` is made if needed.

    Not collective.
    """
    import shutil

    with hold_tree(source) as tree:
        foreign = tree.judge()
        if foreign is not None:
            # First: whatever ends this process, no file is there without it.
            target.mkdir(parents=True, exist_ok=True)
            write_own(target / COPIED_NAME, COPIED_CONTENT)
        shutil.copytree(
            tree.path, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*OF_THE_RUN)
        )
        if foreign is None and tree.judge(files=False) is not None:
            write_own(target / COPIED_NAME, COPIED_CONTENT)


def pack_directory(directory: Path, *, leave_out: Collection[str]) -> bytes:
    """Return the files of a checkpoint as a tar archive. Not collective.

    This process may open its pickles again if only this user can have written them.
    """
    from hpctrain.archive import pack_files

    with hold_tree(directory) as tree:
        foreign = tree.judge()
        content = pack_files(tree.path, leave_out=leave_out)
        foreign = foreign or tree.judge(files=False)
    if foreign is None:
        pickle_trust.remember(content)
    return content


def unpack_into(directory: Path, data: bytes) -> None:
    """Write the files of an archive, which another process may have packed. Not collective.

    Raises
    ------
    CheckpointError
        If it is not an archive that `pack_directory` made.
    """
    from hpctrain.archive import unpack_files

    unpack_files(data, directory)
    if not pickle_trust.is_made_here(data):
        write_own(directory / COPIED_NAME, COPIED_CONTENT)


class FilesAsDict(DictOf):
    """What `Checkpoint.to_dict` makes of a directory; looking for another key explains that."""

    path: str = "the checkpoint"

    def __missing__(self, key: str) -> Any:
        raise KeyError(
            f"{key!r}: {self.path} was not made by Checkpoint.from_dict(), so its dict has its "
            f"files at {FS_CHECKPOINT_KEY!r} only. Read them with as_directory()."
        )
