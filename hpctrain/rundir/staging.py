"""A rank's side of a checkpoint: its files, in directories beside the target.

What hpctrain itself writes goes to one directory that all ranks share, in which each takes the
names of its files: so a checkpoint costs a parallel filesystem no call beside those for its files.
What a training function writes may have the name of another rank's file, and what is taken cannot
be taken twice: such files go to a directory of the rank's own.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from hpctrain.checkpoint_files import OF_THE_RUN
from hpctrain.errors import CheckpointError
from hpctrain.own_files import DIRECTORY_MODE, write_own
from hpctrain.rundir.files import fsync_file, make_directory
from hpctrain.version import __version__

if TYPE_CHECKING:
    from hpctrain.rundir.bulk import Bulk

T = TypeVar("T")

DAMAGED = ".damaged"
"""Ends the name of a checkpoint that was set aside."""
REPLACED = ".replaced"
"""Ends the name of a checkpoint while another takes its place."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,127}")
_NUMBER = re.compile(r"\d{6,}")
# An NFS client keeps a file that is deleted while it is open under such a name, until it is closed.
_NFS_DELETED = re.compile(r"\.nfs[0-9a-f]{24}")


@dataclass(frozen=True)
class StagedFile:
    """One file of a checkpoint."""

    path: str
    """Relative to the checkpoint."""
    size: int
    """Bytes."""
    digest: str
    """xxh3_128."""
    kind: Literal["content", "header"] = "content"
    """What the digest is of: the whole content, or the header of a state's file, in which there is
    one of each block of the rest."""


@dataclass(frozen=True, kw_only=True)
class StagedPart:
    """What one rank gives to a checkpoint; its files are in its staging directories, on disk."""

    files: tuple[StagedFile, ...]
    shared: frozenset[str] = frozenset()
    """Paths of those in the directory that all ranks share; the others are in the rank's own."""
    name: str | None = None
    """What the checkpoint is to be called; None gives it the number of its report."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of what it was saved with."""
    error: str | None = None
    """Why there are no files. Then the checkpoint is not committed."""
    validation: Mapping[str, Any] | None = None
    """How the checkpoint is to be validated, as of `Manifest`; None if it is not."""

    def to_bytes(self) -> bytes:
        """Return the form in which it travels."""
        files = [astuple(file) for file in self.files]
        content = {
            "files": files,
            "shared": sorted(self.shared),
            "name": self.name,
            "versions": dict(self.versions),
            "error": self.error,
            "validation": None if self.validation is None else dict(self.validation),
        }
        return json.dumps(content).encode()

    @staticmethod
    def from_bytes(content: bytes) -> StagedPart:
        """Return what `to_bytes` wrote."""
        loaded = json.loads(content)
        return StagedPart(
            files=tuple(StagedFile(*file) for file in loaded["files"]),
            shared=frozenset(loaded["shared"]),
            name=loaded["name"],
            versions=loaded["versions"],
            error=loaded["error"],
            validation=loaded["validation"],
        )


def staging_directory(checkpoints: Path, *, attempt: int, report: int, rank: int) -> Path:
    """Return where a rank stages what may be called as another's file is. Not collective."""
    return commit_directory(checkpoints, attempt=attempt, report=report) / f"rank-{rank:05d}"


def shared_directory(checkpoints: Path, *, attempt: int, report: int) -> Path:
    """Return where all ranks stage files of a report that they alone name. Not collective."""
    return commit_directory(checkpoints, attempt=attempt, report=report) / "all"


def make_empty(directory: Path) -> None:
    """Make a staging directory, without what an earlier report left there. Not collective."""
    from hpctrain.rundir.removal import remove_tree

    try:
        make_below(directory, _make)
    except FileExistsError:
        remove_tree(directory)
        _make(directory)


def make_present(directory: Path) -> None:
    """Make a staging directory, unless it is there. Not collective."""
    with suppress(FileExistsError):
        _make(directory)


def _make(directory: Path) -> None:
    directory.mkdir(DIRECTORY_MODE)


def make_below(path: Path, make: Callable[[Path], T], *, staging: Path | None = None) -> T:
    """Make a file or directory, and first, where they are missing, the directories it is in.

    Not collective.

    Parameters
    ----------
    path
        In a staging directory, or one itself.
    make
        Makes it, and nothing else.
    staging
        The staging directory, which is in another one in ``checkpoints/``; by default `path`.
    """
    try:
        return make(path)
    except FileNotFoundError:
        # Rare: mostly another rank has made the parents, so they are not checked for first. Neither
        # checkpoints/ nor the run are made again: a run that was removed stays so.
        make_directory(path.parent, below=(staging or path).parents[1])
        return make(path)


def commit_directory(checkpoints: Path, *, attempt: int, report: int) -> Path:
    """Return the temporary directory in which a checkpoint comes together. Not collective."""
    return checkpoints / f".tmp-{attempt}-{report:06d}"


