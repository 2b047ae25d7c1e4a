"""What the files of a trial's run say of lost nodes, and of the end of a job."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpctrain.execute.process import process_start_time
from hpctrain.launch.cancel import request_stop
from hpctrain.rundir.ledger import append_event
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, read_status, write_status
from hpctrain.tune import allocation_runner
from hpctrain.tune.allocation_runner import AllocationRunner, find_losses
from hpctrain.tune.slots import Slot
from hpctrain.tune.trial import Trial

BEGUN = {"event": "executor-started"}
LOST = {"event": "node-lost", "node": "b", "reason": "silent"}
ENDED = {"event": "attempt-ended", "kind": "preemption"}


def test_only_what_happened_since_the_run_was_last_begun_counts() -> None:
    over = [BEGUN, LOST, ENDED, {"event": "run-ended"}]
    assert find_losses(over) == ({"b": "silent"}, "preemption")
    assert find_losses([*over, BEGUN]) == ({}, None)
    assert find_losses([*over, BEGUN, {"event": "attempt-ended", "kind": None}]) == ({}, None)
    assert find_losses([]) == ({}, None)


@pytest.mark.parametrize(("job_id", "is_alive", "is_over"), [("7", None, True), ("7", True, False)])
def test_an_executor_that_could_start_nothing_in_a_job_that_is_over_has_not_failed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    job_id: str,
    is_alive: bool | None,
    is_over: bool,
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    monkeypatch.setattr(allocation_runner, "job_is_alive", lambda job_id: is_alive)
    paths = RunPaths(tmp_path / "trial_00000")
    paths.root.mkdir()
    write_status(
        paths,
        RunStatus(
            name="trial_00000",
            state=RunState.FAILED,
            launcher="allocation",
            job_id=job_id,
            error="srun: error: Slurm job 7 has expired",
            error_type="LaunchError",
        ),
    )
    runner = AllocationRunner(lambda trial_id, config: None, lambda name: tmp_path / name)  # type: ignore[arg-type,return-value]
    assert runner.attach(Trial(trial_id="trial_00000", config={})) != is_over


def write_end(paths: RunPaths, state: RunState, *, error_type: str, **fields: Any) -> None:
    """Write that a run has ended in job 7."""
    paths.root.mkdir(exist_ok=True)
    status = RunStatus(
        name=paths.root.name, state=state, launcher="allocation", job_id="7", **fields
    )
    write_status(paths, status.with_changes(error="it ended", error_type=error_type))


def make_runner(folder: Path) -> tuple[AllocationRunner, Trial, RunPaths]:
    runner = AllocationRunner(lambda trial_id, config: None, lambda name: folder / name)  # type: ignore[arg-type,return-value]
    return runner, Trial(trial_id="trial_00000", config={}), RunPaths(folder / "trial_00000")


@pytest.mark.parametrize("kind", ["preemption", "time-limit"])
def test_the_end_of_another_job_is_not_that_of_the_job_of_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Its trial was begun by a tuner in that one, and goes on in this one."""
    runner, trial, paths = make_runner(tmp_path)
    write_end(paths, RunState.STOPPED, error_type="RunStoppedError")
    append_event(paths, "attempt-ended", attempt=1, kind=kind)
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    end = runner.look(trial).end
    assert end is not None
    assert (end.is_cut_off, end.is_orphaned, end.reason) == (
        False,
        True,
        "job 7, in which it ran, ends",
    )
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    end = runner.look(trial).end
    assert end is not None
    assert (end.is_cut_off, end.is_orphaned) == (True, False)


@pytest.mark.parametrize(
    ("error_type", "is_of_job"), [("LaunchError", True), ("WorkerError", False)]
)
def test_only_what_ends_with_another_job_lets_a_trial_go_on_that_has_failed_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error_type: str, is_of_job: bool
) -> None:
    runner, trial, paths = make_runner(tmp_path)
    write_end(paths, RunState.FAILED, error_type=error_type)
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    monkeypatch.setattr(allocation_runner, "job_is_alive", lambda job_id: False)
    end = runner.look(trial).end
    assert end is not None
    assert (end.failed, end.is_orphaned) == (True, is_of_job)
    assert runner.attach(trial) != is_of_job


def test_nodes_that_another_job_has_lost_are_used_in_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, trial, paths = make_runner(tmp_path)
    write_end(paths, RunState.FAILED, error_type="NodeLostError")
    append_event(paths, **LOST)
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    end = runner.look(trial).end
    assert end is not None
    assert (end.lost_nodes, end.is_cut_off, end.is_orphaned) == ({}, False, True)


