"""`Queue`: the trials that wait for a slot, and which of them is next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpctrain.errors import HpctrainError
from hpctrain.tune.learners import Learners
from hpctrain.tune.passing import raise_if_passing
from hpctrain.tune.slots import Need, TrialSlots
from hpctrain.tune.source import ConfigSource
from hpctrain.tune.transfers import Transfers
from hpctrain.tune.trial import Trial, TrialState, name_trial
from hpctrain.tune.trials import Trials

_LEAST = Need(cpus=1)


class Queue:
    """Makes trials when there is room for them, and lets the scheduler choose.

    It answers what schedulers ask (`hpctrain.tune.schedulers.Population`).

    Parameters
    ----------
    trials
        All of the sweep.
    source
        Gives configurations.
    slots
        What fits at the same time.
    learners
        Choose.
    transfers
        Are done before a trial goes on.
    need_of
        Returns what a trial needs.
    fail
        Is called with a trial that cannot go on, and why.
    follow_orders
        Is called once it is known whether more trials come: some may wait for no others then.
    """

    def __init__(
        self,
        trials: Trials,
        source: ConfigSource,
        slots: TrialSlots,
        *,
        learners: Learners,
        transfers: Transfers,
        need_of: Callable[[Trial], Need],
        fail: Callable[[Trial, str], None],
        follow_orders: Callable[[], None],
    ) -> None:
        self.is_closed = False
        """Whether no more trials begin."""
        self.is_empty = False
        """Whether there was none at the last look, and none can come."""
        self.why_empty = ""
        """Why none can come before their number is reached; empty if there is no such reason."""
        self._held_back: dict[str, str] = {}
        self._has_named_none = False
        self._number = 0
        self._trials, self._source, self._slots = trials, source, slots
        self._learners, self._transfers, self._fail = learners, transfers, fail
        self._need_of, self._follow_orders = need_of, follow_orders
        self._coming: Trial | None = None
        # With the configuration that each is of: a scheduler may change that.
        self._needs: dict[str, tuple[Mapping[str, Any], Need | None]] = {}
        self._seen: set[Need] = set()

    def next(self) -> Trial | None:
        """Return the trial that is to begin or go on next; None if there is none now.

        Not collective.
        """
        if not any(trial.state is TrialState.PENDING for trial in self._trials.waiting):
            self._add()
        num_waiting = len(self._trials.waiting)
        self._follow_orders()
        # A search may have waited for those that end.
        self.is_empty = self.is_empty and len(self._trials.waiting) == num_waiting
        waiting = [t for t in self._trials.waiting if t.trial_id not in self._held_back]
        ready = [trial for trial in waiting if self._is_ready(trial)]
        self._has_named_none = True
        if self.is_closed or not ready:
            return None
        self.is_empty = False
        # One that is held back may be what the others wait for.
        must = not self._trials.at_work and len(waiting) == len(self._trials.waiting)
        chosen = self._learners.choose(ready, must=must)
        self._has_named_none = chosen is None
        return chosen

    def hold_back(self, trial: Trial, reason: str) -> None:
        """Do not name a trial again, which cannot begin in this job. Not collective."""
        self._held_back[trial.trial_id] = reason

    @property
    def why_held_back(self) -> str:
        """Why none of those that wait goes on in this job, with nothing at work; empty if one can.

        It is held back itself, or waits for one that is.
        """
        names = [trial.trial_id for trial in self._trials.waiting]
        reasons = [self._held_back[name] for name in names if name in self._held_back]
        return reasons[0].rstrip(".") if reasons and self._has_named_none else ""

    def _add(self) -> None:
        """Make the next trial, if there is room and one to come."""
        number = self._next_number()
        self.is_empty = self._source.is_done(number)
        # What is proposed later knows more.
        if self.is_empty or not self._has_room(number):
            return
        trial = self._make(number)
        if trial is None:
            # With nothing at work there is nothing that could change its mind.
            self.is_empty = not self._trials.at_work
            self.why_empty = self._source.explain_none(number)
            return
        self.why_empty, self._coming = "", None
        self._trials.add(trial)
        self._learners.note_new(trial)

    def _make(self, number: int) -> Trial | None:
        """Return a trial that is not in the ledger yet; None if there is none now."""
        trial_id = name_trial(number)
        if self._coming is not None and self._coming.trial_id == trial_id:
            return self._coming
        config = self._source.next(number, trial_id)
        return None if config is None else Trial(trial_id=trial_id, config=config)

    def _has_room(self, number: int) -> bool:
        """Return whether the next trial would begin at once, as far as its need is known.

        What is proposed may need as little as any before.
        """
        if not self._slots.fits(_LEAST):
            return False
        if not self._source.learns:
            self._coming = self._make(number)
            return self._coming is None or self._fits(self._coming)
        # Those that were refused say nothing about the next one.
        trials = self._trials
        seen = trials.at_work if self._seen else trials.by_id.values()
        seen = [trial for trial in seen if trial.state is not TrialState.ERROR]
        self._seen.update(filter(None, map(self._look_up, seen)))
        return not self._seen or any(self._slots.fits(need) for need in self._seen)

    def _fits(self, trial: Trial) -> bool:
        """Return whether a trial would begin, or be refused, at once."""
        need = self._look_up(trial)
        return need is None or self._slots.fits(need)

    def _look_up(self, trial: Trial) -> Need | None:
        """Return what a trial needs; None if its configuration has no sense."""
        config, need = self._needs.get(trial.trial_id, (None, None))
        if config is not trial.config:
            try:
                need = self._need_of(trial)
            except HpctrainError:
                need = None
            self._needs[trial.trial_id] = trial.config, need
        return need

    def _next_number(self) -> int:
        """Return the first number without a trial: one may be lost with a damaged ledger."""
        while name_trial(self._number) in self._trials.by_id:
            self._number += 1
        return self._number

    def _is_ready(self, trial: Trial) -> bool:
        try:
            return self._transfers.is_ready(trial)
        except HpctrainError as error:
            raise_if_passing(error)
            self._fail(trial, str(error))
            return False

    @property
    def is_complete(self) -> bool:
        """Whether all trials have been made."""
        return self.is_closed or self.is_empty or self._source.is_done(self._next_number())

    def has_waiting(self, *, besides: str) -> bool:
        """Return whether another trial waits for a slot. Not collective."""
        others = [trial for trial in self._trials.waiting if trial.trial_id != besides]
        if any(not self._fits(trial) for trial in others):
            return True
        return not self.is_complete and not self._has_room(self._next_number())

    def can_donate(self, trial_id: str) -> bool:
        """Return whether others can go on from the checkpoint of a trial. Not collective."""
        return self._transfers.can_donate(self._trials.by_id[trial_id])

    def config_of(self, trial_id: str) -> Mapping[str, Any]:
        """Return the configuration that a trial has now. Not collective."""
        return self._trials.by_id[trial_id].config
