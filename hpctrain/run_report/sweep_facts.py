"""`SweepFacts`: what the files of a sweep and its trials contain, and which of them are damaged."""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpctrain.metric_names import as_float, find_number, flatten, is_number
from hpctrain.run_report.curves import Curve
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import scan_lines
from hpctrain.tune.ledger import SweepPaths, SweepRecord, fold, is_event, no_sweep
from hpctrain.tune.place import find_state
from hpctrain.tune.report_table import read_trial_reports
from hpctrain.tune.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Span:
    """A time in which a trial ran. Times are seconds since the epoch."""

    begin: float
    stopped_at: float | None = None
    """When it was asked to stop; None if it was not."""
    end: float | None = None
    """None while it runs, or if the sweep does not know its end."""
    has_failed: bool = False


@dataclass(frozen=True, kw_only=True)
class TrialFacts:
    """A trial, with its reports."""

    trial: Trial
    config: Mapping[str, Any]
    """Flat: ``opt/lr``."""
    num_reports: int
    metrics: Mapping[str, Any]
    """Of its last report, flat."""
    curve: Curve
    """The metric of the sweep."""
    times: array[float]
    """When each of these values was reported."""
    spans: tuple[Span, ...] = ()

    @property
    def name(self) -> str:
        """Its name."""
        return self.trial.trial_id

    @property
    def score(self) -> float | None:
        """The last value of the metric, by which trials are compared; None if it is not finite."""
        return self.curve.last if self.curve.values else None

    def best_value(self, mode: str | None) -> tuple[int, float] | None:
        """Return report and value of the best of all values; None without one. Pure."""
        return self.curve.most if mode == "max" else self.curve.least


@dataclass(frozen=True, kw_only=True)
class SweepFacts:
    """What the files of a sweep contain."""

    name: str
    path: str
    state: str
    """``running``, ``ended`` or ``interrupted``."""
    reason: str | None
    metric: str | None
    """The metric that the page shows: of the TuneConfig, or else the first one that is a number."""
    mode: str | None
    """Which is better, ``min`` or ``max``; None if the TuneConfig does not say."""
    is_metric_chosen: bool
    """Whether the TuneConfig names the metric."""
    seed: int | None
    began_at: float
    until: float
    """When it ended, or when its files were last written."""
    trials: tuple[TrialFacts, ...]
    """In the order in which they were made."""
    damage: tuple[str, ...] = ()
    """What cannot be read, each as a sentence."""

    @functools.cached_property
    def ranking(self) -> tuple[TrialFacts, ...]:
        """Trials with a score, the best first."""
        sign = -1 if self.mode == "max" else 1
        scored = [trial for trial in self.trials if trial.score is not None]
        return tuple(sorted(scored, key=lambda trial: sign * (trial.score or 0.0)))

    @property
    def best(self) -> TrialFacts | None:
        """The best trial, as ``hpctrain tune best`` finds it; None if none is better."""
        return self.ranking[0] if self.ranking and self.mode is not None else None

    @functools.cached_property
    def improvements(self) -> list[tuple[float, float, str]]:
        """Each value that was the best so far: seconds since the begin, value and trial."""
        sign = -1 if self.mode == "max" else 1
        reports = sorted(
            (at, value, trial.name)
            for trial in self.trials
            for at, value in zip(trial.times, trial.curve.values, strict=True)
            if math.isfinite(value)
        )
        found: list[tuple[float, float, str]] = []
        for at, value, name in reports if self.mode is not None else ():
            if not found or sign * value < sign * found[-1][1]:
                found.append((max(0.0, at - self.began_at), value, name))
        return found


def read_sweep_facts(paths: SweepPaths) -> SweepFacts:
    """Return what the files of a sweep contain. Not collective.

    Lines and trials that cannot be read are left out, and named.

    Raises
    ------
    ConfigError
        If there is no sweep.
    """
    lines = scan_lines(paths.events, is_event)
    record = fold(lines.values)
    if record is None:
        raise no_sweep(paths)
    damage = [f"{paths.events}: {what}" for what in lines.damage]
    until = max(event["time"] for event in lines.values)
    metric = record.started.get("metric")
    shown, spans, trials = metric or None, read_spans(lines.values), []
    for name, trial in record.trials.items():
        run = RunPaths(paths.run(name))
        found, damaged = read_trial_reports(run, trial)
        damage += damaged
        until = max([until, *(report["time"] for report in found[-1:])])
        shown = shown or _first_number(found)
        # Of all its reports the metric alone is kept.
        trials.append(_facts(trial, found, shown, spans.get(name, ())))
    return SweepFacts(
        name=paths.root.name,
        path=str(paths.root),
        state=find_state(paths, record),
        reason=record.reason,
        metric=shown,
        mode=_mode(record),
        is_metric_chosen=bool(metric),
        seed=record.started.get("seed"),
        began_at=record.started["time"],
        until=until,
        trials=tuple(trials),
        damage=tuple(damage),
    )


def read_spans(events: Iterable[Mapping[str, Any]]) -> dict[str, list[Span]]:
    """Return when each trial ran. Pure.

    Parameters
    ----------
    events
        The ledger of the sweep.
    """
    found: dict[str, list[Span]] = {}
    begun: dict[str, float] = {}
    stopped: dict[str, float] = {}
    for event in events:
        kind, name, at = event["event"], event.get("trial", ""), event["time"]
        if kind == "trial-started":
            # Again by a restored sweep that has found it running.
            begun.setdefault(name, at)
        elif kind == "trial-stop":
            stopped.setdefault(name, at)
        elif kind in _ENDS and name in begun:
            stopped_at = stopped.pop(name, None)
            span = Span(
                begin=begun.pop(name),
                stopped_at=stopped_at,
                end=at,
                # How it ended is of no interest once it was to end.
                has_failed=kind == "trial-failed" and stopped_at is None,
            )
            found.setdefault(name, []).append(span)
    for name, begin in begun.items():
        span = Span(begin=begin, stopped_at=stopped.get(name))
        found.setdefault(name, []).append(span)
    return found


def _facts(
    trial: Trial, reports: Sequence[Mapping[str, Any]], metric: str | None, spans: Sequence[Span]
) -> TrialFacts:
    curve, times = Curve(name=metric or ""), array("d")
    for report in reports:
        value = None if metric is None else find_number(report["metrics"], metric)
        if value is not None:
            curve.reports.append(report["report"])
            curve.values.append(as_float(value))
            times.append(report["time"])
    return TrialFacts(
        trial=trial,
        config=flatten(trial.config),
        num_reports=reports[-1]["report"] if reports else 0,
        metrics=flatten(reports[-1]["metrics"]) if reports else {},
        curve=curve,
        times=times,
        spans=tuple(spans),
    )


def _mode(record: SweepRecord) -> str | None:
    mode = record.started.get("mode")
    return mode if mode in ("min", "max") else None


def _first_number(reports: Sequence[Mapping[str, Any]]) -> str | None:
    last = flatten(reports[-1]["metrics"]) if reports else {}
    for name, value in last.items():
        if is_number(value):
            return name
    return None


_ENDS = ("trial-ended", "trial-failed", "trial-interrupted")
