"""`AttemptExecutor`: one attempt, from starting the ranks to the end of their training function."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

from hpctrain.errors import LaunchError
from hpctrain.execute.progress import Progress
from hpctrain.execute.tracker import AttemptTracker, ReportRound
from hpctrain.execute.worker_group import START_TIMEOUT_S, WorkerGroup

# After the first sign of a failure others are still listened to, since the rank that is to blame is
# not always the first that is heard of: until none has failed for so long, but not for ever. Who
# died without a word was not brought down by a complaint that comes later.
_QUIET_S = 0.15
_SILENT_QUIET_S = 0.03
_COLLECT_S = 0.5
_LISTEN_S = 0.02


class AttemptExecutor:
    """Runs a training function once on a worker group. The backend's hooks run on the ranks.

    Parameters
    ----------
    worker_group
        The ranks; started by `start`.
    spec_digest
        Of the ``spec.pkl`` that the ranks are to run, and no other.
    first_report
        Number of the report that the attempt resumes from, 0 at a fresh start.
    checkpoint
        What it resumes from.
    """

    def __init__(
        self,
        worker_group: WorkerGroup,
        *,
        spec_digest: str,
        first_report: int = 0,
        checkpoint: Path | None = None,
    ) -> None:
        self.worker_group = worker_group
        self.tracker = AttemptTracker(world_size=len(worker_group), first_report=first_report)
        self.progress = Progress(
            world_size=len(worker_group), first_report=first_report, now=time.monotonic()
        )
        self._first_report = first_report
        self._checkpoint = checkpoint
        self._spec_digest = spec_digest
        self._rounds: deque[ReportRound] = deque()
        self._failed_at: float | None = None
        self._heard = 0
        self._heard_at = 0.0

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start the ranks and wait until they are one world."""
        self.worker_group.start(timeout_s)
        self.progress.listen(time.monotonic())

    def start_training(self) -> None:
        """Let every rank set the backend up and call the training function."""
        self.worker_group.broadcast(
            "train",
            first_report=self._first_report,
            checkpoint=None if self._checkpoint is None else str(self._checkpoint),
            spec=self._spec_digest,
        )

    def get_next_results(self, timeout_s: float) -> ReportRound | None:
        """Return the next report that all ranks have made, or None if there is none in time."""
        if not self._rounds:
            if self._failed_at is not None:
                timeout_s = min(timeout_s, _LISTEN_S)
            frames = self.worker_group.poll(timeout_s)
            self.progress.listen(time.monotonic())
            for frame in frames:
                self.progress.feed(frame)
                self._rounds.extend(self.tracker.feed(frame))
        return self._rounds.popleft() if self._rounds else None

    def is_finished(self) -> bool:
        """Return whether every rank has returned, or one has failed and the others were heard."""
        if self._rounds:
            return False
        if self.tracker.is_done:
            return True
        if self._failed_at is None:
            gone = self.worker_group.exit_status() is not None
            if self.tracker.has_failed or gone or self.tracker.unmatched_calls():
                self._failed_at = time.monotonic()
            return False
        now = time.monotonic()
        if self._heard != (heard := self.tracker.num_ended):
            self._heard, self._heard_at = heard, now
        return (
            heard == len(self.worker_group)
            or now - max(self._failed_at, self._heard_at) > self._quiet_s()
            or now - self._failed_at > _COLLECT_S
        )

    def _quiet_s(self) -> float:
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
                f"the step of the ranks ended with status {self.worker_group.exit_status()}, and "
                f"no rank said why. It said:\n{self.worker_group.launcher_output()}"
            )
        return self.tracker.return_value

    def shutdown(self, *, graceful: bool) -> None:
        """End the ranks."""
        self.worker_group.shutdown(patience_s=10.0 if graceful else 0.0)
