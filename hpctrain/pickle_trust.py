"""Which pickles of checkpoints may be opened, since opening one runs code.

There are three ways: nobody but this user can have written the file (`hpctrain.writers`), this
process has made the same bytes itself, or the reader says that they are trusted.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from contextlib import suppress
from os import PathLike
from pathlib import Path

from hpctrain.errors import CheckpointError
from hpctrain.writers import Foreign

# Digests of what this process has made, or the one that sent it its work: no code runs that has not
# run there already.
_made: set[str] = set()
# Of what this process has made: no other file has to be read to know that it is none of these.
_sizes: set[int] = set()


def remember(content: bytes) -> None:
    """Let this process open what it has just made. Not collective."""
    _made.add(digest(content))
    _sizes.add(len(content))


def remember_digests(digests: Iterable[str]) -> None:
    """Let this process open what the one that sent it its work has made. Not collective."""
    _made.update(digests)


def digest(content: bytes) -> str:
    """Return what `remember` knows some bytes by. Not collective."""
    # Ranks import this module too, and most make no digest: hashlib loads OpenSSL.
    import hashlib

    return hashlib.sha256(content).hexdigest()


def is_made_here(content: bytes) -> bool:
    """Return whether this process has made the same bytes, or the one that sent it its work.

    Not collective.
    """
    return bool(_made) and digest(content) in _made


def made_here_in(directory: str | PathLike[str]) -> frozenset[str]:
    """Return the digests of those files in a directory that this process has made.

    Not collective. `remember_digests` lets another process open them too.
    """
    digests: set[str] = set()
    paths: list[Path] = []
    # It may be deleted: whoever reads it says so.
    with suppress(OSError):
        paths = [*Path(directory).iterdir()]
    for path in paths:
        with suppress(OSError):
            if path.is_file() and path.stat().st_size in _sizes:
                digests.add(digest(path.read_bytes()))
    return frozenset(digests & _made)


def refusal(
    where: str | PathLike[str],
    foreign: Foreign | None,
    *,
    what: str = "a pickle",
    argument: str = "trusted=True",
) -> CheckpointError:
    """Return the error for what may not be opened. Not collective.

    Parameters
    ----------
    where
        What holds it: a checkpoint's directory, or a file.
    foreign
        Why somebody else can have written it; None if nothing is known of that.
    what
        What it holds.
    argument
        What the reader can say.
    """
    text = advice(where, foreign, argument=argument)
    return CheckpointError(f"{where} holds {what}; opening it runs code. {text}")


def advice(
    where: str | PathLike[str], foreign: Foreign | None, *, argument: str = "trusted=True"
) -> str:
    """Return why something may not be opened, and what to do. Not collective.

    Parameters
    ----------
    where, foreign, argument
        As of `refusal`.
    """
    if foreign is None:
        return f"If you trust where it comes from, open it with {argument}."
    reason = f"It may be somebody else's: {foreign.path} {foreign.state}."
    # Either may have links in it, and one be relative.
    found, whole = Path(os.path.realpath(foreign.path)), Path(os.path.realpath(where))
    if whole in (found, *found.parents):
        if foreign.is_mended_by_chmod:
            # All files that a training function wrote have the mode of its umask.
            command = f"chmod -R go-w {shlex.quote(str(where))}"
            reason += f" If all in it is your own: {command}."
    elif foreign.is_above:
        # Others may need to write there: no permission of theirs is to be taken away.
        reason += " Keep it in a directory in which only you can write"
        if command := foreign.command:
            reason += f", or let nobody replace what is yours there: {command}"
        reason += "."
    elif command := foreign.command:
        reason += f" If all in it is your own: {command}."
    return f"{reason} If you trust all who can write there, open it with {argument}."
