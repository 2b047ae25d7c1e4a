"""What is logged of a trial that has failed, and once of a sweep whose trials all do."""

from __future__ import annotations

from collections.abc import Iterable

from hpctrain.execute.failure_policy import MAX_ATTEMPTS_WITHOUT_PROGRESS
from hpctrain.tune.trial import Trial, TrialState

_ALIKE = 3
"""After so many failures of one kind a person can decide before all trials have failed."""


def describe_failure(trial: Trial, trials: Iterable[Trial]) -> str:
    """Return what is logged of a trial that has failed. Not collective.

    Parameters
    ----------
    trials
        All of the sweep, with that one.
    """
    line = f"{trial.trial_id} failed: {_first_line(trial)}"
    ended = [each for each in trials if each.reports or each.state.is_final]
    if len(ended) != _ALIKE or any(each.reports for each in ended):
        return line
    if {(each.state, _error(each)) for each in ended} != {(TrialState.ERROR, _error(trial))}:
        return line
    return (
        f"{line}\n"
        f"The first {_ALIKE} trials have failed with this error, and none has reported before. If "
        f"all others would, too: hpctrain tune stop. FailureConfig(fail_fast=True) ends a sweep "
        f"with the first failure."
    )


def explain_no_progress(trial: Trial) -> str:
    """Return why a trial is not to go on in another job; empty if it is. Not collective.

    A run on its own ends after as many attempts without progress: otherwise a trial that never
    comes to its first checkpoint would keep a chain of jobs going for ever.
    """
    if trial.without_progress < MAX_ATTEMPTS_WITHOUT_PROGRESS:
        return ""
    return (
        f"its job or its node ended {trial.without_progress} times in a row before it had saved a "
        f"newer checkpoint: another job would end in the same way. Report a checkpoint earlier, or "
        f"give the job more time; Tuner.restore(path, trainable, resume_errored=True).fit() tries "
        f"again."
    )


def _first_line(trial: Trial) -> str:
    return (trial.reason.splitlines() or ["it failed"])[0]


def _error(trial: Trial) -> str:
    """Return the error without the rank and the node, in which trials differ."""
    line = _first_line(trial)
    return line.partition(" failed ")[2] or line
