"""Ctrl-C in the process that runs a run."""

from __future__ import annotations

from pathlib import Path

from hpctrain.config import RunConfig
from hpctrain.log import log
from hpctrain.uncaught import show_as


def explain_interrupt(
    error: KeyboardInterrupt, run_config: RunConfig, checkpoint: Path | None
) -> None:
    """Add to Ctrl-C what the run resumes from, without a traceback. Not collective."""
    log(
        f"interrupted; fit() with name={run_config.name!r} and the same storage_path resumes from "
        f"{checkpoint or 'its beginning'}",
        new_line=True,
    )
    show_as(error, "")
