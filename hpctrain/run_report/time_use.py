"""Where the time of a run went: the ledger and the times of the reports, as intervals. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Any


class Use(str, Enum):
    """What a run did in an interval of time."""

    QUEUE = "queue"
    """A job waited: from its submission, requeue or successor to the start of the executor."""
    START = "start"
    """From the start of an executor, or of an attempt, to the first report of the attempt."""
    TRAINING = "training"
    """Between two reports of an attempt, if the later one was made for the first time."""
    REPEATED = "repeated"
    """The same, if an earlier attempt had made the later one: it resumed from before it."""
    LOST = "lost"
    """From the last report of an attempt to the failure, or the loss of the job, that ended it."""
    ENDING = "ending"
    """From the last report of an attempt to its end without a failure, or to the last news."""
    RESTART = "restart"
    """From the end of an attempt to the start of the next one in the same job."""
    STOPPED = "stopped"
    """Nothing ran and no job waited, until a person called ``fit()`` again."""
    OTHER = "other"
    """The rest, also what the files do not show, such as an attempt without a report."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A time in which a run did one thing. Times are seconds since the epoch."""

    use: Use
    begin: float
    end: float
    attempt: int | None = None
    """The attempt that it is part of."""
    job: int | None = None
    """Which executor was there, counted from 0: it holds the CPUs and GPUs of its attempts."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin


def split_time(
    events: Sequence[Mapping[str, Any]], lines: Iterable[Mapping[str, Any]], *, until: float
) -> list[Interval]:
    """Return what a run did from the first event of its ledger on, without a gap or an overlap.

    Not collective.

    Parameters
    ----------
    events
        The ledger.
    lines
        All lines of the metrics, those that were made again included.
    until
        When the run ended, or when its files were last written.
    """
    if not events:
        return []
    walk = _Walk(events[0]["time"], until, _times_of_reports(lines))
    for event in _in_order_of_ends(events):
        walk.see(event)
    walk.close(until, Use.ENDING, without=Use.START)
    walk.go_to(until)
    return walk.intervals


def count_repeated(lines: Iterable[Mapping[str, Any]]) -> int:
    """Return how many reports were made again after a restart. Not collective."""
    return sum(number <= known for known, _, reports in _by_attempt(lines) for number, _ in reports)


def read_intervals_of_reports(lines: Iterable[Mapping[str, Any]]) -> list[float]:
    """Return the seconds between reports that follow each other in one attempt. Not collective."""
    return [
        after[1] - before[1]
        for _, _, reports in _by_attempt(lines)
        for before, after in pairwise(reports)
        if after[1] >= before[1]
    ]


_Reports = Sequence[tuple[int, float]]


def _by_attempt(lines: Iterable[Mapping[str, Any]]) -> Iterator[tuple[float, int, _Reports]]:
    """Yield the largest number that was reported before, each attempt, and its reports."""
    found: dict[int, list[tuple[int, float]]] = {}
    for line in lines:
        found.setdefault(line["attempt"], []).append((line["report"], line["time"]))
    known = -math.inf
    for attempt in sorted(found):
        yield known, attempt, found[attempt]
        known = max(known, *(number for number, _ in found[attempt]))


def _times_of_reports(
    lines: Iterable[Mapping[str, Any]],
) -> dict[int, list[tuple[float, bool]]]:
    """Return when each attempt reported, and whether that report had been made before."""
    return {
        attempt: [(at, number <= known) for number, at in reports]
        for known, attempt, reports in _by_attempt(lines)
    }


def _in_order_of_ends(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the events with the end of an executor that died before what came after its death.

    The next executor writes that line, maybe days later. All other events stay where they are:
    clocks of hosts differ, and the order of the lines is right.
    """
    ordered: list[Mapping[str, Any]] = []
    for event in events:
        place = len(ordered)
        if event["event"] == "executor-ended" and "until" in event:
            event = {**event, "time": event["until"]}
            while (
                place
                and ordered[place - 1]["time"] > event["until"]
                and ordered[place - 1]["event"] not in ("executor-started", "attempt-started")
            ):
                place -= 1
        ordered.insert(place, event)
    return ordered


