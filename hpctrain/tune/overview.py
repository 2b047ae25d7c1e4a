"""`SweepOverview`: a sweep in one line, among the runs of a directory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hpctrain.errors import ConfigError
from hpctrain.metric_names import find_number, find_score
from hpctrain.rundir.display import counted, format_value
from hpctrain.rundir.metrics import read_last_report, read_reports
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import read_status
from hpctrain.rundir.sweep import is_sweep
from hpctrain.tune.attempt_clock import AttemptClock
from hpctrain.tune.ledger import SweepPaths, SweepRecord, read_record
from hpctrain.tune.place import find_original, find_state
from hpctrain.tune.trial import Trial, TrialState
from hpctrain.tune.trial_progress import ADDED, make_report
from hpctrain.tune.tuner_life import describe_silence

_GROUP_OF = {
    TrialState.PENDING: "waiting",
    TrialState.PAUSED: "waiting",
    TrialState.TERMINATED: "finished",
    TrialState.ERROR: "failed",
}
_GROUPS = ("running", "waiting", "finished", "failed")


@dataclass(frozen=True, kw_only=True)
class SweepOverview:
    """A sweep at one moment. Times are seconds since the epoch."""

    path: Path
    state: str
    """As of `hpctrain.tune.place.find_state`; ``unread`` if its ledger cannot be read."""
    reason: str | None = None
    """Why it ended early."""
    silence: str = ""
    """That its tuner, on another host, has shown no sign of life for long; else empty."""
    copy_of: str | None = None
    """The directory that it was copied from."""
    began_at: float = 0.0
    ended_at: float | None = None
    counts: Mapping[str, int]
    """Trials that are ``running``, ``waiting``, ``finished`` and ``failed``."""
    metric: str | None = None
    mode: str | None = None
    best: str | None = None
    """Name of the trial whose last value is the best so far."""
    value: float | None = None
    """Its value."""

    @property
    def num_trials(self) -> int:
        """How many trials have been made."""
        return sum(self.counts.values())

    def describe(self) -> str:
        """Return how many trials it has, and the best of them. Not collective."""
        states = ", ".join(f"{count} {name}" for name, count in self.counts.items() if count)
        line = f"sweep of {counted(self.num_trials, 'trial')}" + (f": {states}" if states else "")
        if self.best is not None:
            line += f"; best {self.best} {self.metric}={format_value(self.value)}"
        further = (self.silence, f"a copy of {self.copy_of}" if self.copy_of else "")
        return "; ".join(filter(None, (line, *further)))

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``hpctrain list --json`` has of it. Not collective."""
        return {
            "trials": self.num_trials,
            **self.counts,
            "metric": self.metric,
            "mode": self.mode,
            "best": self.best,
            "value": self.value,
        }


def find_sweeps(storage: Path) -> list[Path]:
    """Return the directories of the sweeps in `storage`. Not collective."""
    try:
        return sorted(path for path in storage.iterdir() if is_sweep(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_overview(root: Path) -> SweepOverview:
    """Return a sweep as it is now. Not collective. Never raises for what is in its files.

    Of trials at work the last report is read, of all others what the ledger says.
    """
    paths = SweepPaths(root=root.absolute())
    try:
        record = read_record(paths)
        state, original = find_state(paths, record), find_original(paths, record)
    except (ConfigError, OSError):
        return SweepOverview(path=paths.root, state="unread", counts=dict.fromkeys(_GROUPS, 0))
    states = [seen_state(paths, trial, state) for trial in record.trials.values()]
    found = Counter(_GROUP_OF.get(each, "running") for each in states)
    metric, mode = record.started.get("metric"), record.started.get("mode")
    scores = {}
    if metric is not None and mode in ("min", "max"):
        scores = dict(_scores(paths, record, metric))
    best = (min if mode == "min" else max)(scores, key=scores.__getitem__) if scores else None
    ended = record.ended or {}
    return SweepOverview(
        path=paths.root,
        state=state,
        reason=record.reason,
        silence=describe_silence(paths) if state == "running" else "",
        copy_of=original,
        began_at=record.started["time"],
        ended_at=ended.get("time"),
        counts={name: found[name] for name in _GROUPS},
        metric=metric,
        mode=mode,
        best=best,
        value=None if best is None else scores[best],
    )


def seen_state(paths: SweepPaths, trial: Trial, state: str) -> TrialState:
    """Return the state of a trial, also where its tuner has not seen that its run stopped.

    Not collective.

    Parameters
    ----------
    state
        That of the sweep.
    """
    if state == "running" or trial.state is not TrialState.RUNNING:
        return trial.state
    status = read_status(RunPaths(paths.run(trial.trial_id)))
    has_stopped = status is not None and status.state is RunState.STOPPED
    return TrialState.PENDING if has_stopped else trial.state


def _scores(paths: SweepPaths, record: SweepRecord, metric: str) -> Iterator[tuple[str, float]]:
    for trial_id, trial in record.trials.items():
        metrics, run = trial.metrics, RunPaths(paths.run(trial_id))
        if not trial.state.is_final and (last := read_last_report(run)) is not None:
            metrics = last["metrics"]
            if metric in ADDED:
                metrics = make_report(trial, AttemptClock(paths=run), last).metrics
        if metrics and find_number(metrics, metric) is None:
            metrics = _find_last_with(metric, run)
        if (score := find_score(metrics, metric)) is not None:
            yield trial_id, score


def _find_last_with(metric: str, run: RunPaths) -> Mapping[str, Any]:
    """Return the metrics of the last report that has one as a number; empty if none has."""
    with suppress(OSError):
        for report in reversed(read_reports(run)):
            if find_number(report["metrics"], metric) is not None:
                return cast("Mapping[str, Any]", report["metrics"])
    return {}


class OverviewReader:
    """Reads sweeps again and again: those that have not changed since only once."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[object, SweepOverview]] = {}

    def read(self, root: Path) -> SweepOverview:
        """Return a sweep as it is now. Not collective."""
        try:
            found = os.stat(SweepPaths(root=root).events)
            mark = found.st_mtime_ns, found.st_size, found.st_ino
        except OSError:
            mark = None
        known = self._known.get(root)
        if known is not None and known[0] == mark and known[1].state == "ended":
            return known[1]
        overview = read_overview(root)
        self._known[root] = mark, overview
        return overview
