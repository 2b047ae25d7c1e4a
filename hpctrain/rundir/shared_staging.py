"""`SharedStaging`: a rank's copies, in the staging directory that it shares with all ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from hpctrain.checkpoint_files import OF_THE_RUN
from hpctrain.errors import CheckpointError
from hpctrain.own_files import create_file
from hpctrain.rundir.bulk import BULK, Bulk, clone
from hpctrain.rundir.files import fsync_file
from hpctrain.rundir.staging import (
    StagedFile,
    digest_staged,
    make_below,
    make_present,
    refuse_special,
)
from hpctrain.writers import COPIED_CONTENT, COPIED_NAME, hold_tree

T = TypeVar("T")


class SharedStaging:
    """Where a rank stages files that it copies or links, beside those of all other ranks.

    Parameters
    ----------
    shared
        The directory that all ranks share.
    own
        The rank's own, for files whose names others have taken.
    """

    def __init__(self, shared: Path, own: Path) -> None:
        self._shared, self._own = shared, own
        self.paths: dict[str, Path] = {}
        """Where each file is, by its path in the checkpoint."""

    @property
    def shared(self) -> frozenset[str]:
        """Paths of the files that are in the shared directory."""
        return frozenset(path for path, at in self.paths.items() if self._shared in at.parents)

    def add(self, path: str, make: Callable[[Path], T]) -> T:
        """Make a file. Not collective.

        Parameters
        ----------
        path
            Relative to the checkpoint.
        make
            Makes the file at the given path, and raises FileExistsError if there is one.
        """
        try:
            return self._add(self._shared, path, make)
        except FileExistsError:
            # Something that checkpoint_dir() gave out may have been left there.
            (self._own / path).unlink(missing_ok=True)
            return self._add(self._own, path, make)

    def offer(self, path: str, content: bytes) -> None:
        """Write a file that is the same on every rank, unless one has. Not collective."""

        def write(target: Path) -> None:
            with open(create_file(target), "wb") as file:
                file.write(content)

        if path not in self.paths:
            with suppress(FileExistsError):
                self._add(self._shared, path, write)

    def copy(self, source: Path, bulk: Bulk = BULK) -> list[StagedFile]:
        """Copy a directory, sharing blocks where the filesystem can (reflink). Not collective.

        Returns
        -------
        list of StagedFile
            Those files that are durable and digested: all, but those that share blocks.
        """
        copies: list[StagedFile] = []

        def copy(path: str, file: Path) -> None:
            copied = self.add(path, lambda target: bulk.copy(file, target))
            if copied is not None:
                copies.append(StagedFile(path, copied.size, copied.digest, copied.kind))

        self._add_all(source, copy)
        # All are on their way by now, so that the first waits for most of the others, too.
        for staged in copies:
            fsync_file(self.paths[staged.path])
        return copies

    def link(self, source: Path) -> None:
        """Give a directory's files a second name, without a second copy. Not collective.

        Reflinks where the filesystem can, else hard links.

        Raises
        ------
        CheckpointError
            If the filesystem can do neither, or the directories are on different ones.
        """
        self._add_all(source, lambda path, file: self.add(path, lambda at: _link(file, at)))

    def seal(
        self, bulk: Bulk = BULK, *, written: Iterable[StagedFile] = ()
    ) -> tuple[StagedFile, ...]:
        """Make what was added durable, and return it. Not collective.

        Parameters
        ----------
        bulk
            How files are read: of a state's file the header, of all others every byte.
        written
            Files that are durable and digested already. They are not read.
        """
        known = {file.path: file for file in written}
        return tuple(
            known.get(path) or digest_staged(self.paths[path], path, bulk)
            for path in sorted(self.paths)
        )

    def _add(self, directory: Path, path: str, make: Callable[[Path], T]) -> T:
        target = directory / path
        made = make_below(target, make, staging=directory)
        self.paths[path] = target
        return made

    def _add_all(self, source: Path, add: Callable[[str, Path], object]) -> None:
        with hold_tree(source) as tree:
            foreign = tree.judge(files=False)
            self._walk(tree.path, "", add)
            # Files are looked at once, and here: hard links have given them a second name.
            foreign = foreign or (tree.judge() if self.paths else None)
        if self.paths and foreign is not None:
            # The copies belong to this user, whichever user has written the files.
            self.offer(COPIED_NAME, COPIED_CONTENT)

    def _walk(self, source: Path, inside: str, add: Callable[[str, Path], object]) -> None:
        # shutil.copytree would go on after an error, such as a full disk.
        with os.scandir(source) as scanned:
            entries = sorted(scanned, key=lambda entry: entry.name)
        if inside and not entries:
            make_below(self._shared / inside, make_present, staging=self._shared)
        for entry in entries:
            if entry.is_dir():
                self._walk(Path(entry), f"{inside}{entry.name}/", add)
            elif entry.name not in OF_THE_RUN:
                refuse_special(entry)
                add(f"{inside}{entry.name}", Path(entry))


def _link(source: Path, target: Path) -> None:
    if not clone(source, target):
        try:
            # Linux would link the link.
            os.link(os.path.realpath(source) if source.is_symlink() else source, target)
        except FileExistsError:
            raise
        except OSError as error:
            raise CheckpointError(
                f"{source} cannot be in {target.parent} without a copy: "
                f"{error.strerror}. Use checkpoint_dir(), CheckpointUploadMode.SYNC, or a "
                f"directory on the filesystem of the run."
            ) from error
