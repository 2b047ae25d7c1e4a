"""`Session`: a rank's state while its training function runs, and what it sends of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain.checkpoint import Checkpoint, ReportedCheckpoint
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.loop_time import CHECKPOINT, LoopTime
from hpctrain.metric_names import PartialMetrics
from hpctrain.rundir.paths import RunPaths
from hpctrain.worker.channel import Channel
from hpctrain.worker.collective_count import CollectiveCount
from hpctrain.worker.commits import CommitOutcome, Commits
from hpctrain.worker.exact_stop import ExactStop
from hpctrain.worker.metrics import MetricsFile, encode_line, encode_metrics
from hpctrain.worker.part_writer import PartWriter
from hpctrain.worker.report_count import ReportCount
from hpctrain.worker.writing import Writing
from hpctrain.world import World

if TYPE_CHECKING:
    from hpctrain.worker.upload import Upload

_HEARTBEAT_INTERVAL_S = 1.0


class Session:
    """One rank's side of one attempt.

    Parameters
    ----------
    world
        Where the rank stands.
    paths
        The run directory.
    channel
        To the executor.
    first_report
        Number of the report that the run resumed from; 0 at a fresh start.
    checkpoint
        What the run resumed from.
    commit_timeout_s
        Seconds to wait for a commit.
    in_background
        Whether there may be a thread beside the training function.
    """

    def __init__(
        self,
        *,
        world: World,
        paths: RunPaths,
        channel: Channel,
        first_report: int,
        checkpoint: Checkpoint | None,
        commit_timeout_s: float,
        in_background: bool = True,
    ) -> None:
        self.world = world
        self._paths = paths
        self._channel = channel
        self._count = ReportCount(
            rank=world.world_rank,
            first=first_report,
            timeout_s=commit_timeout_s,
            beat=self.heartbeat,
        )
        self._commits = Commits(
            rank=world.world_rank,
            newest=(first_report, None if checkpoint is None else str(checkpoint.path)),
            timeout_s=commit_timeout_s,
        )
        self.writing = Writing(rank=world.world_rank, timeout_s=commit_timeout_s, ask=channel.slot)
        """How this rank writes what it shares with others."""
        self.commit_timeout_s = commit_timeout_s
        """Seconds to wait for whatever a commit needs."""
        self.parts = PartWriter(
            world,
            paths,
            commits=self._commits,
            writing=self.writing,
            timeout_s=commit_timeout_s,
            in_background=in_background,
        )
        """This rank's parts of checkpoints, on disk."""
        self.loop_time = LoopTime()
        """For how long the training function waits, and for what."""
        self._collectives = CollectiveCount(channel, self.loop_time)
        self._leave: Mapping[str, Any] | None = None
        self._beat_at = 0.0
        # Also of a function that reports while it makes a checkpoint for another report.
        self._reporting = threading.RLock()
        self._goals: ExactStop | None = None
        self._awaits_decisions = False
        self._metrics = MetricsFile(paths.metrics) if world.world_rank == 0 else None

    @property
    def reports(self) -> int:
        """Number of the last report, counted over all attempts."""
        return self._count.begun

    @property
    def was_notified(self) -> bool:
        """Whether the training function knows that it should return."""
        return self._count.was_notified

    @property
    def leave(self) -> Mapping[str, Any] | None:
        """What is known of the end of the job, once this rank is to stop for it."""
        return self.leave_after(self.reports)

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint that this rank knows to be complete."""
        while True:
            newest = self._commits.newest
            path = newest[1]
            if path is None:
                return None
            try:
                return Checkpoint.from_directory(path)
            except ConfigError:
                if not self._commits.wait_for_newer(newest):
                    raise

    def artifacts(self) -> Path:
        """Return the directory into which this rank writes its artifacts."""
        return self.parts.artifacts()

    def report(
        self,
        metrics: Mapping[str, Any],
        upload: Upload | None = None,
        *,
        validation: Mapping[str, Any] | None = None,
    ) -> None:
        """Report metrics, and a checkpoint with them or not.

        Without an upload, `validation` is how the checkpoint of the other ranks is validated.
        """
        # Threads of the training function take turns.
        with self._reporting:
            self._report(metrics, upload, validation)

    def _report(
        self,
        metrics: Mapping[str, Any],
        upload: Upload | None,
        validation: Mapping[str, Any] | None,
    ) -> None:
        count, loop_time = self._count, self.loop_time
        begun = count.begun
        is_first = loop_time.begin(CHECKPOINT)
        try:
            content = encode_metrics(metrics)
            lacks = metrics.lacks if isinstance(metrics, PartialMetrics) else None
            if upload is not None:
                upload.check(report=begun + 1, paths=self._paths)
                upload = self.parts.take(upload)
                if upload.is_async:
                    self._commits.wait_for_room()
            number = count.begin()
            if self._goals is not None and self._goals.is_met(number, content):
                # Before the executor can answer.
                count.promise()
            elif self._awaits_decisions:
                count.promise(to_tuner=True)
            attempt, waited = self.world.attempt, loop_time.encode()
            if upload is None:
                line = encode_line(number, attempt, b"null", content, waited=waited, lacks=lacks)
                try:
                    self._append(line)
                finally:
                    # Also of one that cannot be written: who catches that goes on, and the other
                    # ranks have made it.
                    if validation is not None:
                        # Of the checkpoint, whose manifest keeps it: metrics.jsonl does not.
                        line = encode_line(
                            number,
                            attempt,
                            b"null",
                            content,
                            waited=waited,
                            lacks=lacks,
                            validation=validation,
                        )
                    self._channel.report(line)
            else:
                name = b'"%s"' % _name(number, upload).encode()
                line = encode_line(number, attempt, name, content, waited=waited, lacks=lacks)
                self._report_checkpoint(number, line, upload)
            # Last, so a function that catches its error has made as many reports as other ranks.
            self._commits.look()
        finally:
            if self._awaits_decisions and count.begun != begun:
                # Also of one that could not be saved: who catches that goes on.
                self._channel.progress("awaits", report=count.begun)
            if is_first:
                loop_time.end()

    def _report_checkpoint(self, number: int, line: bytes, upload: Upload) -> None:
        if upload.is_async:
            self._report_async(number, line, upload)
        else:
            self._channel.progress("phase", phase="checkpoint")
            try:
                self._report_and_wait(number, line, upload)
            finally:
                self._channel.progress("phase", phase="training")
        self.parts.copy_artifacts()

    def stop_exactly(self, goals: Mapping[str, float]) -> None:
        """End the training at the report that meets a stop criterion."""
        self._goals = ExactStop(goals, rank=self.world.world_rank, first=self._count.begun)

    def await_decisions(self) -> None:
        """Let no report begin before a tuner has decided on the last one, while it answers."""
        self._awaits_decisions = True
        if self._metrics is not None:
            self._metrics.is_awaited = True

    def heartbeat(self) -> None:
        """Report that this rank makes progress, once a second at most."""
        now = time.monotonic()
        if now - self._beat_at >= _HEARTBEAT_INTERVAL_S:
            self._beat_at = now
            self._channel.progress("heartbeat")

    def collective(self, stage: str) -> AbstractContextManager[Callable[[], None]]:
        """Count a call that needs all ranks; give what is to be called while this one waits there.

        A long wait is reported to the executor, which ends it if a rank has returned without that
        call.
        """
        return self._collectives.enter(stage)

    def should_stop(self) -> bool:
        """Return whether this rank has reached the report at which all ranks stop."""
        return self.should_stop_after(self.reports)

    def should_stop_after(self, report: int) -> bool:
        """Return whether all ranks stop after `report`, or stopped after one before."""
        return self._count.should_stop_after(report)

    def leave_after(self, report: int) -> Mapping[str, Any] | None:
        """Return what was known of the end of the job after `report`, if ranks stop for it."""
        return self._leave if self._count.ends_after(report) else None

    def staging(self) -> Path:
        """Return an empty directory of this rank for the next report's checkpoint."""
        return self.parts.staging(self.reports + 1)

    def shared_staging(self) -> AbstractContextManager[Path]:
        """Give where files go to that have other names than those of all other ranks.

        Rank 0 makes it, before the collective. It is removed if no report follows.
        """
        reports = self.reports
        return self.parts.shared_staging(reports + 1, is_made=lambda: self.reports != reports)

    def all_checkpoints(self, timeout_s: float | None) -> list[ReportedCheckpoint]:
        """Return the run's checkpoints, oldest first, once those reported so far are decided on."""
        found = self._commits.list_all(self.reports, ask=self._channel.ask, timeout_s=timeout_s)
        return [
            ReportedCheckpoint(checkpoint=Checkpoint.from_directory(path), metrics=metrics)
            for path, metrics in found
        ]

    def drain(self) -> None:
        """Wait until what runs in the background has ended well, and report it.

        Not collective, but a checkpoint is only committed once every rank has made its report.
        """
        self.parts.copy_artifacts()
        if self._commits.wait_for_all():
            self.parts.finish()
        self._commits.look(finished=True)
        # Before the end of the backend, where this rank may wait for one that waits for it.
        self._channel.progress(
            "returned", reports=self.reports, collectives=self._collectives.num_begun
        )

    # Called from the thread of the link.

    def freeze(self) -> int:
        """Promise to begin no further report before `stop_after`; return the last one begun."""
        return self._count.freeze()

    def go_on_after(self, report: int) -> None:
        """Take note that a tuner has decided on a report, and that the run goes on after it."""
        self._count.go_on_after(report)

    def stop_after(
        self,
        report: int | None,
        leave: Mapping[str, Any] | None = None,
        *,
        unwind: bool = True,
    ) -> None:
        """Go on until `report`, after which `should_stop` is true; None only lifts the promise.

        Without `unwind` a training function that does not ask continues, until a second call sets
        where it ends.
        """
        self._leave = leave
        self._count.stop_after(report, unwind=unwind)

    def decide(self, report: int, outcome: CommitOutcome) -> None:
        """Record what became of a checkpoint."""
        upload = self._commits.decide(report, outcome)
        if upload is None:
            return
        if outcome.path is not None:
            self.parts.begin_in_background(upload.delete_source)
        else:
            self.parts.begin_in_background(lambda: self.parts.drop(upload))

    def receive_checkpoints(self, report: int, found: Sequence[Any]) -> None:
        """Record the checkpoints that there are, all up to `report` decided on."""
        self._commits.receive_all(report, found)

    def close(self) -> None:
        """Close the metrics file, and delete what is left in the scratch."""
        self.parts.close()
        if self._metrics is not None:
            self._metrics.close()

    def _report_async(self, number: int, line: bytes, upload: Upload) -> None:
        def stage() -> None:
            try:
                part = self.parts.stage(number, upload)
            except BaseException as error:
                self._commits.fail(error, number)
                self._give_no_part(number, error)
            else:
                self._commits.staged(number)
                self._channel.part(number, part.to_bytes())

        self._announce(number, line)
        if upload.writer is not None:
            try:
                upload.writer.capture()
            except Exception as error:
                self._give_no_part(number, error)
                raise
        self._commits.expect(number, upload)
        self.parts.begin_in_background(stage)

    def _report_and_wait(self, number: int, line: bytes, upload: Upload) -> None:
        try:
            part = self.parts.stage_in_time(number, upload)
        except Exception as error:
            with suppress(CheckpointError):
                self._append(line)
            self._channel.announce(line)
            self._give_no_part(number, error)
            raise
        try:
            # Before the commit: a run that resumes from this checkpoint does not report it again.
            self._announce(number, line)
            self._commits.expect(number, upload)
            self._commits.staged(number)
            self._channel.part(number, part.to_bytes())
            self._commits.wait_for(number)
        except CheckpointError:
            self.parts.drop(upload)
            raise
        upload.delete_source()

    def _announce(self, number: int, line: bytes) -> None:
        """Write a report down, and pass it on; if it cannot be, no part of a checkpoint follows."""
        try:
            self._append(line)
        except CheckpointError as error:
            self._channel.announce(line)
            self._give_no_part(number, error)
            raise
        self._channel.announce(line)

    def _give_no_part(self, number: int, error: BaseException) -> None:
        """Let the other ranks know that there will be no checkpoint, and why."""
        from hpctrain.control.wire import MAX_TEXT_CHARS
        from hpctrain.rundir.display import shorten
        from hpctrain.rundir.staging import StagedPart

        reason = str(error)
        if not isinstance(error, CheckpointError):
            reason = f"rank {self.world.world_rank}: {type(error).__name__}: {reason}"
        part = StagedPart(files=(), error=shorten(reason, MAX_TEXT_CHARS))
        self._channel.part(number, part.to_bytes())

    def _append(self, line: bytes) -> None:
        if self._metrics is not None:
            self._metrics.append(
                self.reports, line, last_checkpoint=self._commits.newest[1] or "none"
            )


def _name(number: int, upload: Upload) -> str:
    return f"{number:06d}" if upload.dir_name is None else upload.dir_name
