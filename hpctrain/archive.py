"""The files of a directory as bytes, and back."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Collection
from os import PathLike
from pathlib import Path, PurePosixPath

from hpctrain.errors import CheckpointError

_END = bytes(2 * tarfile.BLOCKSIZE)
"""Where an archive ends, whatever program has made it."""


def pack_files(directory: str | PathLike[str], *, leave_out: Collection[str]) -> bytes:
    """Return the content of a directory as a tar archive, except some names. Not collective.

    Links are packed as what they lead to: elsewhere they would lead nowhere.
    """
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:", dereference=True) as archive:
        for path in sorted(Path(directory).iterdir()):
            if path.name not in leave_out:
                archive.add(path, arcname=path.name)
    return content.getvalue()


def unpack_files(data: bytes, directory: str | PathLike[str]) -> None:
    """Write what `pack_files` read into a directory, and nothing outside of it.

    Not collective.

    Raises
    ------
    CheckpointError
        If the bytes are not from `pack_files`.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            archive.getmembers()
            # tarfile takes bytes that were cut after a file, or in a header, for a whole archive.
            if not data.startswith(_END, archive.offset):
                raise tarfile.ReadError("they end before the archive does")
            if hasattr(tarfile, "data_filter"):
                archive.extractall(directory, filter="data")
            else:
                _extract(archive, Path(directory))
    except tarfile.TarError as error:
        raise CheckpointError(
            f"from_bytes() was given {len(data)} bytes that are not a checkpoint: {error}. Pass "
            f"the result of to_bytes()."
        ) from error


def _extract(archive: tarfile.TarFile, directory: Path) -> None:
    # tarfile has filters since Python 3.10.12 and 3.11.4; Debian 12 has 3.11.2.
    for member in archive:
        name = PurePosixPath(member.name)
        if not (member.isreg() or member.isdir()) or name.is_absolute() or ".." in name.parts:
            raise tarfile.ReadError(f"{member.name!r} is no file or directory below it")
        path = directory / name
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
        elif (content := archive.extractfile(member)) is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(content, file)
            path.chmod(member.mode & 0o755 | 0o600)
