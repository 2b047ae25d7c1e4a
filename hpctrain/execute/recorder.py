"""`Recorder`: takes in what the ranks report, and knows whether the run should stop."""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpctrain import timeouts
from hpctrain.callback import RunContext
from hpctrain.checkpoint import Checkpoint
from hpctrain.config import RunConfig
from hpctrain.environ import restart_count
from hpctrain.errors import (
    ConfigError,
    HpctrainError,
    LaunchError,
    RunStoppedError,
    TrainingFailedError,
)
from hpctrain.execute.asked_validations import warn_of_validations
from hpctrain.execute.executor_record import ExecutorRecord
from hpctrain.execute.expected_metrics import ExpectedMetrics
from hpctrain.execute.explain import name_next_step
from hpctrain.execute.failure_policy import StopKind, StopNotice, classify_failure, describe_cause
from hpctrain.execute.run_checkpoints import RunCheckpoints
from hpctrain.execute.stop_rule import StopRule
from hpctrain.execute.tracker import AttemptTracker, ReportRound
from hpctrain.execute.validations import PHASE, Validations
from hpctrain.execute.write_slots import WriteSlots
from hpctrain.log import log
from hpctrain.result import Result
from hpctrain.rundir.files import insist, make_directory, write_atomic
from hpctrain.rundir.history import FailureKind
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunEvent
from hpctrain.rundir.status import RunStatus
from hpctrain.worker.failure import RankFailure


@dataclass(frozen=True, kw_only=True)
class AttemptStart:
    """Where an attempt begins."""

    attempt: int
    """Number of the attempt, from 1."""
    first_report: int
    """Number of the report that it resumes from; 0 at a fresh start."""
    checkpoint: Checkpoint | None
    """What it resumes from."""


