"""What a restored sweep makes of trials that were interrupted after a report that none has seen."""

from __future__ import annotations

import pytest

from hpctrain.tune.adoption import Replayed, settle
from hpctrain.tune.trial import Trial, TrialEvent, TrialState


@pytest.mark.parametrize(
    ("state", "decision", "after", "becomes", "reason"),
    [
        (TrialState.PENDING, "STOP", 4, TrialState.TERMINATED, "stopped by the scheduler after "),
        (TrialState.PENDING, "PAUSE", None, TrialState.PAUSED, ""),
        (TrialState.PENDING, "CONTINUE", None, TrialState.PENDING, ""),
        (TrialState.PENDING, None, None, TrialState.PENDING, ""),
        # What became of these was decided.
        (TrialState.PAUSED, "STOP", 4, TrialState.PAUSED, ""),
    ],
)
def test_a_trial_that_waits_is_where_the_scheduler_says(
    state: TrialState, decision: str | None, after: int | None, becomes: TrialState, reason: str
) -> None:
    trial = Trial(trial_id="trial_00000", config={}, state=state, reports=5)
    said = {} if decision is None else {trial.trial_id: decision}
    stops = {} if after is None else {trial.trial_id: after}
    reasons = []

    def end(trial: Trial, reason: str, *, was_stopped: bool) -> None:
        assert was_stopped
        reasons.append(reason)
        trial.apply(TrialEvent.ENDED)

    settle(
        [trial],
        Replayed(decisions=said, stops=stops, exploits=(), histories={}),
        change=lambda trial, event: trial.apply(event),
        end=end,
    )
    assert trial.state is becomes
    assert reasons == ([f"{reason}report 4"] if reason else [])
