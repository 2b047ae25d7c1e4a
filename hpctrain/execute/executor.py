"""`Executor`: runs a run. Attempts, restarts, the stop, and the record of it all."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain import timeouts
from hpctrain.config import RunConfig
from hpctrain.errors import LaunchError, NodeLostError, TrainingFailedError, WorkerError
from hpctrain.execute.attempt_executor import AttemptExecutor
from hpctrain.execute.attempt_loop import AttemptLoop
from hpctrain.execute.failure_policy import (
    Decision,
    blame_nodes,
    classify_failure,
    decide,
    describe_cause,
)
from hpctrain.execute.growth import Growth
from hpctrain.execute.initial_status import initial_status
from hpctrain.execute.mpi_choice import MpiChoice
from hpctrain.execute.node_agents import make_node_agents
from hpctrain.execute.node_pool import make_node_pool
from hpctrain.execute.preemption import Preemption
from hpctrain.execute.rank_forks import RankForks
from hpctrain.execute.rank_step import container_for, node_environment_for
from hpctrain.execute.recorder import Recorder
from hpctrain.execute.room import await_room
from hpctrain.execute.scaling_policy import Resize, ScalingPolicy
from hpctrain.execute.slow_node_policy import SlowNodePolicy
from hpctrain.execute.spare_ranks import SpareRanks, spare_ranks_for
from hpctrain.execute.start_notes import StartNotes
from hpctrain.execute.step_launcher import find_mpiexec
from hpctrain.execute.stop import StopAgreement
from hpctrain.execute.stop_decision import StopKind
from hpctrain.execute.worker_group import WorkerGroup
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.plan.resources import Placement
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunEvent

if TYPE_CHECKING:
    from hpctrain.execute.first_steps import FirstSteps
    from hpctrain.execute.slot_nodes import SlotNodes
    from hpctrain.execute.slow_nodes import SlowNode


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
    spec_digest
        That of ``spec.pkl``.
    resume_from
        Checkpoint of another run to begin with.
    fork_server
        What forks ranks. That of this machine may have been started already; it ends with the run.
    first_steps
        Agents and ranks of the first attempt, if they have been started.
    signals
        Names of the signals that this process has got, if it has handlers that append to the list.
    slot
        The steps of the slot of a trial, where a tuner keeps some.
    """

    def __init__(
        self,
        *,
        paths: RunPaths,
        plan: LaunchPlan,
        run_config: RunConfig,
        spec_digest: str,
        resume_from: Path | None = None,
        fork_server: RankForks | None = None,
        first_steps: FirstSteps | None = None,
        signals: list[str] | None = None,
        slot: SlotNodes | None = None,
    ) -> None:
        self._paths = paths
        self._plan = plan
        self._run_config = run_config
        self._spec_digest = spec_digest
        self._resume_from = resume_from
        self._fork_server = fork_server
        if fork_server is not None:
            fork_server.may_restart = run_config.failure_config.max_failures != 0
        self._first_steps = first_steps
        self._container = container_for(plan, paths)
        self._mpi = MpiChoice(plan, container=self._container)
        self._node_environment = node_environment_for(plan, check_stop=self._raise_if_stopped)
        self.signals: list[str] = [] if signals is None else signals
        """Signals that this process got; the process's signal handlers append to it."""
        self.recorder = Recorder(
            paths=paths, run_config=run_config, status=initial_status(paths, plan, run_config)
        )
        self._run_record = self.recorder.run_record
        self._preemption = Preemption(
            plan=plan, run_config=run_config, recorder=self.recorder, signals=self.signals
        )
        mpiexec = find_mpiexec(plan.mpi) if plan.launcher == "mpiexec" else None
        make_agents = partial(make_node_agents, paths, plan, run_config.failure_config)
        first_agents = None if first_steps is None else first_steps.agents
        self._agents = first_agents or make_agents(mpiexec=mpiexec, slot=slot)
        self._agents.spare = self._make_spare()
        note, check = self._run_record.note, self._raise_if_stopped
        self._node_pool = make_node_pool(plan, paths, mpiexec=mpiexec, note=note, check_stop=check)
        self._growth = Growth(self._node_pool, make_agents=make_agents, make_spare=self._make_spare)
        self._slow_node_policy = SlowNodePolicy(
            run_config.failure_config.slow_node_factor,
            why_kept=lambda slow: self._node_pool.why_kept(self._name_in_job(slow)),
            note=note,
        )
        self._placed_nodes: tuple[str, ...] = ()
        self._start_notes = StartNotes(
            self._run_record.note, pack=plan.environment_pack, is_verbose=bool(run_config.verbose)
        )

    def run(self) -> bool:
        """Run until the run has ended, or goes on in another job.

        Returns
        -------
        bool
            Whether it has ended. Otherwise this process may no longer write into the run directory.

        Raises
        ------
        TrainingFailedError
            If ranks failed more often than the budget allows, or the run was stopped.
        LaunchError
            If the ranks could not be started.
        """
        if self._fork_server is not None:
            self._fork_server.start()
        self._run_record.begin()
        with self._run_record.kept_alive():
            return self._run_attempts()

    def _run_attempts(self) -> bool:
        recorder = self.recorder
        try:
            self._preemption.begin()
            self._resume_after_dead_executor()
            while True:
                try:
                    # A request can be older than this process: between two jobs.
                    recorder.check_stop_request()
                    if self._run_record.history.failures:
                        await_room(self._paths, may_wait=self._may_wait)
                    recorder.raise_if_stopped(self._run_record.status.reports)
                    self._run_attempt()
                    recorder.finish_validations(self._preemption.step)
                    break
                except Resize as resize:
                    if resize.without is not None:
                        self._leave_out(resize.without)
                    self._note_restart(str(resize))
                    continue
                except (LaunchError, TrainingFailedError) as error:
                    # Where the run directory is gone, errors of ranks are an effect of that.
                    self._run_record.check()
                    if recorder.stop is not None:
                        # Agents must not take the end of this process for the loss of its node.
                        self._agents.close()
                    if self._preemption.leave(error):
                        return False
                    self._decide_on(error)
        except BaseException as error:
            recorder.end(error)
            raise
        finally:
            recorder.validations.close()
            if self._first_steps is not None:
                self._first_steps.close()
            self._growth.close()
            self._agents.close(timeouts.AGENTS_END_S)
            if self._node_environment is not None:
                self._node_environment.close()
            if self._fork_server is not None:
                self._fork_server.close()
        recorder.end(None)
        return True

    def _make_spare(self) -> SpareRanks | None:
        config = self._run_config.failure_config
        return spare_ranks_for(self._plan, config, lambda: self._run_record.history)

    def _leave_out(self, slow: SlowNode) -> None:
        node, status = self._name_in_job(slow), self._run_record.status
        self._node_pool.leave_out(node, str(slow))
        self._slow_node_policy.note_left_out()
        of = {"job_id": status.job_id, "attempt": status.attempt}
        self._run_record.note("node-left-out", node=node, reason=str(slow), **of)

    def _name_in_job(self, slow: SlowNode) -> str:
        """Return what Slurm calls a node, which its host name need not be."""
        placed = self._placed_nodes
        return placed[slow.node_rank] if slow.node_rank < len(placed) else slow.node

    def _may_wait(self) -> bool:
        """Return whether no reason ends the run but that its stop criterion is met."""
        self._preemption.step()
        self.recorder.check_stop_request()
        return not self.recorder.decision.ends_early

    def _raise_if_stopped(self) -> None:
        if not self._may_wait():
            self.recorder.raise_if_stopped(self._run_record.status.reports)

    def _blame_nodes(self, lost: Mapping[str, str], error: WorkerError) -> NodeLostError:
        blamed = blame_nodes(lost, error)
        if not self._plan.job_nodes.survives_loss:
            self._preemption.give_job_up(blamed.brief)
        return blamed

    def _resume_after_dead_executor(self) -> None:
        """Count attempts whose executor died silently, and check that the budgets allow more."""
        saved = self.recorder.checkpoints.newest()
        dead = self._run_record.close_dead_attempts(saved=0 if saved is None else saved.report)
        if dead is not None:
            cause, kind = dead
            decision = decide(kind, self._run_record.history, self._run_config.failure_config)
            if not decision.restart:
                raise TrainingFailedError(
                    f"{cause}, and the run is not begun again: {decision.reason}"
                )
            self._note_restart(
                cause,
                decision,
                checkpoint=None if saved is None else saved.name,
                after="its executor is gone",
            )

    def _note_restart(
        self, what: str, decision: Decision | None = None, **details: str | None
    ) -> None:
        """Write down why the ranks are started again, and from where."""
        counted = {} if decision is None else {"number": decision.number, "budget": decision.budget}
        self._run_record.note(
            "restart",
            reason=what if decision is None else decision.reason,
            what=what,
            **counted,
            **{"checkpoint": self.recorder.checkpoints.latest_name, **details},
        )

    def _decide_on(self, error: LaunchError | TrainingFailedError) -> None:
        """Return if the ranks are to be started again, else raise."""
        printed = self._paths.launcher_log(self._run_record.status.attempt)
        if isinstance(error, LaunchError) and (reason := self._mpi.explain_wrong_pmi(printed)):
            raise LaunchError(f"{error}\n{reason}") from error
        if isinstance(error, LaunchError) and self._fork_server is not None:
            self._fork_server.note_failed_start()
        kind = classify_failure(error)
        can_leave_out = self._node_pool.can_leave_out(error)
        is_final = isinstance(error, LaunchError) and not (error.transient or can_leave_out)
        if kind is None or is_final:
            raise error
        if isinstance(error, WorkerError) and error.lasting:
            self._run_record.note("gave-up", reason="an import failed that no restart would mend")
            raise error
        decision = decide(kind, self._run_record.history, self._run_config.failure_config)
        if not decision.restart:
            self._run_record.note("gave-up", reason=decision.reason)
            if self._run_record.history.without_progress > 1:
                # Printed and stored: the last failure alone does not explain why the run ended.
                error.args = (f"{error}\n{decision.reason}",)
            raise error
        if isinstance(error, LaunchError) and not can_leave_out and self._plan.in_job:
            self._mpi.note_failed_start(in_slot=self._agents.failed_in_slot)
        self._note_restart(
            describe_cause(error), decision, after=str(error)[:400], mpi=self._mpi.name
        )
        time.sleep(decision.delay_s)

    def _place(self) -> tuple[Placement, tuple[str, ...]]:
        """Choose the nodes of the next attempt, and get their agents."""
        try:
            placement, idle_nodes = self._node_pool.place()
        except NodeLostError as shortage:
            if not self._plan.in_job:
                raise LaunchError(str(shortage)) from shortage
            self._preemption.give_job_up(str(shortage))
            raise
        self._placed_nodes = placement.nodes
        self._agents = self._growth.exchange(self._agents, placement, idle_nodes)
        return placement, idle_nodes

    def _make_group(
        self, attempt: int, placement: Placement, idle_nodes: tuple[str, ...]
    ) -> WorkerGroup:
        return WorkerGroup(
            num_cpus_per_worker=self._plan.threads_per_task,
            placement=placement,
            idle_nodes=idle_nodes,
            in_allocation=self._plan.has_agents,
            agents=self._agents,
            mpi=self._mpi.name,
            srun_args=self._plan.srun_args,
            is_slice=self._plan.is_slice,
            container=self._container,
            node_environment=self._node_environment,
            note=self._start_notes.take_brought,
            fork_server=self._fork_server,
            begun=None if self._first_steps is None else self._first_steps.take(attempt),
            environment=self._plan.environment,
            path=self._paths.root,
            attempt=attempt,
            log_to_file=self._run_config.log_to_file,
        )

    def _start(self, group: WorkerGroup) -> None:
        limit_s = self._run_config.failure_config.start_timeout_s
        timeout_s = timeouts.set_by("FailureConfig(start_timeout_s=...)", limit_s)
        try:
            group.start(timeout_s, check_stop=self._raise_if_stopped)
        finally:
            self._run_record.note_health(group.health.verdict())
            if self._fork_server is not None:
                self._start_notes.take_not_forked(self._fork_server.take_reasons())
        self._mpi.note_joined()
        self._run_record.advance(
            RunEvent.JOINED, world_size=len(group), nodes=group.hostnames, phase="importing"
        )

    def _run_attempt(self) -> None:
        recorder = self.recorder
        placement, idle_nodes = self._place()
        start = recorder.begin_attempt(self._resume_from, check_stop=self._raise_if_stopped)
        group = self._make_group(start.attempt, placement, idle_nodes)
        attempt = AttemptExecutor(
            group,
            first_report=start.first_report,
            checkpoint=None if start.checkpoint is None else start.checkpoint.path,
            spec_digest=self._spec_digest,
        )
        error: BaseException | None = None
        try:
            self._start(group)
            self._watch(attempt, group)
        except BaseException as raised:
            error = raised
            recorder.withdraw_stop(StopKind.GOAL)
            self._preemption.look_after_failure(attempt.tracker, raised)
            if isinstance(raised, WorkerError) and (lost := self._node_pool.losses(group)):
                error = self._blame_nodes(lost, raised)
                raise error from raised
            raise
        finally:
            is_graceful = error is None or isinstance(error, Resize)
            group.shutdown(patience_s=timeouts.RANKS_END_S if is_graceful else 0.0)
            self._node_pool.watch(group)
            # First, because the disk may be full: remove partial checkpoints.
            recorder.checkpoints.clear()
            recorder.keep_failures(attempt.tracker.failures.values())
            recorder.end_attempt(error=error, reports=attempt.tracker.reports)

    def _watch(self, attempt: AttemptExecutor, group: WorkerGroup) -> None:
        ranks_of: dict[str, list[int]] = {}
        for worker in group.workers:
            ranks_of.setdefault(worker.hostname, []).append(worker.rank)
        stop = StopAgreement(
            self.recorder,
            attempt.tracker,
            group.broadcast,
            take_signals=self._preemption.take_signals,
            nodes=ranks_of,
        )
        policy = self._slow_node_policy
        with ScalingPolicy(
            self.recorder,
            attempt.tracker,
            stop,
            can_grow=lambda: self._growth.can_grow(group),
            slow_node=lambda: policy.choose(loop.slow_nodes),
        ) as scaling_policy:
            loop = AttemptLoop(
                self.recorder,
                attempt,
                preemption=self._preemption,
                stopping=scaling_policy,
                failure_config=self._run_config.failure_config,
                in_each_turn=lambda: self._node_pool.watch(group),
            )
            attempt.start_training()
            with self.recorder.tuner.watched_by(group):
                loop.run()
            scaling_policy.conclude()
        loop.conclude()
