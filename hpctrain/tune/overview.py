"""`SweepOverview`: a sweep in one line, among the runs of a directory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.errors import HpctrainError
from hpctrain.metric_names import find_number, find_score
from hpctrain.rundir.display import counted, format_value
from hpctrain.rundir.metrics import find_last_report, read_last_report
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
_FindScore = Callable[[str, RunPaths], float | None]
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

    Trials at work are compared by their last report, and all others by what the ledger says. Where
    that lacks the metric, the last report that has it is looked for among those of the trial.
    """
    return _read(root, _find_last_score)


def _read(root: Path, find_last: _FindScore) -> SweepOverview:
    paths = SweepPaths(root=root.absolute())
    try:
        record = read_record(paths)
        state, original = find_state(paths, record), find_original(paths, record)
    except (HpctrainError, OSError):
        return SweepOverview(path=paths.root, state="unread", counts=dict.fromkeys(_GROUPS, 0))
    states = [seen_state(paths, trial, state) for trial in record.trials.values()]
    found = Counter(_GROUP_OF.get(each, "running") for each in states)
    metric, mode = record.started.get("metric"), record.started.get("mode")
    scores = {}
    if metric is not None and mode in ("min", "max"):
        scores = _scores(paths, record, metric, find_last)
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

    Not collective. If the status of the run cannot be read, it is what the ledger says.

    Parameters
    ----------
    state
        That of the sweep.
    """
    if state == "running" or trial.state is not TrialState.RUNNING:
        return trial.state
    status = None
    with suppress(HpctrainError, OSError):
        status = read_status(RunPaths(paths.run(trial.trial_id)))
    has_stopped = status is not None and status.state is RunState.STOPPED
    return TrialState.PENDING if has_stopped else trial.state


def _scores(
    paths: SweepPaths, record: SweepRecord, metric: str, find_last: _FindScore
) -> dict[str, float]:
    """Return the values by name of the trial, without those of trials that cannot be read."""
    scores = {}
    for trial_id, trial in record.trials.items():
        with suppress(HpctrainError, OSError):
            score = _score(trial, RunPaths(paths.run(trial_id)), metric, find_last)
            if score is not None:
                scores[trial_id] = score
    return scores


def _score(trial: Trial, run: RunPaths, metric: str, find_last: _FindScore) -> float | None:
    metrics = trial.metrics
    if not trial.state.is_final and (last := read_last_report(run)) is not None:
        metrics = last["metrics"]
        if metric in ADDED:
            metrics = make_report(trial, AttemptClock(paths=run), last).metrics
    if metrics and find_number(metrics, metric) is None:
        return find_last(metric, run)
    return find_score(metrics, metric)


def _find_last_score(metric: str, run: RunPaths) -> float | None:
    """Return the metric of the last report that has it as a number; None if it is not finite."""
    last = find_last_report(run, lambda report: find_number(report["metrics"], metric) is not None)
    return None if last is None else find_score(last["metrics"], metric)


def _mark_of(path: Path) -> object:
    """Return what changes with a file."""
    found = os.stat(path)
    return found.st_mtime_ns, found.st_size, found.st_ino


class OverviewReader:
    """Reads sweeps again and again: those that have not changed since only once."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[object, SweepOverview]] = {}
        self._last_scores: dict[tuple[Path, str], tuple[object, float | None]] = {}

    def read(self, root: Path) -> SweepOverview:
        """Return a sweep as it is now. Not collective."""
        try:
            mark = _mark_of(SweepPaths(root=root).events)
        except OSError:
            mark = None
        known = self._known.get(root)
        if known is not None and known[0] == mark and known[1].state == "ended":
            return known[1]
        overview = _read(root, self._find_last_score)
        self._known[root] = mark, overview
        return overview

    def _find_last_score(self, metric: str, run: RunPaths) -> float | None:
        mark, of = _mark_of(run.metrics), (run.root, metric)
        if of not in self._last_scores or self._last_scores[of][0] != mark:
            self._last_scores[of] = mark, _find_last_score(metric, run)
        return self._last_scores[of][1]