class _Walk:
    """Goes through the events of a ledger, and notes what the run did in between.

    Parameters
    ----------
    begin, until
        Time of the first event, and of the end: what comes later is left out.
    reports
        When each attempt reported, and whether the report had been made before.
    """

    def __init__(
        self, begin: float, until: float, reports: Mapping[int, list[tuple[float, bool]]]
    ) -> None:
        self._begins: list[tuple[tuple[Use, int | None, int | None], float]] = []
        self._ends: list[float] = []
        self._key: tuple[Use, int | None, int | None] | None = None
        self._reports = reports
        self._now, self._until = begin, until
        self._use = Use.OTHER
        self._attempt: int | None = None
        self._started: set[int] = set()
        self._job: int | None = None
        self._num_jobs = 0
        self._is_queued = False
        self._start: tuple[object, int] | None = None
        """Id and restart count of the job of the last executor."""

    @property
    def intervals(self) -> list[Interval]:
        """What was noted so far."""
        return [
            Interval(use=use, begin=begin, end=end, attempt=attempt, job=job)
            for ((use, attempt, job), begin), end in zip(self._begins, self._ends, strict=True)
        ]

    def see(self, event: Mapping[str, Any]) -> None:
        """Go on to an event."""
        name, at = event["event"], event["time"]
        if name == "attempt-started":
            self.close(at, Use.OTHER)
            self.go_to(at)
            self._attempt = event["attempt"]
            self._started.add(event["attempt"])
        elif name == "attempt-ended":
            self._end_attempt(event)
        elif name == "executor-started":
            self.close(at, Use.OTHER)
            self._start_executor(event)
        elif name in _AFTER:
            self._change(event)

    def close(self, at: float, last: Use, *, without: Use = Use.OTHER) -> None:
        """End an attempt that is open.

        Parameters
        ----------
        last
            What it did from its last report on.
        without
            What it did if it made no report.
        """
        if (attempt := self._attempt) is None:
            return
        reports = self._reports.get(attempt, ())
        is_first = True
        for time, is_repeated in reports:
            if time > at:
                break
            self._use = Use.REPEATED if is_repeated else Use.TRAINING
            if is_first:
                self._use, is_first = Use.START, False
            self.go_to(time)
        self._use = without if is_first else last
        self.go_to(at)
        self._attempt = None

    def go_to(self, at: float) -> None:
        """Note what the run did until `at`; nothing if that is over."""
        at = min(at, self._until)
        if at <= self._now:
            return
        key = (self._use, self._attempt, self._job)
        if key != self._key or not self._ends:
            self._begins.append((key, self._now))
            self._ends.append(at)
            self._key = key
        # A million reports are one interval.
        self._ends[-1] = at
        self._now = at

    def _end_attempt(self, event: Mapping[str, Any]) -> None:
        attempt, at, kind = event["attempt"], event["time"], event.get("kind")
        if self._attempt == attempt:
            without = Use.START if kind == "start" else Use.OTHER
            self.close(at, Use.ENDING if kind is None else Use.LOST, without=without)
            self._use = Use.OTHER if kind is None else Use.RESTART
        elif attempt not in self._started:
            # The line of its start is damaged.
            self._started.add(attempt)
            self._use = Use.OTHER
            self.go_to(at)

    def _start_executor(self, event: Mapping[str, Any]) -> None:
        start = (event.get("job_id"), event.get("restarts", 0))
        if self._use is Use.STOPPED and start[0] is not None and self._start is not None:
            # fit() was not called: Slurm has started the job again, or a supervisor the executor.
            if self._start == start:
                self._use = Use.RESTART
            elif self._start[0] == start[0]:
                self._use = Use.QUEUE
        self.go_to(event["time"])
        self._use = Use.START
        self._job, self._num_jobs = self._num_jobs, self._num_jobs + 1
        self._start, self._is_queued = start, False

    def _change(self, event: Mapping[str, Any]) -> None:
        name, at = event["event"], event["time"]
        if name in _QUEUED:
            self._is_queued = True
            if self._attempt is not None:
                # Another process may write it while the attempt still ends.
                return
        has_failed = name in ("restart", "gave-up", "executor-lost") or "until" in event
        self.close(at, Use.LOST if has_failed else Use.ENDING)
        if name == "fit" and event.get("continues") and self._use is Use.STOPPED:
            # Slurm has started the job of a person's own script again.
            self._use = Use.QUEUE
        self.go_to(at)
        self._use = _AFTER[name]
        if name == "executor-ended":
            ended = Use.STOPPED if "until" in event else Use.OTHER
            self._use = Use.QUEUE if self._is_queued else ended
        if name in ("fit", "run-ended"):
            self._is_queued = False
        if name in ("fit", "executor-ended", "run-ended"):
            self._job = None


_QUEUED = ("submitted", "requeued", "successor")
_AFTER = {
    "fit": Use.START,
    "submitted": Use.QUEUE,
    "requeued": Use.QUEUE,
    "successor": Use.QUEUE,
    "restart": Use.RESTART,
    "gave-up": Use.OTHER,
    "executor-lost": Use.OTHER,
    "executor-ended": Use.OTHER,
    "run-ended": Use.STOPPED,
}
"""What a run does after an event, until the next one."""
