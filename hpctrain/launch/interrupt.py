"""Ctrl-C in the process that runs a run."""

from __future__ import annotations

import shlex
from pathlib import Path

from hpctrain.launch.request import Submission
from hpctrain.log import log
from hpctrain.uncaught import show_as


def explain_interrupt(
    error: KeyboardInterrupt, submission: Submission, checkpoint: Path | None
) -> None:
    """Add to Ctrl-C what the run resumes from, without a traceback. Not collective."""
    log(
        f"interrupted; {_call_again(submission)} resumes from {checkpoint or 'its beginning'}",
        new_line=True,
    )
    show_as(error, "")


def _call_again(submission: Submission) -> str:
    """Return what resumes the run."""
    root, origin = submission.request.paths.root, submission.replay_of
    if origin is None:
        return f"fit() with name={root.name!r} and the same storage_path"
    words = ["hpctrain", "replay", str(origin.path), "--name", root.name]
    if root.parent != origin.path.parent:
        words += ["--storage-path", str(root.parent)]
    return shlex.join(words)
