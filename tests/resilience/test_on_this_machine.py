"""A lost executor, the end of the total time, and functions that do not listen, without Slurm."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hpctrain import (
    Checkpoint,
    FailureConfig,
    Result,
    RunContext,
    UserCallback,
)
from hpctrain.errors import RunStoppedError
from hpctrain.execute import executor_record
from hpctrain.execute.node_pool import NodePool
from hpctrain.execute.process import process_start_time
from hpctrain.rundir.history import read_history
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import read_status
from hpctrain.rundir.store import CheckpointStore
from tests.runs import fit
from tests.waiting import wait_until

pytestmark = pytest.mark.mpi
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def _on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "local")


SCRIPT = """
import os, time
from datetime import timedelta
import hpctrain, hpctrain.collective
from hpctrain import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig

def train():
    checkpoint = hpctrain.get_checkpoint()
    step = checkpoint.to_dict()["step"] if checkpoint else 0
    rank = hpctrain.get_context().get_world_rank()
    open(f"pid-{rank}-{hpctrain.get_context().world.attempt}", "w").write(str(os.getpid()))
    while step < 40:
        step += 1
        hpctrain.collective.barrier(timeout_s=60)
        time.sleep(0.02)   # a step of work
        saved = Checkpoint.from_dict({"step": step}) if step % 5 == 0 and rank == 0 else None
        hpctrain.report({"step": step}, saved)

if __name__ == "__main__":
    DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="run", storage_path=".", verbose=0, total_time=timedelta(minutes=30)
        ),
    ).fit()
