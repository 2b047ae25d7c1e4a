"""`AttemptStart`: where an attempt begins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpctrain.checkpoint import Checkpoint
from hpctrain.errors import ConfigError


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
        Checkpoint of another run, for when this one has none yet.

    Raises
    ------
    ConfigError
        If that of another run is needed, and deleted.
    """
    if latest is not None or resume_from is None:
        return latest
    if not resume_from.is_dir():
        raise ConfigError(
            f"the run begins with {resume_from}, which is deleted, and has no checkpoint "
            f"of its own yet. Give another one: resume_from_checkpoint=."
        )
    return Checkpoint(resume_from)
