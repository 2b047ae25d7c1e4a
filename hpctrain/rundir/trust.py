"""Who may write what this user runs: the run directory, and the files in it that are pickles."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from hpctrain import environ
from hpctrain.bulk.unreadable import is_passing
from hpctrain.errors import ConfigError, DamagedFileError
from hpctrain.regular_file import open_regular
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import damaged
from hpctrain.writers import judge

_INSTEAD = "another name or storage_path"
_MOST_BYTES = 64 * 2**30


def check_run_directory(root: Path, *, instead: str = _INSTEAD) -> None:
    """Return if only this user can write into a run directory, or there is none.

    Not collective.

    Parameters
    ----------
    instead
        What can be chosen in its place.

    Raises
    ------
    ConfigError
        If it belongs to another user, or its group or others can write into it.
    """
    try:
        found = os.lstat(root)
        target = os.stat(root) if stat.S_ISLNK(found.st_mode) else found
    except OSError:
        # The error comes when it is opened.
        return
    if target is not found:
        # It leads wherever its owner likes, such as to another run of this user.
        _check(found.st_uid, 0, root, what="link to a run directory", instead=instead)
    check_owner(target, root, what="run directory", instead=instead)


def check_owner(found: os.stat_result, path: Path, *, what: str, instead: str = _INSTEAD) -> None:
    """Return if only this user can write a file, or into a directory. Not collective.

    Access control lists count too: their mask stands in for the mode of the group.

    Parameters
    ----------
    found
        Of `path`.
    what
        What it is, for the error.
    instead
        What can be chosen in its place.

    Raises
    ------
    ConfigError
        If another user can.
    """
    _check(found.st_uid, found.st_mode, path, what=what, instead=instead)


def _check(uid: int, mode: int, path: Path, *, what: str, instead: str = _INSTEAD) -> None:
    foreign = judge(uid, mode, path)
    if foreign is None or environ.trusts_writers():
        return
    first = "Choose"
    if foreign.is_mended_by_chmod:
        mend = f"chmod -R go-w {shlex.quote(str(path))}"
        first = f"If all in it is your own: {mend}\nOtherwise choose"
    raise ConfigError(
        f"the {what} {path} {foreign.state}: what another user writes there would run as you.\n"
        f"{first} {instead}. Only if you trust all who can write there: set "
        f"HPCTRAIN_TRUST_WRITERS=1."
    )


def read_own(path: Path) -> bytes:
    """Return the content of a pickle that only this user has written. Not collective.

    Raises
    ------
    FileNotFoundError
        If there is none.
    ConfigError
        If it belongs to another user, or others can write it.
    DamagedFileError
        If it is not a regular file, too large, or this user cannot read it.
    """
    try:
        with open_regular(path) as file:
            found = os.fstat(file.fileno())
            check_owner(found, path, what="file")
            if found.st_size > _MOST_BYTES:
                raise damaged(path, f"it has {found.st_size} bytes")
            return file.readall()
    except OSError as error:
        if isinstance(error, FileNotFoundError) or is_passing(error):
            raise
        raise damaged(path, error.strerror or str(error)) from error


def read_spec(paths: RunPaths, *, digest: str | None = None) -> bytes:
    """Return the content of ``spec.pkl``, which is code. Not collective.

    Parameters
    ----------
    digest
        That of what was submitted, where that is known.

    Raises
    ------
    ConfigError
        If another user could have written it.
    DamagedFileError
        If it is something else than was submitted.
    """
    if digest is None:
        check_run_directory(paths.root)
    content = read_own(paths.spec)
    if digest is not None and digest != digest_spec(content):
        raise DamagedFileError(
            f"{paths.spec} is not what was submitted: it has been replaced or changed since. "
            f"Nothing of it was run. fit() writes it again."
        )
    return content


def digest_spec(content: bytes) -> str:
    """Return what a ``spec.pkl`` is known by. Not collective."""
    # Ranks import this module too, and only one of them makes a digest: hashlib loads OpenSSL.
    import hashlib

    return hashlib.sha256(content).hexdigest()
