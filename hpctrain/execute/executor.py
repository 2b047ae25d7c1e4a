"""`Executor`: runs a run. Attempts, restarts, the stop, and the record of it all."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from hpctrain import environ
from hpctrain.config import RunConfig
from hpctrain.errors import (
    LaunchError,
    NodeLostError,
    RunStoppedError,
    TrainingFailedError,
    WorkerError,
    WorkerHangError,
)
from hpctrain.execute.allotment import Allotment
from hpctrain.execute.backend_executor import BackendExecutor
from hpctrain.execute.continuation import (
    JobTerms,
    read_job_terms,
    requeue,
    submit_successor,
)
from hpctrain.execute.explain import explain_failure, names_a_death
from hpctrain.execute.failure_policy import (
    Continuation,
    StopKind,
    StopNotice,
    choose_continuation,
    classify_failure,
    decide,
    interpret_signal,
)
from hpctrain.execute.growth import Growth, Resize
from hpctrain.execute.hang import HangWatch
from hpctrain.execute.health import bad_nodes
from hpctrain.execute.process import process_start_time
from hpctrain.execute.recorder import Recorder
from hpctrain.execute.step_launcher import other_mpi
from hpctrain.execute.stop import StopAgreement
from hpctrain.execute.tracker import AttemptTracker
from hpctrain.execute.worker_group import WorkerGroup
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.rundir.ledger import count_attempts
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import RunState, RunStatus
from hpctrain.slurm_config import time_limit_minutes

_POLL_S = 0.25
# A controller that is restarted is away for some seconds, one that fails over for a minute.
_CONTROLLER_PATIENCE_S = 60.0


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
        self._mpi = plan.mpi
        self._total_deadline: float | None = None
        self.signals: list[str] = []
        """Signals that this process got; whoever made it may append to it, also in a handler."""
        self.recorder = Recorder(
            paths=paths, run_config=run_config, status=initial_status(paths, plan, run_config)
        )
        in_allocation = plan.launcher in ("allocation", "slurm")
        job_id = environ.variable("SLURM_JOB_ID") if in_allocation else None
        self._allotment = Allotment(
            plan,
            job_id=job_id,
            note=self.recorder.note,
            bad=bad_nodes(paths, job_id=job_id) if plan.job_nodes.survives_loss else None,
        )

    def run(self) -> bool:
        """Run until the run has ended, or goes on in another job.

        Returns
        -------
        bool
            Whether it has ended. Otherwise nobody may write into the run directory any more.

        Raises
        ------
        TrainingFailedError
            If ranks failed more often than the budget allows, or the run was stopped.
        LaunchError
            If the ranks could not be started.
        """
        recorder = self.recorder
        recorder.begin()
        try:
            self._check_total_time()
            self._go_on_after_the_last_executor()
            while True:
                try:
                    # A request can be older than this process: between two jobs.
                    recorder.look_for_request()
                    recorder.raise_if_stopped(recorder.status.reports)
                    self._run_attempt()
                    break
                except Resize:
                    continue
                except (LaunchError, TrainingFailedError) as error:
                    if self._leave_job(error):
                        return False
                    self._decide_on(error)
        except BaseException as error:
            recorder.end(error)
            raise
        recorder.end(None)
        return True

    def _check_total_time(self) -> None:
        """Find out when the time of the whole run ends."""
        total = self._run_config.total_time
        if total is None:
            return
        total_s = time_limit_minutes(total) * 60
        left = total_s - self.recorder.history.used_s
        self._total_deadline = time.monotonic() + left
        if left <= 0:
            self._stop_for_total_time()

    def _stop_for_total_time(self) -> None:
        why = f"its total_time={self._run_config.total_time!r} is used up"
        self.recorder.ask_to_stop(StopNotice(kind=StopKind.TOTAL_TIME, why=why))

    def _interpret(self, name: str) -> StopNotice:
        """Return what a signal from outside means."""
        return interpret_signal(
            name, self._read_terms(), now=time.time(), notice_s=self._plan.stop_notice_s
        )

    def _read_terms(self) -> JobTerms | None:
        """Return what Slurm says of this job; None where there is no job, or no answer."""
        if not self._in_job:
            return None
        try:
            return read_job_terms(patience_s=_CONTROLLER_PATIENCE_S)
        except LaunchError as error:
            print(f"hpctrain: {error}", file=sys.stderr, flush=True)
            return None

    @property
    def _in_job(self) -> bool:
        return self._plan.launcher in ("slurm", "allocation")

    def _blame_nodes(self, lost: Mapping[str, str], error: WorkerError) -> NodeLostError:
        told = "; ".join(f"node {node} is lost: {reason}" for node, reason in lost.items())
        if not self._plan.job_nodes.survives_loss:
            self._give_job_up(told)
        return NodeLostError(
            f"{told}. {error}",
            rank=error.rank,
            hostname=error.hostname,
            worker_failures=error.worker_failures,
        )

    def _give_job_up(self, why: str) -> None:
        """Let the run go on in another job, for want of nodes."""
        if self._in_job:
            self.recorder.ask_to_stop(StopNotice(kind=StopKind.PREEMPTION, why=why))

    def _look_for_end_of_job(self, tracker: AttemptTracker) -> None:
        """See if Slurm is about to end this job, where something looks as if it were."""
        if self.signals:
            self.recorder.ask_to_stop(self._interpret(self.signals[0]))
        elif self._in_job and (tracker.signals or any(tracker.lost.values())):
            terms = self._read_terms()
            if terms is not None and (terms.is_preempted or not terms.is_running):
                self.recorder.ask_to_stop(self._interpret("SIGTERM"))

    def _leave_job(self, error: LaunchError | TrainingFailedError) -> bool:
        """Let the run go on in another job, if its own ends and the budgets allow it.

        Returns
        -------
        bool
            Whether it does; otherwise `error` has nothing to do with the end of the job.
        """
        recorder = self.recorder
        recorder.look_for_request()
        notice = recorder.stop
        if notice is None or notice.kind.failure is None or not self._in_job:
            return False
        kind = notice.kind.failure
        decision = decide(kind, recorder.history, self._run_config.failure_config)
        if not decision.restart:
            recorder.note("gave-up", reason=decision.reason)
            raise TrainingFailedError(f"{error}\n{decision.reason}") from error
        stopped = RunStoppedError(
            f"the run stopped because {notice.why}, and a person has to decide how it goes on: "
            f"fit() with the same name resumes it from "
            f"{recorder.checkpoint_path() or 'its beginning'}."
        )
        left = _CONTROLLER_PATIENCE_S
        if notice.deadline is not None:
            left = max(1.0, min(left, notice.deadline - time.time()))
        terms = read_job_terms(patience_s=left)
        is_ours = self._plan.launcher == "slurm"
        how = choose_continuation(
            terms,
            notice,
            restarts=environ.restart_count(),
            is_ours=is_ours,
            requeue=self._plan.requeue,
        )
        if how is Continuation.STOP or terms is None:
            raise stopped from error
        recorder.hand_over()
        if how is Continuation.REQUEUE:
            try:
                requeue(terms.job_id, patience_s=left)
            except LaunchError as refused:
                now = self._read_terms()
                if now is None or now.restarts == terms.restarts:
                    recorder.note("requeue-refused", job_id=terms.job_id, error=str(refused))
                    if not is_ours:
                        raise stopped from refused
                    how = Continuation.SUCCESSOR
            if how is Continuation.REQUEUE:
                recorder.note("requeued", job_id=terms.job_id, why=notice.why)
        if how is Continuation.SUCCESSOR:
            recorder.name_successor(submit_successor(self._paths, patience_s=left))
        return True

    def _go_on_after_the_last_executor(self) -> None:
        """Count attempts whose executor died without a word, and see if the budgets allow more."""
        kind = self.recorder.close_dead_attempts()
        if kind is not None:
            decision = decide(kind, self.recorder.history, self._run_config.failure_config)
            if not decision.restart:
                raise TrainingFailedError(f"the run is not begun again: {decision.reason}")
            self.recorder.note("restart", reason=decision.reason, after="its executor is gone")

    def _decide_on(self, error: LaunchError | TrainingFailedError) -> None:
        """Return if the ranks are to be started again, else raise."""
        kind = classify_failure(error)
        can_leave_out = self._allotment.can_leave_out(error)
        is_final = isinstance(error, LaunchError) and not (error.transient or can_leave_out)
        if kind is None or is_final:
            raise error
        decision = decide(kind, self.recorder.history, self._run_config.failure_config)
        if not decision.restart:
            self.recorder.note("gave-up", reason=decision.reason)
            if self.recorder.history.fruitless > 1:
                # What is printed and stored: the last failure alone would not say why it was fatal.
                error.args = (f"{error}\n{decision.reason}",)
            raise error
        if isinstance(error, LaunchError) and not can_leave_out:
            self._mpi = other_mpi(self._plan.mpi)
        self.recorder.note("restart", reason=decision.reason, after=str(error)[:400])

    def _run_attempt(self) -> None:
        recorder = self.recorder
        try:
            placement, idle_nodes = self._allotment.place()
        except NodeLostError as shortage:
            self._give_job_up(str(shortage))
            raise
        start = recorder.begin_attempt(self._resume_from)
        group = WorkerGroup(
            num_cpus_per_worker=self._plan.threads_per_task,
            placement=placement,
            idle_nodes=idle_nodes,
            node_timeout_s=self._run_config.failure_config.node_timeout_s,
            in_allocation=self._plan.launcher in ("allocation", "slurm"),
            mpi=self._mpi,
            srun_args=self._plan.srun_args,
            environment=self._plan.environment,
            path=self._paths.root,
            attempt=start.attempt,
            log_to_file=self._run_config.log_to_file,
        )
        backend = BackendExecutor(
            group,
            first_report=start.first_report,
            checkpoint=None if start.checkpoint is None else start.checkpoint.path,
        )
        error: BaseException | None = None
        try:
            try:
                backend.start(self._run_config.failure_config.start_timeout)
            finally:
                recorder.note_health(group.health.verdict())
            recorder.change(
                state=RunState.RUNNING,
                world_size=len(group),
                nodes=group.hostnames,
                phase="importing",
            )
            self._watch(backend)
            self._conclude(backend)
        except BaseException as raised:
            error = raised
            if recorder.stop is None:
                self._look_for_end_of_job(backend.tracker)
            if isinstance(raised, WorkerError) and (lost := self._allotment.losses(group)):
                error = self._blame_nodes(lost, raised)
                raise error from raised
            raise
        finally:
            backend.shutdown(graceful=error is None or isinstance(error, Resize))
            self._allotment.watch(group)
            # First of all, since a full disk is a usual reason: what is half written goes.
            recorder.store.prepare()
            recorder.keep_failures(backend.tracker.failures.values())
            recorder.end_attempt(error=error, reports=backend.tracker.reports)

    def _watch(self, backend: BackendExecutor) -> None:
        backend.start_training()
        broadcast = backend.worker_group.broadcast
        ranks_of: dict[str, list[int]] = {}
        for worker in backend.worker_group.workers:
            ranks_of.setdefault(worker.hostname, []).append(worker.rank)
        stop = StopAgreement(
            self.recorder,
            backend.tracker,
            broadcast,
            interpret=self._interpret,
            nodes=ranks_of,
        )
        hang = HangWatch(
            backend.progress,
            config=self._run_config.failure_config,
            broadcast=broadcast,
            examine=backend.worker_group.examine,
            workers=backend.worker_group.workers,
            paths=self._paths,
            attempt=self.recorder.status.attempt,
            checkpoint=self.recorder.checkpoint_path,
            note=self.recorder.note,
        )
        with Growth(self.recorder, backend.tracker, self._allotment, stop) as growth:
            while not backend.is_finished():
                round_ = backend.get_next_results(_POLL_S)
                if round_ is not None:
                    self.recorder.record(round_, broadcast)
                self.recorder.answer(backend.tracker, broadcast)
                self.recorder.tick(phase=backend.tracker.phase, reports=backend.tracker.reports)
                if self.signals and self.recorder.stop is None:
                    self.recorder.ask_to_stop(self._interpret(self.signals[0]))
                if self._total_deadline is not None and time.monotonic() > self._total_deadline:
                    self._stop_for_total_time()
                self._allotment.watch(backend.worker_group)
                growth.step()
                self._look_for_hangs(hang, backend)
            growth.conclude()

    def _look_for_hangs(self, hang: HangWatch, backend: BackendExecutor) -> None:
        try:
            if not backend.tracker.has_failed:
                hang.step()
        except WorkerHangError as error:
            for failure in hang.failures(error):
                backend.tracker.failures.setdefault(failure.rank, failure)
            self.recorder.call("after_exception", error.worker_failures)
            raise
        if hang.stalled != self.recorder.status.stalled:
            self.recorder.change(stalled=hang.stalled)

    def _conclude(self, backend: BackendExecutor) -> None:
        tracker = backend.tracker
        if complaint := tracker.uneven_reports():
            raise TrainingFailedError(complaint)
        value = backend.finish_training()
        if tracker.has_failed:
            # The launcher says how a silent rank died: srun at once, others after they cleaned up,
            # none where a node is silent.
            silent = set(tracker.lost) - set(tracker.failures)
            if silent and not any(backend.worker_group.lost_nodes.values()):
                backend.worker_group.await_launcher(5.0, until=names_a_death)
            error = explain_failure(
                tracker,
                workers=backend.worker_group.workers,
                paths=self._paths,
                attempt=self.recorder.status.attempt,
                checkpoint=self.recorder.checkpoint_path(),
                launcher_output=backend.worker_group.launcher_output(),
            )
            self.recorder.call("after_exception", error.worker_failures)
            raise error from error.worker_failures.get(error.rank)
        self.recorder.raise_if_stopped(tracker.reports, told=tracker.was_told)
        self.recorder.keep_return_value(value)
        self.recorder.change(phase="done", reports=tracker.reports)


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
        restarts=environ.restart_count(),
        owner_host=socket.gethostname(),
        owner_pid=pid,
        owner_start=process_start_time(pid) or 0,
        started_at=time.time(),
    )
