"""`Session`: what a rank knows and says while its training function runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hpctrain.checkpoint import Checkpoint, ReportedCheckpoint
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.rundir.paths import RunPaths
from hpctrain.worker.metrics import MetricsFile, encode_line, encode_metrics
from hpctrain.world import World

if TYPE_CHECKING:
    from hpctrain.rundir.staging import StagedPart
    from hpctrain.worker.scratch import Scratch
    from hpctrain.worker.upload import Background, Upload

MAX_IN_FLIGHT = 2
"""Checkpoints of one rank that may be under way behind its training function."""
# A newer checkpoint is committed before an older one is deleted; word of it is on its way.
_NEWS_TIMEOUT_S = 30.0
_HEARTBEAT_INTERVAL_S = 1.0


class LeaveTraining(BaseException):
    """Unwinds a training function that has not returned although all ranks are to leave."""


class Channel(Protocol):
    """How a session reaches its executor."""

    def report(self, line: bytes) -> None:
        """Pass a report's metrics on, soon."""

    def announce(self, line: bytes) -> None:
        """Pass a report on, at once, whose part of a checkpoint follows."""

    def part(self, report: int, part: bytes) -> None:
        """Pass a staged part of a checkpoint on, at once."""

    def ask(self, report: int) -> None:
        """Ask for all checkpoints up to a report."""

    def progress(self, op: str, **details: str) -> None:
        """Pass on that this rank goes on: ``heartbeat``, or ``phase``."""


@dataclass(frozen=True)
class Verdict:
    """What became of a checkpoint."""

    path: str | None
    error: str | None