def test_an_executor_that_outlives_its_job_on_this_host_is_ended_before_another_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would write into the run once more, and so there would be two at the same time."""
    runner, trial, paths = make_runner(tmp_path)
    paths.root.mkdir()
    # An executor holds its directory open.
    code = "import os, time; os.open('.', os.O_RDONLY); print(flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=paths.root, stdout=subprocess.PIPE
    ) as executor:
        assert executor.stdout is not None
        executor.stdout.readline()
        write_end(
            paths,
            RunState.RUNNING,
            error_type="",
            owner_host=socket.gethostname(),
            owner_pid=executor.pid,
            owner_start=process_start_time(executor.pid) or 0,
        )
        monkeypatch.setenv("SLURM_JOB_ID", "8")
        monkeypatch.setattr(allocation_runner, "job_is_alive", lambda job_id: None)
        try:
            assert not runner.attach(trial)
            assert executor.wait(10) == -signal.SIGTERM
        finally:
            executor.kill()
    status = read_status(paths)
    assert status is not None
    assert (status.state, status.error) == (
        RunState.STOPPED,
        "job 7, in which it ran, has ended; the same command resumes it.",
    )
    assert not paths.stop_request.exists()


def test_a_trial_whose_node_went_down_before_it_had_started_goes_on_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, trial, paths = make_runner(tmp_path)
    write_end(paths, RunState.STOPPED, error_type="RunStoppedError")
    append_event(paths, "attempt-ended", attempt=1, kind="start")
    append_event(paths, **LOST)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    end = runner.look(trial).end
    assert end is not None
    assert (end.is_cut_off, end.lost_nodes) == (True, {"b": "silent"})


@pytest.mark.parametrize("hosts", [["a", "b", "c"], ["a", "b"], ["b"]])
def test_a_node_that_a_trial_has_found_bad_is_left_out_and_the_trial_goes_on_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: list[str]
) -> None:
    """Once none is left, no trial fails for it."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(allocation_runner, "allocated_hosts", lambda: hosts)
    monkeypatch.setattr(allocation_runner, "_test_nodes", lambda nodes: {})
    runner, trial, paths = make_runner(tmp_path)
    reason = "it does not see the run directory /x"
    for node in ("b", "a"):
        trial.slot = Slot(nodes={node: 1})
        write_end(paths, RunState.FAILED, error_type="LaunchError")
        append_event(paths, "node-bad", node=node, reason=reason, job_id="7")
        end = runner.look(trial).end
        assert end is not None
        if (hosts, node) == (["a", "b"], "a") or hosts == ["b"]:
            assert (end.is_for_all, end.is_cut_off) == (True, True)
            assert end.reason.startswith("no node of this job sees the run directory /x. Choose")
            return
        assert (end.is_cut_off, end.is_for_all, end.lost_nodes) == (True, False, {node: reason})
        assert not end.has_run


def test_nodes_that_another_job_has_found_bad_are_used_in_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(allocation_runner, "_test_nodes", lambda nodes: {})
    runner, trial, paths = make_runner(tmp_path)
    trial.slot = Slot(nodes={"a": 1})
    write_end(paths, RunState.FAILED, error_type="LaunchError")
    append_event(paths, "node-bad", node="a", reason="its /tmp is full", job_id="6")
    end = runner.look(trial).end
    assert end is not None
    assert (end.is_cut_off, end.failed) == (False, True)


@pytest.mark.parametrize(
    ("kind", "nodes", "has_run"),
    [("start", [], False), ("preemption", ["b"], True), ("time-limit", [], True)],
)
def test_a_node_that_is_lost_before_the_ranks_have_begun_is_told_from_one_under_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, nodes: list[str], has_run: bool
) -> None:
    runner, trial, paths = make_runner(tmp_path)
    write_end(paths, RunState.STOPPED, error_type="RunStoppedError")
    append_event(paths, "attempt-ended", attempt=1, kind="worker", nodes=["b"])
    append_event(paths, "executor-started")
    append_event(paths, "attempt-ended", attempt=2, kind=kind, nodes=nodes)
    append_event(paths, **LOST)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    end = runner.look(trial).end
    assert end is not None
    assert (end.is_cut_off, end.has_run) == (True, has_run)


@pytest.mark.parametrize(
    ("state", "is_asked", "was_asked"),
    [
        (RunState.STOPPED, True, True),
        (RunState.STOPPED, False, False),
        # Its job ended before it could stop.
        (RunState.RUNNING, True, False),
    ],
)
def test_a_run_that_was_asked_to_stop_is_told_from_one_that_ended_with_its_job(
    tmp_path: Path, state: RunState, is_asked: bool, was_asked: bool
) -> None:
    runner, trial, paths = make_runner(tmp_path)
    assert not runner.was_asked_to_stop(trial)
    write_end(paths, state, error_type="RunStoppedError")
    if is_asked:
        request_stop(paths)
    assert runner.was_asked_to_stop(trial) is was_asked


@pytest.mark.parametrize("error_type", ["LaunchError", "NodeLostError"])
@pytest.mark.parametrize("restarts", [1, 2])
def test_a_trial_that_failed_with_a_start_of_its_job_goes_on_in_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error_type: str, restarts: int
) -> None:
    """A job that is queued again keeps its number, and Slurm says that it runs."""
    monkeypatch.setattr(allocation_runner, "job_is_alive", lambda job_id: True)
    monkeypatch.setattr(allocation_runner, "allocated_hosts", lambda: ["a", "b"])
    monkeypatch.setattr(allocation_runner, "_test_nodes", lambda nodes: {})
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    runner, trial, paths = make_runner(tmp_path)
    trial.slot = Slot(nodes={"b": 1})
    write_end(paths, RunState.FAILED, error_type=error_type, restarts=restarts)
    append_event(paths, "node-bad", node="b", reason="it is silent", job_id="7")
    append_event(paths, **LOST)
    is_over = restarts == 1
    end = runner.look(trial).end
    assert end is not None
    assert (end.is_orphaned, bool(end.lost_nodes)) == (is_over, not is_over)
    assert runner.attach(trial) is not is_over


@pytest.mark.parametrize("state", [RunState.FINISHED, RunState.RUNNING])
def test_only_what_was_at_work_is_ended_with_an_earlier_start_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: RunState
) -> None:
    monkeypatch.setattr(allocation_runner, "job_is_alive", lambda job_id: True)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    runner, trial, paths = make_runner(tmp_path)
    write_end(paths, state, error_type="")
    assert runner.attach(trial) is (state is RunState.FINISHED)
