"""`LoopWaits`: for how long the training loops of one attempt waited, and for what. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpctrain.execute.tracker import ReportRound
from hpctrain.worker.step_times import StepTimes

KINDS = ("data", "checkpoint", "collective")
"""What a rank counts, in the order in which its reports have it."""


@dataclass
class _Sampled:
    """The steps of one rank that were looked at."""

    step: int = 0
    total_us: int = 0
    waited_us: int = 0


class LoopWaits:
    """Adds up what ranks report of their waits, and what is sampled of their steps.

    A report has what its rank has waited since the attempt began. So two reports are enough: those
    between which the attempt trained, and did not repeat what an earlier one had done.

    Parameters
    ----------
    reported
        Number of the last report that an earlier attempt made; 0 without one.
    """

    def __init__(self, reported: int = 0) -> None:
        self._reported = reported
        self._first: Mapping[int, bytes] | None = None
        self._last: Mapping[int, bytes] = {}
        self._sampled: dict[int, _Sampled] = {}

    def take(self, round_: ReportRound) -> None:
        """Take in a report of all ranks. Costs nothing: it is not parsed."""
        self._last = round_.lines
        if self._first is None or round_.report <= self._reported:
            self._first = round_.lines

    def sample(self, times: Mapping[int, Sequence[StepTimes]]) -> None:
        """Take in times of steps, by rank. Steps that are known are left out.

        What a rank waits for is its last collective: it may compute until it calls that.
        """
        for rank, steps in times.items():
            known = self._sampled.setdefault(rank, _Sampled())
            for each in steps:
                if each.step > known.step:
                    known.step = each.step
                    known.total_us += each.total
                    known.waited_us += each.total - each.last

    def to_json(self) -> dict[str, Any] | None:
        """Return what is written into the ledger; None if no report has waits.

        ``seconds`` is the time between the reports, on rank 0's clock. Of each kind of wait, and of
        the share of a step in ``steps``, it has the mean of the ranks, and the ranks with the most
        and the least. A kind is null where not every rank has reported it.
        """
        if self._first is None or self._last is self._first:
            return None
        first, last = _read(self._first), _read(self._last)
        if not last or first.keys() != last.keys():
            return None
        found: dict[str, Any] = {
            "ranks": len(last),
            "seconds": round(max(0.0, _time(self._last) - _time(self._first)), 6),
        }
        for index, kind in enumerate(KINDS):
            # In a report before the first batch, waits for data are null.
            of_ranks = {
                rank: (after[index] - (first[rank][index] or 0)) / 1e6
                for rank, after in last.items()
                if after[index] is not None
            }
            found[kind] = _summarize(of_ranks, len(last))
        shares = {
            rank: each.waited_us / each.total_us
            for rank, each in self._sampled.items()
            if each.total_us
        }
        found["steps"] = _summarize(shares, len(last))
        return found


def _summarize(of_ranks: Mapping[int, float], num_ranks: int) -> dict[str, Any] | None:
    if len(of_ranks) < num_ranks:
        return None
    most = max(of_ranks, key=of_ranks.__getitem__)
    least = min(of_ranks, key=of_ranks.__getitem__)
    return {
        "mean": round(math.fsum(of_ranks.values()) / num_ranks, 6),
        "most": [round(of_ranks[most], 6), most],
        "least": [round(of_ranks[least], 6), least],
    }


def _read(lines: Mapping[int, bytes]) -> dict[int, list[Any]]:
    """Return the waits of each rank; empty if one has reported none."""
    found = {rank: json.loads(line).get("waited") for rank, line in lines.items()}
    return {} if None in found.values() else found


def _time(lines: Mapping[int, bytes]) -> float:
    return float(json.loads(lines[0])["time"])
