"""A committed checkpoint of one run becomes one of another, without a copy where possible."""

from __future__ import annotations

import stat
from pathlib import Path

from hpctrain.checkpoint_lock import hold_for_reading
from hpctrain.errors import CheckpointError
from hpctrain.log import log_once
from hpctrain.rundir.files import fsync_file
from hpctrain.rundir.manifest import DamagedManifestError, Manifest, read_manifest
from hpctrain.rundir.shared_staging import SharedStaging
from hpctrain.rundir.staging import StagedPart, shared_directory, staging_directory
from hpctrain.rundir.store import CheckpointStore
from hpctrain.writers import hold_tree

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def clone_checkpoint(source: Path, checkpoints: Path, *, report: int, attempt: int) -> Manifest:
    """Commit a checkpoint of another run as that of a report, and return its new manifest.

    Not collective; no process may be at work on the run that gets it. Its files share their blocks
    with the other's (reflink) or are the same ones (hard links) where the filesystem can do so, and
    are copied elsewhere. What has the report's number already stays until the clone is complete,
    which takes its name.

    Parameters
    ----------
    source
        The checkpoint.
    checkpoints
        ``checkpoints/`` of the run that gets it.
    report
        Number of the last report of that run.
    attempt
        Number of its last attempt.

    Raises
    ------
    CheckpointError
        If there is no complete checkpoint at `source`: each file of its manifest is needed.
    OSError
        If it cannot be read, or the clone not be written.
    """
    with hold_for_reading(source):
        try:
            manifest = read_manifest(source)
        except DamagedManifestError as error:
            raise CheckpointError(f"{source} is no checkpoint: {error}.") from error
        store = CheckpointStore(checkpoints)
        store.prepare()
        replaced = [known.name for known in store.manifests() if known.report == report]
        staging = _stage(source, checkpoints, report=report, attempt=attempt)
        lost = sorted({file.path for file in manifest.files} - staging.paths.keys())
        if lost:
            store.abandon(attempt=attempt, report=report)
            raise CheckpointError(f"checkpoint {source.name} has lost {source / lost[0]}.")
        for path in staging.paths.values():
            # One that shares its blocks is a file of its own, whose content is not on disk yet.
            fsync_file(path)
        part = StagedPart(
            files=staging.seal(written=manifest.files),
            shared=staging.shared,
            name=replaced[-1] if replaced else None,
            versions=manifest.versions,
        )
        clone, _ = store.commit(
            attempt=attempt,
            report=report,
            world_size=manifest.world_size,
            metrics=manifest.metrics,
            parts={0: part},
        )
        return read_manifest(clone.path)


def _stage(source: Path, checkpoints: Path, *, report: int, attempt: int) -> SharedStaging:
    def make() -> SharedStaging:
        return SharedStaging(
            shared_directory(checkpoints, attempt=attempt, report=report),
            staging_directory(checkpoints, attempt=attempt, report=report, rank=0),
        )

    staging = make()
    try:
        _close_own_files(source)
        staging.link(source)
    except (CheckpointError, OSError) as error:
        reason = getattr(error.__cause__ or error, "strerror", None) or str(error)
        log_once(f"checkpoints are copied, since their files cannot be linked: {reason}")
        CheckpointStore(checkpoints).abandon(attempt=attempt, report=report)
        staging = make()
        staging.copy(source)
    return staging


def _close_own_files(source: Path) -> None:
    """Take the write permission of others from files that only this user can have written.

    A umask of 002 gives it to the group. In a directory that only this user can enter it means
    nothing, until the file has a second name. Where others can have written one, nothing is
    changed: its pickles need trust under both names.
    """
    with hold_tree(source) as tree:
        if tree.judge() is not None:
            return
        for path in tree.path.rglob("*"):
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode) and mode & _OTHERS_MAY_WRITE:
                path.chmod(stat.S_IMODE(mode) & ~_OTHERS_MAY_WRITE)
