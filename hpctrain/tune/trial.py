"""`Trial`: one configuration of a sweep, and what each event makes of its state. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from hpctrain.tune.slots import Slot


class TrialState(str, Enum):
    """State of a trial, by Ray Tune's names; PAUSING and STOPPING are between two of them."""

    PENDING = "PENDING"
    """It has a configuration, and waits for a slot."""
    RUNNING = "RUNNING"
    """Its run has begun."""
    PAUSING = "PAUSING"
    """Its run is asked to stop, and goes on later."""
    PAUSED = "PAUSED"
    """It waits for a slot, and goes on from its newest checkpoint."""
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
    PAUSE = "pause"
    """It is to stop, and to go on later."""
    PAUSED = "paused"
    """Its run has stopped for that."""
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
        # It was interrupted where it is to wait for others.
        TrialEvent.PAUSED: TrialState.PAUSED,
        # A person or the scheduler has stopped it.
        TrialEvent.ENDED: TrialState.TERMINATED,
        TrialEvent.FAILED: TrialState.ERROR,
    },
    TrialState.RUNNING: {
        TrialEvent.STARTED: TrialState.RUNNING,
        TrialEvent.PAUSE: TrialState.PAUSING,
        TrialEvent.STOP: TrialState.STOPPING,
        TrialEvent.ENDED: TrialState.TERMINATED,
        TrialEvent.FAILED: TrialState.ERROR,
        TrialEvent.INTERRUPTED: TrialState.PENDING,
    },
    TrialState.PAUSING: {
        TrialEvent.PAUSED: TrialState.PAUSED,
        TrialEvent.STOP: TrialState.STOPPING,
        TrialEvent.ENDED: TrialState.TERMINATED,
        TrialEvent.FAILED: TrialState.ERROR,
    },
    TrialState.PAUSED: {
        TrialEvent.STARTED: TrialState.RUNNING,
        TrialEvent.ENDED: TrialState.TERMINATED,
        TrialEvent.FAILED: TrialState.ERROR,
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


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """That a trial is to go on as another one: decided, and not done yet."""

    number: int
    """How many of the trial there have been, this one included."""
    time: float
    """When it was decided."""
    donor: str
    """Name of the other trial."""
    checkpoint: str
    """Name of its checkpoint."""
    iteration: int
    """Reports that had led to the checkpoint, over all trials that it comes from."""
    seconds: float
    """Seconds of training that had led to it."""
    config: Mapping[str, Any]
    """What the trial goes on with."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where the later reports of a trial begin: the checkpoint of another one, in its place."""

    transfer: Transfer
    """What was done."""
    report: int
    """Number of the trial's own report that the checkpoint has taken the place of."""
    attempt: int
    """Number of the last attempt before it."""


@dataclass(kw_only=True)
class Trial:
    """One configuration of a sweep. The sweep alone changes it."""

    trial_id: str
    """Name of its run."""
    config: Mapping[str, Any]
    """A variant of ``param_space``, or what a transfer has made of it."""
    config_number: int = 0
    """Number of the transfer that has made it; 0 if none has."""
    state: TrialState = TrialState.PENDING
    slot: Slot = field(default_factory=Slot)
    """What it has, or had when it last ran."""
    reports: int = 0
    """Number of the last report that was seen."""
    attempt: int = 0
    """Attempt of its run that made it."""
    most_reports: int = 0
    """The largest number of a report that was seen, in whatever attempt."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Those of that report."""
    stopped_after: int | None = None
    """Number of the report after which it was asked to stop; None if it was not."""
    reason: str = ""
    """Why it was stopped, or failed."""
    transfer: Transfer | None = None
    """What is to be done when its run has stopped."""
    origins: tuple[Origin, ...] = ()
    """What was done, in order."""
    num_transfers: int = 0
    """How many were decided."""
    without_progress: int = 0
    """How often in a row its job, or a node, ended before it had saved a newer checkpoint."""
    saved: int = 0
    """Iteration of the newest checkpoint when that was last counted."""

    @property
    def has_begun(self) -> bool:
        """Whether it has reported, or was cut off by the end of a job before.

        A restored sweep may begin one that has not, whatever has ended the sweep.
        """
        return bool(self.reports or self.without_progress)

    def apply(self, event: TrialEvent) -> None:
        """Change the state by an event. Not collective."""
        self.state = next_state(self.state, event)
        if self.state.is_final or event is TrialEvent.STARTED:
            self.transfer = None
        if event is TrialEvent.RETRY:
            self.without_progress = 0

    def take(self, number: int, metrics: Mapping[str, Any], *, attempt: int) -> bool:
        """Note the last report; return whether one of that number was seen before.

        Not collective.
        """
        is_known = number <= self.most_reports
        self.reports, self.metrics, self.attempt = number, metrics, attempt
        self.most_reports = max(self.most_reports, number)
        return is_known

    def perturb(self, transfer: Transfer) -> None:
        """Note that it is to go on as another one. Not collective."""
        self.transfer, self.num_transfers = transfer, transfer.number
        self.apply(TrialEvent.PAUSE)

    def begin_anew(self) -> None:
        """Note that its run was moved aside. Not collective."""
        self.reports, self.attempt, self.most_reports, self.origins = 0, 0, 0, ()
        self.saved = 0

    def note_job_end(self, saved: int) -> Mapping[str, int]:
        """Note that its job, or a node, has ended before it; return what to write down.

        Not collective.

        Parameters
        ----------
        saved
            Iteration of its newest checkpoint; 0 if there is none.
        """
        self.without_progress = 0 if saved > self.saved else self.without_progress + 1
        self.saved = saved
        return {"without_progress": self.without_progress, "saved": saved}

    def receive(self, origin: Origin) -> None:
        """Record that it continues from the checkpoint of another trial, with a new configuration.

        Not collective.
        """
        self.config, self.config_number = origin.transfer.config, origin.transfer.number
        self.transfer = None
        self.origins = (*self.origins, origin)
        # What another one has saved is no progress of this one.
        self.saved = origin.transfer.iteration
        # The next reports are of another configuration, whatever was reported before.
        self.most_reports = min(self.most_reports, origin.report)

    def origin_of(self, attempt: int) -> Origin | None:
        """Return where the reports of an attempt begin; None if at the trial's own beginning.

        Not collective.
        """
        return next((each for each in reversed(self.origins) if each.attempt < attempt), None)


def name_trial(number: int) -> str:
    """Return the name of a trial. Pure.

    Examples
    --------
    >>> name_trial(7)
    'trial_00007'
    """
    return f"trial_{number:05d}"
