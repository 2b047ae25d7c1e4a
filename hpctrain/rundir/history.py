"""What has gone wrong in a run since a person last asked for it: the ledger, counted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from hpctrain.rundir.reading import is_time


class FailureKind(str, Enum):
    """What ended an attempt before its time."""

    WORKER = "worker"
    """A rank failed."""
    START = "start"
    """Ranks could not be started, or their executor died."""
    PREEMPTION = "preemption"
    """The job was taken away: preempted, requeued, a node lost."""
    TIME_LIMIT = "time-limit"
    """The job came to its end."""


@dataclass(frozen=True, kw_only=True)
class History:
    """Failures of a run, over all its jobs, since a person last called ``fit()``."""

    failures: Mapping[FailureKind, int] = field(default_factory=dict)
    """How many of each kind."""
    without_progress: int = 0
    """Attempts in a row, the last included, that failed and left no newer checkpoint."""
    used_s: float = 0.0
    """Running time of all executors that have ended, in seconds."""


def read_history(events: Iterable[Mapping[str, Any]]) -> History:
    """Return what has gone wrong so far, from the events of the ledger.

    Not collective. A ``fit`` of a person begins the count anew; one by which a job that Slurm has
    started again goes on by itself (``continues``) does not.
    """
    failures: dict[FailureKind, int] = {}
    without_progress = 0
    current: set[int] = set()
    first_report: dict[int, int] = {}
    used_s = 0.0
    begun: float | None = None
    has_just_failed = False
    for event in events:
        if event["event"] == "fit" and not event.get("continues"):
            failures, without_progress, current = {}, 0, set()
            used_s, begun = 0.0, None
        elif event["event"] == "executor-started":
            begun, has_just_failed = event["time"], False
        elif event["event"] == "executor-ended" and begun is not None:
            used_s += max(0.0, end_time(event) - begun)
            begun = None
        elif event["event"] == "attempt-started":
            current.add(event["attempt"])
            has_just_failed = False
            first_report[event["attempt"]] = event.get("first_report", 0)
        elif event["event"] == "attempt-ended" and event["attempt"] in current:
            # A line whose write succeeded and whose fsync did not is there twice.
            current.discard(event["attempt"])
            progressed = event.get("saved", 0) > first_report[event["attempt"]]
            if progressed:
                # Also of one that did not fail: more workers joined.
                without_progress = 0
            if event.get("kind") is None:
                continue
            kind = FailureKind(event["kind"])
            failures[kind] = failures.get(kind, 0) + 1
            without_progress += not progressed
            has_just_failed = True
        elif event["event"] == "not-placed" and event.get("kind") is not None:
            if not has_just_failed:
                kind = FailureKind(event["kind"])
                failures[kind] = failures.get(kind, 0) + 1
                without_progress += 1
            # What the attempt lost, as a rule: that counts once.
            has_just_failed = False
    return History(failures=failures, without_progress=without_progress, used_s=used_s)


def read_validation_wait(events: Iterable[Mapping[str, Any]]) -> float:
    """Return for how many seconds executors waited for validations after the training.

    Not collective. A ``fit`` of a person begins the count anew.
    """
    waited_s = 0.0
    for event in events:
        if event["event"] == "fit" and not event.get("continues"):
            waited_s = 0.0
        elif event["event"] == "validations-left" and is_time(event.get("seconds")):
            waited_s += event["seconds"]
    return waited_s


def read_met_criterion(events: Iterable[Mapping[str, Any]]) -> tuple[int, str] | None:
    """Return the report that met the stop criterion, and why; None if no report has.

    Not collective. A ``fit`` of a person may have another criterion, and an attempt that resumes
    from before the report makes it again.
    """
    met: tuple[int, str] | None = None
    for event in events:
        name = event["event"]
        if name == "fit" and not event.get("continues"):
            met = None
        elif name == "attempt-started" and met is not None:
            met = met if met[0] <= event.get("first_report", 0) else None
        elif name == "stop-criterion-met":
            met = met or (event["report"], str(event["why"]))
    return met


def has_open_executor(events: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether the last executor did not write that it ended. Not collective."""
    words = [e["event"] for e in events if e["event"] in ("executor-started", "executor-ended")]
    return words[-1:] == ["executor-started"]


def end_time(event: Mapping[str, Any]) -> float:
    """Return when the attempt or executor ended whose end an event of the ledger is.

    Not collective. The next executor, maybe days later, writes the line of one that died silently.
    """
    until: float = event.get("until", event["time"])
    return until


def unfinished_attempts(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the ``attempt-started`` events whose executor could not write how they ended.

    Not collective.
    """
    started = {}
    for event in events:
        if event["event"] == "attempt-started":
            started[event["attempt"]] = event
        elif event["event"] == "attempt-ended":
            started.pop(event["attempt"], None)
    return list(started.values())
