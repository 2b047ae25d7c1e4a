"""Directories that may be runs, but into which this user may not look, and whose they are."""

from __future__ import annotations

import os
from pathlib import Path

from hpctrain.errors import ConfigError
from hpctrain.rundir.closed import describe_closed
from hpctrain.rundir.paths import RunPaths

_MOST = 3


def refuse_closed(root: Path) -> None:
    """Refuse what may be a run, but of which this user may not see whether it is.

    Not collective.

    Raises
    ------
    ConfigError
        If it is closed; with the owner and the mode of the directory that is.
    """
    if why := explain_closed(root):
        raise ConfigError(
            f"{why} Its owner can let you: chmod -R g+rX on it, and g+x on the directories above."
        )


def explain_closed(root: Path) -> str:
    """Return why it cannot be seen whether a directory is that of a run; empty if it can.

    Not collective.
    """
    try:
        os.lstat(RunPaths(root).plan)
    except PermissionError as error:
        return (
            f"{root} may be a run, but user {os.geteuid()} may not look into it "
            f"({error.strerror}): {describe_closed(root)}."
        )
    except OSError:
        pass
    return ""


def say_closed(storage: Path) -> None:
    """Print which directories of runs are left out because they are closed. Not collective."""
    from hpctrain.cli.exit_codes import say

    try:
        found = sorted(filter(None, map(explain_closed, storage.iterdir())))
    except OSError:
        # The error comes when the runs are searched.
        return
    for why in found[:_MOST]:
        say(f"warning: {why}")
    if (more := len(found) - _MOST) > 0:
        say(f"warning: and {more} more.")
