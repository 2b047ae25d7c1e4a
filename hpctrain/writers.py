"""Who can have written a file: the rule for all files whose code is run.

A file is this user's own if it belongs to this user or to root, and neither its group nor others
can write it. Access control lists count too: their mask appears as the mode of the group.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from os import PathLike
from pathlib import Path
from typing import Any

from hpctrain.regular_file import open_regular

COPIED_NAME = ".hpctrain-copied"
"""Marks a copy of files that another user may have written, while this user owns the copy."""
COPIED_CONTENT = b"Copied from where somebody else can write. Its pickles need trusted=True.\n"
"""The same for every rank and directory."""
_ROOT = 0
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
# The kernel's limit.
_MOST_LINKS = 40


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """Why another user can have written a file."""

    path: Path
    """The path that is not this user's own: the file, or a directory above it."""
    state: str
    """The defect, as the end of a sentence."""
    is_mended_by_chmod: bool = False
    """Whether a change of permissions suffices, which this user may make."""
    is_above: bool = False
    """Whether it is a directory above that of the file, where others may have files."""

    @property
    def command(self) -> str:
        """The command that fixes it, if there is one."""
        if not self.is_mended_by_chmod:
            return ""
        return f"chmod {'+t' if self.is_above else 'go-w'} {shlex.quote(str(self.path))}"


def judge(uid: int, mode: int, path: Path, *, is_above: bool = False) -> Foreign | None:
    """Return why another user can write a file, or into a directory; None if no other can.

    Not collective.

    Parameters
    ----------
    uid, mode
        Of what is at `path`.
    is_above
        Whether it is a directory above that of the file, where the sticky bit is enough.
    """
    if uid not in (os.geteuid(), _ROOT):
        state = f"belongs to {name_of_user(uid)}, and this process to {name_of_user(os.geteuid())}"
        return Foreign(path=path, state=state, is_above=is_above)
    if mode & _OTHERS_MAY_WRITE and not (is_above and mode & stat.S_ISVTX):
        return Foreign(
            path=path,
            state=f"can be written by others (mode {stat.S_IMODE(mode):04o})",
            is_mended_by_chmod=uid == os.geteuid(),
            is_above=is_above,
        )
    return None


def read_judged(path: Path) -> tuple[bytes, Foreign | None]:
    """Return the content of a file, and the verdict of `open_judged`. Not collective.

    Raises
    ------
    OSError
        If it cannot be read, or is not a regular file.
    """
    file, foreign = open_judged(path)
    with file:
        return file.readall(), foreign


def open_judged(path: Path) -> tuple[FileIO, Foreign | None]:
    """Open a regular file for reading; return why another user can have written it, or None.

    Not collective. Every directory on the path counts, from the root on, and so does the owner of
    every link. In a directory above with the sticky bit, such as ``/tmp``, others can write but not
    replace this user's files. The mark of a copy applies to everything below it. The walk goes from
    descriptor to descriptor, so the checked file is the opened file, also after a rename.

    Raises
    ------
    OSError
        If it cannot be opened, or is not a regular file.
    """
    walk = _Walk()
    try:
        file = walk.open(path.absolute())
    except OSError as error:
        # The walk refers to it by its last component.
        error.filename = str(path)
        raise
    finally:
        walk.close()
    return file, walk.foreign


class HeldTree:
    """A directory that is held open during a copy: the checked directory is the copied one."""

    def __init__(self, directory: Path, descriptor: int, foreign: Foreign | None) -> None:
        self._directory, self._descriptor, self._foreign = directory, descriptor, foreign
        self.path = Path(f"/proc/self/fd/{descriptor}")
        """A path to it, even if it or a directory above is replaced."""

    def judge(self, *, files: bool = True) -> Foreign | None:
        """Return why another user can have written a file in it, or None. Not collective.

        Permissions above it do not count, but a mark there does, and so does the owner of a link to
        it; permissions below a directory that only this user can enter do not.

        Parameters
        ----------
        files
            Whether to check files, too, and not only directories.
        """
        if self._foreign is not None:
            return self._foreign
        try:
            found = os.fstat(self._descriptor)
            now = Path(os.readlink(self.path))
            marked, is_closed = self._judge_above(found, now)
            foreign = marked or _judge_tree(
                self.path, now, found, is_closed=is_closed, with_files=files
            )
        except (OSError, RecursionError) as error:
            # The reader raises the error.
            return _unseen(self._directory, error)
        return foreign

    def name(self, error: BaseException) -> None:
        """Make an error name the given path of the directory, not `path`."""
        error.args = _renamed(error.args, str(self.path), str(self._directory))
        if isinstance(error, OSError) and isinstance(error.filename, str | PathLike):
            error.filename = _renamed(
                os.fspath(error.filename), str(self.path), str(self._directory)
            )

    def _judge_above(self, found: os.stat_result, now: Path) -> tuple[Foreign | None, bool]:
        """Return the mark in it or above, and whether only this user can enter one above."""
        marked, is_closed = _judge_mark(now, found, descriptor=self._descriptor), False
        up, at = "..", now
        while marked is None:
            # From the descriptor: its path may lead through another directory by now.
            above = os.stat(up, dir_fd=self._descriptor)
            if os.path.samestat(above, found):
                break
            at = at.parent
            marked = _judge_mark(at, above, descriptor=self._descriptor, below=up)
            is_closed = is_closed or _is_closed(above)
            up, found = f"{up}/..", above
        return marked, is_closed


