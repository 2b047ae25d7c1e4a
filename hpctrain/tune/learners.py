"""`Learners`: the scheduler and the search algorithm of a sweep, which are sent its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from hpctrain.checks import shown
from hpctrain.errors import ConfigError
from hpctrain.log import log
from hpctrain.tune.runner import Report
from hpctrain.tune.schedulers.scheduler import (
    Decision,
    Exploit,
    FIFOScheduler,
    TrialScheduler,
)
from hpctrain.tune.search.parameters import is_same
from hpctrain.tune.search.searcher import STOP, SearchAlgorithm, has_restore, has_retry
from hpctrain.tune.trial import Trial, TrialState

_DECISIONS = get_args(Decision)


class Learners:
    """The scheduler and the search algorithm of a sweep.

    Parameters
    ----------
    scheduler
        Decides which trials go on.
    search
        Is sent what trials report; None if nothing learns from it.
    propose_again
        Returns the configuration that the search proposes for a trial that there is.
    """

    def __init__(
        self,
        scheduler: TrialScheduler,
        search: SearchAlgorithm | None,
        propose_again: Callable[[str], Mapping[str, Any] | None] = lambda trial_id: None,
    ) -> None:
        self.scheduler = scheduler
        self._search, self._propose_again = search, propose_again
        self._unknown: set[str] = set()
        """Trials of which the search knows nothing, or is sent nothing more."""
        self._to_ask: dict[str, Trial] = {}
        """Trials that are restored, and that the search is not asked for again yet."""

    @property
    def learn(self) -> bool:
        """Whether one of them may decide by what trials have reported."""
        return self._search is not None or type(self.scheduler) is not FIFOScheduler

    def note_new(self, trial: Trial) -> None:
        """Tell of a trial that is about to begin. Not collective."""
        self.scheduler.on_trial_add(trial.trial_id)

    def note_restored(self, trial: Trial) -> None:
        """Tell of a trial of a sweep that is restored. Not collective.

        A search without ``restore_trial()`` is called for each trial again, until it proposes
        something else: before the first report of the trial or its end, since a search may wait for
        the end of some before it proposes more.
        """
        self.scheduler.on_trial_add(trial.trial_id)
        if self._search is None:
            return
        if has_restore(self._search):
            self._search.restore_trial(trial.trial_id, trial.config)  # type: ignore[attr-defined]
        else:
            self._to_ask[trial.trial_id] = trial

    def ask_again(self, last: Trial | None = None) -> None:
        """Ask the search for restored trials again, in their order. Not collective.

        Parameters
        ----------
        last
            The last one that it is asked for; None for all.
        """
        while self._to_ask if last is None else last.trial_id in self._to_ask:
            self._ask_again(self._to_ask.pop(next(iter(self._to_ask))))

    def _ask_again(self, trial: Trial) -> None:
        assert self._search is not None
        if self._unknown:
            self._unknown.add(trial.trial_id)
            return
        proposed = self._propose_again(trial.trial_id)
        if _are_equal(proposed, trial.config):
            return
        self._unknown.add(trial.trial_id)
        what = f"proposes nothing for {trial.trial_id} now"
        if proposed is not None:
            what = f"proposes something else for {trial.trial_id} than before"
            # It is not tried.
            self._search.on_trial_complete(trial.trial_id, result=None, error=True)
        log(
            f"warning: {type(self._search).__name__} has no restore_trial(trial_id, config), and "
            f"{what}: it learns nothing from that trial and those after it, and may propose them "
            f"again."
        )

    def note_report(self, trial: Trial, report: Report) -> str:
        """Tell of a report, and return what becomes of the trial. Not collective.

        Raises
        ------
        ConfigError
            If the scheduler returns no decision.
        """
        self.ask_again(trial)
        decision: object = self.scheduler.on_result(trial.trial_id, report.metrics)
        if not isinstance(decision, str) or decision not in _DECISIONS:
            raise ConfigError(
                f"{type(self.scheduler).__name__}.on_result() returned {shown(decision)}. One of "
                f"{', '.join(_DECISIONS)} is needed: return self.CONTINUE."
            )
        if self._search is not None and trial.trial_id not in self._unknown:
            answer = self._search.on_trial_result(trial.trial_id, report.metrics)
            # Those of Ray Tune return nothing.
            decision = STOP if answer == STOP else decision
        return decision

    def note_end(self, trial: Trial, *, was_stopped: bool) -> None:
        """Tell that a trial has ended. Not collective."""
        self.ask_again(trial)
        if not was_stopped and trial.state is TrialState.TERMINATED:
            self.scheduler.on_complete(trial.trial_id, trial.metrics)
        self.scheduler.on_remove(trial.trial_id)
        if self._search is not None and trial.trial_id not in self._unknown:
            has_failed = trial.state is TrialState.ERROR
            # By name, as Ray Tune: its documented search takes (trial_id, result, **kwargs).
            self._search.on_trial_complete(
                trial.trial_id, result=None if has_failed else trial.metrics, error=has_failed
            )

    def note_retry(self, trial: Trial) -> None:
        """Tell that a trial that has failed runs again. Not collective.

        A search without ``retry_trial()`` may not expect a second end of a trial, and is sent none.
        """
        if self._search is None or trial.trial_id in self._unknown:
            return
        if has_retry(self._search):
            self._search.retry_trial(trial.trial_id, trial.config)  # type: ignore[attr-defined]
        else:
            self._unknown.add(trial.trial_id)

    def take_exploits(self) -> Sequence[Exploit]:
        """Return which trials are to go on as others. Not collective."""
        return self.scheduler.take_exploits()

    def take_stops(self) -> Sequence[str]:
        """Return which trials that wait are to end. Not collective."""
        return self.scheduler.take_stops()

    def choose(self, waiting: Sequence[Trial], *, must: bool) -> Trial | None:
        """Return the trial that begins or goes on next; None if all wait. Not collective.

        Parameters
        ----------
        must
            Whether nothing is at work or held back, and nothing else can come.
        """
        if not waiting:
            return None
        chosen = self.scheduler.choose([trial.trial_id for trial in waiting])
        found = next((trial for trial in waiting if trial.trial_id == chosen), None)
        # A rule that lets all of them wait would let them do so for ever.
        return waiting[0] if found is None and must else found


def _are_equal(one: Mapping[str, Any] | None, other: Mapping[str, Any]) -> bool:
    try:
        if one == other:
            return True
    except Exception:  # arrays, and objects of users
        pass
    return one is not None and is_same(dict(one), dict(other))
