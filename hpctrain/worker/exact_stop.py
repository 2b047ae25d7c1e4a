"""`ExactStop`: whether a report meets a stop criterion, as a rank itself can see it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from hpctrain.metric_names import COUNTED, find_number, has_metric


class ExactStop:
    """Finds what the executor is about to find, so that a rank waits for it.

    Parameters
    ----------
    goals
        The criteria of ``RunConfig(stop={...})``.
    rank
        World rank: the metrics of rank 0 count, and the number of reports is known to all.
    first
        Number of the report that the run resumed from.
    """

    def __init__(self, goals: Mapping[str, float], *, rank: int, first: int) -> None:
        self._goals, self._rank, self._first = goals, rank, first

    def is_met(self, report: int, content: bytes) -> bool:
        """Return whether a report meets a criterion. Not collective.

        Parameters
        ----------
        content
            The metrics, as they are sent.
        """
        # The seconds that the executor counts are not known here.
        counted = dict(zip(COUNTED, (report, report - self._first), strict=False))
        metrics = json.loads(content)
        for name, goal in self._goals.items():
            # Where ranks report what is counted by themselves, as those of tree trainers do, each
            # knows it too.
            is_seen = self._rank == 0 or name in COUNTED
            value = find_number(metrics, name) if is_seen else None
            if value is None and not has_metric(metrics, name):
                value = counted.get(name)
            if value is not None and value >= goal:
                return True
        return False
