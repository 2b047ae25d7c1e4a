"""Which files of a working tree are part of a patch: within limits of size, number and time."""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from hpctrain import timeouts

MOST_FILE_BYTES = 4 * 2**20
"""A larger file is not part of a patch."""
MOST_PATCH_BYTES = 32 * 2**20
"""Of the files of a patch together, before and after."""
_MOST_FILES = 2000
_TOO_MANY = f"beyond {_MOST_FILES} files together"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A file that may be part of a patch."""

    path: str
    """From the top of the tree."""
    is_tracked: bool = False
    committed: int = 0
    """Bytes that it has in the commit."""
    folder: str = field(default="", init=False)
    """Directory of an untracked file; all others are chosen together."""

    def __post_init__(self) -> None:
        if not self.is_tracked:
            object.__setattr__(self, "folder", os.path.dirname(self.path))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What is part of a patch, and what is not."""

    tracked: Sequence[str]
    untracked: Sequence[str]
    files: dict[str, str | None]
    """SHA-256 of each of them, by path; None of one that was deleted."""
    left_out: Sequence[tuple[str, str]]
    """Path and reason."""


class _Clock:
    """Says when no more files are looked at."""

    def __init__(self) -> None:
        self._end = monotonic() + timeouts.CODE_FILES_S
        self.why = f"not looked at within {timeouts.describe(timeouts.CODE_FILES_S)}"

    @property
    def is_over(self) -> bool:
        return monotonic() >= self._end


def choose(top: str, candidates: Iterable[Candidate]) -> Choice:
    """Return which files are part of a patch. Not collective.

    Parameters
    ----------
    top
        Directory of the tree.
    candidates
        Those that come first are preferred; of one directory, the small ones are.
    """
    clock = _Clock()
    chosen: list[Candidate] = []
    files: dict[str, str | None] = {}
    left_out: list[tuple[str, str]] = []
    total = 0
    for _, group in itertools.groupby(candidates, key=lambda each: (each.is_tracked, each.folder)):
        if len(chosen) == _MOST_FILES:
            left_out += [(candidate.path, _TOO_MANY) for candidate in group]
            continue
        sized = []
        for candidate in group:
            size = clock.why if clock.is_over else _size(Path(top), candidate)
            if isinstance(size, str):
                left_out.append((candidate.path, size))
            elif size is not None:
                sized.append((size, candidate))
        for size, candidate in sorted(sized, key=lambda pair: pair[0]):
            if len(chosen) == _MOST_FILES:
                left_out.append((candidate.path, _TOO_MANY))
            elif total + size > MOST_PATCH_BYTES:
                why = f"{_show_size(size)}, beyond the limit of all together"
                left_out.append((candidate.path, why))
            elif clock.is_over:
                left_out.append((candidate.path, clock.why))
            else:
                digest = digest_file(Path(top, candidate.path))
                if digest is None and not candidate.is_tracked:
                    # It is gone.
                    continue
                files[candidate.path] = digest
                chosen.append(candidate)
                total += size
    return Choice(
        tracked=[candidate.path for candidate in chosen if candidate.is_tracked],
        untracked=[candidate.path for candidate in chosen if not candidate.is_tracked],
        files=files,
        left_out=left_out,
    )


def digest_file(path: Path) -> str | None:
    """Return the SHA-256 of a file, or of the path in a link; None if it is gone.

    Not collective.
    """
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            content = os.fsencode(os.readlink(path))
        elif stat.S_ISREG(mode):
            content = path.read_bytes()
        else:
            # A pipe would be waited for.
            return None
    except OSError:
        return None
    return hashlib.sha256(content).hexdigest()


def _size(top: Path, candidate: Candidate) -> int | str | None:
    """Return the bytes before and after the change, why a file is left out, or None if it is gone.

    Not collective.
    """
    try:
        state = os.lstat(top / candidate.path)
    except OSError:
        return candidate.committed if candidate.is_tracked else None
    is_file = stat.S_ISREG(state.st_mode)
    # A directory is a submodule, or in place of a file.
    if not (is_file or stat.S_ISLNK(state.st_mode) or stat.S_ISDIR(state.st_mode)):
        return "it is neither a file nor a link"
    if is_file and not os.access(top / candidate.path, os.R_OK):
        return "it cannot be read"
    size = candidate.committed + (state.st_size if is_file else 0)
    return size if size <= MOST_FILE_BYTES else _show_size(size)


def _show_size(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
