"""Which pickles of checkpoints may be opened, since opening one runs code.

One of three conditions suffices: only this user can have written the file (`hpctrain.writers`),
this process has created the same bytes itself, or the reader declares them trusted.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from contextlib import suppress
from os import PathLike
from pathlib import Path

from hpctrain.errors import CheckpointError
from hpctrain.writers import Foreign, read_judged

# Digests of pickles from this process, or from the process that sent its work: opening them runs
# only code that has already run there.
_made: set[str] = set()
# Sizes of the pickles from this process: a file of another size need not be read.
_sizes: set[int] = set()


def remember(content: bytes) -> None:
    """Let this process open bytes that it has just created. Not collective."""
    _made.add(digest(content))
    _sizes.add(len(content))


def remember_digests(digests: Iterable[str]) -> None:
    """Let this process open bytes from the process that sent its work. Not collective."""
    _made.update(digests)


def digest(content: bytes) -> str:
    """Return the digest by which `remember` identifies bytes. Not collective."""
    # Ranks import this module too, and most compute no digest: hashlib loads OpenSSL.
    import hashlib

    return hashlib.sha256(content).hexdigest()


def is_made_here(content: bytes) -> bool:
    """Return whether this process, or the one that sent its work, created the same bytes.

    Not collective.
    """
    return bool(_made) and digest(content) in _made


def made_here_in(directory: str | PathLike[str]) -> frozenset[str]:
    """Return the digests of the files in a directory that this process created.

    Not collective. `remember_digests` lets another process open them too.
    """
    digests: set[str] = set()
    paths: list[Path] = []
    # It may be deleted: its reader raises the error.
    with suppress(OSError):
        paths = [*Path(directory).iterdir()]
    for path in paths:
        with suppress(OSError):
            if path.is_file() and path.stat().st_size in _sizes:
                digests.add(digest(path.read_bytes()))
    return frozenset(digests & _made)


def read_pickle(path: Path, *, trusted: bool, what: str, argument: str = "trusted=True") -> bytes:
    """Return the bytes of a pickle that may be opened. Not collective.

    Parameters
    ----------
    trusted
        Whether it may be opened though another user can have written it.
    what, argument
        As of `refusal`.

    Raises
    ------
    CheckpointError
        If it cannot be read, or another user may have written it and it is not trusted.
    """
    try:
        content, foreign = read_judged(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    if not (trusted or foreign is None):
        raise refusal(path, foreign, what=what, argument=argument)
    return content


def refusal(
    where: str | PathLike[str],
    foreign: Foreign | None,
    *,
    what: str = "a pickle",
    argument: str = "trusted=True",
) -> CheckpointError:
    """Return the error for a pickle that may not be opened. Not collective.

    Parameters
    ----------
    where
        Its container: a checkpoint's directory, or a file.
    foreign
        Why another user can have written it; None if unknown.
    what
        What it holds.
    argument
        The argument that the reader can pass.
    """
    text = advice(where, foreign, argument=argument)
    return CheckpointError(f"{where} holds {what}; opening it runs code. {text}")


def advice(
    where: str | PathLike[str], foreign: Foreign | None, *, argument: str = "trusted=True"
) -> str:
    """Return why a pickle may not be opened, and the next step. Not collective.

    Parameters
    ----------
    where, foreign, argument
        As of `refusal`.
    """
    if foreign is None:
        return f"If you trust its origin, open it with {argument}."
    reason = f"Another user may have written it: {foreign.path} {foreign.state}."
    # Both may contain links, and one may be relative.
    found, whole = Path(os.path.realpath(foreign.path)), Path(os.path.realpath(where))
    if whole in (found, *found.parents):
        if foreign.is_mended_by_chmod:
            # Files of a training function have the mode of its umask.
            command = f"chmod -R go-w {shlex.quote(str(where))}"
            reason += f" If all in it is your own: {command}."
    elif foreign.is_above:
        # Others may need to write there: their permissions must stay.
        reason += " Keep it in a directory in which only you can write"
        if command := foreign.command:
            reason += f", or prevent others from replacing your files there: {command}"
        reason += "."
    elif command := foreign.command:
        reason += f" If all in it is your own: {command}."
    return f"{reason} If you trust everyone who can write there, open it with {argument}."
