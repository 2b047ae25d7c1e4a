"""Create files and directories where other users may write too, without opening theirs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_TOKEN_DIGITS = 16
FILE_MODE = 0o644
DIRECTORY_MODE = 0o755
"""Mode of the files of a run. A umask of 002, usual in shared project directories, would let every
member of the group put code into them; the mode also bounds access control lists."""


def name_beside(path: Path) -> Path:
    """Return an unpredictable name in the same directory. Not collective.

    It is for a file that is renamed to `path` once it is complete.
    """
    return path.with_name(f".{path.name}.{os.urandom(_TOKEN_DIGITS // 2).hex()}")


def is_beside(beside: Path, path: Path) -> bool:
    """Return whether a name is one that `name_beside` gives. Pure.

    Examples
    --------
    >>> from pathlib import Path
    >>> is_beside(name_beside(Path("plan.json")), Path("plan.json"))
    True
    >>> is_beside(Path(".plan.json.bak"), Path("plan.json"))
    False
    """
    start, token = beside.name[:-_TOKEN_DIGITS], beside.name[-_TOKEN_DIGITS:]
    is_token = len(token) == _TOKEN_DIGITS and not set(token) - set("0123456789abcdef")
    return is_token and start == f".{path.name}."


def create_file(path: str | Path, flags: int = os.O_WRONLY, *, mode: int = FILE_MODE) -> int:
    """Return a descriptor of a file that this call creates. Not collective.

    Raises
    ------
    FileExistsError
        If the name exists, even as a dangling symbolic link.
    """
    return os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)


def write_own(path: str | Path, content: bytes) -> None:
    """Write a file that neither its group nor others can write. Not collective.

    An existing file is overwritten in place.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    with open(os.open(path, flags, FILE_MODE), "wb") as file:
        found = os.fstat(file.fileno())
        if found.st_mode & 0o022 and found.st_uid == os.geteuid():
            os.fchmod(file.fileno(), found.st_mode & 0o7755)
        file.write(content)


def open_log(path: str | Path, flags: int = os.O_WRONLY) -> int:
    """Return a descriptor that appends to a file, which is created if needed. Not collective.

    Raises
    ------
    OSError
        If it is a symbolic link.
    """
    flags |= os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, FILE_MODE)