"""
ARGV = [sys.executable, "train.py"]


def kill_executor_at_work(tmp_path: Path, **environment: str) -> None:
    """Begin the script, and end its process without a warning."""
    (tmp_path / "train.py").write_text(SCRIPT)
    metrics = tmp_path / "run" / "metrics.jsonl"
    first = subprocess.Popen(ARGV, cwd=tmp_path, env={**os.environ, **environment})
    wait_until(lambda: metrics.exists() and '"step":12}' in metrics.read_text(), "step 12")
    first.kill()
    first.wait()


def test_ranks_leave_within_seconds_of_their_executors_death_and_the_next_fit_resumes(
    tmp_path: Path,
) -> None:
    kill_executor_at_work(tmp_path)
    pids = [int((tmp_path / f"pid-{rank}-1").read_text()) for rank in (0, 1)]
    wait_until(
        lambda: all(process_start_time(pid) is None for pid in pids), "ranks end", timeout_s=10
    )

    subprocess.run(ARGV, cwd=tmp_path, check=True, timeout=PATIENCE_S)
    result = Result.from_path(tmp_path / "run")
    assert [m["step"] for m in result.metrics_history] == list(range(1, 41))
    first_attempt, second_attempt = result.attempts
    assert first_attempt.cause is not None
    assert first_attempt.cause.startswith("the executor on ")
    assert second_attempt.cause == "finished"


def test_a_script_that_slurm_starts_again_does_not_count_its_time_in_the_queue(
    tmp_path: Path,
) -> None:
    kill_executor_at_work(tmp_path, SLURM_JOB_ID="7")
    # The hour that the job was in the queue.
    run = RunPaths(tmp_path / "run")
    status = json.loads(run.status.read_bytes())
    run.status.write_text(json.dumps({**status, "updated_at": status["updated_at"] - 3600}))
    events = [{**event, "time": event["time"] - 3600} for event in read_events(run)]
    run.ledger.write_text("".join(f"{json.dumps(event)}\n" for event in events))

    again = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}
    subprocess.run(ARGV, cwd=tmp_path, env=again, check=True, timeout=PATIENCE_S)
    assert Result.from_path(run.root).state == "finished"
    # The time before that hour does count.
    ended = [event for event in read_events(run) if event["event"] == "executor-ended"]
    assert ended[0]["until"] < time.time() - 3000
    assert 0 < read_history(read_events(run)).used_s < 2 * PATIENCE_S


def test_a_request_to_stop_outlives_the_start_of_its_job(tmp_path: Path) -> None:
    kill_executor_at_work(tmp_path, SLURM_JOB_ID="7")
    RunPaths(tmp_path / "run").stop_request.touch()
    again = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}
    stopped = subprocess.run(
        ARGV, cwd=tmp_path, env=again, timeout=PATIENCE_S, capture_output=True, text=True
    )
    assert stopped.returncode == RunStoppedError.exit_code
    assert "RunStoppedError: the run stopped because it was asked to" in stopped.stderr
    # A person who calls fit() wants it to go on.
    subprocess.run(ARGV, cwd=tmp_path, check=True, timeout=PATIENCE_S)
    assert Result.from_path(tmp_path / "run").state == "finished"


def train_without_asking() -> None:
    import time

    import hpctrain
    import hpctrain.collective

    checkpoint = hpctrain.get_checkpoint()
    step = checkpoint.to_dict()["step"] if checkpoint else 0
    rank = hpctrain.get_context().get_world_rank()
    try:
        while True:
            step += 1
            hpctrain.collective.barrier(timeout_s=60)
            time.sleep(0.01)  # a step of work
            hpctrain.report({"step": step}, Checkpoint.from_dict({"step": step}))
    except Exception as error:
        raise AssertionError("what ends it is no error") from error
    finally:
        (hpctrain.get_context().get_storage() / f"unwound-{rank}").touch()


def test_a_function_that_does_not_ask_is_unwound_after_the_same_report_on_every_rank(
    tmp_path: Path,
) -> None:
    result = fit(train_without_asking, tmp_path, stop={"step": 5})
    assert result.state == "finished"
    assert result.return_value is None
    assert all((tmp_path / "run" / f"unwound-{rank}").exists() for rank in (0, 1))
    steps = [m["step"] for m in result.metrics_history]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= 5


def test_who_reaches_the_goal_has_all_the_time_to_end_the_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train() -> int:
        import time

        import hpctrain

        epoch = 0
        while not hpctrain.should_stop():
            epoch += 1
            time.sleep(2 * (epoch > 1))  # an epoch of work, longer than the patience
            hpctrain.report({"accuracy": 0.95})
        return epoch

    monkeypatch.setattr("hpctrain.timeouts.STOP_AGREEMENT_S", 1.0)
    result = fit(train, tmp_path, stop={"accuracy": 0.9})
    assert (result.state, result.return_value) == ("finished", 2)


def test_a_goal_is_reached_again_after_a_failure_before_anything_was_saved_of_it(
    tmp_path: Path,
) -> None:
    def train() -> int:
        import time

        import hpctrain

        checkpoint = hpctrain.get_checkpoint()
        step = checkpoint.to_dict()["step"] if checkpoint else 0
        while not hpctrain.should_stop():
            step += 1
            time.sleep(0.01)  # a step of work
            hpctrain.report(
                {"step": step}, Checkpoint.from_dict({"step": step}) if step == 20 else None
            )
        if hpctrain.get_context().world.attempt == 1:
            raise OSError("the last save fails")
        return step

    budget = FailureConfig(max_failures=1)
    result = fit(train, tmp_path, stop={"step": 30}, failure_config=budget)
    assert result.state == "finished"
    assert len(result.attempts) == 2
    assert result.return_value >= 30


def test_an_executor_that_waits_for_others_is_not_taken_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Waiting(UserCallback):
        """As a tracker whose server does not answer."""

        def after_report(self, run_context: RunContext, *_: Any) -> None:
            paths = RunPaths(run_context.path)
            before, deadline = read_status(paths), time.monotonic() + PATIENCE_S
            while read_status(paths) == before:
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def train() -> None:
        import hpctrain

        hpctrain.report({"step": 1})

    monkeypatch.setattr(executor_record, "_LIFE_INTERVAL_S", 0.2)
    waiting = Waiting()
    waiting.fatal = True
    assert fit(train, tmp_path, callbacks=[waiting]).state == "finished"


def test_a_disk_that_fails_for_a_moment_after_an_attempt_costs_neither_run_nor_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train() -> str:
        import hpctrain

        hpctrain.report({"step": 1})
        if hpctrain.get_context().world.attempt == 1:
            raise ValueError("of the first attempt")
        return "the end"

    prepare, calls = CheckpointStore.prepare, []

    def away_after_attempts(store: CheckpointStore) -> None:
        calls.append(store)
        if len(calls) % 2 == 0:
            raise OSError(errno.ESTALE, "Stale file handle")
        prepare(store)

    monkeypatch.setattr(CheckpointStore, "prepare", away_after_attempts)
    result = fit(train, tmp_path, failure_config=FailureConfig(max_failures=1))
    assert (result.state, result.return_value, len(calls)) == ("finished", "the end", 4)
    assert "Stale file handle" in capsys.readouterr().err


def test_nobody_who_asks_for_the_end_of_the_job_alone_is_unwound_for_more_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train() -> None:
        import time

        import hpctrain

        for step in range(40):
            time.sleep(0.05)  # a step of work
            hpctrain.report({"step": step})
            if hpctrain.get_preemption_info() is not None:
                return

    nodes_are_back = iter([True])
    monkeypatch.setattr(NodePool, "can_grow", lambda _: next(nodes_are_back, False))
    result = fit(train, tmp_path)
    assert len(result.attempts) == 1
    assert result.metrics["step"] == 39


@pytest.mark.parametrize("saves", [True, False], ids=["saves", "never-saves"])
def test_nobody_who_does_not_ask_is_unwound_for_more_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saves: bool
) -> None:
    def train(config: Any) -> None:
        import time

        import hpctrain

        context = hpctrain.get_context()
        rank, attempt = context.get_world_rank(), context.world.attempt
        checkpoint = hpctrain.get_checkpoint()
        step = checkpoint.to_dict()["step"] if checkpoint else 0
        while step < 80:
            step += 1
            time.sleep(0.05)  # a step of work
            saved = config["saves"] and step == 60 and rank == 0
            hpctrain.report(
                {"step": step, "attempt": attempt},
                Checkpoint.from_dict({"step": step}) if saved else None,
            )

    nodes_are_back = iter([True])
    # Nodes that are lost and come back are a matter of Slurm; what follows is that of any run.
    monkeypatch.setattr(NodePool, "can_grow", lambda _: next(nodes_are_back, False))
    monkeypatch.setattr("hpctrain.timeouts.STOP_AGREEMENT_S", 1.0)
    result = fit(train, tmp_path, train_loop_config={"saves": saves})
    history = [(m["attempt"], m["step"]) for m in result.metrics_history]
    second = 60 if saves else 80
    assert [step for _, step in history] == list(range(1, 81))
    assert [attempt for attempt, _ in history] == [1] * second + [2] * (80 - second)


def test_the_total_time_ends_a_run_which_a_person_can_go_on_with(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(RunStoppedError, match=r"its total_time=.* is used up, at report"):
            fit(train_without_asking, tmp_path, total_time=timedelta(seconds=2))
    result = Result.from_path(tmp_path / "run")
    assert result.state == "stopped"
    steps = [m["step"] for m in result.metrics_history]
    assert steps == list(range(1, len(steps) + 1))
    # Each fit() of a person has the whole of it.
    assert all(a.ended_at and a.ended_at - a.started_at > 1 for a in result.attempts)


def test_a_run_that_ends_by_itself_while_a_stop_is_wanted_is_finished(tmp_path: Path) -> None:
    def train() -> str:
        import time

        import hpctrain

        hpctrain.report({"step": 1})
        # Longer than total_time, and nobody asks: until the executor shows that the run is to stop.
        status = hpctrain.get_context().get_storage() / "status.json"
        deadline = time.monotonic() + 60
        while "stopping: its total_time" not in status.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return "the end"

    result = fit(train, tmp_path, total_time=timedelta(seconds=1))
    assert (result.state, result.return_value) == ("finished", "the end")


def test_sigterm_to_a_rank_is_a_warning_and_no_death(tmp_path: Path) -> None:
    def train() -> None:
        import os
        import time

        import hpctrain
        import hpctrain.collective

        for step in range(10_000):
            hpctrain.collective.barrier(timeout_s=60)
            time.sleep(0.01)  # a step of work
            hpctrain.report({"step": step})
            if step == 3 and hpctrain.get_context().get_world_rank() == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            if info := hpctrain.get_preemption_info():
                assert info.preempted_ranks == [0, 1]
                assert info.preempted_node_ids == [os.uname().nodename]
                return

    with pytest.raises(RunStoppedError, match="because it got SIGTERM, at report"):
        fit(train, tmp_path)


def test_what_hydra_sends_when_another_rank_dies_is_no_warning(tmp_path: Path) -> None:
    def train() -> None:
        import os
        import time

        import hpctrain
        import hpctrain.collective

        for step in range(20):
            hpctrain.collective.barrier(timeout_s=60)
            time.sleep(0.05)  # a step of work, in which the executor hears of a signal
            hpctrain.report({"step": step})
            if step == 3:
                os.kill(os.getpid(), signal.SIGUSR1)

    result = fit(train, tmp_path)
    assert (result.state, result.metrics["step"]) == ("finished", 19)
