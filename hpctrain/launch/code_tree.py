"""The working tree of a script: its commit, and its uncommitted changes as a patch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpctrain.launch.code_choice import Candidate, choose
from hpctrain.launch.code_diff import diff_tracked, diff_untracked, find_large
from hpctrain.launch.code_untracked import list_untracked
from hpctrain.launch.git import Git, GitError


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A tracked file that differs from the commit."""

    path: str
    """From the top of the tree."""
    blob: str = ""
    """Object of the commit; empty where it has none."""


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
    untracked, unlisted = list_untracked(lists, state.top, without)
    choice = choose(
        state.top, [*_tracked(git, state), *(Candidate(path=path) for path in untracked)]
    )
    large = find_large(git, [*choice.tracked, *choice.untracked])
    tracked = [path for path in choice.tracked if path not in large]
    new = [path for path in choice.untracked if path not in large]
    content = diff_tracked(git, state.top, state.commit, tracked)
    try:
        added, taken = diff_untracked(git, new)
        why = "git refuses its name"
    except (GitError, OSError) as error:
        added, taken, why = b"", frozenset(), str(error)
    left_out = [
        *state.left_out,
        *choice.left_out,
        *((path, "its content is with Git LFS") for path in choice.files if path in large),
        *((path, why) for path in new if path not in taken),
        *unlisted,
    ]
    files = {path: choice.files[path] for path in (*tracked, *(p for p in new if p in taken))}
    return Patch(content=content + added, files=files, left_out=tuple(left_out))


def _tracked(git: Git, state: TreeState) -> list[Candidate]:
    """Return the tracked files that changed, with the size that each has in the commit."""
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
    return [
        Candidate(path=change.path, is_tracked=True, committed=sizes.get(change.blob, 0))
        for change in state.changed
    ]