class Recorder:
    """Keeps what ranks report, calls callbacks. One for a run, over all attempts.

    Parameters
    ----------
    paths
        The run directory.
    run_config
        Callbacks, retention, stop rule.
    status
        State to start from.
    """

    def __init__(self, *, paths: RunPaths, run_config: RunConfig, status: RunStatus) -> None:
        self.paths = paths
        self.run_record = ExecutorRecord(paths, status)
        """The status and the ledger."""
        self.checkpoints = RunCheckpoints(self.run_record, run_config.checkpoint_config)
        """What ranks have saved."""
        self.validations = Validations(self.run_record, self.checkpoints)
        """What validates it beside the training."""
        self.stop: StopNotice | None = None
        """That the run should stop, once it should."""
        self._goal: tuple[int, StopNotice] | None = None
        self._warned: set[str] = set()
        self._config = run_config
        self._expected = ExpectedMetrics(run_config)
        self._rule = StopRule(run_config.stop)
        self._last_line = b""
        self._recorded = 0
        self._slots = WriteSlots(None)

    @property
    def wants_stop(self) -> str | None:
        """Why the run should stop, once it should."""
        return None if self.stop is None else self.stop.why

    def ask_to_stop(self, notice: StopNotice) -> None:
        """Let the run stop; a reason that weighs more replaces what was there before."""
        if not self.would_heed(notice.kind):
            return
        if self.stop is not None and self.stop.deadline is not None:
            # Whatever the reason, the job ends when it ends.
            notice = replace(notice, deadline=min(self.stop.deadline, notice.deadline or math.inf))
        self.stop = notice

    def would_heed(self, kind: StopKind) -> bool:
        """Return whether nothing that weighs as much is wanted already."""
        return self.stop is None or kind.weight > self.stop.kind.weight

    def withdraw_goal(self) -> None:
        """Want no stop any more because the goal is met: the attempt that met it has failed."""
        if self.stop is not None and self.stop.kind is StopKind.GOAL:
            self.stop = None

    def tick(self, *, phase: str, reports: int) -> None:
        """Write the status if it is old, and look for a request to stop; go on validating."""
        self.validations.step()
        if not self.run_record.is_status_old:
            return
        metrics: dict[str, Any] = {"metrics": self.progress()} if self._last_line else {}
        self.look_for_request()
        shown = phase if self.stop is None else f"stopping: {self.stop.why}"
        self.run_record.change(phase=shown, reports=reports, **metrics)

    def look_for_request(self) -> None:
        """See if a person wants the run to stop.

        Raises
        ------
        RunStoppedError
            If the run directory is gone, and the run with it, or another executor has taken it
            over.
        """
        self.run_record.check()
        # Unlike Path.exists(), it does not raise where the filesystem does not answer.
        if os.path.exists(self.paths.stop_request):
            self.ask_to_stop(
                StopNotice(kind=StopKind.REQUEST, why="it was asked to (hpctrain cancel)")
            )

    def begin_attempt(self, resume_from: Path | None) -> AttemptStart:
        """Find what to resume from, and write the attempt into the ledger.

        Parameters
        ----------
        resume_from
            Checkpoint of another run, for when this one has none yet.

        Raises
        ------
        ConfigError
            If that checkpoint is needed, and deleted.
        """
        run_record = self.run_record
        attempt = run_record.num_attempts + 1
        manifest = self.checkpoints.begin_attempt()
        self._look_for_goal()
        # Of an attempt that was stopped: this one may return nothing.
        returned = self.paths.return_value
        insist(lambda: returned.unlink(missing_ok=True), patience_s=timeouts.LAST_WRITE_S)
        if manifest is not None and not self._expected.is_settled:
            for known in self.checkpoints.store.manifests():
                self._expected.note(known.metrics)
        if manifest is not None:
            self.validations.add(self.checkpoints.store.manifests())
        checkpoint = self.checkpoints.latest
        if checkpoint is None and resume_from is not None:
            if not resume_from.is_dir():
                raise ConfigError(
                    f"the run begins with {resume_from}, which is deleted, and has no checkpoint "
                    f"of its own yet. Give another one: resume_from_checkpoint=."
                )
            checkpoint = Checkpoint(resume_from)
        start = AttemptStart(
            attempt=attempt,
            first_report=self.checkpoints.saved,
            checkpoint=checkpoint,
        )
        self._recorded = start.first_report
        self._rule.begin_attempt(
            first_report=start.first_report, seconds_before=run_record.attempt_seconds
        )
        self._slots = WriteSlots(self._config.sync_config.max_writers)
        run_record.advance(
            RunEvent.STARTED,
            attempt=attempt,
            # Of the last attempt, and those of this one are known once its ranks are there.
            world_size=0,
            nodes=(),
            phase="launch",
            checkpoint=None if manifest is None else manifest.name,
            reports=start.first_report,
        )
        run_record.note(
            "attempt-started",
            attempt=attempt,
            job_id=run_record.status.job_id,
            restarts=restart_count(),
            host=socket.gethostname(),
            resumed_from=None if checkpoint is None else str(checkpoint.path),
            first_report=start.first_report,
        )
        return start

    def end_attempt(self, *, error: BaseException | None, reports: int) -> None:
        """Write into the ledger how an attempt ended."""
        cause = "finished"
        if error is not None:
            first_line = (str(error).splitlines() or [""])[0]
            cause = f"{type(error).__name__}: {first_line}"
        self.run_record.note(
            "attempt-ended",
            attempt=self.run_record.status.attempt,
            cause=cause,
            what=None if error is None else describe_cause(error),
            kind=self._failure_kind(error),
            reports=reports,
            saved=self.checkpoints.saved,
            checkpoint=self.checkpoints.latest_name,
            nodes=list(self.run_record.status.nodes),
        )
        self.run_record.change_later(reports=reports)
        self.checkpoints.end_attempt()

    def _failure_kind(self, error: BaseException | None) -> FailureKind | None:
        if self.stop is not None and isinstance(error, (TrainingFailedError, LaunchError)):
            # Whatever ranks say while their job is taken away from them is an effect of it.
            return self.stop.kind.failure or classify_failure(error)
        return classify_failure(error)

    def record(self, round_: ReportRound, broadcast: Callable[..., None]) -> None:
        """Take in a report of all ranks: commit its checkpoint, call callbacks, apply the rule."""
        self._last_line = round_.lines[0]
        warn_of_validations(round_, self._warned)
        checkpoint = self.checkpoints.commit(round_, broadcast) if round_.parts else None
        if not self._expected.is_settled:
            self._expected.check(
                round_.report,
                round_.metrics(),
                # What is validated has its score later.
                has_checkpoint=bool(round_.parts) and not round_.is_validated,
                lacks=round_.lacks,
            )
        if checkpoint is not None:
            if round_.is_validated:
                self.validations.add_committed(checkpoint.path)
            self.checkpoints.retain(checkpoint, round_.metrics(), is_pending=round_.is_validated)
        self._recorded = round_.report
        if self._config.callbacks:
            metrics = [round_.metrics(rank) for rank in sorted(round_.lines)]
            self.call("after_report", metrics, checkpoint)
        if self._config.stop is not None and self._goal is None:
            why = self._rule.explain(round_.report, round_.metrics())
            if why is not None:
                self._goal = round_.report, StopNotice(kind=StopKind.GOAL, why=why)
                self.ask_to_stop(self._goal[1])

    def answer(self, tracker: AttemptTracker, broadcast: Callable[..., None]) -> None:
        """Answer ranks that ask for a write slot, or for the checkpoints that there are.

        The latter once all reports that they made are recorded.
        """
        if tracker.slots:
            for rank, number, wanted in tracker.slots:
                self._slots.receive(rank, number, wanted=wanted)
            tracker.slots.clear()
            for rank, number in self._slots.grant().items():
                broadcast("slot", ranks=[rank], number=number)
        due = {report for report in tracker.asked if report <= self._recorded}
        if due:
            try:
                found = self.checkpoints.describe()
            except OSError as error:
                # They wait, and are answered when it can be read.
                self.run_record.complain("checkpoints/", error)
                return
            tracker.asked -= due
            broadcast("checkpoints", found, report=self._recorded)

    def call(self, hook: str, *args: Any) -> None:
        """Call a hook of every callback; one that raises is logged, and ends the run if fatal."""
        context = RunContext(
            name=self.run_record.status.name,
            path=self.paths.root,
            attempt=self.run_record.status.attempt,
            world_size=self.run_record.status.world_size,
            report=self._recorded,
        )
        for callback in self._config.callbacks:
            try:
                getattr(callback, hook)(context, *args)
            except Exception as error:
                described = f"{type(callback).__name__}.{hook}: {type(error).__name__}: {error}"
                self.run_record.note("callback-failed", error=described)
                log(f"callback failed: {described}")
                if callback.fatal:
                    raise

    def progress(self) -> dict[str, Any]:
        """Return rank 0's last metrics."""
        return dict(json.loads(self._last_line)["metrics"]) if self._last_line else {}

    def keep_return_value(self, content: bytes, *, notified: bool) -> None:
        """Store what rank 0's training function returned.

        Of a run that is to stop it is tried once: to leave the job in time matters more.

        Parameters
        ----------
        content
            Pickled.
        notified
            As of `raise_if_unfinished`.

        Raises
        ------
        SupersededError
            If another executor has taken the run over.
        """
        self.run_record.check_fence()
        if not content:
            return
        path = self.run_record.directory.paths.return_value
        is_to_stop = self._is_unfinished(notified) and self.stop is not None
        patience_s = 0.0 if is_to_stop else timeouts.LAST_WRITE_S
        try:
            insist(lambda: write_atomic(path, content, mode=0o600), patience_s=patience_s)
        except OSError as error:
            if not is_to_stop:
                raise
            self.run_record.complain(path.name, error)

    def keep_failures(self, failures: Iterable[RankFailure]) -> None:
        """Store what failed ranks said of themselves."""
        if self.run_record.is_superseded:
            return
        paths = self.run_record.directory.paths
        for failure in failures:
            path = paths.failure(self.run_record.status.attempt, max(failure.rank, 0))
            try:
                make_directory(path.parent, below=paths.root)
                write_atomic(path, json.dumps(failure.to_json(), indent=1).encode())
            except OSError as error:
                self.run_record.complain(path.name, error)

    def raise_if_unfinished(self, reports: int, *, notified: bool) -> None:
        """Raise if ranks have returned because they were asked to, and the goal is not reached.

        Parameters
        ----------
        notified
            Whether a rank knew that it should stop. One that did not has come to its own end.

        Raises
        ------
        RunStoppedError
            With what the run resumes from.
        """
        if self._is_unfinished(notified):
            self.raise_if_stopped(reports)

    def _is_unfinished(self, notified: bool) -> bool:
        return notified and self._goal is None

    def raise_if_stopped(self, reports: int) -> None:
        """Raise if the run is to stop, with what it resumes from.

        Raises
        ------
        RunStoppedError
            Then.
        """
        if self.stop is not None:
            raise RunStoppedError(
                f"the run stopped because {self.wants_stop}, at report {reports}. It resumes from "
                f"{self.checkpoint_path() or 'its beginning'} at the next fit()."
            )

    def finish_validations(self, step: Callable[[], None]) -> None:
        """Wait for what is validated yet, once the training has ended.

        Parameters
        ----------
        step
            Looks whether the job is about to end.

        Raises
        ------
        RunStoppedError
            If the run is to stop meanwhile: it resumes with what is pending.
        """
        reports = self.run_record.status.reports

        def goes_on() -> bool:
            step()
            self.tick(phase=PHASE, reports=reports)
            return not self._is_stopped

        if self.validations.has_pending():
            self.run_record.change(phase=PHASE)
            self.validations.wait(goes_on)
            if self._is_stopped:
                self.raise_if_stopped(reports)

    @property
    def _is_stopped(self) -> bool:
        """Whether the run is to stop for another reason than that it has met its goal."""
        return self.stop is not None and self.stop.kind is not StopKind.GOAL

    def end(self, error: BaseException | None) -> None:
        """Write down how the run ended, and tell the callbacks."""
        self.validations.close()
        if isinstance(error, TrainingFailedError) and not isinstance(error, RunStoppedError):
            name_next_step(error, run=self.paths.root, checkpoint=self.checkpoint_path())
        message: str | None = None
        if error is None:
            event = RunEvent.FINISHED
        elif isinstance(error, (RunStoppedError, KeyboardInterrupt, SystemExit)):
            event = RunEvent.STOPPED
            message = (
                str(error) or "it was interrupted (Ctrl-C); fit() with the same name resumes it"
            )
        else:
            event = RunEvent.FAILED
            ours = isinstance(error, HpctrainError)
            message = str(error) if ours else f"{type(error).__name__}: {error}"
        self.run_record.advance(
            event,
            patience_s=timeouts.LAST_WRITE_S,
            error=message,
            error_type=None if error is None else type(error).__name__,
            metrics=self.progress() or self.run_record.status.metrics,
        )
        self.run_record.note("executor-ended")
        self.run_record.note("run-ended", state=event.value, error=message)
        try:
            self.call("on_finish", self._result(error))
        finally:
            self.run_record.directory.close()

    def _result(self, error: BaseException | None) -> Result:
        if self.run_record.may_write:
            with suppress(ConfigError, OSError):
                return Result.from_path(self.paths.root)
        failure = error if isinstance(error, Exception) else None
        return Result(path=self.paths.root, status=self.run_record.status, error=failure)

    def _look_for_goal(self) -> None:
        """See if the goal was met by a report that the attempt which begins will not make again."""
        if self._goal is None:
            return
        report, notice = self._goal
        if report <= self.checkpoints.saved:
            self.ask_to_stop(notice)
        else:
            self._goal = None

    def checkpoint_path(self) -> Path | None:
        """Return where the newest complete checkpoint lies."""
        latest = self.checkpoints.latest
        return None if latest is None else Path(latest.path)
