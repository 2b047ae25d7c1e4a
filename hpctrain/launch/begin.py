"""The one way in which ``fit()`` comes to a run: begins it, or finds what is there."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

from hpctrain.config import ExistingPolicy
from hpctrain.errors import ConfigError
from hpctrain.execute.fence import Fence
from hpctrain.launch.claim import claimed, release_claims
from hpctrain.launch.existing import Existing, decide_on_existing, policy_of
from hpctrain.launch.life import LifeTest, job_is_alive
from hpctrain.launch.request import Submission
from hpctrain.launch.storage import errors_of_storage
from hpctrain.log import log
from hpctrain.own_files import DIRECTORY_MODE
from hpctrain.rundir.files import fsync_directory
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import read_status
from hpctrain.rundir.trust import check_run_directory

_LONGEST_NAME = 200


def begin_or_find(
    submission: Submission,
    begin: Callable[[list[str]], None],
    policy: ExistingPolicy | None = None,
) -> Existing:
    """Begin a run, or find what is there under its name; return which of the two.

    Not collective.

    Parameters
    ----------
    begin
        Writes down that the run begins, given what has changed since it was begun; called while
        no other process can begin it.
    policy
        As in ``RunConfig(existing=...)``; None: the RunConfig's, or that of ``HPCTRAIN_EXISTING``.

    Raises
    ------
    ConfigError
        If the run that is there is refused.
    LaunchError
        If another process is at it, and does not get further.
    """
    paths, policy = submission.request.paths, policy or policy_of(submission.request.run_config)
    life = LifeTest(paths, job_is_alive)
    while True:
        existing, changes = decide_on_existing(paths, submission.spec, life, policy)
        if not existing.begins and existing is not Existing.RESTART:
            break
        with errors_of_storage(paths), claimed(paths):
            # Another process may have been quicker, and of a user who is not to be trusted.
            check_run_directory(paths.root)
            existing, changes = decide_on_existing(paths, submission.spec, life, policy)
            if existing.begins:
                # From here on an executor wrongly considered dead can no longer write.
                Fence(paths).take(paths)
                begin(changes)
                break
            if existing is Existing.RESTART:
                _move_aside(paths)
                # Once: what is there from now on is of a process that was quicker.
                policy = "auto"
    if existing is Existing.FINISHED and changes:
        log(
            f"run {paths.root.name} was finished before Slurm started this job again; what has "
            f"changed since is not run: {'; '.join(changes)}"
        )
    return existing


def _move_aside(paths: RunPaths) -> Path:
    """Move a run that is over out of the way, and log where it is; the caller holds the claim.

    Raises
    ------
    ConfigError
        If it cannot be moved.
    """
    root, status = paths.root, read_status(paths)
    try:
        aside = rename_aside(root)
    except OSError as error:
        raise ConfigError(
            f"run {root.name!r} in {root.parent} cannot be moved aside: {error.strerror or error}. "
            f"Choose another RunConfig(name=...)."
        ) from error
    release_claims(RunPaths(aside))
    fsync_directory(root.parent)
    state = "" if status is None else f" ({status.state.value})"
    log(f"beginning run {root.name} anew; the earlier one{state} was moved to {aside}")
    return aside


def rename_aside(root: Path) -> Path:
    """Give a directory an unused name beside it, with the time; return it. Not collective."""
    base = f"{root.name[:_LONGEST_NAME]}.{time.strftime('%Y%m%d-%H%M%S')}"
    number = 1
    while True:
        aside = root.with_name(base if number == 1 else f"{base}-{number}")
        number += 1
        if root.is_symlink():
            if os.path.lexists(aside):
                continue
            os.rename(root, aside)
            return aside
        try:
            # rename() replaces an empty directory, so this one is ours before.
            aside.mkdir(DIRECTORY_MODE)
        except FileExistsError:
            continue
        try:
            os.rename(root, aside)
        except OSError as error:
            aside.rmdir()
            if error.errno == errno.ENOTEMPTY:
                continue
            raise
        return aside
