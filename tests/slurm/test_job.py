from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from hpctrain.errors import LaunchError
from hpctrain.slurm import job as job_module
from hpctrain.slurm.job import (
    cancel_job,
    cancel_jobs,
    explain_end,
    find_job,
    read_own_job,
    requeue,
)
from hpctrain.slurm.nodes import SlurmNodes
from hpctrain.slurm.output import Job, parse_job
from hpctrain.testing.slurm import VirtualCluster
from tests.waiting import wait_until

# scontrol --oneliner show job, Slurm 22.05.
RUNNING = (
    "JobId=12 JobName=run UserId=me(1000) GroupId=me(1000) MCS_label=N/A Priority=4294901748 "
    "Nice=0 Account=(null) QOS=(null) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 "
    "Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=00:00:05 TimeLimit=UNLIMITED "
    "SubmitTime=2025-01-01T00:00:00 Partition=batch AllocNode:Sid=head:100 ReqNodeList=(null) "
    "ExcNodeList=(null) NodeList=n[1-2] BatchHost=n1 NumNodes=2 NumCPUs=4 NumTasks=2 "
    "CPUs/Task=1 TRES=cpu=4,node=2,billing=4 Command=/run/slurm/submission.sh "
    "WorkDir=/home/me/my project StdErr=/run/slurm/12.out StdIn=/dev/null Power=\n"
)


def test_a_job_is_read_from_what_scontrol_says():
    assert parse_job(RUNNING) == Job(
        job_id="12",
        state="RUNNING",
        reason="None",
        exit_code="0:0",
        nodes="n[1-2]",
        may_requeue=True,
        is_batch=True,
        is_unlimited=True,
        user="me",
        partition="batch",
        time_limit="UNLIMITED",
        num_nodes=2,
        tres={"cpu": "4", "node": "2", "billing": "4"},
        submit_time=time.mktime(time.strptime("2025-01-01 00:00", "%Y-%m-%d %H:%M")),
        script="/run/slurm/submission.sh",
    )


def test_a_job_whose_end_is_not_known_is_not_one_without_a_limit():
    known = RUNNING.replace("UNLIMITED", "00:10:00 EndTime=2025-01-01T00:10:00")
    unknown = RUNNING.replace("UNLIMITED", "00:10:00 EndTime=Unknown")
    of_partition = RUNNING.replace("UNLIMITED", "Partition_Limit EndTime=Unknown")
    jobs = [parse_job(said) for said in (known, unknown, of_partition)]
    end = time.mktime(time.strptime("2025-01-01 00:10", "%Y-%m-%d %H:%M"))
    assert [(job.end_time, job.is_unlimited) for job in jobs if job is not None] == [
        (end, False),
        (None, False),
        (None, False),
    ]


def test_no_job_is_read_from_something_else():
    assert parse_job("No jobs in the system\n") is None


@pytest.mark.parametrize(
    ("state", "final"),
    [
        ("PENDING", False),
        ("CONFIGURING", False),
        ("RUNNING", False),
        ("COMPLETING", False),
        ("SUSPENDED", False),
        ("REQUEUED", False),
        ("COMPLETED", True),
        ("CANCELLED", True),
        ("FAILED", True),
        ("TIMEOUT", True),
        ("NODE_FAIL", True),
        ("PREEMPTED", True),
        ("OUT_OF_MEMORY", True),
        ("BOOT_FAIL", True),
        ("DEADLINE", True),
    ],
)
def test_a_job_is_over_in_final_states_only(state: str, final: bool):
    job = parse_job(RUNNING.replace("RUNNING", state))
    assert job is not None
    assert job.is_final is final


@pytest.mark.parametrize(
    ("state", "runs"),
    [("RUNNING", True), ("SIGNALING", True), ("COMPLETING", False), ("STOPPED", False)],
)
def test_a_job_that_slurm_sends_a_signal_runs_on(state: str, runs: bool):
    job = parse_job(RUNNING.replace("RUNNING", state))
    assert job is not None
    assert job.is_running is runs


def answer_with(monkeypatch: pytest.MonkeyPatch, returncode: int, out: str, err: str = "") -> None:
    monkeypatch.setattr(
        job_module,
        "run_slurm",
        lambda argv, **_: subprocess.CompletedProcess(argv, returncode, out, err),
    )


def test_a_job_that_slurm_knows_is_returned(monkeypatch: pytest.MonkeyPatch):
    answer_with(monkeypatch, 0, RUNNING)
    job = find_job("12")
    assert job is not None
    assert job.state == "RUNNING"


def test_a_job_that_slurm_has_forgotten_is_none(monkeypatch: pytest.MonkeyPatch):
    answer_with(monkeypatch, 1, "", "slurm_load_jobs error: Invalid job id specified\n")
    assert find_job("12") is None


