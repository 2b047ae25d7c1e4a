"""Wait until the disk of a run takes files again, before ranks begin that could only fail."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from hpctrain import timeouts
from hpctrain.log import log
from hpctrain.own_files import create_file, name_beside
from hpctrain.own_time import ANY_GAP_S, Deadline
from hpctrain.rundir.files import may_pass
from hpctrain.rundir.paths import RunPaths

_LOOK_INTERVAL_S = 1.0
_PROBE_BYTES = 64 * 1024


def await_room(
    paths: RunPaths, *, may_wait: Callable[[], bool], patience_s: float = timeouts.FREE_SPACE_S
) -> None:
    """Return once a file can be written into the run directory. Not collective.

    Parameters
    ----------
    paths
        The run directory.
    may_wait
        Asked once a second: whether to go on waiting.
    patience_s
        Seconds to wait at most.
    """
    deadline = Deadline(patience_s, longest_gap_s=ANY_GAP_S)
    is_logged = False
    while (error := _write_probe(paths)) is not None:
        if not is_logged:
            is_logged = True
            log(
                f"{paths.root} cannot be written to: {error.strerror}. The ranks are started again "
                f"once it can, in {timeouts.describe(patience_s)} at the latest."
            )
        if deadline.is_over or not may_wait():
            return
        time.sleep(_LOOK_INTERVAL_S)


def has_room(paths: RunPaths) -> bool:
    """Return whether a file can be written into the run directory, as far as may change.

    Not collective.
    """
    return _write_probe(paths) is None


def _write_probe(paths: RunPaths) -> OSError | None:
    """Return why nothing can be written, if that may pass."""
    probe = name_beside(paths.root / "room")
    try:
        try:
            # A quota, or a server that is full, may be felt only when the bytes are on their way.
            with open(create_file(probe), "wb", buffering=0) as file:
                left = memoryview(os.urandom(_PROBE_BYTES))
                while left:
                    # A short write is followed by one that says why: no space, or a limit of this
                    # process, which no waiting lifts.
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        return error if may_pass(error) else None
    return None
