"""What state a run is in, and what each event makes of it: one table for every home. Pure.

The documentation prints the table (docs/run-directory.rst). `RunStatus.after` of
`hpctrain.rundir.status` changes the state by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class RunState(str, Enum):
    """State of a run."""

    SUBMITTING = "submitting"
    """A process asks Slurm for the job. If no process holds the claim on the run, it is gone."""
    SUBMITTED = "submitted"
    """Slurm has the job; no executor has begun."""
    STARTING = "starting"
    """An executor starts the ranks."""
    RUNNING = "running"
    """All ranks have joined."""
    FINISHED = "finished"
    """The training function returned on every rank."""
    FAILED = "failed"
    """The budget of failures is used up; ``fit()`` again resumes."""
    STOPPED = "stopped"
    """Stopped from outside; ``fit()`` again resumes."""
    REFUSED = "refused"
    """Slurm refused the job; ``error`` has its reason; ``fit()`` again submits it anew."""

    @property
    def is_final(self) -> bool:
        """Whether no executor is at work any more."""
        return self in _FINAL


class RunEvent(str, Enum):
    """What changes the state of a run."""

    REQUESTED = "requested"
    """A process is about to ask Slurm for a job."""
    SUBMITTED = "submitted"
    """Slurm has a job that begins the run, or continues it."""
    REFUSED = "refused"
    """Slurm does not take the job."""
    STARTED = "started"
    """An executor begins, or starts the ranks of an attempt."""
    JOINED = "joined"
    """All ranks of an attempt have joined."""
    FINISHED = "finished"
    """The training function has returned on every rank."""
    FAILED = "failed"
    """An error ended the run, and the budgets allow no restart."""
    STOPPED = "stopped"
    """A person, a time limit or Slurm ended the run."""


class Action(Enum):
    """What else becomes of the status."""

    NONE = ""
    CLEAR_END = "error and end of the run are cleared"
    NOTE_END = "the time of the end is written"


_FINAL = (RunState.FINISHED, RunState.FAILED, RunState.STOPPED, RunState.REFUSED)
_ENDS = {
    RunEvent.FINISHED: RunState.FINISHED,
    RunEvent.FAILED: RunState.FAILED,
    RunEvent.STOPPED: RunState.STOPPED,
}
# A new fit(), and an executor that Slurm starts again, begin a run anew in whatever state it was
# left: its executor may have died, or be cut off.
_ANEW = {RunEvent.REQUESTED: RunState.SUBMITTING, RunEvent.STARTED: RunState.STARTING}
_AT_WORK = {
    **_ANEW,
    **_ENDS,
    RunEvent.SUBMITTED: RunState.SUBMITTED,
    RunEvent.JOINED: RunState.RUNNING,
}

TRANSITIONS: Mapping[RunState, Mapping[RunEvent, RunState]] = {
    RunState.SUBMITTING: {
        **_ANEW,
        RunEvent.SUBMITTED: RunState.SUBMITTED,
        RunEvent.REFUSED: RunState.REFUSED,
        RunEvent.STOPPED: RunState.STOPPED,
    },
    # An executor that hands the run over may still learn that no other job takes it.
    RunState.SUBMITTED: {
        **_ANEW,
        RunEvent.SUBMITTED: RunState.SUBMITTED,
        RunEvent.FAILED: RunState.FAILED,
        RunEvent.STOPPED: RunState.STOPPED,
    },
    RunState.STARTING: _AT_WORK,
    RunState.RUNNING: _AT_WORK,
    RunState.FINISHED: _ANEW,
    RunState.FAILED: _ANEW,
    RunState.STOPPED: _ANEW,
    RunState.REFUSED: _ANEW,
}
"""The state after an event. An event that a state does not name comes late, and changes nothing: a
job may have ended before its submission is written down."""


def next_state(state: RunState, event: RunEvent) -> tuple[RunState, Action]:
    """Return the state after an event, and what else becomes of the status. Not collective.

    Examples
    --------
    >>> next_state(RunState.RUNNING, RunEvent.FAILED)
    (<RunState.FAILED: 'failed'>, <Action.NOTE_END: 'the time of the end is written'>)
    >>> next_state(RunState.FINISHED, RunEvent.SUBMITTED)
    (<RunState.FINISHED: 'finished'>, <Action.NONE: ''>)
    """
    after = TRANSITIONS[state].get(event)
    if after is None:
        return state, Action.NONE
    return after, Action.NOTE_END if after.is_final else Action.CLEAR_END
