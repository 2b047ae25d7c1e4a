"""`Decisions`: writes down what is decided on a trial at work, then asks its run to stop."""

from __future__ import annotations

from hpctrain.tune.schedulers.scheduler import TrialScheduler
from hpctrain.tune.stops import Stops
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
    """

    def __init__(self, stops: Stops, transfers: Transfers, change: ChangeTrial) -> None:
        self._stops, self._transfers, self._change = stops, transfers, change

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

    def stop(self, trial: Trial, reason: str) -> None:
        """Stop a trial for good after what it has reported. Not collective."""
        self._note_stop(trial, reason, trial.reports)
        self._stops.ask(trial)

    def _note_stop(self, trial: Trial, reason: str, after: int) -> None:
        trial.stopped_after = after
        self._change(trial, TrialEvent.STOP, reason=reason, after=after)
