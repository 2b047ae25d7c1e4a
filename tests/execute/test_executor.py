"""An executor whose groups of ranks are not there: which attempts it makes, and what it writes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from hpctrain import timeouts
from hpctrain.callback import RunContext, UserCallback
from hpctrain.config import FailureConfig, RunConfig
from hpctrain.errors import LaunchError, RunStoppedError, TrainingFailedError, WorkerError
from hpctrain.execute import attempt_executor, executor, mpi_choice
from hpctrain.execute.executor import Executor
from hpctrain.execute.health import Health
from hpctrain.execute.node_agents import NodeAgents
from hpctrain.execute.node_pool import NodePool
from hpctrain.execute.stop_decision import StopKind, StopNotice
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.run_record import RunRecord
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, read_status
from hpctrain.testing.fake_ranks import FakeRanks
from hpctrain.timeouts import describe
from tests.plans import make_plan

Act = Callable[["FakeGroup"], None]


class FakeGroup(FakeRanks):
    """Stands for a `WorkerGroup`: each start does the next thing that the test has given."""

    acts: list[Act]
    made: list[FakeGroup]
    missing_nodes: tuple[str, ...] = ()
    hostnames = ("node0", "node1")

    def __init__(
        self, *, placement: Any, attempt: int, agents: NodeAgents, mpi: str, **_: Any
    ) -> None:
        super().__init__(placement.num_workers)
        self.attempt, self.agents, self.mpi = attempt, agents, mpi
        self.health = Health()
        self.patience: list[float] = []
        FakeGroup.made.append(self)

    def start(self, timeout_s: float, *, check_stop: Callable[[], None] = lambda: None) -> None:
        self.timeout_s, self.check_stop = timeout_s, check_stop
        FakeGroup.acts.pop(0)(self)

    def shutdown(self, patience_s: float) -> None:
        self.patience.append(patience_s)


def finish(ranks: FakeGroup) -> None:
    for rank in (0, 1):
        ranks.report(rank, loss=1.0)
    for rank in (0, 1):
        ranks.send("done", rank, b"value" if rank == 0 else b"")


def fail(ranks: FakeGroup) -> None:
    ranks.fail(1, "no more")


def refuse(*, transient: bool) -> Act:
    def act(ranks: FakeGroup) -> None:
        raise LaunchError("no slots", transient=transient)

    return act


class Ends(UserCallback):
    """A callback that keeps the state at the end."""

    def __init__(self) -> None:
        self.states: list[str] = []

    def on_finish(self, run_context: RunContext, result: Any) -> None:
        self.states.append(result.state)


class Run:
    """A run of two workers on this machine."""

    def __init__(self, root: Path) -> None:
        self.paths = RunPaths(root)
        self.paths.checkpoints.mkdir(parents=True)
        self.ends = Ends()

    def execute(
        self, *acts: Act, launcher: str = "local", slot: Any = None, **budgets: Any
    ) -> bool:
        FakeGroup.acts, FakeGroup.made = list(acts), []
        plan = make_plan(launcher)
        config = RunConfig(
            name="run", failure_config=FailureConfig(**budgets), callbacks=[self.ends]
        )
        made = Executor(
            paths=self.paths,
            plan=plan,
            run_config=config,
            spec_digest="digest",
            slot=slot,
        )
        return made.run()

    def events(self, *names: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.paths) if event["event"] in names]

    @property
    def status(self) -> RunStatus:
        status = read_status(self.paths)
        assert status is not None
        return status


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(executor, "WorkerGroup", FakeGroup)
    monkeypatch.setattr(executor.time, "sleep", lambda _: None)
    monkeypatch.setattr(attempt_executor, "_QUIET_S", 0.01)
    return Run(tmp_path / "run")


def test_a_run_is_stopped_while_its_ranks_start(run: Run):
    def ask_to_stop(ranks: FakeGroup) -> None:
        run.paths.stop_request.touch()
        ranks.check_stop()
        finish(ranks)

    with pytest.raises(RunStoppedError, match="it was asked to"):
        run.execute(ask_to_stop)
    assert run.status.state is RunState.STOPPED
    assert [event["attempt"] for event in run.events("attempt-ended")] == [1]


def test_the_ranks_of_a_run_that_has_met_its_stop_criterion_may_start(run: Run):
    def meet(ranks: FakeGroup) -> None:
        made.recorder.request_stop(StopNotice(kind=StopKind.GOAL, why="loss is 1"))
        ranks.check_stop()
        finish(ranks)

    FakeGroup.acts, FakeGroup.made = [meet], []
    made = Executor(
        paths=run.paths,
        plan=make_plan("local"),
        run_config=RunConfig(name="run"),
        spec_digest="digest",
    )
    assert made.run()


def test_a_run_whose_ranks_return_is_finished(run: Run):
    assert run.execute(finish)
    assert run.status.state is RunState.FINISHED
    assert (run.status.attempt, run.status.reports, run.status.nodes) == (1, 1, ("node0", "node1"))
    assert run.paths.return_value.read_bytes() == b"value"
    assert [event["event"] for event in read_events(run.paths)] == [
        "executor-started",
        "attempt-started",
        "attempt-ended",
        "executor-ended",
        "run-ended",
    ]
    (group,) = FakeGroup.made
    assert group.sent[0] == ("train", {"first_report": 0, "checkpoint": None, "spec": "digest"})
    assert group.patience[0] > 0
    assert run.ends.states == ["finished"]


def test_a_rank_that_fails_is_restarted_within_its_budget(run: Run):
    assert run.execute(fail, finish, max_failures=1)
    assert [group.attempt for group in FakeGroup.made] == [1, 2]
    # Those of a failed attempt are ended at once.
    assert FakeGroup.made[0].patience == [0.0]
    (restart,) = run.events("restart")
    assert (restart["reason"], restart["number"]) == ("worker failure 1 of max_failures=1", 1)
    assert run.status.state is RunState.FINISHED
    assert run.paths.failure(1, 1).exists()


def test_a_budget_that_is_used_up_ends_the_run(run: Run):
    with pytest.raises(WorkerError, match=r"rank 1 of 2 on node1.*no more"):
        run.execute(fail, fail, max_failures=1)
    assert run.status.state is RunState.FAILED
    assert [event["kind"] for event in run.events("attempt-ended")] == ["worker", "worker"]
    assert len(run.events("gave-up")) == 1
    assert run.ends.states == ["failed"]


@pytest.mark.parametrize("transient", [True, False])
def test_ranks_that_cannot_be_started_are_started_again_if_the_reason_may_pass(
    run: Run, transient: bool
):
    if transient:
        assert run.execute(refuse(transient=True), finish, controller_failure_limit=1)
    else:
        with pytest.raises(LaunchError, match="no slots"):
            run.execute(refuse(transient=False), controller_failure_limit=1)
    assert len(FakeGroup.made) == (2 if transient else 1)
    assert run.status.state is (RunState.FINISHED if transient else RunState.FAILED)


def test_ranks_that_do_not_start_in_time_name_the_setting(run: Run) -> None:
    def wait_in_vain(ranks: FakeGroup) -> None:
        raise LaunchError(f"0 of 2 ranks joined within {describe(ranks.timeout_s)}.")

    message = r"within 600 s \(FailureConfig\(start_timeout_s=\.\.\.\)\)\."
    with pytest.raises(LaunchError, match=message):
        run.execute(wait_in_vain, start_timeout_s=600)


def test_a_run_that_is_to_stop_begins_no_attempt(run: Run):
    run.paths.stop_request.touch()
    with pytest.raises(RunStoppedError, match="it was asked to"):
        run.execute()
    assert FakeGroup.made == []
    assert run.status.state is RunState.STOPPED


def test_a_run_is_stopped_while_nodes_are_tested_whose_agents_have_not_come(
    run: Run, monkeypatch: pytest.MonkeyPatch
):
    may_end = threading.Event()

    class Silent:
        def usable(self) -> dict[str, bool]:
            return {"node1": False}

        def starts_a_process(self, node: str) -> bool:
            run.paths.stop_request.touch()
            return may_end.wait(60.0)

    def make_pool(plan: LaunchPlan, _: RunPaths, *, mpiexec: Any, **options: Any) -> NodePool:
        return NodePool(plan, source=Silent(), **options)

    def miss(ranks: FakeGroup) -> None:
        ranks.missing_nodes = ("node1",)
        raise LaunchError("no agent", transient=True)

    monkeypatch.setattr(executor, "make_node_pool", make_pool)
    try:
        with pytest.raises(RunStoppedError, match="it was asked to"):
            run.execute(miss, controller_failure_limit=1)
        assert not may_end.is_set()
    finally:
        may_end.set()
    assert run.status.state is RunState.STOPPED
    assert len(FakeGroup.made) == 1


def test_a_run_whose_nodes_slurm_never_tells_is_not_restarted_without_end(
    run: Run, monkeypatch: pytest.MonkeyPatch
):
    class Away:
        def usable(self) -> dict[str, bool]:
            raise LaunchError("Slurm does not answer", transient=True)

    def make_pool(plan: LaunchPlan, _: RunPaths, *, mpiexec: Any, **options: Any) -> NodePool:
        pool = NodePool(plan, source=Away(), **options)  # type: ignore[arg-type]
        pool._suspects.add("node1")
        return pool

    monkeypatch.setattr(executor, "make_node_pool", make_pool)
    monkeypatch.setattr(timeouts, "CONTROLLER_S", 0.0)
    with pytest.raises(LaunchError, match="Slurm does not answer"):
        run.execute(controller_failure_limit=2)
    assert [event["kind"] for event in run.events("not-placed")] == ["start"] * 3


def test_an_attempt_of_an_executor_that_died_counts_and_the_next_one_follows(run: Run):
    record = RunRecord(run.paths)
    record.append("executor-started", job_id=None, restarts=0)
    record.append("attempt-started", attempt=1, job_id=None, restarts=0, host="node9")
    assert run.execute(finish, controller_failure_limit=1)
    assert [group.attempt for group in FakeGroup.made] == [2]
    closed = run.events("attempt-ended")[0]
    assert (closed["attempt"], closed["cause"]) == (1, "the executor on node9 died")
    assert run.events("restart")[0]["after"] == "its executor is gone"


def test_executors_that_die_beyond_the_budget_end_the_run(run: Run):
    RunRecord(run.paths).append("attempt-started", attempt=1, job_id=None, restarts=0, host="n")
    with pytest.raises(TrainingFailedError, match="the run is not begun again"):
        run.execute(controller_failure_limit=0)
    assert FakeGroup.made == []
    assert run.status.state is RunState.FAILED


def test_a_signal_outside_of_a_job_stops_the_run(run: Run):
    def interrupt(ranks: FakeGroup) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.execute(interrupt, max_failures=-1)
    assert run.status.state is RunState.STOPPED
    assert len(FakeGroup.made) == 1


def test_ranks_that_did_not_start_in_the_step_of_a_slot_start_as_if_there_had_been_none(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By srun: with our mpiexec, as in the slot, they would share CPUs with other trials."""
    monkeypatch.setattr(mpi_choice, "other_mpi", lambda mpi, *, tried: "wheel")

    def fail_in_slot(ranks: FakeGroup) -> None:
        ranks.agents.give_slot_up("no slots")
        refuse(transient=True)(ranks)

    def fail_in_own(ranks: FakeGroup) -> None:
        ranks.agents.failed_in_slot = False
        refuse(transient=True)(ranks)

    slot = Mock(is_usable=True)
    slot.give_up.side_effect = lambda _: setattr(slot, "is_usable", False)
    assert run.execute(fail_in_slot, fail_in_own, finish, launcher="allocation", slot=slot)
    assert [group.mpi for group in FakeGroup.made] == ["auto", "auto", "wheel"]
