"""What became of a sweep, read from its files, and what must be true of it whatever happened."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.launch.claim import find_claim
from hpctrain.rundir.metrics import is_report
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import read_lines
from hpctrain.rundir.store import CheckpointStore
from hpctrain.testing.chaos.fault import Entry
from hpctrain.testing.chaos.outcome import RunOutcome, read_run
from hpctrain.tune.ledger import SweepPaths, SweepRecord, is_event, read_record
from hpctrain.tune.trial import Trial

_ENDS = ("trial-ended", "trial-failed")
_OVER = "sweep-ended"
# Of a file that is not complete yet, of a claim, and of a checkpoint that is being written.
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}|\.claiming-.+|\.tmp-.+")


def has_ended(root: Path) -> bool:
    """Return whether there is a sweep, and its tuner has written its end. Not collective."""
    record = _read(root)
    return record is not None and record.ended is not None


def read_sweep(root: Path) -> dict[str, RunOutcome]:
    """Return what became of the trials of a sweep, by name. Not collective."""
    record = _read(root)
    return {} if record is None else {name: read_run(root / name) for name in record.trials}


def best_trial(root: Path, metric: str) -> str | None:
    """Return the name of the trial whose last value of a metric is the smallest. Not collective."""
    lasts = {
        name: run.reports[max(run.reports)][-1][metric]
        for name, run in read_sweep(root).items()
        if run.reports
    }
    return min(lasts, key=lasts.__getitem__, default=None)


def broken_rules(
    root: Path,
    trace: Sequence[Entry],
    *,
    num_trials: int,
    damaged: Mapping[str, float] = MappingProxyType({}),
) -> list[str]:
    """Return what a sweep that has ended broke of the rules of all sweeps; empty if nothing.

    Not collective.

    Parameters
    ----------
    root
        Directory of the sweep.
    trace
        What its processes have done.
    num_trials
        How many trials it was to have.
    damaged
        When checkpoints were damaged, by ``SWEEP/TRIAL/checkpoints/NAME``.
    """
    record = _read(root)
    if record is None:
        return ["there is no sweep"]
    events = read_lines(SweepPaths(root=root).events, is_event)
    found = [*_wrong_numbers(record, events, num_trials), *_two_at_once(trace)]
    for name, trial in record.trials.items():
        run = root / name
        files = _wrong_files(run, damaged)
        found += [f"{name}: {what}" for what in (*_wrong_reports(run, trial), *files)]
    return [*found, *_left_in(root)]


def _read(root: Path) -> SweepRecord | None:
    try:
        return read_record(SweepPaths(root=root))
    except ConfigError:
        return None


def _wrong_numbers(
    record: SweepRecord, events: Sequence[Mapping[str, Any]], num_trials: int
) -> Iterator[str]:
    """Yield which trials are lost, double, without an end, or with more than one."""
    wanted = [f"trial_{number:05d}" for number in range(num_trials)]
    if sorted(record.trials) != wanted:
        yield f"its trials are {', '.join(record.trials)}, not {num_trials}"
    added = Counter(event["trial"] for event in events if event["event"] == "trial-added")
    yield from (f"{name} was added {count} times" for name, count in added.items() if count > 1)
    ends = Counter(event["trial"] for event in events if event["event"] in _ENDS)
    for name, trial in record.trials.items():
        if not trial.state.is_final or ends[name] != 1:
            yield f"{name} is {trial.state.value}, and has {ends[name]} ends"
        if trial.state.value == "ERROR":
            yield f"{name} failed: {trial.reason}"
    if events[-1]["event"] != _OVER or sum(event["event"] == _OVER for event in events) != 1:
        yield "it has not ended once, and at last"


def _two_at_once(trace: Sequence[Entry]) -> Iterator[str]:
    """Yield which trials had two executors at the same time, by what these wrote."""
    spans: dict[str, dict[int, list[float]]] = defaultdict(dict)
    for entry in trace:
        if entry.point.role.endswith("/executor"):
            times = spans[entry.point.role].setdefault(entry.pid, [entry.time, entry.time])
            times[1] = max(times[1], entry.time)
    for role, of_pids in spans.items():
        ordered = sorted(of_pids.values())
        for (_, end), (start, _) in itertools.pairwise(ordered):
            if start < end:
                yield f"{role}: two were at work, for {end - start:.2f} s"


def _wrong_reports(run: Path, trial: Trial) -> Iterator[str]:
    """Yield where the reports of a trial have a hole, or are made twice without a reason."""
    lines = read_lines(RunPaths(run).metrics, is_report)
    begun = {
        event["attempt"]: event["first_report"]
        for event in read_run(run).events
        if event["event"] == "attempt-started"
    }
    made: dict[int, list[int]] = defaultdict(list)
    for line in lines:
        made[line["attempt"]].append(line["report"])
    for attempt, numbers in made.items():
        first = begun.get(attempt)
        if first is None or numbers != list(range(first + 1, first + 1 + len(numbers))):
            yield f"attempt {attempt} began after report {first} and made reports {numbers}"
    last = max((line["report"] for line in lines), default=0)
    if {line["report"] for line in lines} != set(range(1, last + 1)):
        yield f"its reports have a hole before report {last}"
    if trial.reports != (lines[-1]["report"] if lines else 0):
        yield f"the ledger of the sweep ends at report {trial.reports}, and the run at {last}"


def _wrong_files(run: Path, damaged: Mapping[str, float]) -> Iterator[str]:
    """Yield which checkpoints are not what their manifests say, and which damage is not found.

    One that was damaged when no attempt was to begin any more stays as it is: none has read it.
    """
    last_attempt = max(read_run(run).attempt_times, default=0.0)
    directory = RunPaths(run).checkpoints
    store, shown = CheckpointStore(directory), directory.relative_to(run.parents[1])
    for manifest in store.manifests():
        is_damaged = damaged.get(str(shown / manifest.name), 0.0) > last_attempt
        try:
            store.verify(manifest)
        except CheckpointError as error:
            if not is_damaged:
                yield str(error)
        else:
            if is_damaged:
                yield f"checkpoint {manifest.name} was damaged, and that is not found"


def _left_in(root: Path) -> Iterator[str]:
    """Yield what is left of processes that are gone."""
    for directory in (root, *(path for path in root.glob("trial_*") if path.is_dir())):
        if find_claim(RunPaths(directory)) is not None:
            yield f"{directory.name} is still claimed"
    for path in sorted(root.rglob(".*")):
        if _TEMPORARY.fullmatch(path.name):
            yield f"left behind: {path.relative_to(root)}"
