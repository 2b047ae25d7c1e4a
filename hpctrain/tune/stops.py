"""`Stops`: asks runs to stop, and ends those that do not."""

from __future__ import annotations

import math
from collections.abc import Callable

from hpctrain.tune.runner import TrialRunner
from hpctrain.tune.trial import Trial


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
        self._since: dict[str, float] = {}

    def ask(self, trial: Trial) -> None:
        """Ask a run to stop. Not collective."""
        self._since[trial.trial_id] = self._clock()
        self._runner.stop(trial)

    def enforce(self, trial: Trial) -> None:
        """End a run that was asked to stop and has not done so in time. Not collective."""
        if self._clock() - self._since.get(trial.trial_id, math.inf) >= self._patience_s:
            self._since[trial.trial_id] = self._clock()
            self._runner.end(trial)

    def forget(self, trial: Trial) -> None:
        """Note that a run has ended. Not collective."""
        self._since.pop(trial.trial_id, None)
