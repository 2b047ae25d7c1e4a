"""How many reports a run made in a second, over time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_MOST_BUCKETS = 200
_REPORTS_OF_A_BUCKET = 5


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The reports of a part of the time."""

    begin: float
    """Seconds since the first report."""
    end: float
    num_reports: int
    """All that were made in it, also those that were made again."""

    @property
    def per_s(self) -> float:
        """Reports a second."""
        return self.num_reports / (self.end - self.begin)


def read_rates(lines: Sequence[dict[str, Any]]) -> list[Rate]:
    """Return the reports a second from the first to the last report, in equal parts of the time.

    Not collective. There are as many parts as hold some reports on average, and 200 at most.

    Parameters
    ----------
    lines
        All lines of the metrics.
    """
    times = [line["time"] for line in lines]
    if len(times) < 2 or (span := max(times) - min(times)) <= 0:
        return []
    first, num_buckets = min(times), max(1, min(_MOST_BUCKETS, len(times) // _REPORTS_OF_A_BUCKET))
    counts = [0] * num_buckets
    for time in times:
        counts[min(num_buckets - 1, int((time - first) / span * num_buckets))] += 1
    # The first report ends no interval.
    counts[0] -= 1
    return [
        Rate(begin=span * n / num_buckets, end=span * (n + 1) / num_buckets, num_reports=count)
        for n, count in enumerate(counts)
    ]
