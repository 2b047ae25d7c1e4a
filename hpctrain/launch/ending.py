"""`EndWatch`: whether a run is over, looked at ever more seldom."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hpctrain.errors import HpctrainError
from hpctrain.launch.liveness import Liveness
from hpctrain.launch.pace import Pace
from hpctrain.own_time import ANY_GAP_S, Deadline
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import read_status


class EndWatch:
    """Notices the end of a run.

    Parameters
    ----------
    paths
        The run directory.
    """

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        self.error: HpctrainError | None = None
        """That no process runs it any more, though it has not ended."""
        self.look_at = 0.0
        """When to look again, in seconds of a monotonic clock."""
        self._liveness, self._pace = Liveness(paths), Pace()

    def has_ended(self) -> bool:
        """Look; return whether the run is over, or no process runs it any more. Not collective."""
        status = read_status(self.paths)
        try:
            if status is None:
                self._liveness.check_directory()
            elif status.state.is_final:
                return True
            else:
                self._liveness.check(status)
        except HpctrainError as error:
            self.error = error
            return True
        self.look_at = time.monotonic() + self._pace.next_interval(status)
        return False


def await_ends(
    watches: Sequence[EndWatch], *, num_returns: int, timeout_s: float
) -> list[EndWatch]:
    """Return the watches whose runs are over: so many, or as many as there are at the timeout.

    Not collective.
    """
    deadline = Deadline(timeout_s, longest_gap_s=ANY_GAP_S)
    ended: set[EndWatch] = set()
    while True:
        now, is_late = time.monotonic(), deadline.is_over
        for watch in watches:
            if watch not in ended and watch.look_at <= now and watch.has_ended():
                ended.add(watch)
        if len(ended) >= num_returns or is_late:
            return [watch for watch in watches if watch in ended]
        next_look = min(watch.look_at for watch in watches if watch not in ended)
        time.sleep(max(0.0, min(next_look - time.monotonic(), deadline.left_s)))
