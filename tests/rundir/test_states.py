"""Every cell of the table of states, and random orders of events."""

from __future__ import annotations

import random

import pytest

from hpctrain.rundir.states import TRANSITIONS, Action, RunEvent, RunState, next_state
from hpctrain.rundir.status import RunStatus

# What each event (row) makes of each state (column); "-": it comes too late, and changes nothing.
TABLE = """
            submitting submitted  starting   running    finished   failed     stopped    refused
requested   submitting submitting submitting submitting submitting submitting submitting submitting
submitted   submitted  submitted  submitted  submitted  -          -          -          -
refused     refused    -          -          -          -          -          -          -
started     starting   starting   starting   starting   starting   starting   starting   starting
joined      -          -          running    running    -          -          -          -
finished    -          -          finished   finished   -          -          -          -
failed      -          failed     failed     failed     -          -          -          -
stopped     stopped    stopped    stopped    stopped    -          -          -          -
"""
STATES, *ROWS = [line.split() for line in TABLE.strip().splitlines()]
CELLS = [
    pytest.param(RunState(state), RunEvent(event), after, id=f"{state}-{event}")
    for event, *cells in ROWS
    for state, after in zip(STATES, cells, strict=True)
]


def test_the_table_has_all_states_and_events() -> None:
    assert len(CELLS) == len(RunState) * len(RunEvent) == len(TRANSITIONS) * len(ROWS)


@pytest.mark.parametrize(("state", "event", "after"), CELLS)
def test_a_cell(state: RunState, event: RunEvent, after: str) -> None:
    expected = state if after == "-" else RunState(after)
    found, action = next_state(state, event)
    assert found is expected
    ends = after != "-" and expected.is_final
    assert action is (
        Action.NONE if after == "-" else Action.NOTE_END if ends else Action.CLEAR_END
    )


@pytest.mark.parametrize(("state", "event", "after"), CELLS)
def test_a_status_follows_the_table(state: RunState, event: RunEvent, after: str) -> None:
    status = RunStatus(
        name="run", state=state, launcher="local", error="old", ended_at=1.0, stalled="rank 1"
    )
    found = status.after(event, now=7.0, reports=3)
    if after == "-":
        assert found is status
        return
    assert (found.state.value, found.reports) == (after, 3)
    if found.state.is_final:
        assert (found.ended_at, found.stalled, found.error) == (7.0, "", "old")
    else:
        assert (found.ended_at, found.stalled, found.error) == (None, "", None)


def test_in_any_order_a_run_ends_once_and_is_only_begun_anew_by_a_person_or_an_executor() -> None:
    chance = random.Random(4713)
    for _ in range(2000):
        status = RunStatus(name="run", state=RunState.SUBMITTING, launcher="slurm")
        for now in range(20):
            event = chance.choice([*RunEvent])
            before, status = status, status.after(event, now=float(now))
            assert (status.ended_at is not None) == status.state.is_final
            if before.state.is_final and status is not before:
                assert event in (RunEvent.REQUESTED, RunEvent.STARTED)
            if status.state is RunState.RUNNING:
                assert before.state in (RunState.STARTING, RunState.RUNNING)


def test_a_run_that_waits_for_its_next_job_shows_nothing_of_the_last_executor() -> None:
    status = RunStatus(
        name="run", state=RunState.RUNNING, launcher="slurm", phase="training", deadline=9.0
    )
    waits = status.after(RunEvent.SUBMITTED, job_id="7")
    assert (waits.job_id, waits.phase, waits.deadline) == ("7", "", None)
