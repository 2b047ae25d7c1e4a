"""`Trials`: the trials of a sweep, of which nothing changes that is not written down before."""

from __future__ import annotations

from typing import Any, Protocol

from hpctrain.tune.ledger import NAME_OF, SweepLedger
from hpctrain.tune.trial import Origin, Transfer, Trial, TrialEvent, TrialState

_AT_WORK = (TrialState.RUNNING, TrialState.PAUSING, TrialState.STOPPING)
_WAITING = (TrialState.PENDING, TrialState.PAUSED)


class ChangeTrial(Protocol):
    """Writes an event of a trial down, then lets it count."""

    def __call__(self, trial: Trial, event: TrialEvent, **details: Any) -> None:
        """Change a trial. Not collective."""


class Trials:
    """The trials of a sweep, and their ledger.

    Parameters
    ----------
    ledger
        Is written before anything is done.
    """

    def __init__(self, ledger: SweepLedger) -> None:
        self.by_id: dict[str, Trial] = {}
        """In the order in which they were made."""
        self._ledger = ledger

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.by_id)

    @property
    def at_work(self) -> list[Trial]:
        """Those with a run that goes on."""
        return [trial for trial in self.by_id.values() if trial.state in _AT_WORK]

    @property
    def waiting(self) -> list[Trial]:
        """Those that wait for a slot."""
        return [trial for trial in self.by_id.values() if trial.state in _WAITING]

    def add(self, trial: Trial) -> None:
        """Add a new trial. Not collective."""
        self._ledger.add_trial(trial)
        self.by_id[trial.trial_id] = trial

    def change(self, trial: Trial, event: TrialEvent, **details: Any) -> None:
        """Write an event down, then let it count. Not collective."""
        self._append(NAME_OF[event], trial, **details)
        trial.apply(event)
        trial.reason = details.get("reason", "")

    def perturb(self, trial: Trial, transfer: Transfer) -> None:
        """Let a trial go on as another one, once its run has stopped. Not collective."""
        self._ledger.add_transfer(trial, transfer)
        trial.perturb(transfer)

    def receive(self, trial: Trial, origin: Origin) -> None:
        """Note that it is at the checkpoint of the other one. Not collective."""
        self._append("trial-cloned", trial, report=origin.report, attempt=origin.attempt)
        trial.receive(origin)

    def note_lost(self, node: str, reason: str) -> None:
        """Write down that no more trials begin on a node. Not collective."""
        self._ledger.append("node-left-out", node=node, reason=reason)

    def _append(self, name: str, trial: Trial, **details: Any) -> None:
        reported = {"reports": trial.reports, "metrics": dict(trial.metrics)}
        self._ledger.append(name, trial=trial.trial_id, **reported, **details)
