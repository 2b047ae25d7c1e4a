"""`DirectoryHandle`: a handle on the directory of a checkpoint, whatever it was made of.

Every rank imports this module at its start, so what only some methods need is imported there.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hpctrain.checkpoint_copy import copy_directory, pack_directory
from hpctrain.checkpoint_files import MANIFEST_NAME, OF_THE_RUN, read_metadata, write_metadata
from hpctrain.checkpoint_lock import hold_for_reading
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.own_files import DIRECTORY_MODE
from hpctrain.path_string import PathString, expand_home, local_filesystem
from hpctrain.temporary_checkpoint import temporary_prefix

if TYPE_CHECKING:
    import pyarrow.fs

H = TypeVar("H", bound="DirectoryHandle")

_COPY = "hpctrain-copy-"


class DirectoryHandle:
    """What a `hpctrain.Checkpoint` can do with its directory and the files in it.

    Parameters
    ----------
    path
        The directory.
    """

    path: PathString
    """The directory: a string, as in Ray Train, that works as a ``pathlib.Path`` too."""
    _is_temporary = False
    """Whether this process made the directory for the handle."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = PathString(expand_home(path).absolute())
        self._was_seen = self.path.is_dir()

    @classmethod
    def _make(cls: type[H], path: str | PathLike[str] | None = None) -> H:
        """Return a handle on a directory to write into, which is made if needed.

        None makes a temporary one, which is deleted with the handle: also where the writing fails.
        """
        if path is not None:
            expand_home(path).mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            return cls(path)
        import shutil
        import tempfile

        checkpoint = cls(tempfile.mkdtemp(prefix=temporary_prefix()))
        checkpoint._is_temporary = True
        weakref.finalize(checkpoint, shutil.rmtree, checkpoint.path, ignore_errors=True)
        return checkpoint

    @property
    def filesystem(self) -> pyarrow.fs.LocalFileSystem:
        """Arrow's filesystem of `path`, always the local one. Needs pyarrow."""
        return local_filesystem()

    def __repr__(self) -> str:
        """Return the call that makes an equal handle."""
        return f"Checkpoint({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        """Return whether both are handles on the same directory."""
        return isinstance(other, DirectoryHandle) and self.path == other.path

    def __hash__(self) -> int:
        """Hash the directory's path."""
        return hash(self.path)

    def _refuse_missing(self) -> None:
        """Refuse a directory that this handle has never seen."""
        self._was_seen = self._was_seen or self.path.is_dir()
        if not self._was_seen:
            found = "is not a directory" if self.path.exists() else "does not exist"
            raise ConfigError(
                f"{self!r} {found}. Save into a directory first, and give that directory."
            )

    def _refuse_if_committed(self, what: str) -> None:
        self._refuse_missing()
        if (self.path / MANIFEST_NAME).exists():
            raise CheckpointError(
                f"{self.path} is committed and does not change. Set {what} before report(), or "
                f"copy it with to_directory()."
            )

    def to_bytes(self) -> bytes:
        """Return all files of the checkpoint as bytes, a tar archive. Not collective."""
        with self.as_directory() as directory:
            return pack_directory(Path(directory), leave_out=OF_THE_RUN)

    def to_directory(self, path: str | PathLike[str] | None = None) -> str:
        """Copy the checkpoint into a directory of its own and return that.

        Not collective. The copy of what another user can have written says so in a file: its
        pickles have to be trusted as those of the original.

        Parameters
        ----------
        path
            Target; made if needed. None makes a temporary directory, which is the caller's to
            delete.

        Raises
        ------
        CheckpointError
            If the target is a committed checkpoint: its files are what its digests say.
        """
        import tempfile

        self._refuse_missing()
        target = expand_home(tempfile.mkdtemp(prefix=_COPY) if path is None else path)
        if (target / MANIFEST_NAME).exists():
            raise CheckpointError(
                f"{target} is committed and does not change. Copy into another directory."
            )
        with self.as_directory() as source:
            copy_directory(Path(source), target)
        return str(target)

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        """Give the checkpoint's own directory for reading. Not collective. Nothing is copied.

        Until the block ends the run does not delete it, wherever on the shared filesystem this
        process runs, if that filesystem has flock (Lustre: mounted with ``-o flock``).

        Raises
        ------
        CheckpointError
            If the run has deleted the checkpoint (``num_to_keep``).
        ConfigError
            If there has never been such a directory.
        """
        self._refuse_missing()
        with hold_for_reading(self.path):
            yield str(self.path)

    def get_metadata(self) -> dict[str, Any]:
        """Return the metadata, the trainer's included; empty if there is none. Not collective.

        What was set for this checkpoint wins over what the trainer was given as `metadata`.
        """
        self._refuse_missing()
        return read_metadata(self.path)

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata. Not collective.

        Raises
        ------
        CheckpointError
            If the checkpoint is committed already: its files are what its digests say.
        """
        self._refuse_if_committed("metadata")
        write_metadata(metadata, self.path)

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Merge into the metadata. Not collective."""
        self.set_metadata({**self.get_metadata(), **metadata})
