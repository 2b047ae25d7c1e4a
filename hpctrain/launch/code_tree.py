"""The working tree of a script: its commit, and its uncommitted changes as a patch."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpctrain.launch.code_diff import diff_tracked, diff_untracked
from hpctrain.launch.git import Git, GitError

MOST_FILE_BYTES = 4 * 2**20
"""A larger file is not part of a patch."""
MOST_PATCH_BYTES = 32 * 2**20
"""Of the files of a patch together, before and after."""
_MOST_FILES = 2000
_MOST_LISTED_BYTES = 4 * 2**20
# They hold what is no code: an environment, a run of hpctrain.
_MARKS_OF_DIRECTORIES = {"pyvenv.cfg": "an environment", "spec.pkl": "a run"}


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A file that differs from the commit."""

    path: str
    """From the top of the tree."""
    blob: str = ""
    """Object of the commit; empty where it has none."""
    is_tracked: bool = True


@dataclass(frozen=True, kw_only=True)
class TreeState:
    """The commit of a working tree, and its tracked files that differ from it."""

    top: str
    """Directory of the tree."""
    commit: str | None
    """None in a repository without one."""
    branch: str | None
    """None where no branch is checked out."""
    changed: tuple[Changed, ...]
    left_out: tuple[tuple[str, str], ...]
    """Path and reason of what no patch can hold."""

    @property
    def is_dirty(self) -> bool:
        """Whether a tracked file differs from the commit."""
        return bool(self.changed or self.left_out)

    @property
    def shown_commit(self) -> str | None:
        """The commit, with ``-dirty`` if a tracked file differs from it."""
        if self.commit is None:
            return None
        return f"{self.commit}-dirty" if self.is_dirty else self.commit


@dataclass(frozen=True, kw_only=True)
class Patch:
    """The uncommitted changes of a working tree."""

    content: bytes
    """For ``git apply``; empty without changes."""
    files: dict[str, str | None]
    """SHA-256 of each file in it, by path; None of one that was deleted."""
    left_out: tuple[tuple[str, str], ...]
    """Path and reason."""


def read_state(git: Git, top: str) -> TreeState:
    """Return the commit and the changed files of a tree. Not collective.

    Parameters
    ----------
    git
        Runs at the top of the tree.

    Raises
    ------
    GitError
        If git does not answer.
    """
    answer = git.run(
        *("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=no"),
        "--ignore-submodules=none",
    )
    commit = branch = None
    changed: list[Changed] = []
    left_out: list[tuple[str, str]] = []
    for entry in answer.decode("utf-8", "surrogateescape").split("\0"):
        kind, _, rest = entry.partition(" ")
        if entry.startswith("# branch.oid "):
            commit = None if entry.endswith(" (initial)") else entry.split(" ")[2]
        elif entry.startswith("# branch.head "):
            name = entry.split(" ", 2)[2]
            branch = None if name == "(detached)" else name
        elif kind == "1":
            _, submodule, _, _, _, blob, _, path = rest.split(" ", 7)
            if submodule[0] == "S" and submodule[2:] != "..":
                left_out.append((path, "changes inside a submodule"))
            if submodule[0] != "S" or submodule[1] == "C":
                is_new = not blob.strip("0")
                changed.append(Changed(path=path, blob="" if is_new else blob))
        elif kind == "u":
            left_out.append((rest.split(" ", 9)[9], "a conflict of a merge"))
    return TreeState(
        top=top,
        commit=commit,
        branch=branch,
        changed=tuple(changed),
        left_out=tuple(left_out),
    )


def make_patch(git: Git, state: TreeState, *, lists: Git, without: Sequence[str] = ()) -> Patch:
    """Return the uncommitted changes of a tree: with untracked files that git does not ignore.

    Not collective. Nothing of the repository is changed.

    Parameters
    ----------
    git
        Runs at the top of the tree.
    lists
        The same, to list untracked files: if that takes too long, the tracked ones are a patch.
    without
        Directories below the top whose untracked files are no code.

    Raises
    ------
    GitError
        If git does not answer.
    """
    untracked, unlisted = _list_untracked(lists, without)
    left_out = [*state.left_out, *unlisted]
    chosen, too_large = _choose(Path(state.top), [*_with_sizes(git, state), *untracked])
    left_out += too_large
    if not chosen:
        return Patch(content=b"", files={}, left_out=tuple(left_out))
    tracked = [change.path for change in chosen if change.is_tracked]
    new = [change.path for change in chosen if not change.is_tracked]
    content = diff_tracked(git, state.top, state.commit, tracked)
    try:
        added, taken = diff_untracked(git, new)
        why = "git refuses its name"
    except (GitError, OSError) as error:
        added, taken, why = b"", frozenset(), str(error)
    left_out += [(path, why) for path in new if path not in taken]
    new = [path for path in new if path in taken]
    files = {path: _digest(Path(state.top, path)) for path in (*tracked, *new)}
    return Patch(content=content + added, files=files, left_out=tuple(left_out))


