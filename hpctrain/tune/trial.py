"""`Trial`: one configuration of a sweep, and what each event makes of its state. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from hpctrain.tune.slots import Slot


class TrialState(str, Enum):
    """State of a trial, by Ray Tune's names; STOPPING is between two of them."""

    PENDING = "PENDING"
    """It has a configuration, and waits for a slot."""
    RUNNING = "RUNNING"
    """Its run has begun."""
    STOPPING = "STOPPING"
    """Its run is asked to stop: the scheduler has decided so, or the time of the sweep is up."""
    TERMINATED = "TERMINATED"
    """It is finished, or was stopped."""
    ERROR = "ERROR"
    """Its run failed, or could not be started."""

    @property
    def is_final(self) -> bool:
        """Whether nothing is to be done for it any more."""
        return self in (TrialState.TERMINATED, TrialState.ERROR)


class TrialEvent(str, Enum):
    """What changes the state of a trial."""

    STARTED = "started"
    """Its run begins, or is found to run."""
    STOP = "stop"
    """It is to end with what it has reported."""
    ENDED = "ended"
    """Its run finished or was stopped."""
    FAILED = "failed"
    """Its run failed, or lost its executor."""
    INTERRUPTED = "interrupted"
    """The sweep was interrupted, and its run stopped for that."""
    RETRY = "retry"
    """A restored sweep is to run it again."""


TRANSITIONS: Mapping[TrialState, Mapping[TrialEvent, TrialState]] = {
    TrialState.PENDING: {
        TrialEvent.STARTED: TrialState.RUNNING,
        TrialEvent.FAILED: TrialState.ERROR,
    },
    TrialState.RUNNING: {
        TrialEvent.STARTED: TrialState.RUNNING,
        TrialEvent.STOP: TrialState.STOPPING,
        TrialEvent.ENDED: TrialState.TERMINATED,
        TrialEvent.FAILED: TrialState.ERROR,
        TrialEvent.INTERRUPTED: TrialState.PENDING,
    },
    TrialState.STOPPING: {
        TrialEvent.ENDED: TrialState.TERMINATED,
        # It was to end; how it did so is of no interest.
        TrialEvent.FAILED: TrialState.TERMINATED,
        TrialEvent.INTERRUPTED: TrialState.TERMINATED,
    },
    TrialState.TERMINATED: {},
    TrialState.ERROR: {TrialEvent.RETRY: TrialState.PENDING},
}
"""The state after an event. An event that a state does not name comes late, and changes nothing."""


def next_state(state: TrialState, event: TrialEvent) -> TrialState:
    """Return the state after an event. Pure.

    Examples
    --------
    >>> next_state(TrialState.RUNNING, TrialEvent.STOP)
    <TrialState.STOPPING: 'STOPPING'>
    >>> next_state(TrialState.TERMINATED, TrialEvent.FAILED)
    <TrialState.TERMINATED: 'TERMINATED'>
    """
    return TRANSITIONS[state].get(event, state)


@dataclass(kw_only=True)
class Trial:
    """One configuration of a sweep. The sweep alone changes it."""

    trial_id: str
    """Name of its run."""
    config: Mapping[str, Any]
    """A variant of ``param_space``."""
    state: TrialState = TrialState.PENDING
    slot: Slot = field(default_factory=Slot)
    """What it has, or had when it last ran."""
    reports: int = 0
    """Number of the last report that was seen."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Those of that report."""
    stopped_after: int | None = None
    """Number of the report after which it was asked to stop; None if it was not."""
    reason: str = ""
    """Why it was stopped, or failed."""

    def apply(self, event: TrialEvent) -> None:
        """Change the state by an event. Not collective."""
        self.state = next_state(self.state, event)


def name_trial(number: int) -> str:
    """Return the name of a trial. Pure.

    Examples
    --------
    >>> name_trial(7)
    'trial_00007'
    """
    return f"trial_{number:05d}"
