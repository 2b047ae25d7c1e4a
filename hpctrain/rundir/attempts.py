"""The attempts of a run, and what happened in between: the ledger, in order. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from hpctrain.rundir.announcement import announce
from hpctrain.rundir.history import end_time

RESTARTS = ("restart", "requeued", "successor", "left-to-tuner")
"""Events after which the ranks are started again."""


@dataclass(kw_only=True)
class AttemptRecord:
    """One start of the ranks, by the ledger. Times are seconds since the epoch."""

    attempt: int
    job_id: str | None = None
    nodes: tuple[str, ...] = ()
    started_at: float | None = None
    """None where the line that has it is damaged."""
    ended_at: float | None = None
    """None while it runs, or if its executor died and no other one has written so yet."""
    resumed_from: str | None = None
    """Name of a checkpoint; None for the beginning."""
    first_report: int = 0
    reports: int | None = None
    """Reports that all ranks have made, counted over all attempts."""
    checkpoint: str | None = None
    """The newest complete checkpoint at its end."""
    cause: str | None = None
    """Why it ended, in one line."""
    kind: str | None = None
    """Which budget paid for it: a `FailureKind`."""
    notes: list[tuple[float, str]] = field(default_factory=list)
    """What happened from its start on, up to the next one: when, and what."""


def read_attempts(
    events: Iterable[Mapping[str, Any]],
) -> tuple[list[tuple[float, str]], list[AttemptRecord]]:
    """Return what happened before the first attempt, and the attempts, the first one first.

    Not collective. Fields that are missing, as in a ledger of an older version, stay empty.
    """
    before: list[tuple[float, str]] = []
    attempts: list[AttemptRecord] = []
    for event in events:
        name, number = event["event"], event.get("attempt")
        if name == "attempt-started" and isinstance(number, int):
            attempts.append(_begin(number, event))
        elif name == "attempt-ended" and isinstance(number, int):
            _end(attempts, number, event)
        elif what := describe_event(event):
            notes = attempts[-1].notes if attempts else before
            notes.append((event["time"], what))
    return before, attempts


def describe_event(event: Mapping[str, Any]) -> str:
    """Return what a person wants to know of an event between attempts, or nothing.

    Not collective.
    """
    if announced := announce(event):
        return announced
    if event["event"] == "fit" and event.get("why"):
        return f"the executor was started again: {event['why']}"
    if event["event"] == "node-slow" and event.get("reason"):
        return _TEMPLATES["node-slow"].format_map(_Known(_texts(event))) + f": {event['reason']}"
    template = _TEMPLATES.get(event["event"], "")
    known = _texts(event)
    try:
        known["signal"] = signal.Signals(int(event.get("signal", 0))).name
    except (TypeError, ValueError):
        known["signal"] = f"signal {event.get('signal')}"
    return template.format_map(_Known(known))


def name_slow_nodes(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return which nodes have been named slow since a person last called ``fit()``.

    Not collective. A sentence for each, of the last time; and what became of it.
    """
    found: dict[str, str] = {}
    for event in events:
        name, node = event["event"], str(event.get("node"))
        if name == "fit" and not event.get("continues"):
            found.clear()
        elif name == "node-slow":
            found[node] = f"attempt {event.get('attempt', '?')}: {describe_event(event)}"
        elif name in _ENDS_OF_SLOW and node in found:
            found[node] += _ENDS_OF_SLOW[name].format_map(_Known(_texts(event)))
    return list(found.values())


_ENDS_OF_SLOW = {
    "node-slow-over": "; no longer as of step {step}",
    "node-kept": "; it is kept: {reason}",
    "node-left-out": "; it is left out",
}


def _texts(event: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in event.items()}


def _begin(number: int, event: Mapping[str, Any]) -> AttemptRecord:
    resumed_from = event.get("resumed_from")
    first = event.get("first_report")
    return AttemptRecord(
        attempt=number,
        job_id=event.get("job_id"),
        started_at=event["time"],
        resumed_from=PurePath(resumed_from).name if isinstance(resumed_from, str) else None,
        first_report=first if isinstance(first, int) else 0,
    )


def _end(attempts: list[AttemptRecord], number: int, event: Mapping[str, Any]) -> None:
    if not attempts or attempts[-1].attempt != number or attempts[-1].ended_at is not None:
        attempts.append(AttemptRecord(attempt=number))
    record = attempts[-1]
    nodes = event.get("nodes")
    record.ended_at = end_time(event)
    record.nodes = tuple(map(str, nodes)) if isinstance(nodes, list) else ()
    record.reports, record.checkpoint = event.get("reports"), event.get("checkpoint")
    record.cause, record.kind = event.get("what") or event.get("cause"), event.get("kind")


class _Known(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "?"


_TEMPLATES = {
    "fit": "fit() was called",
    "submitted": "job {job_id} was submitted",
    "refused": "{error}",
    "hang-suspected": "{what}",
    "left-behind": "{what}",
    "node-bad": "node {node} cannot be used: {reason}",
    "node-doubtful": "node {node} is used, but {reason}",
    "gave-up": "no further restart: {reason}",
    "not-forked": "each rank imports its modules itself: {reason}",
    "not-preloaded": "{reason}",
    "environment-unpacked": "the packed environment is on {nodes}, by {by}",
    "requeue-refused": "Slurm did not queue job {job_id} again: {error}",
    "node-slow": "node {node} is slow since step {since_step}: steps take {factor} times as long",
    "node-slow-over": "node {node} is no longer slow, as of step {step}",
    "node-kept": "node {node} is slow, and is kept: {reason}",
    "node-left-out": "node {node} is left out: {reason}",
    "not-placed": "the nodes of the next attempt cannot be chosen: {error}",
    "node-lost": "node {node} is lost: {reason}",
    "nodes-back": "nodes that were lost are back: {nodes}",
    "checkpoint-damaged": "{error}",
    "checkpoint-unreadable": "{error}",
    "callback-failed": "a callback failed: {error}",
    "executor-died": "the executor was killed ({signal}), and started again",
    "job-gone": "Slurm has forgotten job {job_id}",
    "run-ended": "the run is {state}",
}