def test_a_controller_that_is_away_does_not_mean_that_the_job_is(monkeypatch: pytest.MonkeyPatch):
    answer_with(monkeypatch, 1, "", "slurm_load_jobs error: Unable to contact slurm controller\n")
    with pytest.raises(LaunchError, match=r"show job 12: .*Unable to contact") as raised:
        find_job("12")
    assert raised.value.transient


def test_an_answer_without_a_job_is_an_error_that_passes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(job_module.environ, "variable", lambda _: "12")
    answer_with(monkeypatch, 0, "No jobs in the system\n")
    with pytest.raises(LaunchError, match="show job 12: no job in 'No jobs in the") as raised:
        read_own_job(patience_s=0)
    assert raised.value.transient


def test_a_forgotten_job_of_this_process_is_asked_for_only_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(job_module.environ, "variable", lambda _: "12")
    answer_with(monkeypatch, 1, "", "slurm_load_jobs error: Invalid job id specified\n")
    with pytest.raises(LaunchError, match="has forgotten job 12") as raised:
        read_own_job(patience_s=3600)
    assert not raised.value.transient


@pytest.mark.parametrize("said", ["NodeList=(null)", ""])
def test_a_job_without_nodes_has_none_that_are_usable(monkeypatch: pytest.MonkeyPatch, said: str):
    answer_with(monkeypatch, 0, RUNNING.replace("NodeList=n[1-2]", said))
    with pytest.raises(LaunchError, match="job 12 has no nodes") as raised:
        SlurmNodes("12").usable()
    assert raised.value.transient


def test_a_job_whose_nodes_do_not_see_the_storage_says_so():
    job = Job(job_id="12", state="FAILED", reason="NonZeroExitCode", exit_code="0:53", nodes="n1")
    message = explain_end(job, storage="/home/me/runs/run", log_path="/l", log="")
    assert message.startswith("job 12 ended (FAILED, ExitCode 0:53, Reason NonZeroExitCode)")
    assert "the nodes (n1) do not see the run directory /home/me/runs/run. Choose" in message
    # Slurm 26.05 starts the script without a log.
    later = explain_end(
        replace(job, exit_code="66:0"), storage="/home/me/runs/run", log_path="/l", log=""
    )
    assert "do not see the run directory /home/me/runs/run. Choose" in later


def test_a_job_whose_node_lacks_something_says_what_and_the_way_out():
    job = Job(job_id="12", state="FAILED", reason="NonZeroExitCode", exit_code="66:0", nodes="n1")
    log = "line 9: cd: /tmp/me: No such\nhpctrain: n1 does not see /tmp/me. Start it elsewhere.\n"
    assert explain_end(job, storage="/runs", log_path="/l", log=log) == (
        "job 12 could not begin: n1 does not see /tmp/me. Start it elsewhere."
    )


def test_a_job_that_ended_early_is_explained_by_its_last_words():
    job = Job(job_id="12", state="FAILED", reason="None", exit_code="1:0", nodes="n1")
    message = explain_end(
        job, storage="/runs", log_path="/runs/12.out", log="bash: module: command not found"
    )
    assert "Its log: /runs/12.out" in message
    assert "before the executor of the run said anything." in message
    assert message.endswith("It said:\nbash: module: command not found")


def test_a_job_that_ended_without_a_word_names_its_log_and_the_lines_before():
    job = Job(job_id="12", state="FAILED", reason="NonZeroExitCode", exit_code="3:0", nodes="n1")
    message = explain_end(job, storage="/runs", log_path="/runs/12.out", log="")
    assert "ends with 3 and prints nothing: look at the lines of SlurmConfig(setup=...)" in message
    assert message.endswith("Its log: /runs/12.out")


@pytest.fixture
def run_job(in_slurm: VirtualCluster) -> Iterator[Callable[[str], str]]:
    """Return what runs a job with a time limit and returns its id once it runs."""
    job_ids: list[str] = []

    def slurm(*argv: str) -> str:
        # As Slurm prints by itself, whatever a test sets.
        environment = {**os.environ, "SLURM_TIME_FORMAT": ""}
        return subprocess.run(
            argv, check=True, capture_output=True, text=True, env=environment, timeout=60
        ).stdout

    def run(limit: str) -> str:
        options = ["--parsable", "--output=/dev/null", f"--time={limit}", "--wrap=sleep 100"]
        job_ids.append(slurm("sbatch", *options).strip())
        ask = ["squeue", "-h", f"--jobs={job_ids[-1]}", "--format=%T"]
        wait_until(lambda: "RUNNING" in slurm(*ask), "the job runs", interval_s=0.1)
        return job_ids[-1]

    yield run
    slurm("scancel", *job_ids)


