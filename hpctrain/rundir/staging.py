"""A rank's side of a checkpoint: its own files, in a directory beside the target."""

from __future__ import annotations

import fcntl
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import xxhash

from hpctrain.checkpoint import MANIFEST_NAME
from hpctrain.errors import CheckpointError

# linux/fs.h: _IOW(0x94, 9, int)
_FICLONE = 0x40049409
_BLOCK_BYTES = 8 * 2**20


@dataclass(frozen=True)
class StagedFile:
    """One file of a checkpoint: name relative to the checkpoint, size in bytes, xxh3_128 digest."""

    path: str
    size: int
    digest: str


def staging_directory(checkpoints: Path, *, attempt: int, report: int, rank: int) -> Path:
    """Return where a rank stages its part of a report's checkpoint. Not collective."""
    return commit_directory(checkpoints, attempt=attempt, report=report) / f"rank-{rank:05d}"


def commit_directory(checkpoints: Path, *, attempt: int, report: int) -> Path:
    """Return the temporary directory in which a checkpoint comes together. Not collective."""
    return checkpoints / f".tmp-{attempt}-{report:06d}"


def copy_into(source: Path, target: Path) -> None:
    """Copy a directory, sharing blocks where the filesystem can (reflink). Not collective."""
    shutil.copytree(
        source,
        target,
        copy_function=_clone,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns(MANIFEST_NAME),
    )


def seal(directory: Path) -> list[StagedFile]:
    """Make a staged directory durable and return what it holds. Not collective.

    Raises
    ------
    CheckpointError
        If it is empty.
    """
    staged = []
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder) / name
            size, digest = digest_file(path, durable=True)
            staged.append(StagedFile(str(path.relative_to(directory)), size, digest))
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(descriptor)
        os.close(descriptor)
    if not staged:
        raise CheckpointError(
            f"the checkpoint directory {directory} holds no file. Save into it before report(), or "
            f"report without a checkpoint on this rank."
        )
    return sorted(staged, key=lambda file: file.path)


def digest_file(path: Path, *, durable: bool = False) -> tuple[int, str]:
    """Return size in bytes and xxh3_128 digest of a file. Not collective."""
    digest = xxhash.xxh3_128()
    size = 0
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
        if durable:
            os.fsync(file.fileno())
    return size, digest.hexdigest()


def _clone(source: str, target: str) -> str:
    with open(source, "rb") as reader, open(target, "wb") as writer:
        try:
            fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
        except OSError:
            # No reflink here: ext4, NFS, another filesystem. shutil copies inside the kernel.
            return str(shutil.copyfile(source, target))
    return target
