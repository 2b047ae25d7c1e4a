"""Patches of files of a working tree, made with an index that is not the user's.

Git writes its index when it compares files, also where it is asked for no locks, and
``git add --intent-to-add`` writes an object. An index in a temporary directory needs neither.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence

from hpctrain.launch.git import Git, GitError

_DIFF = (
    *("diff", "--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv"),
    *("--no-renames", "--no-relative", "--unified=3", "--src-prefix=a/", "--dst-prefix=b/"),
    *("--submodule=short", "--ignore-submodules=dirty"),
)
# Paths of at most 4 KiB each; Linux allows 2 MiB.
_MOST_WORDS = 300


def diff_tracked(git: Git, top: str, commit: str | None, paths: Sequence[str]) -> bytes:
    """Return the patch of tracked files. Not collective.

    Parameters
    ----------
    git
        Runs at the top of the tree.
    top
        Directory of the tree.
    commit
        What they are compared with; None without one.
    paths
        From the top of the tree.

    Raises
    ------
    GitError
        If git does not answer.
    """
    if not paths:
        return b""
    base = commit or _empty_tree(git)
    with copied_index(git, top) as variables:
        return b"".join(
            git.run(*_DIFF, base, "--", *paths[start : start + _MOST_WORDS], variables=variables)
            for start in range(0, len(paths), _MOST_WORDS)
        )


def diff_untracked(git: Git, paths: Sequence[str]) -> tuple[bytes, frozenset[str]]:
    """Return the patch of untracked files, and which of them it takes.

    Not collective. Files that are gone are not in the patch.

    Parameters
    ----------
    git, paths
        As in `diff_tracked`.

    Raises
    ------
    GitError
        If git does not answer.
    OSError
        If there is no place for temporary files.
    """
    if not paths:
        return b"", frozenset()
    blob = git.run("hash-object", "-t", "blob", "--stdin").strip()
    entries = b"".join(b"100644 %b\t%b\0" % (blob, os.fsencode(path)) for path in paths)
    with tempfile.TemporaryDirectory() as folder:
        variables = {"GIT_INDEX_FILE": os.path.join(folder, "index")}
        git.run("update-index", "-z", "--index-info", stdin=entries, variables=variables)
        # A path such as git~1 is ignored, with a warning.
        taken = os.fsdecode(git.run("ls-files", "-z", variables=variables)).split("\0")
        content = git.run(*_DIFF, _empty_tree(git), "--", variables=variables)
        return content, frozenset(taken[:-1])


def names_of_differing(git: Git, top: str, commit: str) -> list[str]:
    """Return the tracked files of a tree that differ from a commit, by path. Not collective.

    Raises
    ------
    GitError
        If git does not answer, or does not have the commit.
    """
    words = ("diff", "--name-only", "-z", "--no-renames", "--no-relative", commit, "--")
    with copied_index(git, top) as variables:
        answer = git.run(*words, variables=variables)
    return [os.fsdecode(path) for path in answer.split(b"\0") if path]


def find_large(git: Git, paths: Sequence[str]) -> frozenset[str]:
    """Return the files whose content is with Git LFS, and a pointer in git. Not collective.

    Parameters
    ----------
    git, paths
        As in `diff_tracked`.

    Raises
    ------
    GitError
        If git does not answer.
    """
    if not paths:
        return frozenset()
    asked = b"".join(b"%b\0" % os.fsencode(path) for path in paths)
    answer = os.fsdecode(git.run("check-attr", "-z", "--stdin", "filter", stdin=asked)).split("\0")
    # PATH filter VALUE, again and again.
    return frozenset(
        path for path, value in zip(answer[::3], answer[2::3], strict=False) if value == "lfs"
    )


@contextlib.contextmanager
def copied_index(git: Git, top: str) -> Iterator[Mapping[str, str]]:
    """Copy the index of a tree while the block runs; yield the variables that lead git to it.

    Not collective.

    Raises
    ------
    GitError
        If it cannot be copied.
    """
    index = os.fsdecode(git.run("rev-parse", "--git-path", "index").removesuffix(b"\n"))
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "index")
        try:
            # With its time: git compares the content of files that are as new as their index.
            shutil.copy2(os.path.join(top, index), copy)
        except FileNotFoundError:
            # A repository to which nothing was added yet.
            pass
        except OSError as error:
            raise GitError(f"the index of {top} cannot be read: {error.strerror}") from error
        yield {"GIT_INDEX_FILE": copy}


def _empty_tree(git: Git) -> str:
    return git.run("hash-object", "-t", "tree", "--stdin").decode().strip()
