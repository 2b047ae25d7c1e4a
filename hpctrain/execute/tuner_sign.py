"""Whether the tuner of a sweep is at work, as the executors of its trials see it."""

from __future__ import annotations

import time
from pathlib import Path

from hpctrain.own_time import LOOK_INTERVAL_S, Deadline
from hpctrain.rundir.reading import read_content

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


def _read(sign: Path) -> bytes:
    try:
        return read_content(sign)
    except OSError:
        return b""