@dataclass
class _Flight:
    """A part of this rank whose checkpoint is not decided on yet."""

    upload: Upload
    since: float
    staged: bool = False


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
        Whether there may be a thread behind the training function.
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
        self._count = first_report
        self._newest = (first_report, None if checkpoint is None else str(checkpoint.path))
        self._commit_timeout_s = commit_timeout_s
        self._in_background = in_background
        self.preprocessor: Any = None
        """Goes into every checkpoint."""
        self._turn = threading.Condition()
        self._frozen = False
        self._stop_at: int | None = None
        self._flights: dict[int, _Flight] = {}
        self.leave: Mapping[str, Any] | None = None
        """What is known of the end of the job, if that is why ranks stop."""
        self.was_told = False
        """Whether the training function knows that it should return."""
        self._verdicts: dict[int, Verdict] = {}
        self._failure: BaseException | None = None
        self._found: tuple[int, Sequence[Any]] | None = None
        self._background: Background | None = None
        self._beat_at = 0.0
        self._scratch: Scratch | None = None
        self._scratch_has_artifacts = False
        self._metrics = MetricsFile(paths.metrics) if world.world_rank == 0 else None

    @property
    def reports(self) -> int:
        """Number of the last report, counted over all attempts."""
        return self._count

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint that this rank knows to be complete."""
        while True:
            newest, path = self._newest, self._newest[1]
            if path is None:
                return None
            try:
                return Checkpoint(path)
            except ConfigError:
                if not self._await_news(newest):
                    raise

    def use_scratch(self, root: Path, *, artifacts: bool) -> None:
        """Let checkpoints, and artifacts or not, be written to the node's own disk first."""
        from hpctrain.worker.scratch import Scratch

        self._scratch = Scratch(root, run=self._paths.root, rank=self.world.world_rank)
        self._scratch_has_artifacts = artifacts

    def artifacts(self) -> Path:
        """Return the directory into which this rank writes its artifacts."""
        if self._scratch is not None and self._scratch_has_artifacts:
            return self._scratch.artifacts
        self._paths.artifacts.mkdir(exist_ok=True)
        return self._paths.artifacts

    def report(self, metrics: Mapping[str, Any], upload: Upload | None = None) -> None:
        """Report metrics, and a checkpoint with them or not."""
        content = encode_metrics(metrics)
        if upload is not None:
            upload.check(report=self._count + 1, paths=self._paths)
            if self._is_in_scratch(upload):
                upload = upload.from_scratch()
        if self._flights or self._failure is not None:
            self._look_behind(room_for_one=upload is not None and upload.is_behind)
        with self._turn:
            while self._frozen:
                # For the moment in which the executor asks all ranks how far they are.
                if not self._turn.wait(self._commit_timeout_s):
                    raise CheckpointError(
                        f"rank {self.world.world_rank} waited {self._commit_timeout_s:.0f} s for "
                        f"the executor to say at which report to stop."
                    )
            # Whoever has asked should_stop() may save in one more report.
            if self._stop_at is not None and self._count >= self._stop_at + self.was_told:
                self.was_told = True
                raise LeaveTraining
            self._count = number = self._count + 1
        if upload is None:
            line = encode_line(number, self.world.attempt, b"null", content)
            self._append(line)
            self._channel.report(line)
            return
        name = b'"%s"' % _name(number, upload).encode()
        line = encode_line(number, self.world.attempt, name, content)
        if upload.is_behind:
            self._report_behind(number, line, upload)
        else:
            self._channel.progress("phase", phase="checkpoint")
            try:
                self._report_and_wait(number, line, upload)
            finally:
                self._channel.progress("phase", phase="training")
        self._copy_artifacts()

    def heartbeat(self) -> None:
        """Say that this rank makes progress, once a second at most."""
        now = time.monotonic()
        if now - self._beat_at >= _HEARTBEAT_INTERVAL_S:
            self._beat_at = now
            self._channel.progress("heartbeat")

    def should_stop(self) -> bool:
        """Return whether this rank has reached the report at which all ranks stop."""
        stop = self._stop_at is not None and self._count >= self._stop_at
        self.was_told |= stop
        return stop

    def staging(self) -> Path:
        """Return an empty directory for the next report: inside its commit, or in the scratch."""
        import shutil

        if self._scratch is not None:
            return self._scratch.checkpoint(self._count + 1)
        directory = self._staging_directory(self._count + 1)
        if directory.exists():
            shutil.rmtree(directory)
        directory.mkdir(parents=True)
        return directory

    def all_checkpoints(self, timeout_s: float | None) -> list[ReportedCheckpoint]:
        """Return the run's checkpoints, oldest first, once those reported so far are decided on."""
        timeout_s = self._commit_timeout_s if timeout_s is None else timeout_s
        self._look_behind(room_for_one=False)
        asked = self._count
        with self._turn:
            self._found = None
        self._channel.ask(asked)

        def is_answered() -> bool:
            return self._failure is not None or (self._found or (-1,))[0] >= asked

        with self._turn:
            if not self._turn.wait_for(is_answered, timeout_s):
                raise CheckpointError(
                    f"rank {self.world.world_rank} waited {timeout_s:.0f} s for the checkpoints up "
                    f"to report {asked}: not every rank made this report, or one is still being "
                    f"uploaded."
                )
            found = self._found
        self._look_behind(room_for_one=False)
        assert found is not None
        return [
            ReportedCheckpoint(checkpoint=Checkpoint(path), metrics=metrics)
            for path, metrics in found[1]
        ]

    def drain(self) -> None:
        """Wait until what goes on behind the training function has ended well.

        Not collective, but a checkpoint is only committed once every rank has made its report.
        """
        self._copy_artifacts()
        with self._turn:
            self._turn.wait_for(
                lambda: not self._flights or self._failure is not None, self._commit_timeout_s
            )
        if self._background is not None and self._failure is None and not self._flights:
            self._finish_background("what was written to the scratch directory")
        self._look_behind(room_for_one=False, finished=True)

    # Called from the thread of the link.

    def freeze(self) -> int:
        """Promise to begin no further report before `stop_after`; return the last one begun."""
        with self._turn:
            self._frozen = True
            return self._count

    def stop_after(self, report: int | None, leave: Mapping[str, Any] | None = None) -> None:
        """Go on until `report`, after which `should_stop` is true; None only lifts the promise."""
        with self._turn:
            self.leave = leave
            if report is not None:
                self._stop_at = report
            self._frozen = False
            self._turn.notify_all()

    def decide(self, report: int, verdict: Verdict) -> None:
        """Take note of what became of a checkpoint."""
        with self._turn:
            if verdict.path is not None and report > self._newest[0]:
                self._newest = (report, verdict.path)
            flight = self._flights.pop(report, None)
            if flight is not None and not flight.upload.is_behind:
                self._verdicts[report] = verdict
            elif flight is not None and verdict.path is None:
                self._failure = self._failure or _not_committed(report, verdict)
            self._turn.notify_all()
        if flight is not None and flight.upload.is_behind and verdict.path is not None:
            self._behind(flight.upload.delete_source)

    def hear_checkpoints(self, report: int, found: Sequence[Any]) -> None:
        """Take note of the checkpoints that there are, all up to `report` decided on."""
        with self._turn:
            self._found = (report, found)
            self._turn.notify_all()

    def close(self) -> None:
        """Close the metrics file, and delete what is left in the scratch."""
        if self._scratch is not None:
            self._scratch.remove()
        if self._metrics is not None:
            self._metrics.close()

    def _report_behind(self, number: int, line: bytes, upload: Upload) -> None:
        def stage() -> None:
            try:
                part = self._stage(number, upload)
            except BaseException as error:
                with self._turn:
                    self._failure = self._failure or error
                    self._turn.notify_all()
            else:
                self._channel.part(number, part.to_bytes())

        self._flights[number] = _Flight(upload, time.monotonic())
        self._append(line)
        self._channel.announce(line)
        self._behind(stage)

    def _report_and_wait(self, number: int, line: bytes, upload: Upload) -> None:
        part = self._stage_in_time(number, upload)
        self._flights[number] = _Flight(upload, time.monotonic())
        # Before the commit: a run that resumes from this checkpoint does not report it again.
        self._append(line)
        self._channel.announce(line)
        self._channel.part(number, part.to_bytes())
        with self._turn:
            if not self._turn.wait_for(lambda: number in self._verdicts, self._commit_timeout_s):
                raise CheckpointError(
                    f"rank {self.world.world_rank} waited {self._commit_timeout_s:.0f} s in "
                    f"report {number} for its checkpoint: not every rank made this report. "
                    f"SyncConfig(sync_timeout=...) sets how long to wait."
                )
            verdict = self._verdicts.pop(number)
        if verdict.path is None:
            raise _not_committed(number, verdict)
        upload.delete_source()

    def _stage_in_time(self, number: int, upload: Upload) -> StagedPart:
        if not self._is_in_scratch(upload):
            return self._stage(number, upload)
        # A parallel filesystem that hangs is to be noticed: behind, where it can be left alone.
        done: list[StagedPart | BaseException] = []

        def stage() -> None:
            try:
                done.append(self._stage(number, upload))
            except BaseException as error:
                done.append(error)

        self._behind(stage)
        self._finish_background(f"its part of the checkpoint of report {number}")
        (part,) = done
        if isinstance(part, BaseException):
            raise part
        return part

    def _finish_background(self, what: str) -> None:
        assert self._background is not None
        if not self._background.wait(self._commit_timeout_s):
            raise CheckpointError(
                f"rank {self.world.world_rank} could not copy {what} to {self._paths.root} within "
                f"{self._commit_timeout_s:.0f} s. SyncConfig(sync_timeout=...) sets how long to "
                f"wait."
            )

    def _copy_artifacts(self) -> None:
        scratch = self._scratch
        if scratch is None or not self._scratch_has_artifacts:
            return

        def copy() -> None:
            try:
                scratch.copy_artifacts(self._paths.artifacts)
            except OSError as error:
                with self._turn:
                    self._failure = self._failure or CheckpointError(
                        f"rank {self.world.world_rank} could not copy its artifacts to "
                        f"{self._paths.artifacts}: {error.strerror or error}."
                    )
                    self._turn.notify_all()

        self._behind(copy)

    def _is_in_scratch(self, upload: Upload) -> bool:
        return self._scratch is not None and self._scratch.holds(upload.checkpoint.path)

    def _stage(self, number: int, upload: Upload) -> StagedPart:
        directory = self._staging_directory(number)
        try:
            part = upload.stage(directory, paths=self._paths, preprocessor=self.preprocessor)
        except OSError as error:
            raise CheckpointError(
                f"rank {self.world.world_rank} could not write its part of the checkpoint of "
                f"report {number} to {directory}: {error.strerror or error}. The last complete "
                f"checkpoint is {self._newest[1] or 'none'}; free space, or choose another "
                f"storage_path."
            ) from error
        flight = self._flights.get(number)
        if flight is not None:
            flight.staged = True
        return part

    def _behind(self, job: Callable[[], None]) -> None:
        if self._background is None:
            from hpctrain.worker.upload import Background

            self._background = Background(threaded=self._in_background)
        self._background.submit(job)

    def _look_behind(self, *, room_for_one: bool, finished: bool = False) -> None:
        """Raise what went wrong behind the training function; wait until there is room."""
        if room_for_one and len(self._flights) >= MAX_IN_FLIGHT:
            with self._turn:
                self._turn.wait_for(
                    lambda: len(self._flights) < MAX_IN_FLIGHT or self._failure is not None,
                    self._commit_timeout_s,
                )
        if self._failure is not None:
            raise self._failure
        with self._turn:
            oldest = next(iter(self._flights.items()), None)
        if oldest is None:
            return
        number, flight = oldest
        waited_s = time.monotonic() - flight.since
        if finished or waited_s > self._commit_timeout_s:
            why = "not every rank made this report" if flight.staged else "it is still copied"
            raise CheckpointError(
                f"rank {self.world.world_rank}: the checkpoint of report {number} is not committed "
                f"after {waited_s:.0f} s: {why}. SyncConfig(sync_timeout=...) sets how long to "
                f"wait."
            )

    def _await_news(self, known: tuple[int, str | None]) -> bool:
        """Wait for a newer checkpoint than one that is deleted; return whether there is one."""
        with self._turn:
            return self._turn.wait_for(lambda: self._newest != known, _NEWS_TIMEOUT_S)

    def _staging_directory(self, report: int) -> Path:
        from hpctrain.rundir.staging import staging_directory

        return staging_directory(
            self._paths.checkpoints,
            attempt=self.world.attempt,
            report=report,
            rank=self.world.world_rank,
        )

    def _append(self, line: bytes) -> None:
        if self._metrics is not None:
            self._metrics.append(self._count, line, last_checkpoint=self._newest[1] or "none")


def _name(number: int, upload: Upload) -> str:
    return f"{number:06d}" if upload.dir_name is None else upload.dir_name


def _not_committed(report: int, verdict: Verdict) -> CheckpointError:
    return CheckpointError(f"the checkpoint of report {report} was not committed: {verdict.error}")
