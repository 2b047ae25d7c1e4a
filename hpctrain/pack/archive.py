"""`Archive`: writes a tar archive, which may end with its digest."""

from __future__ import annotations

import hashlib
import os
import tarfile
from pathlib import Path
from typing import IO

from hpctrain.errors import ConfigError
from hpctrain.pack.header import DIGEST
from hpctrain.pack.walk import Member, unreadable

_BLOCK_BYTES = 2**20
_EXECUTABLE, _PLAIN = 0o755, 0o644


class Archive:
    """Writes a tar archive without what differs from one user, machine or hour to another.

    Parameters
    ----------
    file
        What gets it.
    digest
        Digest of what is in the file already.
    """

    def __init__(self, file: IO[bytes], *, digest: hashlib._Hash | None = None) -> None:
        self._file = file
        self._digest = hashlib.sha256() if digest is None else digest
        self.num_files = 0
        """Files that were written."""

    def add(self, member: Member) -> None:
        """Write a member.

        Raises
        ------
        ConfigError
            If it cannot be read, or changes meanwhile.
        """
        header = tarfile.TarInfo(member.name)
        if member.target is not None:
            header.type, header.linkname, header.mode = tarfile.SYMTYPE, member.target, 0o777
            self._put_header(header)
        elif member.source is None:
            content = member.content or b""
            header.size, header.mode = len(content), _PLAIN
            self._put_header(header)
            self._put(content)
            self._fill(len(content))
            self.num_files += 1
        else:
            self._add_path(header, member.source, member.library_path)

    def add_folder(self, name: str) -> None:
        """Write a directory."""
        header = tarfile.TarInfo(name)
        # Its time is that of the last entry: of a module that was compiled meanwhile, say.
        header.type, header.mode = tarfile.DIRTYPE, _EXECUTABLE
        self._put_header(header)

    def end(self) -> None:
        """Write the digest of all before, and the end."""
        digest = self._digest.hexdigest().encode()
        header = tarfile.TarInfo(DIGEST)
        header.size, header.mode = len(digest), _PLAIN
        self._put_header(header)
        self._put(digest)
        self._fill(len(digest))
        self.end_without_digest()

    def end_without_digest(self) -> None:
        """Write the end alone."""
        self._put(bytes(2 * tarfile.BLOCKSIZE))

    def _add_path(
        self, header: tarfile.TarInfo, path: Path, library_path: tuple[bytes, bytes] | None
    ) -> None:
        if path.is_dir():
            self.add_folder(header.name)
            return
        with _open(path) as file:
            found = os.fstat(file.fileno())
            header.mode = _EXECUTABLE if found.st_mode & 0o100 else _PLAIN
            # Compiled modules hold the time of their source.
            header.size, header.mtime = found.st_size, int(found.st_mtime)
            self._put_header(header)
            left = header.size
            block = _BLOCK_BYTES if library_path is None else left
            while left and (data := _read(file, min(left, block), path)):
                self._put(data if library_path is None else _with_library_path(data, *library_path))
                left -= len(data)
            if left or _read(file, 1, path):
                raise ConfigError(
                    f"{path} has changed while it was packed. Pack when nothing installs or writes "
                    f"there."
                )
        self._fill(header.size)
        self.num_files += 1

    def _put_header(self, header: tarfile.TarInfo) -> None:
        self._put(header.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))

    def _fill(self, size: int) -> None:
        self._put(bytes(-size % tarfile.BLOCKSIZE))

    def _put(self, data: bytes) -> None:
        self._digest.update(data)
        self._file.write(data)


def _with_library_path(program: bytes, old: bytes, new: bytes) -> bytes:
    """Return an ELF file of the same size in which another path is searched for libraries."""
    if not program.startswith(b"\x7fELF"):
        return program
    # The path is a text between two zeros.
    return program.replace(b"\0%s\0" % old, b"\0%s\0" % new.ljust(len(old), b"\0"))


def _open(path: Path) -> IO[bytes]:
    try:
        return open(path, "rb")
    except OSError as error:
        raise unreadable(path, error) from error


def _read(file: IO[bytes], size: int, path: Path) -> bytes:
    try:
        return file.read(size)
    except OSError as error:
        raise unreadable(path, error) from error