@contextmanager
def hold_tree(directory: Path) -> Iterator[HeldTree]:
    """Hold a directory open for a copy until the block ends. Not collective.

    Errors of the block name its given path.

    Raises
    ------
    OSError
        If it cannot be opened, or is no directory.
    """
    walk = _Walk()
    try:
        try:
            descriptor = walk.enter(directory.absolute())
        except OSError as error:
            error.filename = str(directory)
            raise
        tree = HeldTree(directory, descriptor, walk.foreign_link)
        try:
            yield tree
        except Exception as error:
            tree.name(error)
            raise
    finally:
        walk.close()


class _Walk:
    """From the root down to a file, one open directory after the other."""

    def __init__(self) -> None:
        self.foreign: Foreign | None = None
        self.foreign_link: Foreign | None = None
        """The first link on the path that another user owns."""
        self._last_above: Foreign | None = None
        self._directory = -1
        self._at = Path("/")
        self._found: os.stat_result | None = None

    def open(self, path: Path) -> FileIO:
        name = self._follow(path)
        if name is None:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        return self._open_last(name)

    def enter(self, path: Path) -> int:
        """Return the descriptor of a directory, which lives until the walk is closed."""
        if self._follow(path) is not None:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return self._directory

    def _follow(self, path: Path) -> str | None:
        """Return the last name of a path in the directory reached; None if it is that directory."""
        todo = deque(path.parts)
        num_links = 0
        while todo:
            name = todo.popleft()
            if name == "/":
                self._enter(os.open("/", os.O_PATH | os.O_DIRECTORY), Path("/"))
                continue
            at = self._at / name
            descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=self._directory)
            found = os.fstat(descriptor)
            if stat.S_ISDIR(found.st_mode):
                self._enter(descriptor, at)
                continue
            try:
                if not stat.S_ISLNK(found.st_mode):
                    if todo:
                        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
                    return name
                num_links += 1
                if num_links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                # A link has no permissions of its own.
                foreign = judge(found.st_uid, 0, at)
                self._keep(foreign)
                self.foreign_link = self.foreign_link or foreign
                todo.extendleft(reversed(Path(os.readlink("", dir_fd=descriptor)).parts))
            finally:
                os.close(descriptor)
        return None

    def _open_last(self, name: str) -> FileIO:
        assert self._found is not None
        if self.foreign is self._last_above:
            # It was treated as one above.
            self.foreign = None
        # Here the sticky bit does not help: others could add files next to this one.
        self._keep(judge(self._found.st_uid, self._found.st_mode, self._at))
        file = open_regular(Path(name), directory=self._directory)
        found = os.fstat(file.fileno())
        self._keep(judge(found.st_uid, found.st_mode, self._at / name))
        return file

    def close(self) -> None:
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    def _enter(self, descriptor: int, at: Path) -> None:
        self.close()
        self._directory, self._at = descriptor, at
        self._found = os.fstat(descriptor)
        self._last_above = judge(self._found.st_uid, self._found.st_mode, at, is_above=True)
        self._keep(self._last_above)
        self._keep(_judge_mark(at, self._found, descriptor=descriptor))

    def _keep(self, foreign: Foreign | None) -> None:
        # The topmost one must be fixed first.
        self.foreign = self.foreign or foreign


def _judge_mark(
    directory: Path, found: os.stat_result, *, descriptor: int, below: str = "."
) -> Foreign | None:
    """Return the finding of the mark in a directory; `below` is its path from the descriptor."""
    mark = directory / COPIED_NAME
    try:
        status = os.stat(f"{below}/{COPIED_NAME}", dir_fd=descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        return _unseen(mark, error)
    is_shared = found.st_mode & stat.S_ISVTX and found.st_mode & _OTHERS_MAY_WRITE
    if is_shared and status.st_uid not in (os.geteuid(), _ROOT):
        # In /tmp any user could make all checkpoints of others need trust.
        return None
    return Foreign(path=mark, state="marks this as a copy of files that others can write")


def _judge_tree(
    path: Path, now: Path, found: os.stat_result, *, is_closed: bool, with_files: bool
) -> Foreign | None:
    """Check the file at `path`, through the descriptor; `now` is its path for others."""
    is_directory = stat.S_ISDIR(found.st_mode)
    # A file with a second name can be reached under that name.
    counts = not is_closed or not (is_directory or found.st_nlink == 1)
    if foreign := judge(found.st_uid, found.st_mode if counts else 0, now):
        return foreign
    if not is_directory:
        return None
    is_closed = is_closed or _is_closed(found)
    with os.scandir(path) as entries:
        for entry in entries:
            if not (with_files or entry.is_dir(follow_symlinks=False)):
                continue
            below = now / entry.name
            if entry.is_symlink():
                # All directories above count here, so no other user can have replaced one
                # meanwhile.
                foreign = _judge_link(below)
            else:
                foreign = _judge_tree(
                    path / entry.name,
                    below,
                    entry.stat(follow_symlinks=False),
                    is_closed=is_closed,
                    with_files=with_files,
                )
            if foreign:
                return foreign
    return None


def _is_closed(found: os.stat_result) -> bool:
    is_entered = found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    return found.st_uid in (os.geteuid(), _ROOT) and not is_entered


def _judge_link(path: Path) -> Foreign | None:
    if path.is_dir():
        return Foreign(path=path, state="is a link to a directory")
    file, foreign = open_judged(path)
    file.close()
    return foreign


def _unseen(path: Path, error: Exception) -> Foreign:
    return Foreign(path=path, state=f"cannot be checked: {error}")


def _renamed(value: Any, old: str, new: str) -> Any:
    if isinstance(value, str):
        return re.sub(rf"{re.escape(old)}(?![0-9])", lambda _: new, value)
    if type(value) in (tuple, list):
        return type(value)(_renamed(one, old, new) for one in value)
    return value


def name_of_user(uid: int) -> str:
    """Return the name and the number of a user. Not collective."""
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name} (user {uid})"
    except KeyError:
        return f"user {uid}"