def default_name(report: int) -> str:
    """Return the name of a report's checkpoint, unless it was given another. Not collective."""
    return f"{report:06d}"


def check_name(name: str, *, report: int) -> str | None:
    """Return why a checkpoint cannot have this name, or None. Not collective."""
    if not _NAME.fullmatch(name) or name.endswith((DAMAGED, REPLACED)):
        return (
            f"a checkpoint is a directory of checkpoints/. Use 1 to 128 letters, digits, '.', '_', "
            f"'+', '=' or '-', beginning with a letter or digit, and not ending with {DAMAGED} or "
            f"{REPLACED}"
        )
    if _NUMBER.fullmatch(name) and name != default_name(report):
        return "a number is the name of the checkpoint of that report. Put a word before it"
    return None


def versions() -> dict[str, str]:
    """Return the versions of what this process saves with. Not collective."""
    python = ".".join(map(str, sys.version_info[:3]))
    found = {"hpctrain": __version__, "python": python}
    if "torch" in sys.modules:
        found["torch"] = str(sys.modules["torch"].__version__)
    return found


def seal(directory: Path, bulk: Bulk | None = None) -> list[StagedFile]:
    """Make the files of a rank's own directory durable, and return them. Not collective.

    Their names become durable with the commit. A link to a file becomes a copy of that file: the
    checkpoint would end with what the link leads to, and an absolute one leads into `directory`
    under a name that the commit changes. What belongs to the run of a copied checkpoint is deleted.

    Parameters
    ----------
    bulk
        How files are read, and copied: of a state's file the header is read, of all others every
        byte.

    Raises
    ------
    CheckpointError
        If it has a link to a directory, or what is no file.
    OSError
        If it cannot be read or written.
    """
    # Executors import this module before their ranks join, and copy no file of a checkpoint.
    from hpctrain.writers import COPIED_CONTENT, COPIED_NAME

    paths, is_foreign = [], False
    for entry in _files(directory):
        path = Path(entry)
        if entry.name in OF_THE_RUN:
            path.unlink()
            continue
        if entry.is_symlink():
            is_foreign = _copy_linked(path, bulk) or is_foreign
        else:
            refuse_special(entry)
        if not _NFS_DELETED.fullmatch(entry.name):
            paths.append(path)
    mark = directory / COPIED_NAME
    if is_foreign and mark not in paths:
        # The copies belong to this user, whichever user has written the files.
        write_own(mark, COPIED_CONTENT)
        paths.append(mark)
    staged = [digest_staged(path, str(path.relative_to(directory)), bulk) for path in paths]
    return sorted(staged, key=lambda file: file.path)


def refuse_special(entry: os.DirEntry[str]) -> None:
    """Refuse what is no file in a checkpoint. Not collective.

    Raises
    ------
    CheckpointError
        If it is a FIFO, a socket, or a link to nothing.
    """
    if not entry.is_file():
        raise CheckpointError(
            f"{entry.path} is not a file, and a checkpoint has no FIFO, socket or link to nothing. "
            f"Delete it, or report a directory without it."
        )


def _files(directory: Path) -> Iterator[os.DirEntry[str]]:
    """Yield what is in a directory and those below it, except these."""
    # What cannot be listed would be left out of the checkpoint: it raises.
    with os.scandir(directory) as scanned:
        entries = list(scanned)
    for entry in entries:
        if not entry.is_dir():
            yield entry
        elif entry.is_symlink():
            raise CheckpointError(
                f"{entry.path} is a link to a directory, whose files would not be in the "
                f"checkpoint. Copy them, or save into the checkpoint directory."
            )
        else:
            yield from _files(Path(entry))


def _copy_linked(path: Path, bulk: Bulk | None) -> bool:
    """Replace a link to a file by a copy; return whether another user can have written the file."""
    from hpctrain.rundir.bulk import BULK
    from hpctrain.writers import open_judged

    try:
        file, foreign = open_judged(path)
    except OSError as error:
        raise CheckpointError(
            f"{path} is a link to {os.readlink(path)}, which cannot be read: {error.strerror}. "
            f"Remove the link, or put the file there."
        ) from error
    with file:
        path.unlink()
        # By its descriptor: the copied file is the judged one.
        (BULK if bulk is None else bulk).copy(Path(f"/proc/self/fd/{file.fileno()}"), path)
    return foreign is not None


def digest_staged(path: Path, relative: str, bulk: Bulk | None = None) -> StagedFile:
    """Make a file durable, and return what it is called in the checkpoint. Not collective."""
    # Executors import this module before their ranks join, and read no file of a checkpoint.
    from hpctrain.bulk.digest import digest_file
    from hpctrain.bulk.header import state_file_digest

    of_header = state_file_digest(path)
    if of_header is not None:
        fsync_file(path)
        return StagedFile(relative, *of_header, kind="header")
    digest = digest_file if bulk is None else bulk.digest
    return StagedFile(relative, *digest(path, durable=True))
