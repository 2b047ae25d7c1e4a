"""`TrialRunner`: the few things that a sweep asks of what runs its trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hpctrain.errors import LaunchError
from hpctrain.tune.slots import Need
from hpctrain.tune.trial import Origin, Transfer, Trial


class NotNowError(LaunchError):
    """A run cannot begin now, for a reason that passes: its trial waits, and has not failed."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A report of a trial."""

    number: int
    time: float
    """When it was made."""
    metrics: Mapping[str, Any]
    """With ``training_iteration``, ``time_total_s`` and ``trial_id``, unless it has such itself."""
    attempt: int = 1
    """Of its run: one that begins again without a checkpoint reports from 1 again."""
    is_partial: bool = False
    """Whether later reports may have more metrics."""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """The newest committed checkpoint of a trial."""

    name: str
    iteration: int
    """Reports that have led to it, over all trials that it comes from."""
    seconds: float
    """Seconds of training that have led to it."""


@dataclass(frozen=True, kw_only=True)
class End:
    """How the run of a trial ended."""

    failed: bool
    was_stopped: bool
    """Whether before its function had returned."""
    reason: str = ""
    is_for_good: bool = False
    """Whether a person has stopped it: it does not go on, whatever else it was to do."""
    is_cut_off: bool = False
    """Whether its node was lost, or its job is about to end: it is to go on elsewhere, or later."""
    has_run: bool = True
    """Whether its ranks had begun: an end before says nothing of how long it needs."""
    is_orphaned: bool = False
    """Whether its executor was killed, and another one is to go on with it."""
    is_for_all: bool = False
    """Whether it has failed for what all nodes lack, before its executor began: a path."""
    lost_nodes: Mapping[str, str] = field(default_factory=dict)
    """Nodes that it found lost, and why."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """What is new of a trial."""

    reports: Sequence[Report] = ()
    end: End | None = None


class TrialRunner(Protocol):
    """Runs trials: on this machine, or elsewhere."""

    def need_of(self, trial: Trial) -> Need:
        """Return what a trial needs; raises ConfigError for a configuration without a sense."""

    def start(self, trial: Trial) -> None:
        """Begin the run of a trial, or resume it from its checkpoint; returns at once.

        Raises NotNowError if it cannot begin now, but may later.
        """

    def watch(self, trials: Sequence[Trial]) -> None:
        """Look at trials, all at the same time, until `attach` knows of each what it does."""

    def attach(self, trial: Trial) -> bool:
        """Return whether a run that was begun goes on, or has come to an end by itself."""

    def was_asked_to_stop(self, trial: Trial) -> bool:
        """Return whether a run has stopped because it was asked to, and not with its job."""

    def history(self, trial: Trial) -> Sequence[Report]:
        """Return all reports that a trial has made."""

    def forget(self, trial: Trial) -> None:
        """Forget what was seen of a run that was moved aside: the trial begins anew."""

    def look(self, trial: Trial) -> Look:
        """Return what is new of a trial that was begun."""

    def wait(self, timeout_s: float) -> None:
        """Wait until a run may have reported or ended, for so long at most."""

    def let_go_on(self, trial: Trial, report: Report) -> None:
        """Let a run that waits after a report make the next one; nothing if it does not wait."""

    def find_saved(self, trial: Trial) -> Saved | None:
        """Return the newest committed checkpoint of a trial; None if there is none yet."""

    def has_saved(self, trial: Trial) -> bool:
        """Return whether a report of a trial came with a checkpoint, committed or not."""

    def hold(self, trial: Trial, transfer: Transfer) -> None:
        """Keep the checkpoint of a transfer from being deleted; raises HpctrainError if it is."""

    def release(self, trial: Trial) -> None:
        """Let it be deleted, if one is held."""

    def clone(self, trial: Trial, transfer: Transfer) -> Origin:
        """Put a checkpoint of another trial in the place of the last one, while none runs it.

        Raises HpctrainError if it is gone, or cannot be written. A clone that was begun before is
        begun again.
        """

    def stop(self, trial: Trial) -> None:
        """Ask the run of a trial to stop at its next report; returns at once."""

    def end(self, trials: Sequence[Trial], *, patience_s: float) -> None:
        """End the runs of trials that have not stopped in time; none waits for another's end.

        Returns once they have ended, or soon after `patience_s` seconds; jobs are asked of Slurm,
        which may take longer.
        """
