"""`Starts`: begins the trials that fit, and knows which nodes are lost to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hpctrain.errors import ConfigError, HpctrainError
from hpctrain.tune.passing import raise_if_passing
from hpctrain.tune.queue import Queue
from hpctrain.tune.runner import NotNowError, TrialRunner
from hpctrain.tune.slots import NoRoomLeftError, TrialSlots
from hpctrain.tune.sweep_lines import describe_values
from hpctrain.tune.trial import Trial, TrialEvent, TrialState
from hpctrain.tune.trials import ChangeTrial, Trials


class Starts:
    """Begins trials.

    Parameters
    ----------
    trials
        All of the sweep.
    queue
        Which of them is next.
    runner
        Runs them.
    slots
        What fits at the same time.
    change
        Writes an event of a trial down, and lets it count.
    fail
        Is called with a trial that cannot begin, and why.
    show
        Is sent a line when a trial begins.
    """

    def __init__(
        self,
        trials: Trials,
        queue: Queue,
        runner: TrialRunner,
        slots: TrialSlots,
        *,
        change: ChangeTrial,
        fail: Callable[[Trial, str], None],
        show: Callable[[str], None],
    ) -> None:
        self._trials, self._queue, self._runner, self._slots = trials, queue, runner, slots
        self._change, self._fail, self._show = change, fail, show
        self._has_begun = False
        """Whether a trial has begun: what is wrong with the first is wrong with all."""

    def start_what_fits(self) -> None:
        """Begin the trials for which there is room. Not collective.

        Raises
        ------
        HpctrainError
            If the first trial is impossible, or what ails one ails the sweep.
        """
        while (trial := self._queue.next()) is not None:
            try:
                need = self._runner.need_of(trial)
                slot = self._slots.take(trial.trial_id, need)
                if slot is None:
                    # Those that come after it wait, too: a large trial would never begin.
                    return
                trial.slot = slot
                self._begin(trial)
            except NotNowError as error:
                self._put_off(trial, str(error))
                return
            except NoRoomLeftError as error:
                self._queue.hold_back(trial, str(error))
                self._show(f"{error} It waits for another job.")
            except HpctrainError as error:
                self._slots.give_back(trial.trial_id)
                if not self._has_begun and isinstance(error, ConfigError):
                    self._change(trial, TrialEvent.INTERRUPTED)
                    raise_if_passing(error)
                    raise
                raise_if_passing(error)
                self._fail(trial, str(error))
                if self._queue.is_closed:
                    return

    def keep(self, trial: Trial) -> None:
        """Keep the slot of a trial whose run goes on. Not collective."""
        self._slots.keep(trial.trial_id, self._runner.need_of(trial), trial.slot)
        self._has_begun = True
        self._show(f"{trial.trial_id} goes on")

    def leave_out(self, nodes: Mapping[str, str]) -> None:
        """Begin no more trials on lost nodes. Not collective.

        Parameters
        ----------
        nodes
            Their names, and why they are lost.
        """
        for node, reason in nodes.items():
            if self._slots.leave_out(node, reason):
                self._trials.note_lost(node, reason)
                self._show(f"node {node} is left out: {reason}")

    def _begin(self, trial: Trial) -> None:
        verb = "goes on" if trial.state is TrialState.PAUSED or trial.reports else "begins"
        self._change(trial, TrialEvent.STARTED, **trial.slot.to_json())
        self._runner.start(trial)
        self._has_begun = True
        self._show(f"{trial.trial_id} {verb}: {describe_values(trial.config)}")

    def _put_off(self, trial: Trial, reason: str) -> None:
        """Let a trial that cannot begin now wait."""
        self._change(trial, TrialEvent.INTERRUPTED, reason=reason)
        if self._slots.put_off(trial.trial_id):
            self._show(f"{trial.trial_id} waits, and is tried again later: {reason}")