def digest_file(path: Path) -> str | None:
    """Return the SHA-256 of a file, or of what a link leads to; None if it is gone.

    Not collective.
    """
    return _digest(path)


def _list_untracked(
    git: Git, without: Sequence[str]
) -> tuple[list[tuple[Changed, int]], list[tuple[str, str]]]:
    patterns = [f"--exclude=/{_escape(folder)}/" for folder in without]
    try:
        answer = git.run(
            *("ls-files", "--others", "--exclude-standard", "-z", "--exclude=__pycache__/"),
            *patterns,
            most_bytes=_MOST_LISTED_BYTES,
        )
    except GitError as error:
        return [], [("all files that git does not know", str(error))]
    paths = [path for path in os.fsdecode(answer).split("\0") if path]
    marked = {
        os.path.dirname(path): what
        for path in paths
        if (what := _MARKS_OF_DIRECTORIES.get(os.path.basename(path))) and os.path.dirname(path)
    }
    left_out = [(f"{folder}/", what) for folder, what in marked.items()]
    found = []
    for path in paths:
        if path.endswith("/"):
            left_out.append((path, "a repository of its own"))
        elif not any(folder in marked for folder in _above(path)):
            found.append((Changed(path=path, is_tracked=False), 0))
    return found, left_out


def _above(path: str) -> Iterator[str]:
    while path := os.path.dirname(path):
        yield path


def _escape(folder: str) -> str:
    """Return a path as a pattern of ``.gitignore`` that stands for it alone."""
    return "".join(f"\\{letter}" if letter in "\\*?[ " else letter for letter in folder)


def _with_sizes(git: Git, state: TreeState) -> Iterator[tuple[Changed, int]]:
    """Yield the tracked files that changed, with the size that each has in the commit."""
    blobs = [change.blob for change in state.changed if change.blob]
    sizes: dict[str, int] = {}
    if blobs:
        answer = git.run(
            "cat-file", "--batch-check", stdin="".join(f"{blob}\n" for blob in blobs).encode()
        )
        for line in answer.decode().splitlines():
            # OBJECT blob SIZE; of the commit of a submodule: OBJECT missing.
            words = line.split()
            if len(words) == 3 and words[2].isdigit():
                sizes[words[0]] = int(words[2])
    for change in state.changed:
        yield change, sizes.get(change.blob, 0)


def _choose(
    top: Path, changes: Iterable[tuple[Changed, int]]
) -> tuple[list[Changed], list[tuple[str, str]]]:
    """Return the changes that fit into a patch, small ones first, and what is left out."""
    sized, left_out = [], []
    for change, committed in changes:
        try:
            state = os.lstat(top / change.path)
        except OSError:
            if not change.is_tracked:
                continue
            size = committed
        else:
            is_file = stat.S_ISREG(state.st_mode)
            if is_file and not os.access(top / change.path, os.R_OK):
                left_out.append((change.path, "it cannot be read"))
                continue
            size = committed + (state.st_size if is_file else 0)
        if size > MOST_FILE_BYTES:
            left_out.append((change.path, _show_size(size)))
        else:
            sized.append((size, change))
    sized.sort(key=lambda pair: (not pair[1].is_tracked, pair[0]))
    chosen: list[Changed] = []
    total = 0
    for size, change in sized:
        if total + size > MOST_PATCH_BYTES or len(chosen) == _MOST_FILES:
            left_out.append((change.path, f"{_show_size(size)}, beyond the limit of all together"))
        else:
            chosen.append(change)
            total += size
    return chosen, left_out


def _show_size(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def _digest(path: Path) -> str | None:
    try:
        if path.is_symlink():
            content = os.fsencode(os.readlink(path))
        else:
            content = path.read_bytes()
    except OSError:
        return None
    return hashlib.sha256(content).hexdigest()
