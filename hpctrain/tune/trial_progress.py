"""How far a trial has come: its reports and checkpoints, also those of trials that it continues."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpctrain.errors import HpctrainError
from hpctrain.rundir.store import CheckpointStore
from hpctrain.tune.attempt_clock import AttemptClock
from hpctrain.tune.runner import Report, Saved
from hpctrain.tune.trial import Trial

ADDED = ("training_iteration", "time_total_s", "trial_id")
"""What is added to the metrics of each report, as Ray Tune does."""


def make_report(trial: Trial, clock: AttemptClock, line: Mapping[str, Any]) -> Report:
    """Return a report of a trial from its line in ``metrics.jsonl``. Not collective.

    Parameters
    ----------
    clock
        Of the trial's run.
    line
        The line, parsed.
    """
    iteration, seconds = _progress(
        trial, clock, line["report"], attempt=line["attempt"], time=line["time"]
    )
    added = dict(zip(ADDED, (iteration, seconds, trial.trial_id), strict=True))
    return Report(
        number=line["report"],
        time=line["time"],
        attempt=line["attempt"],
        metrics={**added, **line["metrics"]},
        is_partial="partial" in line,
    )


def find_saved(trial: Trial, clock: AttemptClock) -> Saved | None:
    """Return the newest committed checkpoint of a trial; None if there is none yet.

    Not collective.

    Parameters
    ----------
    clock
        Of the trial's run.
    """
    manifests = CheckpointStore(clock.paths.checkpoints).manifests()
    if not manifests:
        return None
    newest, last = manifests[-1], trial.origins[-1] if trial.origins else None
    if last is not None and (newest.report, newest.attempt) == (last.report, last.attempt):
        # It is the one that came from another trial.
        iteration, seconds = last.transfer.iteration, last.transfer.seconds
    else:
        iteration, seconds = _progress(
            trial, clock, newest.report, attempt=newest.attempt, time=newest.created_at
        )
    return Saved(name=newest.name, iteration=iteration, seconds=seconds)


def note_job_end(trial: Trial, find_saved: Callable[[Trial], Saved | None]) -> Mapping[str, int]:
    """Note that a job, or a node, has ended before a trial; return what to write down.

    Not collective. Nothing is counted where it cannot be read how far the trial has come.

    Parameters
    ----------
    find_saved
        Returns its newest committed checkpoint; None if there is none yet.
    """
    try:
        saved = find_saved(trial)
    except (HpctrainError, OSError):
        return {}
    return trial.note_job_end(0 if saved is None else saved.iteration)


def _progress(
    trial: Trial, clock: AttemptClock, report: int, *, attempt: int, time: float
) -> tuple[int, float]:
    """Return the reports and seconds that led to a report, also those of other trials."""
    origin = trial.origin_of(attempt)
    if origin is None:
        return report, clock.seconds_until(time, attempt=attempt)
    since = clock.seconds_until(time, attempt=attempt, after=origin.attempt)
    before = origin.transfer
    return before.iteration + report - origin.report, before.seconds + since
