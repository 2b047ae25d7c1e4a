"""`AttemptExecutor`: one attempt, from the start of the training function to its end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from hpctrain import timeouts
from hpctrain.control.wire import Frame
from hpctrain.errors import LaunchError
from hpctrain.execute.progress import Progress
from hpctrain.execute.ranks import Ranks
from hpctrain.execute.tracker import AttemptTracker, ReportRound

# After the first failure frames of other ranks are still read, since the rank that caused it is not
# always the first that is reported: until no rank has failed for so long, within a limit. A silent
# death precedes any error that its peers report later.
_QUIET_S = 0.15
_SILENT_QUIET_S = 0.03
_LISTEN_S = 0.02


class AttemptExecutor:
    """Runs a training function once on ranks. The backend's hooks run on the ranks.

    Parameters
    ----------
    ranks
        They need not have joined yet.
    spec_digest
        Of the ``spec.pkl`` that the ranks are to run, and no other; None where they do not wait for
        a command to begin.
    first_report
        Number of the report that the attempt resumes from, 0 at a fresh start.
    checkpoint
        What it resumes from.
    """

    def __init__(
        self,
        ranks: Ranks,
        *,
        spec_digest: str | None = None,
        first_report: int = 0,
        checkpoint: Path | None = None,
    ) -> None:
        self.ranks = ranks
        self.tracker = AttemptTracker(world_size=len(ranks), first_report=first_report)
        self.progress = Progress(
            world_size=len(ranks), first_report=first_report, now=time.monotonic()
        )
        self._first_report = first_report
        self._checkpoint = checkpoint
        self._spec_digest = spec_digest
        self._rounds: deque[ReportRound] = deque()
        self._failed_at: float | None = None
        self._num_ended = 0
        self._ended_at = 0.0

    def start_training(self) -> None:
        """Let every rank set the backend up and call the training function."""
        self.ranks.broadcast(
            "train",
            first_report=self._first_report,
            checkpoint=None if self._checkpoint is None else str(self._checkpoint),
            spec=self._spec_digest,
        )

    def get_next_results(self, timeout_s: float) -> ReportRound | None:
        """Return the next report that all ranks have made, or None if there is none in time."""
        if not self._rounds:
            self._listen(timeout_s)
        return self._rounds.popleft() if self._rounds else None

    def poll(self, timeout_s: float) -> list[ReportRound]:
        """Return all reports that all ranks have made; wait for one if there is none."""
        if not self._rounds:
            self._listen(timeout_s)
        rounds = [*self._rounds]
        self._rounds.clear()
        return rounds

    def take(self, frames: Iterable[Frame]) -> None:
        """Take in what ranks have sent."""
        self.progress.listen(time.monotonic())
        for frame in frames:
            self.progress.feed(frame)
            self._rounds.extend(self.tracker.feed(frame))

    def is_finished(self) -> bool:
        """Return whether all ranks have returned, or one failed and the others have answered."""
        if self._rounds:
            return False
        if self.tracker.is_done:
            return True
        if self._failed_at is None:
            gone = self.ranks.exit_status() is not None
            if self.tracker.has_failed or gone or self.tracker.unmatched_calls():
                self._failed_at = time.monotonic()
            return False
        now = time.monotonic()
        if self._num_ended != (num_ended := self.tracker.num_ended):
            self._num_ended, self._ended_at = num_ended, now
        return (
            num_ended == len(self.ranks)
            or now - max(self._failed_at, self._ended_at) > self._quiet_s()
            or now - self._failed_at > timeouts.FURTHER_FAILURES_S
        )

    def _listen(self, timeout_s: float) -> None:
        if self._failed_at is not None:
            timeout_s = min(timeout_s, _LISTEN_S)
        self.take(self.ranks.poll(timeout_s))

    def _quiet_s(self) -> float:
        if self.ranks.share_a_terminal:
            # Ctrl-C comes to each node by its own way, and what fails first may be a connection.
            return timeouts.FURTHER_FAILURES_S
        died_silently = set(self.tracker.lost) - set(self.tracker.failures)
        return _SILENT_QUIET_S if died_silently else _QUIET_S

    def finish_training(self) -> bytes:
        """Return what rank 0's training function returned, pickled.

        Raises
        ------
        LaunchError
            If the step ended although no rank failed: the launcher did something on its own.
        """
        if not self.tracker.is_done and not self.tracker.has_failed:
            raise LaunchError(
                f"the step of the ranks ended with status {self.ranks.exit_status()}, and "
                f"no rank reported why. Its output:\n{self.ranks.launcher_output()}"
            )
        return self.tracker.return_value
