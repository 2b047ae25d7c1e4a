"""`Recorder`: records what the ranks of a run report, over all attempts."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpctrain import timeouts
from hpctrain.config import RunConfig
from hpctrain.environ import restart_count
from hpctrain.errors import (
    ConfigError,
    RunStoppedError,
    TrainingFailedError,
)
from hpctrain.execute.asked_validations import warn_of_validations
from hpctrain.execute.attempt_files import remove_return_value, write_failures, write_return_value
from hpctrain.execute.attempt_start import AttemptStart, choose_checkpoint
from hpctrain.execute.awaited_reports import AwaitedReports
from hpctrain.execute.callback_calls import CallbackCalls
from hpctrain.execute.executor_record import ExecutorRecord
from hpctrain.execute.expected_metrics import ExpectedMetrics
from hpctrain.execute.explain import name_next_step
from hpctrain.execute.failure_policy import classify_attempt_end, describe_cause
from hpctrain.execute.loop_waits import LoopWaits
from hpctrain.execute.rank_requests import RankRequests
from hpctrain.execute.run_checkpoints import RunCheckpoints
from hpctrain.execute.run_end import describe_run_end
from hpctrain.execute.stop_decision import StopDecision, StopKind, StopNotice
from hpctrain.execute.stop_rule import StopRule
from hpctrain.execute.tracker import AttemptTracker, ReportRound
from hpctrain.execute.tuner_socket import ExecutorEnd
from hpctrain.execute.validations import PHASE, Validations
from hpctrain.printable import describe_error
from hpctrain.result import Result
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunEvent
from hpctrain.rundir.status import RunStatus
from hpctrain.worker.failure import RankFailure


class Recorder:
    """Records the reports of ranks: their checkpoints, metrics, and the stop that they lead to.

    One for a run, over all attempts. It decides the order in which its parts act: `ExecutorRecord`
    writes, `RunCheckpoints` commits, `StopDecision` weighs reasons to stop, `CallbackCalls` calls.

    Parameters
    ----------
    paths
        The run directory.
    run_config
        Callbacks, retention, stop rule.
    status
        State to start from.
    record_cls
        What keeps the status and the ledger.
    """

    def __init__(
        self,
        *,
        paths: RunPaths,
        run_config: RunConfig,
        status: RunStatus,
        record_cls: type[ExecutorRecord] = ExecutorRecord,
    ) -> None:
        self.paths = paths
        self.run_record = record_cls(paths, status)
        """The status and the ledger."""
        self.checkpoints = RunCheckpoints(self.run_record, run_config.checkpoint_config)
        """What ranks have saved."""
        self.validations = Validations(self.run_record, self.checkpoints)
        """What validates it beside the training."""
        self.decision = StopDecision()
        """Whether the run is to stop, and why."""
        self.tuner = ExecutorEnd()
        """To the tuner of a trial, which sends that there is a stop request, before the executor
        looks for one by itself, and after which reports the trial goes on."""
        self.loop_waits = LoopWaits()
        """For how long the ranks of this attempt wait, and for what."""
        self._warned: set[str] = set()
        self._config = run_config
        self._callbacks = CallbackCalls(run_config.callbacks, self.run_record)
        self._expected = ExpectedMetrics(run_config)
        self._rule = StopRule(run_config.stop)
        self._last_line = b""
        self._recorded = 0
        self._requests = RankRequests(
            self.run_record, self.checkpoints, max_writers=run_config.sync_config.max_writers
        )
        self._awaited_reports = AwaitedReports()

    @property
    def stop(self) -> StopNotice | None:
        """The reason for which the run is to stop; None while it is not."""
        return self.decision.notice

    def request_stop(self, notice: StopNotice) -> None:
        """Let the run stop, unless a reason that weighs as much stands already."""
        self.decision = self.decision.after_request(notice)

    def refine_stop(self, before: StopNotice, after: StopNotice) -> None:
        """Let `after` take the place of `before` where that stands, as more is known of it."""
        self.decision = self.decision.after_answer(before, after)

    def withdraw_stop(self, kind: StopKind) -> None:
        """Let the run continue if this reason stands: it holds no more."""
        self.decision = self.decision.after_withdrawal(kind)

    def tick(self, *, phase: str, reports: int) -> None:
        """Write the status if it is old, and look for a request to stop; go on validating."""
        self.validations.step()
        was_notified = self.tuner.was_notified()
        if was_notified:
            self.check_stop_request()
        if not self.run_record.is_status_old:
            return
        self.run_record.write_events()
        metrics: dict[str, Any] = {"metrics": self.progress()} if self._last_line else {}
        if not was_notified:
            self.check_stop_request()
        shown = phase if self.stop is None else f"stopping: {self.stop.why}"
        self.run_record.change(phase=shown, reports=reports, **metrics)

    def check_stop_request(self) -> None:
        """Stop the run if a person has requested it.

        Raises
        ------
        RunStoppedError
            If the run directory is gone, and the run with it, or another executor has taken it
            over.
        """
        self.run_record.check()
        # Unlike Path.exists(), it does not raise where the filesystem does not answer.
        if os.path.exists(self.paths.stop_request):
            self.request_stop(
                StopNotice(kind=StopKind.REQUEST, why="it was asked to (hpctrain cancel)")
            )

    def begin_attempt(
        self, resume_from: Path | None, *, check_stop: Callable[[], None] = lambda: None
    ) -> AttemptStart:
        """Find what to resume from, and write the attempt into the ledger.

        Parameters
        ----------
        resume_from
            Checkpoint of another run, for when this one has none yet.
        check_stop
            Raises if the run is to stop, while a checkpoint is verified.

        Raises
        ------
        ConfigError
            If that checkpoint is needed, and deleted.
        """
        run_record = self.run_record
        attempt = run_record.last_attempt + 1
        manifest = self.checkpoints.begin_attempt(check_stop)
        self.decision = self.decision.after_restart(self.checkpoints.saved)
        met = run_record.met_criterion
        if met is not None and met[0] <= self.checkpoints.saved:
            # It was met when another executor had the run.
            self.decision = self.decision.after_criterion(*met)
        remove_return_value(run_record)
        if manifest is not None:
            known = self.checkpoints.store.known_manifests()
            for one in () if self._expected.is_settled else known:
                self._expected.note(one.metrics)
            self.validations.add(known)
        checkpoint = choose_checkpoint(self.checkpoints.latest, resume_from)
        start = AttemptStart(
            attempt=attempt,
            first_report=self.checkpoints.saved,
            checkpoint=checkpoint,
        )
        self._recorded = start.first_report
        self._rule.begin_attempt(
            first_report=start.first_report, seconds_before=run_record.attempt_seconds
        )
        self._requests.begin_attempt()
        self._awaited_reports.begin_attempt(start.attempt)
        self.loop_waits = LoopWaits(run_record.most_reports)
        run_record.note(
            "attempt-started",
            attempt=attempt,
            job_id=run_record.status.job_id,
            restarts=restart_count(),
            host=socket.gethostname(),
            resumed_from=None if checkpoint is None else str(checkpoint.path),
            first_report=start.first_report,
        )
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
        return start

    def end_attempt(self, *, error: BaseException | None, reports: int) -> None:
        """Write into the ledger how an attempt ended."""
        cause = "finished"
        if error is not None:
            cause = describe_error(error).partition("\n")[0]
        self.run_record.note(
            "attempt-ended",
            attempt=self.run_record.status.attempt,
            cause=cause,
            what=None if error is None else describe_cause(error),
            kind=classify_attempt_end(error, self.stop),
            reports=reports,
            saved=self.checkpoints.saved,
            checkpoint=self.checkpoints.latest_name,
            nodes=list(self.run_record.status.nodes),
            waits=self.loop_waits.to_json(),
        )
        self.run_record.change_later(reports=reports)
        self.checkpoints.end_attempt()

    def record(self, round_: ReportRound, broadcast: Callable[..., None]) -> None:
        """Take in a report of all ranks: commit its checkpoint, call callbacks, apply the rule."""
        self._last_line = round_.lines[0]
        self.loop_waits.take(round_)
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
        if self._callbacks:
            metrics = [round_.metrics(rank) for rank in sorted(round_.lines)]
            self.call("after_report", metrics, checkpoint)
        if self._config.stop is not None and self.decision.criterion is None:
            why = self._rule.explain(round_.report, round_.metrics())
            if why is not None:
                self.decision = self.decision.after_criterion(round_.report, why)
                self.run_record.note("stop-criterion-met", report=round_.report, why=why)

    def answer(self, tracker: AttemptTracker, broadcast: Callable[..., None]) -> None:
        """Answer ranks that ask for a write slot or for checkpoints, or wait after a report."""
        self._requests.answer(tracker, broadcast, recorded=self._recorded)
        if self.decision.criterion is None:
            # A trial that meets its stop criterion ends with that: nothing is left to decide.
            self._awaited_reports.step(
                self.tuner,
                broadcast,
                awaited=min(tracker.awaited, self._recorded),
                is_stopping=self.stop is not None,
            )

    def call(self, hook: str, *args: Any) -> None:
        """Call a hook of every callback; one that raises is logged, and ends the run if fatal."""
        self._callbacks.call(hook, *args, report=self._recorded)

    def progress(self) -> dict[str, Any]:
        """Return rank 0's last metrics."""
        return dict(json.loads(self._last_line)["metrics"]) if self._last_line else {}

    def keep_return_value(self, content: bytes, *, notified: bool) -> None:
        """Store what rank 0's training function returned.

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
        is_stopping = self.decision.leaves_unfinished(notified=notified)
        write_return_value(self.run_record, content, is_stopping=is_stopping)

    def keep_failures(self, failures: Iterable[RankFailure]) -> None:
        """Store what is known of ranks that failed."""
        write_failures(self.run_record, failures)

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
        if self.decision.leaves_unfinished(notified=notified):
            self.raise_if_stopped(reports)

    def raise_if_stopped(self, reports: int) -> None:
        """Raise if the run is to stop, with what it resumes from.

        Raises
        ------
        RunStoppedError
            If the run is to stop.
        """
        if self.stop is not None:
            raise RunStoppedError(
                f"the run stopped because {self.stop.why}, at report {reports}. It resumes from "
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
            return not self.decision.ends_early

        if self.validations.has_pending():
            self.run_record.change(phase=PHASE)
            self.validations.wait(goes_on)
            if self.decision.ends_early:
                self.raise_if_stopped(reports)

    def end(self, error: BaseException | None) -> None:
        """Write how the run ended, and call the callbacks."""
        self.validations.close()
        if isinstance(error, TrainingFailedError) and not isinstance(error, RunStoppedError):
            name_next_step(error, run=self.paths.root, checkpoint=self.checkpoint_path())
        event, message = describe_run_end(error)
        self.run_record.advance(
            event,
            patience_s=timeouts.LAST_WRITE_S,
            error=message,
            error_type=None if error is None else type(error).__name__,
            metrics=self.progress() or self.run_record.status.metrics,
        )
        self.run_record.note("executor-ended")
        self.run_record.note("run-ended", state=event.value, error=message)
        # Last, as it may take its time: Slurm may end this process meanwhile.
        self.checkpoints.close()
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

    def checkpoint_path(self) -> Path | None:
        """Return where the newest complete checkpoint lies."""
        latest = self.checkpoints.latest
        return None if latest is None else Path(latest.path)
