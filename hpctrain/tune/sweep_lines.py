"""What a sweep prints of its trials. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from typing import Any

from hpctrain.rundir.display import counted, format_metrics
from hpctrain.tune.ledger import SweepPaths
from hpctrain.tune.plain import readable
from hpctrain.tune.trial import Trial, TrialState

# Added to each report, for schedulers.
_ADDED = ("trial_id", "time_total_s")


def explain_silence(trial: Trial) -> str:
    """Return that a trial whose run has finished made no report; empty if it made one. Pure."""
    return "" if trial.reports else "finished without a report"


def explain_end_of_all(trial: Trial, reason: str) -> str:
    """Return why a sweep ends with a trial that has failed for what all nodes lack. Pure."""
    return (
        f"{trial.trial_id}: {reason} All trials would fail like this one: no more are begun, and "
        f"the others are stopped."
    )


def describe_values(values: Mapping[str, Any]) -> str:
    """Return the first values of a configuration, or of metrics. Pure."""
    return format_metrics(readable(values), most=4)


def describe_end(trial: Trial) -> str:
    """Return what became of a trial whose run has ended. Pure."""
    if trial.state is TrialState.PAUSED:
        return f"is paused after report {trial.reports}"
    if trial.state is TrialState.PENDING:
        return "stopped, and can be resumed"
    ended = "is finished" if not trial.reason else trial.reason.splitlines()[0]
    shown = {name: value for name, value in trial.metrics.items() if name not in _ADDED}
    return f"{ended}: {describe_values(shown)}" if shown else ended


def describe_sweep(trials: Collection[Trial], paths: SweepPaths, *, reason: str) -> str:
    """Return what became of a sweep that has ended. Pure.

    Parameters
    ----------
    reason
        Why it ended before its number of trials; empty if it did not.
    """
    failed = sum(trial.state is TrialState.ERROR for trial in trials)
    silent = sum(trial.state is TrialState.TERMINATED and not trial.reports for trial in trials)
    return (
        f"{counted(len(trials), 'trial')}, {failed} failed"
        + (f", {silent} without a report" if silent else "")
        + (f" ({reason})" if reason else "")
        + f": hpctrain tune status {shlex.quote(str(paths.root))}"
    )
