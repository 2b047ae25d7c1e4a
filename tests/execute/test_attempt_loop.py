from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hpctrain.callback import RunContext, UserCallback
from hpctrain.config import RunConfig
from hpctrain.errors import LaunchError, RunStoppedError, TrainingFailedError, WorkerError
from hpctrain.execute import attempt_executor, attempt_files
from hpctrain.execute.attempt_executor import AttemptExecutor
from hpctrain.execute.attempt_loop import AttemptLoop
from hpctrain.execute.recorder import Recorder
from hpctrain.execute.stop import StopAgreement
from hpctrain.execute.stop_decision import StopKind, StopNotice
from hpctrain.execute.tuner_socket import ExecutorEnd, TunerEnd, make_pair
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus
from hpctrain.testing.fake_ranks import FakeRanks


class Failures(UserCallback):
    """A callback that takes note of failures."""

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        self.ranks: list[list[int]] = []
        self.files: list[int] = []

    def after_exception(self, run_context: RunContext, worker_exceptions: Any) -> None:
        self.ranks.append(sorted(worker_exceptions))
        self.files.append(sum(self.paths.failure(1, rank).exists() for rank in (0, 1)))


class NoPreemption:
    """Stands for a `Preemption` of a run that is in no job."""

    def step(self) -> None:
        """Do nothing."""


class Attempt:
    """An attempt of two ranks that are not there."""

    def __init__(self, tmp_path: Path, *, share_a_terminal: bool = False) -> None:
        paths = RunPaths(tmp_path / "run")
        paths.checkpoints.mkdir(parents=True)
        self.seen = Failures(paths)
        config = RunConfig(name="run", callbacks=[self.seen])
        status = RunStatus(name="run", state=RunState.RUNNING, launcher="local", attempt=1)
        self.paths = paths
        self.ranks = FakeRanks(2, share_a_terminal=share_a_terminal)
        self.recorder = Recorder(paths=paths, run_config=config, status=status)
        self.executor = AttemptExecutor(self.ranks)
        tracker = self.executor.tracker
        self.does: Callable[[], None] = lambda: None
        self.loop = AttemptLoop(
            self.recorder,
            self.executor,
            preemption=NoPreemption(),  # type: ignore[arg-type]
            stopping=StopAgreement(self.recorder, tracker, self.ranks.broadcast),
            failure_config=config.failure_config,
            in_each_turn=lambda: self.does(),
        )

    def end(self, *, value: bytes = b"", notified: bool = False) -> None:
        """Let the training function return on both ranks."""
        for rank in (0, 1):
            self.ranks.send("done", rank, value, notified=notified)

    def run(self) -> None:
        self.loop.run()
        self.loop.conclude()


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


def test_reports_are_recorded_and_the_value_is_stored_once_all_have_returned(attempt: Attempt):
    for loss in (3, 2):
        for rank in (1, 0):
            attempt.ranks.report(rank, loss=loss)
    attempt.end(value=b"value")
    attempt.run()
    assert attempt.recorder.progress() == {"loss": 2}
    assert attempt.paths.return_value.read_bytes() == b"value"
    assert attempt.recorder.run_record.status.phase == "done"
    assert attempt.recorder.run_record.status.reports == 2


def test_the_value_of_a_run_that_was_stopped_is_stored_too(attempt: Attempt):
    attempt.recorder.request_stop(StopNotice(kind=StopKind.REQUEST, why="it was asked to"))
    attempt.end(value=b"value", notified=True)
    with pytest.raises(RunStoppedError, match="it was asked to"):
        attempt.run()
    assert attempt.paths.return_value.read_bytes() == b"value"


