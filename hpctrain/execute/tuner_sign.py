"""Whether the tuner of a sweep is at work, as the executors of its trials see it."""

from __future__ import annotations

import time
from pathlib import Path

from hpctrain.own_time import LOOK_INTERVAL_S, Deadline
from hpctrain.rundir import files
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import read_content
from hpctrain.rundir.run_record import RunRecord

LEFT_TO_TUNER = "left-to-tuner"
"""Event of a run that goes on in a job that the tuner of its sweep submits."""


def shows_life(sign: Path, *, patience_s: float) -> bool:
    """Return whether a tuner writes its sign of life. Not collective.

    Parameters
    ----------
    sign
        File that it writes every two seconds.
    patience_s
        Seconds without a change after which it counts as gone.
    """
    seen, deadline = _read(sign), Deadline(patience_s)
    while not deadline.is_over:
        time.sleep(LOOK_INTERVAL_S)
        present = _read(sign)
        if seen and present not in (seen, b""):
            return True
        seen = seen or present
    return False


def leave_to_tuner(paths: RunPaths, *, why: str, checkpoint: str | None, patience_s: float) -> None:
    """Write down that a tuner is to submit the next job of a run. Not collective.

    Without that entry, the run would have ended for good.

    Raises
    ------
    OSError
        If it cannot be written within `patience_s`.
    """
    record = RunRecord(paths)
    files.retry(
        lambda: record.append(LEFT_TO_TUNER, why=why, checkpoint=checkpoint), patience_s=patience_s
    )


def _read(sign: Path) -> bytes:
    try:
        return read_content(sign)
    except OSError:
        return b""
