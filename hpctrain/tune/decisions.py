"""`Decisions`: writes down what is decided on a trial at work, then asks its run to stop."""

from __future__ import annotations

from collections.abc import Callable

from hpctrain.tune.schedulers.scheduler import TrialScheduler
from hpctrain.tune.stops import Stops
from hpctrain.tune.sweep_lines import describe_end
from hpctrain.tune.transfers import Transfers
from hpctrain.tune.trial import Trial, TrialEvent, TrialState
from hpctrain.tune.trials import ChangeTrial


class Decisions:
    """Carries out what is decided on trials at work.

    Parameters
    ----------
    stops
        Asks their runs to stop.
    transfers
        Know whether a trial can go on later.
    change
        Writes an event of a trial down, and lets it count.
    end
        Ends a trial without a run, given the reason.
    show
        Is sent a line when it does.
    """

    def __init__(
        self,
        stops: Stops,
        transfers: Transfers,
        *,
        change: ChangeTrial,
        end: Callable[..., None],
        show: Callable[[str], None],
    ) -> None:
        self._stops, self._transfers = stops, transfers
        self._change, self._end, self._show = change, end, show

    def apply(self, trial: Trial, decision: str, after: int | None = None) -> None:
        """Carry out a decision of the scheduler. Not collective.

        Parameters
        ----------
        after
            Report that the decision follows; None: the last.
        """
        if self.write(trial, decision, after):
            self._stops.ask(trial)

    def write(self, trial: Trial, decision: str, after: int | None) -> bool:
        """Write down a decision of the scheduler; return whether the run of the trial is to stop.

        Not collective.

        Parameters
        ----------
        after
            Report that the decision follows; None: the last.
        """
        if decision == TrialScheduler.STOP:
            after = trial.reports if after is None else after
            self._note_stop(trial, f"stopped by the scheduler after report {after}", after)
        elif decision == TrialScheduler.PAUSE and trial.state is TrialState.RUNNING:
            # One without a checkpoint would begin anew.
            if not self._transfers.has_saved(trial):
                return False
            self._change(trial, TrialEvent.PAUSE)
        else:
            return False
        return True

    def stop_for_good(self, trial: Trial, reason: str) -> None:
        """End a trial, unless it has ended; a run that goes on is asked to stop.

        Not collective. What the trial has reported is its result.
        """
        if trial.state in (TrialState.RUNNING, TrialState.PAUSING):
            self._note_stop(trial, reason, trial.reports)
            self._stops.ask(trial)
        elif trial.state in (TrialState.PENDING, TrialState.PAUSED):
            self._end(trial, reason, was_stopped=True)
            self._show(f"{trial.trial_id} {describe_end(trial)}")

    def _note_stop(self, trial: Trial, reason: str, after: int) -> None:
        trial.stopped_after = after
        self._change(trial, TrialEvent.STOP, reason=reason, after=after)