def test_a_full_disk_does_not_keep_a_run_that_is_to_stop(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
):
    write = attempt_files.write_atomic

    def fail(path: Path, content: bytes, **how: Any) -> None:
        if path == attempt.paths.return_value:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content, **how)

    monkeypatch.setattr(attempt_files, "write_atomic", fail)
    # Which would wait for minutes.
    once = lambda call, *, patience_s: patience_s == 0 and call()  # noqa: E731
    monkeypatch.setattr(attempt_files, "retry", once)
    attempt.recorder.request_stop(StopNotice(kind=StopKind.PREEMPTION, why="it is preempted"))
    attempt.end(value=b"value", notified=True)
    with pytest.raises(RunStoppedError, match="it is preempted"):
        attempt.run()


def test_what_is_due_in_a_turn_is_done_once_for_all_reports_that_are_there(attempt: Attempt):
    turns = []
    attempt.does = lambda: turns.append(1)
    for loss in range(100):
        for rank in (0, 1):
            attempt.ranks.report(rank, loss=loss)
    attempt.end()
    attempt.run()
    assert attempt.recorder.run_record.status.reports == 100
    assert len(turns) == 1


class Clock:
    """Stands for `time`; `FakeRanks` answer at once, so that each look takes no time."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_ctrl_c_that_comes_late_to_a_node_is_none_of_its_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    clock = Clock()
    monkeypatch.setattr(attempt_executor, "time", clock)
    attempt = Attempt(tmp_path, share_a_terminal=True)
    attempt.ranks.fail(0, "closed by peer")
    turns = []

    def pass_time() -> None:
        turns.append(1)
        clock.now += 0.1
        if len(turns) == 4:
            attempt.ranks.fail(1, "", kind="KeyboardInterrupt")

    attempt.does = pass_time
    with pytest.raises(RunStoppedError, match="interrupted"):
        attempt.run()


def test_a_failed_rank_is_named_and_callbacks_see_all_that_failed(attempt: Attempt):
    attempt.ranks.fail(1, "no such file")
    attempt.ranks.fail(0, "closed by peer")
    with pytest.raises(WorkerError, match="no such file") as raised:
        attempt.run()
    assert raised.value.rank == 1
    assert attempt.seen.ranks == [[0, 1]]
    assert attempt.seen.files == [2], "callbacks may read what ranks said of their failures"
    assert not [op for op, _ in attempt.ranks.sent if op == "await_death_notice"]


def test_of_a_rank_that_died_without_a_word_the_launcher_is_asked(attempt: Attempt):
    attempt.ranks.send("lost", 1)
    attempt.ranks.said = "srun: error: node1: task 1: Exited with exit code 7"
    with pytest.raises(WorkerError, match="exited with status 7") as raised:
        attempt.run()
    assert raised.value.rank == 1
    assert ("await_death_notice", {"silent": [1]}) in attempt.ranks.sent


def test_what_has_forked_ranks_knows_which_died_and_how_and_no_launcher_counts(attempt: Attempt):
    # Rank 0 was ended because of rank 1, and its connection ended first.
    attempt.ranks.send("lost", 0)
    attempt.ranks.send("lost", 1)
    attempt.ranks.wait_statuses = {1: 9}
    attempt.ranks.said = "a rank printed: task 0: Exited with exit code 7"
    with pytest.raises(WorkerError, match="killed by SIGKILL") as raised:
        attempt.run()
    assert raised.value.rank == 1


def test_a_rank_that_the_kernel_killed_for_memory_is_named_whoever_died_before(attempt: Attempt):
    attempt.ranks.send("lost", 0)
    attempt.ranks.send("lost", 1, memory={"kills": 1})
    attempt.ranks.wait_statuses = {0: 9, 1: 9}
    with pytest.raises(WorkerError, match="killed by the kernel, out of memory") as raised:
        attempt.run()
    assert raised.value.rank == 1


def test_nobody_waits_for_how_another_died_if_a_rank_says_why_it_failed(attempt: Attempt):
    attempt.ranks.send("lost", 0)
    attempt.ranks.fail(1, "no such file")
    with pytest.raises(WorkerError, match="no such file"):
        attempt.run()
    assert not [op for op, _ in attempt.ranks.sent if op == "await_death_notice"]


def test_nobody_waits_for_the_launcher_of_a_node_that_is_silent(attempt: Attempt):
    attempt.ranks.lost_nodes = {"node1": True}
    attempt.ranks.send("lost", 1, agent=True)
    with pytest.raises(WorkerError):
        attempt.run()
    assert not [op for op, _ in attempt.ranks.sent if op == "await_death_notice"]


@pytest.mark.parametrize(
    ("share_a_terminal", "error"), [(True, RunStoppedError), (False, WorkerError)]
)
def test_ctrl_c_is_no_failure_where_all_ranks_get_it(
    tmp_path: Path, share_a_terminal: bool, error: type[Exception]
):
    attempt = Attempt(tmp_path, share_a_terminal=share_a_terminal)
    for rank in (0, 1):
        attempt.ranks.fail(rank, "", kind="KeyboardInterrupt")
    with pytest.raises(TrainingFailedError) as raised:
        attempt.run()
    assert type(raised.value) is error


def test_ranks_that_report_unlike_often_are_told(attempt: Attempt):
    attempt.ranks.report(0)
    attempt.ranks.send("returned", 0, reports=1, collectives=0)
    attempt.ranks.send("returned", 1, reports=0, collectives=0)
    attempt.end()
    with pytest.raises(TrainingFailedError, match="rank 1 returned after 0 reports"):
        attempt.run()


def test_a_launcher_that_ends_without_a_reason_is_a_failed_start(attempt: Attempt):
    attempt.ranks.status, attempt.ranks.said = 3, "out of licences"
    with pytest.raises(LaunchError, match=r"ended with status 3(.|\n)*out of licences"):
        attempt.run()


def test_ranks_that_are_told_to_stop_leave_in_the_middle(attempt: Attempt):
    for rank in (0, 1):
        attempt.ranks.send("phase", rank, phase="training")
        attempt.ranks.report(rank, loss=1)

    def answer() -> None:
        words = [op for op, _ in attempt.ranks.sent]
        if "stop" in words:
            attempt.end(notified=True)
        elif "freeze" in words:
            for rank in (0, 1):
                attempt.ranks.send("frozen", rank, report=1)
        else:
            attempt.recorder.request_stop(StopNotice(kind=StopKind.REQUEST, why="asked"))

    attempt.does = answer
    with pytest.raises(RunStoppedError, match="because asked, at report 1"):
        attempt.run()
    assert [op for op, _ in attempt.ranks.sent] == ["freeze", "stop"]


def test_ranks_of_a_trial_are_let_on_in_the_turn_that_hears_of_the_decision(
    attempt: Attempt,
) -> None:
    ours, its = make_pair()
    attempt.recorder.tuner, tuner = ExecutorEnd(its.detach()), TunerEnd()
    tuner.keep(ours)
    attempt.recorder.begin_attempt(None)

    def turn() -> list[int]:
        attempt.ranks.sent.clear()
        attempt.loop.turn(attempt.executor.poll(0.0))
        tuner.receive()
        return [details["report"] for op, details in attempt.ranks.sent if op == "go-on"]

    with closing(tuner), closing(attempt.recorder.tuner):
        tuner.promise_decisions()
        for rank in (0, 1):
            attempt.ranks.send("phase", rank, phase="training")
        attempt.ranks.report(0)
        attempt.ranks.send("awaits", 0, report=1)
        assert turn() == []
        assert tuner.reported == (0, 0), "one rank has not reported"
        attempt.ranks.report(1)
        attempt.ranks.send("awaits", 1, report=1)
        assert turn() == []
        assert tuner.reported == (2, 1)
        tuner.decide((2, 1))
        assert turn() == [1]
        for rank in (0, 1):
            attempt.ranks.report(rank)
            attempt.ranks.send("awaits", rank, report=2)
        turn()
        attempt.paths.stop_request.touch()
        tuner.notify_of_stop()
        tuner.close()
        assert turn() == []
        assert ("freeze", {}) in attempt.ranks.sent
