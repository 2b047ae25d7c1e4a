"""`Outcome`: what a trial came to, and how two of them differ."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.errors import CheckpointError
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.metrics import is_report
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import read_lines
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import read_status
from hpctrain.rundir.store import CheckpointStore
from hpctrain.testing.chaos.content import holds_the_same
from hpctrain.testing.chaos.fault import Entry

# Trials of a sweep are one directory further down.
_COMMITTED = re.compile(r"(?:[^/]+/)?([^/]+)/checkpoints/(\d{6,})")
_MOST_TOLD = 5
_Reports = dict[int, list[dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """Result of one run of the script."""

    state: str
    reports: _Reports
    """Metrics of every report, by number: one entry for each attempt that made it."""
    checkpoint: dict[str, str]
    """Digests of the files of the last checkpoint, by path; empty if there is none."""
    checkpoint_path: Path
    """That checkpoint; the run directory if there is none."""
    first_reports: list[int]
    """Report from which each attempt resumed, in order: 0 is the beginning."""
    attempt_times: list[float]
    """When each attempt began, seconds since the epoch."""
    events: list[dict[str, Any]]
    """The ledger."""


def read_outcome(storage: Path) -> dict[str, RunOutcome]:
    """Return what became of the runs of a script, by name. Not collective."""
    if not storage.exists():
        return {}
    return {path.name: read_run(path) for path in sorted(storage.iterdir()) if path.is_dir()}


def is_finished(outcome: dict[str, RunOutcome]) -> bool:
    """Return whether there is a run, and all are finished. Not collective."""
    states = [run.state for run in outcome.values()]
    return bool(states) and all(state == RunState.FINISHED.value for state in states)


def differences(
    expected: dict[str, RunOutcome],
    found: dict[str, RunOutcome],
    *,
    ignore: Collection[str] = (),
) -> list[str]:
    """Return how an outcome is not what was expected: nothing at all if they are equal bit by bit.

    Not collective.

    Parameters
    ----------
    expected
        The undisturbed outcome.
    found
        The disturbed one. Reports that several attempts made count each.
    ignore
        Names of metrics that may differ, such as times.
    """
    lines = []
    for name in sorted({*expected, *found}):
        if name not in found or name not in expected:
            lines.append(f"run {name} is {'missing' if name not in found else 'new'}")
            continue
        lines += [f"run {name}: {text}" for text in _differ(expected[name], found[name], ignore)]
    return lines


def wrong_resumes(
    outcome: dict[str, RunOutcome], trace: Sequence[Entry], damaged: Mapping[str, float]
) -> list[str]:
    """Return which attempts did not resume from the newest complete checkpoint.

    Not collective. The trace says when a checkpoint became visible, independently of who reads it.

    Parameters
    ----------
    outcome
        Of the trial.
    trace
        Of the trial.
    damaged
        When checkpoints were damaged, by ``RUN/checkpoints/NAME``.
    """
    lines = []
    for name, run in outcome.items():
        for first, began_at in zip(run.first_reports, run.attempt_times, strict=True):
            good = {0}
            for entry in trace:
                commit = _commit_of(entry)
                if entry.time >= began_at or commit is None or commit[0] != name:
                    continue
                if entry.time < damaged.get(entry.point.path, 0.0) < began_at:
                    good.discard(commit[1])
                else:
                    good.add(commit[1])
            if first != max(good):
                lines.append(
                    f"run {name}: an attempt resumed from report {first}, although the newest "
                    f"complete checkpoint was {max(good)}"
                )
    return lines


def committed_report(entry: Entry) -> int | None:
    """Return the report whose checkpoint became visible there, if one did. Not collective."""
    commit = _commit_of(entry)
    return None if commit is None else commit[1]


def _commit_of(entry: Entry) -> tuple[str, int] | None:
    """Return the run and the report whose checkpoint became visible there."""
    point = entry.point
    match = _COMMITTED.fullmatch(point.path)
    if match is None or (point.op, point.moment) != ("rename", "after"):
        return None
    return match[1], int(match[2])


def read_run(root: Path) -> RunOutcome:
    """Return what became of a run. Not collective."""
    paths = RunPaths(root)
    status = read_status(paths)
    reports: _Reports = {}
    for report in read_lines(paths.metrics, is_report):
        reports.setdefault(report["report"], []).append(report["metrics"])
    store = CheckpointStore(paths.checkpoints)
    manifests = store.manifests()
    checkpoint: dict[str, str] = {}
    if manifests:
        # A manifest is a promise; its files are what it was about.
        try:
            store.verify(manifests[-1])
            checkpoint = {file.path: file.digest for file in manifests[-1].files}
        except CheckpointError as error:
            checkpoint = {"": str(error)}
    events = read_events(paths)
    started = [event for event in events if event["event"] == "attempt-started"]
    return RunOutcome(
        state="none" if status is None else status.state.value,
        reports=reports,
        checkpoint=checkpoint,
        checkpoint_path=store.open(manifests[-1]).path if manifests else root,
        first_reports=[event["first_report"] for event in started],
        attempt_times=[event["time"] for event in started],
        events=events,
    )


def _differ(expected: RunOutcome, found: RunOutcome, ignore: Collection[str]) -> list[str]:
    lines = []
    if found.state != expected.state:
        lines.append(f"it is {found.state}, not {expected.state}")
    last, wanted = (
        run.checkpoint_path.name if run.checkpoint else "none" for run in (found, expected)
    )
    if last != wanted:
        lines.append(f"the last checkpoint is {last}, not {wanted}")
    elif found.checkpoint != expected.checkpoint:
        names = {*expected.checkpoint, *found.checkpoint}
        other = [
            name
            for name in sorted(names)
            if expected.checkpoint.get(name) != found.checkpoint.get(name)
            if not holds_the_same(expected.checkpoint_path / name, found.checkpoint_path / name)
        ]
        if other:
            lines.append(f"the last checkpoint differs in {', '.join(other)}")
    of_reports = list(_differing_reports(expected.reports, found.reports, set(ignore)))
    lines += of_reports[:_MOST_TOLD]
    if len(of_reports) > _MOST_TOLD:
        lines.append(f"and {len(of_reports) - _MOST_TOLD} more reports differ")
    return lines


def _differing_reports(expected: _Reports, found: _Reports, ignore: set[str]) -> Iterator[str]:
    for number in sorted({*expected, *found}):
        if number not in found or number not in expected:
            yield f"report {number} is {'missing' if number not in found else 'new'}"
            continue
        wanted = expected[number][0]
        for made in found[number]:
            for metric in sorted({*wanted, *made} - ignore):
                # As text: NaN is equal to NaN, and JSON keeps every bit of a number.
                before, now = (json.dumps(m.get(metric), sort_keys=True) for m in (wanted, made))
                if before != now:
                    yield f"report {number}: {metric} is {now}, not {before}"