@pytest.mark.slurm
def test_the_end_of_a_job_is_known_whichever_times_a_user_likes_to_read(
    run_job: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
):
    job_id = run_job("10")
    for style in ("", "relative", "%s", "%c"):
        monkeypatch.setenv("SLURM_TIME_FORMAT", style)
        job = find_job(job_id)
        assert job is not None
        assert job.end_time is not None, style
        assert 500 < job.end_time - time.time() <= 600
        assert not job.is_unlimited


@pytest.mark.slurm
def test_a_time_in_the_hour_that_comes_twice_is_the_one_that_slurm_means(
    in_slurm: VirtualCluster, central_european_time: datetime
):
    for minutes in (-30, 30):
        # Both are 02:30 there.
        begin = central_european_time + timedelta(minutes=minutes)
        argv = ["sbatch", "--parsable", "--output=/dev/null", f"--begin={begin:%Y-%m-%dT%H:%M:%S}"]
        in_utc = {**os.environ, "TZ": "UTC"}
        job_id = subprocess.run(
            [*argv, "--wrap=true"],
            check=True,
            capture_output=True,
            text=True,
            env=in_utc,
            timeout=60,
        ).stdout.strip()
        job = find_job(job_id)
        cancel_job(job_id)
        assert job is not None
        assert job.start_time == begin.timestamp()


@pytest.fixture
def central_european_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[datetime]:
    """Let this process be where clocks go back an hour, and return when they do it next."""
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        now = datetime.now(timezone.utc)
        ends = [datetime(now.year + later, 10, 31, 1, tzinfo=timezone.utc) for later in (0, 1)]
        last_sundays = [end - timedelta(days=end.isoweekday() % 7) for end in ends]
        yield next(day for day in last_sundays if day > now + timedelta(days=1))
    time.tzset()


@pytest.mark.slurm
def test_a_job_without_a_limit_says_so(run_job: Callable[[str], str]):
    job = find_job(run_job("UNLIMITED"))
    assert job is not None
    assert (job.end_time, job.is_unlimited) == (None, True)


@pytest.mark.slurm
@pytest.mark.parametrize(
    ("name", "value"), [("SCANCEL_INTERACTIVE", "true"), ("SCANCEL_STATE", "PENDING")]
)
def test_a_job_ends_however_its_user_likes_to_cancel(
    run_job: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, name: str, value: str
):
    job_id = run_job("10")
    monkeypatch.setenv(name, value)
    cancel_job(job_id)
    monkeypatch.delenv(name)

    def is_over() -> bool:
        job = find_job(job_id)
        return job is not None and job.is_final

    wait_until(is_over, "the job is over", interval_s=0.1)


@pytest.fixture
def array(in_slurm: VirtualCluster) -> Iterator[str]:
    """The id of a job array with two tasks that run; the last to begin has it as its own id."""
    argv = ["sbatch", "--parsable", "--requeue", "--array=1-2", "--output=/dev/null"]
    sbatch = [*argv, "--wrap=sleep 100"]
    job_id = subprocess.run(sbatch, check=True, capture_output=True, text=True, timeout=60).stdout
    job_id = job_id.strip()
    wait_until(lambda: states_of_tasks(job_id) == "RUNNING RUNNING", "it runs", interval_s=0.1)
    yield job_id
    subprocess.run(["scancel", job_id], check=True, timeout=60)


def states_of_tasks(job_id: str) -> str:
    """Return the states of the tasks of an array that are not over: its last task's at the end."""
    argv = ["squeue", "-h", f"--jobs={job_id}", "--format=%A|%T"]
    printed = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout
    rows = dict(line.split("|") for line in printed.split())
    last = rows.pop(job_id, "")
    return " ".join([*rows.values(), last]).strip()


@pytest.mark.slurm
def test_the_last_task_of_an_array_is_not_taken_for_the_whole_array(
    array: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SLURM_JOB_ID", array)
    job = read_own_job(patience_s=60)
    assert job is not None
    assert (job.job_id, job.own_id) == (array, f"{array}_2")
    requeue(job.own_id, patience_s=60)
    wait_until(lambda: states_of_tasks(array) == "RUNNING PENDING", "it waits", interval_s=0.1)
    cancel_job(job.own_id)
    wait_until(lambda: states_of_tasks(array) == "RUNNING", "it is over", interval_s=0.1)


@pytest.mark.parametrize(
    ("said", "is_refused"),
    [
        ("scancel: error: Kill job error on job id 7: Invalid job id specified", False),
        ("scancel: error: Kill job error on job id 7: Access/permission denied", True),
        ("", True),
    ],
)
def test_jobs_that_have_ended_need_no_cancellation(tmp_path, monkeypatch, said, is_refused):
    scancel = tmp_path / "scancel"
    scancel.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/given\necho "{said}" >&2\nexit 1\n')
    scancel.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    if is_refused:
        with pytest.raises(LaunchError, match="scancel"):
            cancel_jobs(["7", "8"])
    else:
        cancel_jobs(["7", "8"])
    assert (tmp_path / "given").read_text() == "7 8\n"
