"""What follows a failed attempt. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpctrain.config import FailureConfig
from hpctrain.errors import LaunchError, RunStoppedError, TrainingFailedError
from hpctrain.rundir.history import FailureKind, History

MAX_FRUITLESS_ATTEMPTS = 5
"""A run that fails so often in a row without a newer checkpoint is stopped, whatever it may."""

_BUDGETS: Mapping[FailureKind, str] = {
    FailureKind.WORKER: "max_failures",
    FailureKind.START: "controller_failure_limit",
    FailureKind.PREEMPTION: "max_preemption_failures",
}


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether the run goes on."""

    restart: bool
    reason: str
    """For the ledger and the error message."""


def classify_failure(error: BaseException | None) -> FailureKind | None:
    """Return what kind of failure ended an attempt; None if it is none, or ends the run.

    Not collective.
    """
    if isinstance(error, LaunchError):
        return FailureKind.START
    if isinstance(error, TrainingFailedError) and not isinstance(error, RunStoppedError):
        return FailureKind.WORKER
    return None


def decide(kind: FailureKind, history: History, config: FailureConfig) -> Decision:
    """Return whether the run goes on after a failure.

    Not collective.

    Parameters
    ----------
    kind
        What ended the last attempt.
    history
        What has gone wrong so far, that failure included.
    config
        The budgets.
    """
    if history.fruitless >= MAX_FRUITLESS_ATTEMPTS:
        return Decision(
            restart=False,
            reason=f"{history.fruitless} attempts in a row ended without a newer checkpoint, and "
            f"a run that makes no progress is stopped whatever its budgets. Look at why they "
            f"ended (hpctrain status, logs/), or report a checkpoint earlier; fit() with the same "
            f"name tries again.",
        )
    if kind not in _BUDGETS:
        return Decision(restart=True, reason=f"the end of the job ({kind.value}) costs no budget")
    name = _BUDGETS[kind]
    budget = getattr(config, name)
    count = history.failures.get(kind, 0)
    if budget == -1:
        return Decision(restart=True, reason=f"{kind.value} failure {count}, without a limit")
    return Decision(
        restart=count <= budget, reason=f"{kind.value} failure {count} of {name}={budget}"
    )
