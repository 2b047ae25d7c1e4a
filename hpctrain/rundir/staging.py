"""A rank's side of a checkpoint: its own files, in a directory beside the target."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Literal

import hpctrain
from hpctrain.bulk.verify import state_file_digest
from hpctrain.checkpoint import MANIFEST_NAME
from hpctrain.errors import CheckpointError
from hpctrain.rundir.bulk import BULK, Bulk, clone
from hpctrain.rundir.files import fsync_directory, fsync_file, make_directory

DAMAGED = ".damaged"
"""Ends the name of a checkpoint that was set aside."""
REPLACED = ".replaced"
"""Ends the name of a checkpoint while another takes its place."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,127}")
_NUMBER = re.compile(r"\d{6,}")


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
    """What one rank gives to a checkpoint; its files are in its staging directory, on disk."""

    files: tuple[StagedFile, ...]
    name: str | None = None
    """What the checkpoint is to be called; None gives it the number of its report."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of what it was saved with."""
    error: str | None = None
    """Why there are no files. Then the checkpoint is not committed."""

    def to_bytes(self) -> bytes:
        """Return the form in which it travels."""
        files = [astuple(file) for file in self.files]
        content = {
            "files": files,
            "name": self.name,
            "versions": dict(self.versions),
            "error": self.error,
        }
        return json.dumps(content).encode()

    @staticmethod
    def from_bytes(content: bytes) -> StagedPart:
        """Return what `to_bytes` wrote."""
        loaded = json.loads(content)
        return StagedPart(
            files=tuple(StagedFile(*file) for file in loaded["files"]),
            name=loaded["name"],
            versions=loaded["versions"],
            error=loaded["error"],
        )


def staging_directory(checkpoints: Path, *, attempt: int, report: int, rank: int) -> Path:
    """Return where a rank stages its part of a report's checkpoint. Not collective."""
    return commit_directory(checkpoints, attempt=attempt, report=report) / f"rank-{rank:05d}"


def make_empty(directory: Path) -> None:
    """Make a directory, without what an earlier report left there. Not collective."""
    import shutil

    if directory.exists():
        shutil.rmtree(directory)
    make_staging(directory)


def make_staging(directory: Path) -> None:
    """Make a staging directory, in ``checkpoints/``, which is there. Not collective."""
    make_directory(directory, below=directory.parents[1])


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
    found = {"hpctrain": hpctrain.__version__, "python": python}
    if "torch" in sys.modules:
        found["torch"] = str(sys.modules["torch"].__version__)
    return found


def copy_into(source: Path, target: Path, bulk: Bulk = BULK) -> list[StagedFile]:
    """Copy a directory, sharing blocks where the filesystem can (reflink). Not collective.

    Returns
    -------
    list of StagedFile
        Those files that are durable and digested: all, but those that share blocks.
    """
    copies: list[StagedFile] = []
    make_staging(target)

    def copy(file: Path, copy_of_it: Path) -> None:
        copied = bulk.copy(file, copy_of_it)
        if copied is not None:
            path = str(copy_of_it.relative_to(target))
            copies.append(StagedFile(path, copied.size, copied.digest, copied.kind))

    _copy_tree(source, target, copy)
    # All are on their way by now, so that the first waits for most of the others, too.
    for file in copies:
        fsync_file(target / file.path)
    return copies


def link_into(source: Path, target: Path) -> None:
    """Give a directory's files a second name, without a second copy. Not collective.

    Reflinks where the filesystem can, else hard links.

    Raises
    ------
    CheckpointError
        If the filesystem can do neither, or the directories are on different ones.
    """
    make_staging(target)
    _copy_tree(source, target, _link)


def _copy_tree(source: Path, target: Path, copy: Callable[[Path, Path], None]) -> None:
    # shutil.copytree would go on after an error, such as a full disk.
    target.mkdir(exist_ok=True)
    for entry in sorted(source.iterdir()):
        if entry.is_dir():
            _copy_tree(entry, target / entry.name, copy)
        elif entry.name != MANIFEST_NAME:
            copy(entry, target / entry.name)


def _link(source: Path, target: Path) -> None:
    if not clone(source, target):
        try:
            os.link(source, target)
        except OSError as error:
            raise CheckpointError(
                f"{source} cannot be in {target.parent} without a copy: "
                f"{error.strerror}. Use checkpoint_dir(), CheckpointUploadMode.SYNC, or a "
                f"directory on the filesystem of the run."
            ) from error


def seal(
    directory: Path, bulk: Bulk = BULK, *, written: Iterable[StagedFile] = ()
) -> list[StagedFile]:
    """Make a staged directory durable and return what it holds. Not collective.

    Parameters
    ----------
    bulk
        How files are read.
    written
        Files in it that are durable and digested already. They are not touched. Of other files of a
        state the header is read, of all others every byte.

    Raises
    ------
    CheckpointError
        If it is empty, or has a link to a directory.
    OSError
        If it cannot be read or written.
    """
    known = {file.path: file for file in written}
    staged = []
    for folder, folders, names in os.walk(directory, onerror=_raise):
        for name in folders:
            if (path := Path(folder, name)).is_symlink():
                raise CheckpointError(
                    f"{path} is a link to a directory, whose files would not be in the checkpoint. "
                    f"Copy them, or save into the checkpoint directory."
                )
        for name in names:
            path = Path(folder, name)
            relative = str(path.relative_to(directory))
            staged.append(known.get(relative) or _digest(path, relative, bulk))
        fsync_directory(Path(folder))
    if not staged:
        raise CheckpointError(
            f"the checkpoint directory {directory} holds no file. Save into it before report(), or "
            f"report without a checkpoint on this rank."
        )
    return sorted(staged, key=lambda file: file.path)


def _raise(error: OSError) -> None:
    # What cannot be listed would be left out of the checkpoint.
    raise error


def _digest(path: Path, relative: str, bulk: Bulk) -> StagedFile:
    of_header = state_file_digest(path)
    if of_header is not None:
        fsync_file(path)
        return StagedFile(relative, *of_header, kind="header")
    return StagedFile(relative, *bulk.digest(path, durable=True))
