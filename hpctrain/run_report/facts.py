"""`RunFacts`: what the files of a run directory contain, and which of them are damaged."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from hpctrain.errors import HpctrainError
from hpctrain.run_report.curves import Metrics, read_metrics
from hpctrain.run_report.markup import format_span
from hpctrain.run_report.shares import Efficiency, find_widths, has_gpus, measure
from hpctrain.run_report.throughput import Rate, read_rates
from hpctrain.run_report.time_use import (
    Interval,
    count_repeated,
    read_intervals_of_reports,
    split_time,
)
from hpctrain.run_report.training_parts import read_waits
from hpctrain.rundir.attempts import RESTARTS, AttemptRecord, name_slow_nodes, read_attempts
from hpctrain.rundir.ledger import is_event
from hpctrain.rundir.manifest import Manifest
from hpctrain.rundir.metrics import add_validated, explain_cut, is_report, latest_reports
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.plan import read_plan
from hpctrain.rundir.reading import scan_lines
from hpctrain.rundir.status import RunStatus, explain_gap, read_status
from hpctrain.rundir.store import CheckpointStore, Entry

T = TypeVar("T")

# A run at work writes its status every few seconds; other hosts see it later.
_SILENCE_S = 60.0
_MOST_READS = 3


@dataclass(frozen=True, kw_only=True)
class SavedCheckpoint:
    """A checkpoint that is still there."""

    name: str
    report: int
    attempt: int
    num_files: int
    size: int
    """Bytes."""
    created_at: float
    """When it was committed, in seconds since the epoch."""
    took_s: float | None
    """Seconds from the begin of rank 0's ``report()`` to the commit; None if that is not known."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What the files of a run directory contain. Times are seconds since the epoch."""

    name: str
    path: str
    state: str
    """As in ``status.json``; ``prepared`` before the run has begun."""
    is_over: bool
    """Whether that state is final."""
    began_at: float | None = None
    """Time of the first event; None before it."""
    until: float | None = None
    """When the run ended, or when its files were last written."""
    error: str | None = None
    status: RunStatus | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)
    jobs: tuple[str, ...] = ()
    """Its Slurm jobs, in order."""
    before: tuple[tuple[float, str], ...] = ()
    """What happened before the first attempt: when, and what."""
    attempts: tuple[AttemptRecord, ...] = ()
    slow_nodes: tuple[str, ...] = ()
    """What became of nodes that were named slow, each as a sentence."""
    num_restarts: int = 0
    """How often the ranks were started again without a person."""
    intervals: tuple[Interval, ...] = ()
    """What it did from `began_at` to `until`."""
    efficiency: Efficiency = field(default_factory=Efficiency)
    num_reports: int = 0
    """Reports that count."""
    num_repeated: int = 0
    """Reports that were made again."""
    metrics: Metrics = field(default_factory=Metrics)
    rates: tuple[Rate, ...] = ()
    checkpoints: tuple[SavedCheckpoint, ...] = ()
    """Those that are there, the oldest first."""
    num_reported_checkpoints: int = 0
    """Reports that rank 0 made with a checkpoint; fewer are kept."""
    damage: tuple[str, ...] = ()
    """Files that cannot be read, or are damaged or incomplete, each as a sentence."""

    def describe_state(self, now: float) -> str:
        """Return the state, and how old it is where a run at work would have written a new one.

        Pure. Whether its executor and its job are still there is not in its files.

        Parameters
        ----------
        now
            Seconds since the epoch.
        """
        if self.is_over or self.until is None or now - self.until < _SILENCE_S:
            return self.state
        return f"{self.state}, last news {format_span(now - self.until)} ago"


def read_facts(paths: RunPaths) -> RunFacts:
    """Return what the files of a run directory contain. Not collective.

    It reads whatever can be read, and never raises because of what a file holds.
    """
    for _ in range(_MOST_READS - 1):
        marks = _mark(paths.status), _mark(paths.ledger)
        facts = _read_facts(paths)
        # Where the run has gone on meanwhile, files contradict each other that are whole.
        if not facts.damage or marks == (_mark(paths.status), _mark(paths.ledger)):
            return facts
    return _read_facts(paths)


def _mark(path: Path) -> object:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read_facts(paths: RunPaths) -> RunFacts:
    reader = _Reader()
    # First: what it says has happened is in the other files by then.
    status = reader.read(lambda: read_status(paths))
    ledger = reader.lines(paths, "ledger", is_event)
    lines = reader.lines(paths, "metrics", is_report)
    plan = reader.read(lambda: read_plan(paths)) or {}
    entries = reader.read(CheckpointStore(paths.checkpoints).entries) or []
    manifests = [entry.manifest for entry in entries if entry.manifest is not None]
    reports = latest_reports(lines)
    add_validated(reports, ledger)
    reader.check(paths, status, ledger, entries, last=reports[-1]["report"] if reports else 0)
    before, attempts = read_attempts(ledger)
    began_at, until = _extent(ledger, lines, status)
    intervals = [] if until is None else split_time(ledger, lines, until=until)
    return RunFacts(
        name=paths.root.name,
        path=str(paths.root),
        state=_state(ledger, status),
        is_over=status is not None and status.state.is_final,
        began_at=began_at,
        until=until,
        error=None if status is None else status.error,
        status=status,
        plan=plan,
        jobs=_jobs(ledger),
        before=tuple(before),
        attempts=tuple(_with_news(attempts, status)),
        slow_nodes=tuple(name_slow_nodes(ledger)),
        num_restarts=sum(event["event"] in RESTARTS for event in ledger),
        intervals=tuple(intervals),
        efficiency=measure(
            intervals,
            find_widths([a.attempt for a in attempts], plan, _world_sizes(manifests, status)),
            read_intervals_of_reports(lines),
            read_waits(ledger, lines, has_gpus=has_gpus(plan)),
        ),
        num_reports=len(reports),
        num_repeated=count_repeated(lines),
        metrics=read_metrics(reports),
        rates=tuple(read_rates(lines)),
        checkpoints=tuple(_saved(manifests, lines)),
        num_reported_checkpoints=sum(report.get("checkpoint") is not None for report in reports),
        damage=tuple(dict.fromkeys(reader.damage)),
    )


