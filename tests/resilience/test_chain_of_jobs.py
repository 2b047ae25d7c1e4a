"""A run whose job is taken away goes on in another one by itself, and nobody can tell from it."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from hpctrain import PreemptionError
from hpctrain.run_report.facts import read_facts
from hpctrain.run_report.time_use import Use
from hpctrain.rundir.paths import RunPaths

pytestmark = pytest.mark.slurm


def assert_history_has(disturbed: Any, result: Any, restart: str, *, nodes: str) -> None:
    """Check what status and ``hpctrain history`` say of a run that was queued again once."""
    assert result.status.last_restart.startswith(restart)
    history = disturbed.history()
    assert history.startswith("run: finished, 2 attempts, 1 restart, 1 job ")
    assert result.status.last_restart in history
    assert history.count(f"nodes {nodes} from ") == 2
    _, second = disturbed.events("attempt-started")
    assert f"nodes {nodes} from checkpoint {second['first_report']:06} " in history


def assert_report_has(disturbed: Any, *, num_repeated: int) -> None:
    """Check where the time of a run went whose second job waited in the queue as its first did."""
    run = read_facts(RunPaths(disturbed.run_dir))
    assert (run.damage, len(run.attempts), run.num_repeated) == ((), 2, num_repeated)
    in_queue = [interval for interval in run.intervals if interval.use is Use.QUEUE]
    of_attempt = {n: [i for i in run.intervals if i.attempt == n] for n in (1, 2)}
    assert len(in_queue) == 2
    assert in_queue[0].end <= of_attempt[1][0].begin < of_attempt[1][-1].end <= in_queue[1].begin
    assert in_queue[1].end <= of_attempt[2][0].begin
    # Nobody but Slurm started it again.
    assert Use.STOPPED not in {interval.use for interval in run.intervals}
    # Two ranks with one CPU each, from the start of an executor to its end.
    held = sum(i.seconds for i in run.intervals if i.job is not None)
    assert run.efficiency.core_hours == pytest.approx(2 * held / 3600)
    assert run.efficiency.useful[0] == pytest.approx(
        2 * sum(i.seconds for i in run.intervals if i.use is Use.TRAINING) / 3600
    )


@pytest.mark.parametrize("asks", [True, False], ids=["asks", "never-asks"])
def test_a_run_that_is_warned_goes_on_in_the_same_job_queued_again(
    disturbed: Any, asks: bool
) -> None:
    disturbed.start(*(["--asks"] if asks else []))
    disturbed.wait_for_step(23)
    disturbed.slurm("scancel", "--signal=USR2", disturbed.job_id())
    result = disturbed.finish()
    assert len(result.job_ids) == 1
    assert [e["kind"] for e in disturbed.events("attempt-ended")] == ["preemption", None]
    (requeued,) = disturbed.events("requeued")
    assert "got SIGUSR2" in requeued["why"]
    first, second = disturbed.events("attempt-started")
    assert (first["restarts"], second["restarts"]) == (0, 1)
    job = result.job_ids[0]
    assert result.status.last_restart == (
        f"job {job} got SIGUSR2; job {job} is queued again and resumes from checkpoint "
        f"{second['first_report']:06}"
    )
    log = (disturbed.run_dir / "logs/1/rank-00000.out").read_text()
    if asks:
        # It saved at the step at which it left.
        assert second["first_report"] > 23
        assert "PreemptionInfo(deadline_ms=None, preempted_node_to_ranks={'node" in log
    else:
        assert second["first_report"] == 20


def test_where_jobs_are_not_queued_again_a_successor_goes_on(disturbed: Any) -> None:
    disturbed.start("--asks", "--sbatch=--no-requeue")
    disturbed.wait_for_step(12)
    first = disturbed.job_id()
    disturbed.slurm("scancel", "--signal=USR2", first)
    result = disturbed.finish()
    assert len(result.job_ids) == 2
    (successor,) = disturbed.events("successor")
    assert (successor["after"], successor["job_id"]) == (first, result.job_ids[1])
    assert result.status.last_restart == (
        f"job {first} got SIGUSR2; job {result.job_ids[1]} resumes from checkpoint "
        f"{disturbed.events('attempt-started')[1]['first_report']:06}"
    )
    assert disturbed.slurm("squeue", "-h", "-t", "all", "-o", "%T", "-j", first) == "COMPLETED"
    assert_report_has(disturbed, num_repeated=0)


@pytest.mark.matrix("preemption")
def test_a_preempted_run_saves_in_its_grace_time_and_goes_on_later(disturbed: Any) -> None:
    # Of a job without a limit scontrol may say EndTime=Unknown even in its grace time.
    low = ["--partition=low", "--nodes=1", "--sbatch=--nodelist=node1", "--time=10"]
    disturbed.start("--asks", *low)
    disturbed.wait_for_step(12)
    rival = ["sbatch", "--job-name=rival", "--partition=high", "--nodelist=node1", "--exclusive"]
    disturbed.slurm(*rival, "--output=/dev/null", "--wrap=sleep 1")
    result = disturbed.finish()
    why = [event["why"] for event in disturbed.events("requeued")]
    assert len(why) == 1, disturbed.logs()
    assert "is preempted" in why[0]
    (job_id,) = result.job_ids
    restart = f"job {job_id} is preempted; job {job_id} is queued again and resumes from checkpoint"
    assert_history_has(disturbed, result, restart, nodes="node1")
    assert result.attempts[0].ended_at is not None
    log = (disturbed.run_dir / "logs/1/rank-00000.out").read_text()
    assert "preempted_node_to_ranks={'node1': (0, 1)}" in log
    assert "deadline_ms=1" in log or "deadline_ms=2" in log


@pytest.mark.matrix("requeue")
def test_a_job_that_is_queued_again_without_a_warning_resumes(disturbed: Any) -> None:
    disturbed.start()
    disturbed.wait_for_step(12)
    disturbed.slurm("scontrol", "requeue", disturbed.job_id())
    result = disturbed.finish()
    assert disturbed.events("attempt-ended")[0]["kind"] == "preemption"
    (job_id,) = result.job_ids
    # Slurm sends SIGTERM; on a loaded machine the executor may be killed before it has acted on it.
    assert_history_has(disturbed, result, f"job {job_id} ", nodes="node[1-2]")
    saved = disturbed.events("attempt-started")[1]["first_report"]
    written = (disturbed.run_dir / "metrics.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in written]
    reached = max(line["report"] for line in lines if line["attempt"] == 1)
    assert_report_has(disturbed, num_repeated=reached - saved)


def test_a_run_whose_preemptions_are_used_up_says_so(disturbed: Any) -> None:
    disturbed.start("--preemptions=0")
    disturbed.wait_for_step(12)
    disturbed.slurm("scancel", "--signal=USR2", disturbed.job_id())
    result = disturbed.finish(status=4)
    assert result.state == "failed"
    assert isinstance(result.error, PreemptionError)
    assert "preemption failure 1 of max_preemption_failures=0" in str(result.error)


def await_saved_state(disturbed: Any) -> None:
    """Wait until slurmctld has written down what has happened, which it does seconds later.

    A job that it forgets is another matter.
    """
    saved = disturbed.cluster.state_dir / "ctld/job_state"
    disturbed.slurm("scontrol", "update", f"JobId={disturbed.job_id()}", "Comment=to-be-saved")
    disturbed.wait_for(lambda: b"to-be-saved" in saved.read_bytes(), "the saved state of Slurm")


def test_a_run_goes_on_when_its_controller_was_away(disturbed: Any) -> None:
    disturbed.start("--steps=100")
    disturbed.wait_for_step(12)
    await_saved_state(disturbed)
    disturbed.cluster.kill_controller()
    try:
        disturbed.wait_for_step(60)
    finally:
        disturbed.cluster.start_controller()
    result = disturbed.finish(steps=100)
    assert len(result.attempts) == 1


def processes_of(disturbed: Any, module: str) -> list[int]:
    """Return the processes of the run's executor, parents first, as this host sees them."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().decode().split("\0")
        except OSError:
            continue
        if module in words and str(disturbed.run_dir) in words:
            found.append(int(pid))
    return sorted(found)


