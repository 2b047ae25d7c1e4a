"""`Executor`: runs a run. Attempts, restarts, the stop, and the record of it all."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

from hpctrain import environ
from hpctrain.config import RunConfig
from hpctrain.errors import (
    HpctrainError,
    LaunchError,
    RunStoppedError,
    TrainingFailedError,
)
from hpctrain.execute.backend_executor import BackendExecutor
from hpctrain.execute.explain import explain_failure
from hpctrain.execute.failure_policy import FailurePolicy
from hpctrain.execute.process import process_start_time
from hpctrain.execute.recorder import Recorder
from hpctrain.execute.worker_group import WorkerGroup
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.result import Result
from hpctrain.rundir.files import write_atomic
from hpctrain.rundir.ledger import append_event, count_attempts
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import RunState, RunStatus

_POLL_S = 0.25
STOP_PATIENCE_S = 120.0
"""Seconds that ranks have to reach a report, save and return once a stop is wanted."""


class Executor:
    """Runs a run to its end, in the process that calls it.

    Parameters
    ----------
    paths
        The run directory; ``spec.pkl`` is there.
    plan
        On what it runs.
    run_config
        How it is looked after.
    resume_from
        Checkpoint of another run to begin with.
    """

    def __init__(
        self,
        *,
        paths: RunPaths,
        plan: LaunchPlan,
        run_config: RunConfig,
        resume_from: Path | None = None,
    ) -> None:
        self._paths = paths
        self._plan = plan
        self._run_config = run_config
        self._resume_from = resume_from
        self.recorder = Recorder(
            paths=paths, run_config=run_config, status=initial_status(paths, plan, run_config)
        )

    def run(self) -> None:
        """Run until the run has ended.

        Raises
        ------
        TrainingFailedError
            If ranks failed more often than the budget allows, or the run was stopped.
        LaunchError
            If the ranks could not be started.
        """
        self._paths.stop_request.unlink(missing_ok=True)
        policy = FailurePolicy(self._run_config.failure_config)
        self.recorder.change(state=RunState.STARTING)
        try:
            while True:
                try:
                    self._run_attempt()
                except (RunStoppedError, LaunchError):
                    raise
                except TrainingFailedError as error:
                    decision = policy.after_worker_failure()
                    if not decision.restart:
                        raise
                    append_event(
                        self._paths, "restart", reason=decision.reason, after=str(error)[:400]
                    )
                    continue
                break
        except BaseException as error:
            self._end(error)
            raise
        self._end(None)

    def _run_attempt(self) -> None:
        recorder = self.recorder
        attempt = count_attempts(self._paths) + 1
        recorder.store.remove_unfinished()
        manifest, complaints = recorder.store.newest_good()
        for complaint in complaints:
            append_event(self._paths, "checkpoint-damaged", error=complaint)
        checkpoint = self._resume_from if manifest is None else recorder.store.open(manifest).path
        first_report = 0 if manifest is None else manifest.report
        recorder.latest = None if manifest is None else recorder.store.open(manifest)
        recorder.change(state=RunState.STARTING, attempt=attempt, phase="launch")
        append_event(
            self._paths,
            "attempt-started",
            attempt=attempt,
            job_id=recorder.status.job_id,
            host=socket.gethostname(),
            resumed_from=None if checkpoint is None else str(checkpoint),
            first_report=first_report,
        )
        group = WorkerGroup(
            placement=self._plan.placement,
            in_allocation=self._plan.launcher in ("allocation", "slurm"),
            mpi=self._plan.mpi,
            srun_args=self._plan.srun_args,
            environment=self._plan.environment,
            path=self._paths.root,
            attempt=attempt,
            log_to_file=self._run_config.log_to_file,
        )
        backend = BackendExecutor(group, first_report=first_report, checkpoint=checkpoint)
        cause = "finished"
        try:
            backend.start()
            recorder.change(
                state=RunState.RUNNING,
                world_size=len(group),
                nodes=group.hostnames,
                phase="importing",
                checkpoint=None if manifest is None else manifest.name,
            )
            self._watch(backend)
            self._conclude(backend, attempt)
        except BaseException as error:
            cause = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            backend.shutdown(graceful=False)
            raise
        finally:
            append_event(
                self._paths,
                "attempt-ended",
                attempt=attempt,
                cause=cause,
                reports=backend.tracker.reports,
                nodes=list(group.hostnames),
            )
        backend.shutdown(graceful=True)

    def _watch(self, backend: BackendExecutor) -> None:
        backend.start_training()
        recorder, tracker = self.recorder, backend.tracker
        stop_sent: float | None = None
        agreed = False
        while not backend.is_finished():
            round_ = backend.get_next_results(_POLL_S)
            if round_ is not None:
                recorder.record(round_, backend.worker_group.broadcast)
            recorder.tick(phase=tracker.phase, reports=tracker.reports)
            if tracker.signals and recorder.wants_stop is None:
                recorder.wants_stop = f"its ranks got {tracker.signals[0]}"
            if recorder.wants_stop and stop_sent is None:
                backend.request_stop()
                stop_sent = time.monotonic()
            if stop_sent is not None and not agreed and tracker.stop_report is not None:
                backend.worker_group.broadcast("stop", report=tracker.stop_report)
                agreed = True
            if stop_sent is not None and time.monotonic() - stop_sent > STOP_PATIENCE_S:
                raise RunStoppedError(
                    f"the run was to stop because {recorder.wants_stop}, but its ranks did not "
                    f"return within {STOP_PATIENCE_S:.0f} s. They were ended; the run resumes from "
                    f"{recorder.checkpoint_path() or 'its beginning'}. A training function that "
                    f"asks should_stop() after each report() can save first."
                )

    def _conclude(self, backend: BackendExecutor, attempt: int) -> None:
        tracker = backend.tracker
        if complaint := tracker.uneven_reports():
            raise TrainingFailedError(complaint)
        value = backend.finish_training()
        if tracker.has_failed:
            for rank, failure in tracker.failures.items():
                path = self._paths.failure(attempt, rank)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(path, json.dumps(failure.to_json(), indent=1).encode())
            # The launcher says how a silent rank died only when it has cleaned up after it.
            backend.worker_group.await_launcher(5.0)
            error = explain_failure(
                tracker,
                workers=backend.worker_group.workers,
                paths=self._paths,
                attempt=attempt,
                checkpoint=self.recorder.checkpoint_path(),
                launcher_output=backend.worker_group.launcher_output(),
            )
            self.recorder.call("after_exception", error.worker_failures)
            cause = error.worker_failures.get(error.rank)
            raise error from cause
        self.recorder.keep_return_value(value)
        self.recorder.change(phase="done", reports=tracker.reports)
        reason = self.recorder.wants_stop
        if reason is not None and "reached" not in reason and "stop function" not in reason:
            raise RunStoppedError(
                f"the run stopped because {reason}, at report {tracker.reports}. It resumes from "
                f"{self.recorder.checkpoint_path() or 'its beginning'} at the next fit()."
            )

    def _end(self, error: BaseException | None) -> None:
        if error is None:
            state, message = RunState.FINISHED, None
        elif isinstance(error, HpctrainError) and not isinstance(error, RunStoppedError):
            state, message = RunState.FAILED, str(error)
        else:
            state, message = RunState.STOPPED, str(error) or type(error).__name__
        self.recorder.change(
            state=state,
            error=message,
            ended_at=time.time(),
            metrics=self.recorder.progress() or self.recorder.status.metrics,
        )
        append_event(self._paths, "run-ended", state=state.value, error=message)
        self.recorder.call("on_finish", Result.from_path(self._paths.root))


def initial_status(paths: RunPaths, plan: LaunchPlan, run_config: RunConfig) -> RunStatus:
    """Return the status of a run whose executor is this process. Not collective."""
    pid = os.getpid()
    assert run_config.name is not None
    return RunStatus(
        name=run_config.name,
        state=RunState.STARTING,
        launcher=plan.launcher,
        attempt=count_attempts(paths),
        job_id=environ.variable("SLURM_JOB_ID"),
        owner_host=socket.gethostname(),
        owner_pid=pid,
        owner_start=process_start_time(pid) or 0,
        started_at=time.time(),
    )
