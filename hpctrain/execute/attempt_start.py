"""`AttemptStart`: where an attempt begins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpctrain.bulk.unreadable import UnreadableError
from hpctrain.checkpoint import Checkpoint
from hpctrain.checkpoint_files import MANIFEST_NAME
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.rundir.manifest import DamagedManifestError, read_manifest
from hpctrain.rundir.verify import verify_files


@dataclass(frozen=True, kw_only=True)
class AttemptStart:
    """Where an attempt begins."""

    attempt: int
    """Number of the attempt, from 1."""
    first_report: int
    """Number of the report that it resumes from; 0 at a fresh start."""
    checkpoint: Checkpoint | None
    """What it resumes from."""


def choose_checkpoint(latest: Checkpoint | None, resume_from: Path | None) -> Checkpoint | None:
    """Return what an attempt resumes from. Not collective.

    Parameters
    ----------
    latest
        The newest complete checkpoint of the run itself.
    resume_from
        Checkpoint of another run, for when this one has none yet. If it is committed, its files are
        verified as those of the run's own are.

    Raises
    ------
    ConfigError
        If that of another run is needed, and deleted or damaged.
    UnreadableError
        If it cannot be read just now.
    """
    if latest is not None or resume_from is None:
        return latest
    if not resume_from.is_dir():
        raise ConfigError(
            f"the run begins with {resume_from}, which is deleted, and has no checkpoint "
            f"of its own yet. Give another one: resume_from_checkpoint=."
        )
    try:
        _verify_committed(resume_from)
    except UnreadableError:
        raise
    except (CheckpointError, DamagedManifestError) as error:
        raise ConfigError(
            f"the run begins with {resume_from}, which is damaged: {str(error).rstrip('.')}. Give "
            f"another one: resume_from_checkpoint=. If you have changed it yourself, give what "
            f"to_directory() makes of it."
        ) from error
    return Checkpoint(resume_from)


def _verify_committed(directory: Path) -> None:
    if (directory / MANIFEST_NAME).exists():
        verify_files(directory, read_manifest(directory).files, quick=True)