class _Reader:
    """Reads files, and notes what is wrong with them."""

    def __init__(self) -> None:
        self.damage: list[str] = []
        self._unread: set[str] = set()

    def read(self, read: Callable[[], T]) -> T | None:
        """Return what a function reads; None if it cannot."""
        try:
            return read()
        except (FileNotFoundError, NotADirectoryError) as error:
            self.damage.append(f"{error.filename} is missing.")
        except OSError as error:
            self.damage.append(f"{error.filename} cannot be read: {error.strerror}.")
        except HpctrainError as error:
            self.damage.append(str(error))
        return None

    def lines(
        self, paths: RunPaths, name: str, is_valid: Callable[[Any], bool]
    ) -> list[dict[str, Any]]:
        """Return the lines of a file."""
        path = getattr(paths, name)
        found = self.read(lambda: scan_lines(path, is_valid))
        if found is None:
            self._unread.add(name)
            return []
        self.damage += [f"{path}: {what}" for what in found.damage]
        return found.values

    def check(
        self,
        paths: RunPaths,
        status: RunStatus | None,
        ledger: Sequence[Mapping[str, Any]],
        entries: Sequence[Entry],
        *,
        last: int,
    ) -> None:
        """Note where files contradict each other."""
        # What a file lacks that cannot be read at all is not worth a second sentence.
        if status is not None:
            if status.damage:
                self.damage.append(f"{status.damage}; the state is that of the ledger.")
            if "ledger" not in self._unread and (gap := explain_gap(ledger, status)):
                self.damage.append(f"{paths.ledger} is damaged: {gap}.")
            if "metrics" not in self._unread and (cut := explain_cut(status, last=last)):
                self.damage.append(f"{paths.metrics} is damaged: {cut}.")
        self.damage += [entry.problem for entry in entries if entry.problem is not None]


def _state(ledger: Sequence[Mapping[str, Any]], status: RunStatus | None) -> str:
    if status is not None:
        return status.state.value
    return "not known" if ledger else "prepared"


def _jobs(ledger: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    names = ("submitted", "executor-started", "attempt-started", "successor")
    ids = [event.get("job_id") for event in ledger if event["event"] in names]
    return tuple(dict.fromkeys(job_id for job_id in ids if job_id is not None))


def _extent(
    ledger: Sequence[Mapping[str, Any]],
    lines: Sequence[Mapping[str, Any]],
    status: RunStatus | None,
) -> tuple[float | None, float | None]:
    """Return the time of the first event, and that of the end or of the last news."""
    began_at = ledger[0]["time"] if ledger else None
    news = [each[-1]["time"] for each in (ledger, lines) if each]
    if status is not None and status.state.is_final and status.ended_at is not None:
        return began_at, status.ended_at
    if status is not None and status.updated_at:
        news.append(status.updated_at)
    return began_at, max(news, default=None)


def _with_news(
    attempts: Sequence[AttemptRecord], status: RunStatus | None
) -> Sequence[AttemptRecord]:
    """Add what the ledger only gets at the end of the attempt that runs."""
    last = attempts[-1] if attempts else None
    if last is None or status is None or last.ended_at is not None:
        return attempts
    if last.attempt != status.attempt:
        return attempts
    news = replace(last, nodes=status.nodes, reports=status.reports, checkpoint=status.checkpoint)
    return [*attempts[:-1], news]


def _world_sizes(manifests: Sequence[Manifest], status: RunStatus | None) -> dict[int, int]:
    found = {manifest.attempt: manifest.world_size for manifest in manifests}
    if status is not None and status.world_size:
        found[status.attempt] = status.world_size
    return found


def _saved(
    manifests: Sequence[Manifest], lines: Sequence[Mapping[str, Any]]
) -> list[SavedCheckpoint]:
    wanted = {(manifest.attempt, manifest.report) for manifest in manifests}
    begun = {
        key: line["time"] for line in lines if (key := (line["attempt"], line["report"])) in wanted
    }
    return [
        SavedCheckpoint(
            name=manifest.name,
            report=manifest.report,
            attempt=manifest.attempt,
            num_files=len(manifest.files),
            size=manifest.size,
            created_at=manifest.created_at,
            took_s=_positive(manifest.created_at, begun.get((manifest.attempt, manifest.report))),
        )
        for manifest in manifests
    ]


def _positive(end: float, begin: float | None) -> float | None:
    """Return the seconds between two clocks; None if they contradict each other."""
    return end - begin if begin is not None and end >= begin else None