@pytest.mark.parametrize("victim", ["executor", "supervisor"])
def test_a_killed_executor_and_its_killed_parent_are_replaced(disturbed: Any, victim: str) -> None:
    disturbed.start()
    disturbed.wait_for_step(12)
    supervisor, executor = processes_of(disturbed, "hpctrain.execute.supervisor")
    os.kill(executor if victim == "executor" else supervisor, signal.SIGKILL)
    result = disturbed.finish()
    assert len(result.attempts) == 2
    kinds = [e["kind"] for e in disturbed.events("attempt-ended")]
    assert kinds == ["start" if victim == "executor" else "preemption", None]


@pytest.mark.matrix("time limit")
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.long)])
def test_the_end_of_the_time_limit_is_followed_by_another_job(disturbed: Any, times: int) -> None:
    # Slurm looks at time limits every 30 seconds, so its warning comes somewhere in the minute:
    # after how many steps is not known.
    disturbed.start("--asks", "--time=1", "--notice=30", f"--attempts={times + 1}", "--pause=0.1")
    result = disturbed.finish(steps=None)
    *kinds, last = (e["kind"] for e in disturbed.events("attempt-ended"))
    assert last is None
    # On a busy machine the last attempt may take so long that Slurm warns it, too.
    assert len(kinds) >= times
    assert set(kinds) == {"time-limit"}, disturbed.logs()
    assert len(result.job_ids) == 1


def test_a_run_that_has_ended_is_not_begun_again_when_its_executor_dies(disturbed: Any) -> None:
    disturbed.start("--dies-at-the-end", "--steps=10")
    disturbed.finish(steps=10)
    assert len(disturbed.events("executor-died")) == 1
    assert len(disturbed.events("executor-started")) == 1


def test_a_cancelled_run_does_not_go_on_in_the_next_job(disturbed: Any) -> None:
    disturbed.start("--sbatch=--no-requeue")
    disturbed.wait_for_step(12)
    (disturbed.run_dir / "stop").write_text("a person")
    disturbed.slurm("scancel", "--signal=USR2", disturbed.job_id())
    result = disturbed.finish(status=4)
    assert result.state == "stopped"
    assert not disturbed.events("successor")
