"""Runs on disk: the one that is meant by a name or a directory, and all in a storage path."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from hpctrain.errors import ConfigError
from hpctrain.rundir.paths import RunPaths


def find_run(run: Path, storage: Path) -> RunPaths:
    """Return the paths of a run that is named by its directory, or by its name in `storage`.

    Not collective.

    Raises
    ------
    ConfigError
        If there is no such run.
    """
    for root in (run, storage / run):
        if is_run(root):
            return RunPaths(root.absolute())
    from hpctrain.cli.closed_runs import refuse_closed
    from hpctrain.rundir.sweep import is_sweep

    for root in (run, storage / run):
        refuse_closed(root)
        if is_sweep(root):
            raise ConfigError(
                f"{root} is a sweep, and each of its trials is a run: give one of them, such as "
                f"{shlex.quote(str(root / 'trial_00000'))}. "
                f"They are listed by: hpctrain tune status {shlex.quote(str(root))}   All of them "
                f"are stopped by: hpctrain tune stop {shlex.quote(str(root))}"
            )
    known = ", ".join(path.name for path in find_runs(storage)[:8])
    there = f"It has {known}." if known else "It has no runs."
    raise ConfigError(
        f"{run} is not a run directory, and there is no run {run} in {storage.absolute()}. {there} "
        f"Give the directory of the run, or --storage with the storage_path it was begun with."
    )


def find_runs(storage: Path) -> list[Path]:
    """Return the directories of the runs in `storage`, the newest first. Not collective."""
    try:
        runs = [path for path in storage.iterdir() if is_run(path)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(runs, key=begun_at, reverse=True)


def begun_at(root: Path) -> float:
    """Return when a run was begun, or resumed, last; 0 if it is gone. Not collective."""
    try:
        return os.lstat(RunPaths(root).plan).st_mtime
    except OSError:
        # Removed meanwhile.
        return 0.0


def is_run(root: Path) -> bool:
    """Return whether a directory is that of a run. Not collective."""
    # Any kind of file, also an unreadable one of another user.
    paths = RunPaths(root)
    return os.path.lexists(paths.plan) or os.path.lexists(paths.status)
