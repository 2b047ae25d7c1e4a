"""`Finding`: what a check found, why it matters, and what to do."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


class Level(enum.Enum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    """Not checked, or of no consequence; the finding says why."""
    WARNING = "warning"
    """It starts, but slower than it could, or with a risk."""
    ERROR = "error"
    """It never starts, or fails at once."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a check found."""

    check: str
    """What was checked, in one word or two."""
    level: Level
    what: str
    why: str = ""
    """Why it matters."""
    step: str = ""
    """What to type, or to change."""
    ranks: tuple[dict[str, Any], ...] = ()
    """Of the binding: ``host``, ``local_rank``, ``cpus`` and ``gpus`` of each rank of the probe."""


def ok(check: str, what: str) -> Finding:
    """Return a finding that all is well. Pure; not collective."""
    return Finding(check=check, level=Level.OK, what=what)


def remark(check: str, what: str) -> Finding:
    """Return a finding that something was not checked, or has no consequence. Pure."""
    return Finding(check=check, level=Level.NOTE, what=what)


def warning(check: str, what: str, *, why: str, step: str = "") -> Finding:
    """Return a finding of something that costs time, or is a risk. Pure; not collective."""
    return Finding(check=check, level=Level.WARNING, what=what, why=why, step=step)


def error(check: str, what: str, *, why: str, step: str = "") -> Finding:
    """Return a finding of something that keeps the run from starting. Pure; not collective."""
    return Finding(check=check, level=Level.ERROR, what=what, why=why, step=step)


def has_error(findings: Iterable[Finding]) -> bool:
    """Return whether one of them keeps the run from starting. Pure; not collective."""
    return any(finding.level is Level.ERROR for finding in findings)
