"""`Watch`: what a runner has seen of the run of a trial, and what its end means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hpctrain.execute.supervisor import MAX_RESTARTS_WITHOUT_ATTEMPT
from hpctrain.execute.tuner_socket import Moment
from hpctrain.launch.cancel import record_end
from hpctrain.launch.life import LifeTest
from hpctrain.launch.tail import Tail
from hpctrain.log import log
from hpctrain.rundir.ledger import newest_attempt
from hpctrain.rundir.metrics import is_report
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import parse_json
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus
from hpctrain.tune.attempt_clock import AttemptClock
from hpctrain.tune.runner import End


@dataclass(kw_only=True)
class Watch:
    """What has been seen of the run of a trial."""

    paths: RunPaths
    reports: Tail
    life: LifeTest
    clock: AttemptClock
    make_life: Callable[[RunPaths], LifeTest]
    unread: tuple[Mapping[str, Any], ...] = ()
    """Lines of reports that not all ranks have made, or whose checkpoint is not committed."""
    look_at: float = 0.0
    """When there is to be looked again, if there is no news before; in seconds of a clock."""
    has_saved: bool = False
    has_begun: bool = False
    status: RunStatus | None = None
    """As it was last read."""
    is_orphaned: bool = False
    """Whether its executor was killed, so that the next one continues with its budgets."""
    why_again: str = ""
    """Why the run goes on that was begun before; empty if that is not known."""
    _attempts: int = 0
    """When the last executor was killed."""
    _deaths: int = 0
    """Executors in a row that were killed before they began an attempt."""

    @classmethod
    def of(cls, paths: RunPaths, make_life: Callable[[RunPaths], LifeTest]) -> Watch:
        """Return the watch of a run of which nothing has been seen.

        Not collective.

        Parameters
        ----------
        make_life
            Returns what finds out whether the executor of a run is at work.
        """
        return cls(
            paths=paths,
            reports=Tail(paths.metrics),
            life=make_life(paths),
            clock=AttemptClock(paths=paths),
            make_life=make_life,
        )

    def begin(self) -> None:
        """Note that an executor begins. Not collective."""
        # What was seen of one before says nothing about this one.
        self.life, self.is_orphaned, self.why_again = self.make_life(self.paths), False, ""

    def take_lines(self, until: Moment | None) -> list[Mapping[str, Any]]:
        """Return the lines of reports that are new, and keep later ones. Not collective.

        Parameters
        ----------
        until
            Attempt and number of the last one; None returns all.
        """
        new = filter(is_report, map(parse_json, self.reports.read()))
        ready: list[Mapping[str, Any]] = []
        later: list[Mapping[str, Any]] = []
        for line in (*self.unread, *new):
            is_ready = until is None or (line["attempt"], line["report"]) <= until
            (ready if is_ready else later).append(line)
        self.unread = tuple(later)
        return ready

    def note_end(self, end: End) -> None:
        """Note how the run has ended, for when it goes on. Not collective."""
        is_to_go_on = end.is_orphaned or end.is_cut_off
        lost = "; ".join(f"node {node} is lost: {why}" for node, why in end.lost_nodes.items())
        first = (end.reason.splitlines() or [""])[0].partition(": see ")[0]
        self.why_again = (lost or first) if is_to_go_on else ""

    def explain_again(self) -> str:
        """Return why the next executor of the run is not its first; empty if it is.

        Not collective.
        """
        if not self.paths.ledger.exists():
            return ""
        return self.why_again or "the trial goes on"

    def explain_death(self) -> End:
        """Return the end of a run whose executor was killed, and write it down. Not collective."""
        reason = "its executor was killed"
        was_asked = self.paths.stop_request.exists()
        self.record_end(reason)
        if was_asked:
            # By `hpctrain cancel --now`, or before it could stop.
            return End(failed=False, was_stopped=True, reason="was stopped")
        # As the supervisor in a job decides: an executor that could begin an attempt has looked at
        # the budgets; one that could not, has not.
        attempts, before = newest_attempt(self.paths), self._attempts
        self._deaths = 0 if attempts > before else self._deaths + 1
        self._attempts = attempts
        self.is_orphaned = self._deaths <= MAX_RESTARTS_WITHOUT_ATTEMPT
        return End(
            failed=True,
            was_stopped=False,
            is_orphaned=self.is_orphaned,
            reason=f"{reason}: see {self.paths.executor_log}",
        )

    def explain_missing(self) -> End:
        """Return the end of a run without a status: removed, or never begun. Not collective."""
        if not self.has_begun and not self.paths.metrics.exists():
            # Its start was interrupted.
            return End(failed=False, was_stopped=True, reason="it had not begun")
        reason = f"{self.paths.status} is gone: were its files removed?"
        return End(failed=True, was_stopped=False, reason=reason)

    def record_end(self, reason: str) -> None:
        """Write down that the run is over, if that is possible. Not collective."""
        try:
            record_end(self.paths, reason)
        except OSError as error:
            log(f"warning: {self.paths.status} cannot be written: {error.strerror}.")


def end_of(status: RunStatus) -> End:
    """Return the end of a run whose executor has written it. Pure."""
    if status.state is RunState.STOPPED:
        return End(failed=False, was_stopped=True, reason=status.error or "it was stopped")
    failed = status.state is not RunState.FINISHED
    reason = (status.error or "it failed") if failed else ""
    return End(failed=failed, was_stopped=False, reason=reason)
