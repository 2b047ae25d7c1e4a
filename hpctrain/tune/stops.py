"""`Stops`: asks runs to stop, and ends those that do not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hpctrain import timeouts
from hpctrain.log import log
from hpctrain.tune.runner import TrialRunner
from hpctrain.tune.trial import Trial, TrialState

POLL_S = 0.1
"""Seconds between two looks at trials, if there is no news before."""


@dataclass(frozen=True, kw_only=True)
class StopTimes:
    """How long a sweep that stops waits for its trials."""

    patience_s: float
    """Seconds that they have to stop at their next reports; then they are ended."""
    give_up_s: float
    """Seconds after which that is not waited for any more."""

    @classmethod
    def of(cls, patience_s: float, left_s: float = math.inf) -> StopTimes:
        """Return them. Pure.

        Parameters
        ----------
        patience_s
            Seconds that trials have, if there is time enough.
        left_s
            Seconds until the job ends. Some are kept for the ends of trials, and for what follows:
            the job script may queue the job again. A job that should have ended has some, too.

        Examples
        --------
        >>> StopTimes.of(100, 120), StopTimes.of(100, 16)
        (StopTimes(patience_s=100, give_up_s=110.0), StopTimes(patience_s=8.0, give_up_s=12.0))
        """
        left_s = max(left_s, _LEAST_S)
        patience_s = min(patience_s, max(left_s / 2, left_s - timeouts.JOB_END_S))
        return cls(
            patience_s=patience_s,
            give_up_s=min(2 * patience_s, (patience_s + left_s) / 2),
        )


# After its time limit a job has Slurm's OverTimeLimit, and KillWait: 30 s by default.
_LEAST_S = 8.0


class Stops:
    """Asks the runs of trials to stop at their next report.

    Parameters
    ----------
    runner
        Runs them.
    patience_s
        Seconds after which one that has not stopped is ended.
    clock
        Of the time that passes.
    """

    def __init__(
        self, runner: TrialRunner, *, patience_s: float, clock: Callable[[], float]
    ) -> None:
        self._runner, self._patience_s, self._clock = runner, patience_s, clock
        self._give_up_at = math.inf
        self._since: dict[str, float] = {}

    def ask(self, trial: Trial) -> None:
        """Ask a run to stop. Not collective."""
        self._since[trial.trial_id] = self._clock()
        self._runner.stop(trial)

    def leave(self, trials: Sequence[Trial], times: StopTimes, *, now: bool) -> None:
        """Ask all runs to stop that were not asked before. Not collective.

        Parameters
        ----------
        times
            How long they have.
        now
            Whether they are ended at once.
        """
        self._patience_s = times.patience_s
        self._give_up_at = self._clock() + times.give_up_s
        for trial in trials:
            if trial.state is TrialState.RUNNING:
                self.ask(trial)
        if now:
            self._end(trials)

    def wait_for_ends(
        self, at_work: Callable[[], Sequence[Trial]], step: Callable[[], object]
    ) -> None:
        """Wait until the runs that are to leave have stopped, or their time is up. Not collective.

        Parameters
        ----------
        at_work
            Returns the trials whose runs go on.
        step
            Does what is to be done now.
        """
        while at_work():
            # Some may have ended while others were waited for.
            is_last = self._clock() >= self._give_up_at
            try:
                step()
            except Exception as error:  # what has interrupted the sweep is what is raised
                log(f"warning: the end of the trials is not waited for: {error}")
                return
            if is_last:
                return
            self._runner.wait(POLL_S)

    def enforce(self, trials: Iterable[Trial]) -> None:
        """End the runs that were asked to stop and have not done so in time. Not collective."""
        now = self._clock()
        late = [
            trial
            for trial in trials
            if now - self._since.get(trial.trial_id, math.inf) >= self._patience_s
        ]
        self._since.update((trial.trial_id, now) for trial in late)
        if late:
            self._end(late)

    def _end(self, trials: Sequence[Trial]) -> None:
        left_s = max(self._give_up_at - self._clock(), 0.0)
        self._runner.end(trials, patience_s=min(timeouts.CANCEL_END_S, left_s))

    def forget(self, trial: Trial) -> None:
        """Note that a run has ended. Not collective."""
        self._since.pop(trial.trial_id, None)
