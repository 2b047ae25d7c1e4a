"""`write_image`: members of a packed environment as an image of squashfs, which nodes mount."""

from __future__ import annotations

import marshal
import shutil
import struct
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.util import MAGIC_NUMBER
from pathlib import Path, PurePosixPath
from typing import IO

from hpctrain.errors import ConfigError, HpctrainError
from hpctrain.pack.archive import Archive
from hpctrain.pack.walk import Member, unreadable

PROGRAM = "mksquashfs"
# A third of the size: less to send, to digest and to keep. A first import waits for one core to
# decompress what it reads.
_COMPRESSED = ("-comp", "zstd", "-Xcompression-level", "3")
# See _settle_root.
_UNCOMPRESSED_INODES = ("-noI", "-noX")
_OPTIONS = (
    *("-tar", "-noappend", "-quiet", "-no-progress", "-no-xattrs", "-all-root"),
    *("-reproducible", "-mkfs-time", "0", "-root-mode", "755", *_UNCOMPRESSED_INODES),
    *_COMPRESSED,
)
# Reference to the inode of the root directory, and where the table of inodes begins.
_SUPERBLOCK = struct.Struct("<32xQ24xQ")
_METADATA_BYTES, _HEADER_BYTES = 8192, 2
_TIME_AT, _TIME_BYTES = 8, 4
# Flags, time and size of a source.
_SOURCE, _32 = struct.Struct("<LLL"), 0xFFFFFFFF


def check_program() -> None:
    """Refuse to begin where no image can be made. Not collective.

    Raises
    ------
    ConfigError
        If the program is missing.
    """
    if shutil.which(PROGRAM) is None:
        raise ConfigError(
            f"--format squashfs: {PROGRAM} is not on PATH. Install squashfs-tools 4.5 or later, of "
            f"the system or of conda-forge, or pack without --format."
        )


def write_image(path: Path, members: Iterable[Member]) -> int:
    """Write an image over an empty file; return the number of files in it.

    Not collective. The same members give the same bytes.

    Parameters
    ----------
    path
        The file.
    members
        What is in the image.

    Raises
    ------
    ConfigError
        If a member cannot be read.
    HpctrainError
        If the image cannot be made.
    """
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            [PROGRAM, "-", str(path), *_OPTIONS],
            stdin=subprocess.PIPE,
            stdout=printed,
            stderr=subprocess.STDOUT,
        )
        assert process.stdin is not None
        archive = Archive(process.stdin)
        try:
            _send(archive, members)
            process.stdin.close()
            code = process.wait()
        except BrokenPipeError:
            with suppress(BrokenPipeError):
                process.stdin.close()
            code = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            with suppress(BrokenPipeError):
                process.stdin.close()
            raise
        printed.seek(0)
        lines = printed.read().decode(errors="replace").strip().splitlines()
    if code != 0:
        raise HpctrainError(
            f"{path.parent}: {PROGRAM} has failed ({code}): {_reason(lines)}. It must be of "
            f"squashfs-tools 4.5 or later with zstd, and the disk must have room."
        )
    with open(path, "r+b") as file:
        _settle_root(file)
    return archive.num_files


def _send(archive: Archive, members: Iterable[Member]) -> None:
    seen = {PurePosixPath(".")}
    for member in members:
        path = PurePosixPath(member.name)
        if path in seen:
            # A tar archive may have a directory twice.
            continue
        for folder in reversed(path.parents):
            # mksquashfs would make it, with the time of now.
            if folder not in seen:
                archive.add_folder(str(folder))
                seen.add(folder)
        archive.add(member)
        seen.add(path)
    archive.end_without_digest()


def _reason(lines: Sequence[str]) -> str:
    """Return the line that says why mksquashfs has ended. Pure."""
    fatal = [line for line in lines if "FATAL ERROR" in line or "failed" in line]
    return (fatal or lines or ["it printed nothing"])[0]


def _settle_root(file: IO[bytes]) -> None:
    """Set the time of the root directory to zero.

    mksquashfs 4.5 takes the time of now for it when it reads a tar archive, whatever -root-time is.
    """
    file.seek(0)
    reference, table = _SUPERBLOCK.unpack(file.read(_SUPERBLOCK.size))
    block, offset = reference >> 16, reference & 0xFFFF
    for number in range(offset + _TIME_AT, offset + _TIME_AT + _TIME_BYTES):
        # Each block of the table begins with its size.
        crossed, inside = divmod(number, _METADATA_BYTES)
        skipped = block + crossed * (_HEADER_BYTES + _METADATA_BYTES)
        file.seek(table + skipped + _HEADER_BYTES + inside)
        file.write(b"\0")


def compile_members(members: Iterable[Member], places: Sequence[str]) -> Iterator[Member]:
    """Yield members, and after a module in some directories what it is compiled to.

    Not collective. Nothing can be written on the nodes into what is mounted there.

    Parameters
    ----------
    places
        The directories, or modules.
    """
    folders = [PurePosixPath(place) for place in places]
    for member in members:
        yield member
        path = PurePosixPath(member.name)
        if path.suffix != ".py" or member.source is None:
            continue
        if any(path.is_relative_to(folder) for folder in folders):
            content = _compile(member.source, member.name)
            if content is not None:
                # cache_from_source() would follow the PYTHONPYCACHEPREFIX of this process.
                name = f"{path.stem}.{sys.implementation.cache_tag}.pyc"
                yield Member(name=f"{path.parent}/__pycache__/{name}", content=content)


def _compile(source: Path, name: str) -> bytes | None:
    """Return what the interpreter would write for a module; None if it has a syntax error."""
    try:
        text, found = source.read_bytes(), source.stat()
    except OSError as error:
        raise unreadable(source, error) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = compile(text, name, "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError):
        return None
    try:
        # Later formats depend on which strings this process has elsewhere.
        content = marshal.dumps(code, 2)
    except ValueError:
        content = marshal.dumps(code)
    # The import system compares time and size, and names the file that it found.
    return MAGIC_NUMBER + _SOURCE.pack(0, int(found.st_mtime) & _32, found.st_size & _32) + content
