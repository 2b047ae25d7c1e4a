"""`Transfers`: trials that go on as others, from their checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from hpctrain.errors import CheckpointError, ConfigError, HpctrainError
from hpctrain.log import log
from hpctrain.tune.runner import Saved, TrialRunner
from hpctrain.tune.schedulers.scheduler import Exploit
from hpctrain.tune.stops import Stops
from hpctrain.tune.sweep_lines import describe_values
from hpctrain.tune.trial import Transfer, Trial, TrialState
from hpctrain.tune.trials import Trials

_MAY = (TrialState.RUNNING, TrialState.PAUSING, TrialState.PAUSED)
_TIMES_WITHOUT_ANY = 10
"""A trial that saves at all does so within this many intervals of the scheduler."""


class Transfers:
    """Lets trials go on as others: decides from which checkpoint, and clones it later.

    Parameters
    ----------
    trials
        All of them.
    runner
        Runs them.
    stops
        Asks their runs to stop.
    show
        Is sent a line for each.
    """

    def __init__(
        self, trials: Trials, runner: TrialRunner, stops: Stops, show: Callable[[str], None]
    ) -> None:
        self._trials, self._runner, self._stops, self._show = trials, runner, stops, show
        self._lacking: dict[str, int] = {}
        """Reports of trials when a checkpoint of them was first missed, by name."""
        self._any_saves = False

    def can_donate(self, trial: Trial) -> bool:
        """Return whether others can go on as a trial. Not collective.

        Raises
        ------
        ConfigError
            As of `has_saved`.
        """
        # One that itself is to be another one will soon be at a checkpoint that is not its own.
        return trial.transfer is None and self._find_saved(trial) is not None

    def order(self, exploit: Exploit) -> None:
        """Let a trial go on as another one, once its run has stopped. Not collective."""
        trial, donor = self._trials.by_id[exploit.trial_id], self._trials.by_id[exploit.donor]
        saved = self._find_saved(donor)
        if trial.state not in _MAY or saved is None or donor is trial:
            return
        if donor.transfer is not None:
            # Each would wait for the other to be cloned first.
            return
        was_running = trial.state is TrialState.RUNNING
        transfer = Transfer(
            number=trial.num_transfers + 1,
            time=time.time(),
            donor=donor.trial_id,
            checkpoint=saved.name,
            iteration=saved.iteration,
            seconds=saved.seconds,
            config=exploit.config,
        )
        try:
            self._runner.hold(trial, transfer)
        except HpctrainError:
            # Deleted this very moment, for a newer one.
            return
        self._trials.perturb(trial, transfer)
        self._show(
            f"{trial.trial_id} goes on as {donor.trial_id} after report {saved.iteration}: "
            f"{describe_values(exploit.config)}"
        )
        if was_running:
            self._stops.ask(trial)

    def is_ready(self, trial: Trial) -> bool:
        """Return whether a trial that waits can be begun, after its transfer. Not collective.

        A trial from whose checkpoint another one is to go on waits for that one.

        Raises
        ------
        HpctrainError
            If the checkpoint cannot be cloned.
        """
        if trial.transfer is None:
            return True
        others = self._trials.by_id.values()
        if any(o.transfer is not None and o.transfer.donor == trial.trial_id for o in others):
            return False
        try:
            origin = self._runner.clone(trial, trial.transfer)
        except CheckpointError:
            # Deleted while no tuner held it.
            transfer = self._renew(trial.transfer)
            if transfer is None:
                raise
            self._trials.perturb(trial, transfer)
            origin = self._runner.clone(trial, transfer)
        self._trials.receive(trial, origin)
        return True

    def hold_all(self) -> None:
        """Keep what transfers of a restored sweep need, as far as it is there. Not collective."""
        for trial in self._trials.by_id.values():
            if trial.transfer is not None:
                with suppress(HpctrainError):
                    self._runner.hold(trial, trial.transfer)

    def _renew(self, transfer: Transfer) -> Transfer | None:
        saved = self._find_saved(self._trials.by_id[transfer.donor])
        if saved is None or saved.name == transfer.checkpoint:
            return None
        return replace(
            transfer,
            number=transfer.number + 1,
            time=time.time(),
            checkpoint=saved.name,
            iteration=saved.iteration,
            seconds=saved.seconds,
        )

    def has_saved(self, trial: Trial) -> bool:
        """Return whether a trial can go on later, or another one as it. Not collective.

        Raises
        ------
        ConfigError
            If no trial has saved a checkpoint in so many reports that none ever will.
        """
        if self._runner.has_saved(trial):
            return True
        if not self._lacking:
            log(
                f"warning: {trial.trial_id} has made {trial.reports} reports without a checkpoint: "
                f"until trials have saved one, the scheduler cannot pause them, nor let others go "
                f"on as they. Save at least as often as the scheduler compares."
            )
        first = self._lacking.setdefault(trial.trial_id, trial.reports)
        if trial.reports >= _TIMES_WITHOUT_ANY * first and not self._does_any_save():
            raise ConfigError(
                f"{trial.trial_id} has made {trial.reports} reports without a checkpoint, as have "
                f"all trials, and the scheduler pauses trials, which go on from checkpoints. Save: "
                f"hpctrain.report(metrics, checkpoint=...), and begin with "
                f"hpctrain.get_checkpoint()."
            )
        return False

    def _does_any_save(self) -> bool:
        self._any_saves = self._any_saves or any(
            self._runner.has_saved(trial) for trial in self._trials.by_id.values()
        )
        return self._any_saves

    def _find_saved(self, trial: Trial) -> Saved | None:
        try:
            saved = self._runner.find_saved(trial)
        except (HpctrainError, OSError):
            # It cannot be read just now.
            return None
        if saved is None:
            self.has_saved(trial)
        return saved
