"""Why jobs wait and why they ended, of a cluster with accounting, QOS and association limits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import pytest

from hpctrain.errors import LaunchError
from hpctrain.slurm.output import Job
from hpctrain.slurm.why import Explanation, explain_job
from hpctrain.testing.slurm import ClusterSpec, VirtualCluster
from tests.clusters import own_cluster
from tests.waiting import wait_until

pytestmark = pytest.mark.slurm

_LIMITS = (
    "add qos brief maxwall=1",
    "add qos small maxtresperjob=cpu=2",
    "add qos onenode maxtresperjob=node=1",
    "add qos little maxtresperjob=mem=1000",
    "add qos nogpu maxtresperjob=gres/gpu=1",
    "add qos minimum mintresperjob=cpu=4",
    "add qos peruser maxtresperuser=cpu=2",
    "add qos single maxjobsperuser=1",
    "add qos together grptres=cpu=2",
    "add qos gone",
    "add qos closed maxjobsperuser=0",
    "add account above cluster=hpctrain grptres=cpu=2",
    "add account below cluster=hpctrain parent=above",
    "add user root account=below",
    "add account multi cluster=hpctrain",
    "add user root account=multi partition=main maxwall=60",
    "add user root account=multi partition=high maxwall=2",
    "add account crowded cluster=hpctrain grpjobs=1",
    "add account narrow cluster=hpctrain",
    "add account tight cluster=hpctrain grptres=cpu=2",
    "add account spent cluster=hpctrain grptresrunmins=cpu=60",
    "add account hasty cluster=hpctrain",
    "add user root account=crowded,tight,spent",
    "add user root account=narrow maxjobs=1",
    "add user root account=hasty maxwall=1",
    "add qos pernode maxtrespernode=cpu=2",
    "add qos cpuminutes maxtresminsperjob=cpu=10",
    "add qos peraccount maxtresperaccount=cpu=2",
    "add account usedup cluster=hpctrain grptresmins=cpu=0",
    "add account patient cluster=hpctrain",
    "add user root account=usedup",
    "add user root account=patient maxtresmins=cpu=10",
    "add resource name=solver server=flex count=1 type=license cluster=hpctrain percentallowed=100",
    "modify user root set qos+=brief,small,onenode,little,nogpu,minimum,peruser,single,together,"
    "gone,closed,pernode,cpuminutes,peraccount",
)
_LONG = "sleep 300"


@pytest.fixture(scope="module")
def cluster() -> Iterator[VirtualCluster]:
    """A cluster whose accounts and QOS have limits, in which a partition takes one node a job."""
    spec = ClusterSpec(
        num_nodes=3, cpus_per_node=16, gpus_per_node=2, accounting=True, slurmd_timeout_s=5
    )
    with own_cluster(spec, *_LIMITS) as cluster:
        on_head(cluster, "scontrol", "update", "PartitionName=high", "MaxNodes=1")
        on_head(cluster, "scontrol", "update", "PartitionName=shared", "QoS=brief")
        on_head(cluster, "scontrol", "update", "NodeName=node3", "State=DRAIN", "Reason=new disk")
        # Slurm ends it after a minute, or up to half a minute later: the last test looks at it.
        on_head(cluster, "sbatch", "--time=1", "--output=/dev/null", f"--wrap={_LONG}")
        yield cluster


@pytest.fixture
def in_cluster(cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch) -> VirtualCluster:
    """The cluster, whose Slurm this process asks; no job is left in it afterwards."""
    for name, value in cluster.environ.items():
        monkeypatch.setenv(name, value)
    return cluster


def on_head(cluster: VirtualCluster, *argv: str) -> str:
    done = cluster.run_on("head", argv)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def submit(cluster: VirtualCluster, *options: str, command: str = _LONG) -> str:
    given = () if any(o.startswith("--output") for o in options) else ("--output=/dev/null",)
    return on_head(cluster, "sbatch", "--parsable", *given, *options, f"--wrap={command}")


def wait_for_reason(job_id: str, reason: str) -> Explanation:
    answer: Explanation | None = None

    def look() -> bool:
        nonlocal answer
        answer = explain_job(job_id, is_run=False)
        return re.fullmatch(reason, answer.job.reason) is not None

    wait_until(look, lambda: f"{reason} of {answer}", interval_s=0.2)
    assert answer is not None
    return answer


@dataclass(frozen=True)
class Case:
    options: tuple[str, ...]
    reason: str
    verdict: str
    says: str
    """In meaning, details and step."""
    occupant: tuple[str, ...] | None = None
    """Options of a job that runs before."""


CASES = {
    "time of a partition": Case(
        ("--partition=short", "--time=5"),
        "PartitionTimeLimit",
        "never",
        r"partition 'short': a time limit of 00:02:00 at most. The job asks for 00:05:00"
        r"[^$]*TimeLimit=00:02:00[^$]*--time=00:02:00",
    ),
    "nodes of a partition": Case(
        ("--partition=high", "--nodes=2"),
        "PartitionNodeLimit",
        "never",
        r"partition 'high': 1 node for a job. The job asks for 2[^$]*at most 1 node \(--nodes\)",
    ),
    "partition down": Case(
        ("--partition=down",), "PartitionDown", "admin", r"partition 'down' is DOWN"
    ),
    "time of a QOS": Case(
        ("--qos=brief", "--time=5"),
        "QOSMaxWallDurationPerJobLimit",
        "never",
        r"QOS 'brief': 00:01:00 for a job at most. The job asks for 00:05:00"
        r"[^$]*TimeLimit=00:01:00",
    ),
    "CPUs for a job": Case(
        ("--qos=small", "--ntasks=3"),
        "QOSMaxCpuPerJobLimit",
        "never",
        r"QOS 'small': 2 CPUs for a job at most. The job asks for 3[^$]*--ntasks",
    ),
    "nodes for a job": Case(
        ("--qos=onenode", "--nodes=2"),
        "QOSMaxNodePerJobLimit",
        "never",
        r"QOS 'onenode': 1 node for a job at most. The job asks for 2",
    ),
    "memory for a job": Case(
        ("--qos=little", "--mem=2000"),
        "QOSMaxMemoryPerJob",
        "never",
        r"QOS 'little': 1000M of memory for a job at most. The job asks for 2000M",
    ),
    "GPUs for a job": Case(
        ("--qos=nogpu", "--gpus=2"),
        "QOSMaxGRESPerJob",
        "never",
        r"QOS 'nogpu': 1 GPU for a job at most. The job asks for 2[^$]*--gpus",
    ),
    "CPUs at least": Case(
        ("--qos=minimum", "--ntasks=1"),
        "QOSMinCpuNotSatisfied",
        "never",
        r"QOS 'minimum': at least 4 CPUs for a job. The job asks for 1",
    ),
    "CPUs for a user, some in use": Case(
        ("--qos=peruser", "--ntasks=2"),
        "QOSMaxCpuPerUserLimit",
        "waits",
        r"QOS 'peruser': 2 CPUs for each user at a time, 2 of them in use. The job asks for 2",
        occupant=("--qos=peruser", "--ntasks=2"),
    ),
    "CPUs for a user, too many": Case(
        ("--qos=peruser", "--ntasks=3"),
        "QOSMaxCpuPerUserLimit",
        "never",
        r"QOS 'peruser': 2 CPUs for each user at a time[^$]*asks for 3[^$]*Cancel it \(scancel",
    ),
    "jobs for a user": Case(
        ("--qos=single",),
        "QOSMaxJobsPerUserLimit",
        "waits",
        r"QOS 'single': 1 job for each user at a time, 1 of them in use",
        occupant=("--qos=single",),
    ),
    "CPUs of a QOS": Case(
        ("--qos=together", "--ntasks=2"),
        "QOSGrpCpuLimit",
        "waits",
        r"QOS 'together': 2 CPUs at a time, 2 of them in use",
        occupant=("--qos=together", "--ntasks=2"),
    ),
    "jobs of an account": Case(
        ("--account=crowded",),
        "AssocGrpJobsLimit",
        "waits",
        r"account 'crowded': 1 job at a time, 1 of them in use",
        occupant=("--account=crowded",),
    ),
    "jobs of a user in an account": Case(
        ("--account=narrow",),
        "AssocMaxJobsLimit",
        "waits",
        r"user 'root' in account 'narrow': 1 job at a time",
        occupant=("--account=narrow",),
    ),
    "CPUs of an account, too many": Case(
        ("--account=tight", "--ntasks=3"),
        "AssocGrpCpuLimit",
        "never",
        r"account 'tight': 2 CPUs at a time[^$]*The job asks for 3",
    ),
    "CPU minutes of an account": Case(
        ("--account=spent", "--time=40"),
        "AssocGrpCPURunMinutesLimit",
        "admin",
        r"account 'spent': 60 minutes of CPU of all that runs, \d+ of them in use[^$]*asks for 40",
        occupant=("--account=spent", "--time=40"),
    ),
    "CPU minutes of an account, too many": Case(
        ("--account=spent", "--time=40", "--ntasks=2"),
        "AssocGrpCPURunMinutesLimit",
        "never",
        r"account 'spent': 60 minutes of CPU of all that runs[^$]*The job asks for 80",
    ),
    "time of a user in an account": Case(
        ("--account=hasty", "--time=5"),
        "AssocMaxWallDurationPerJobLimit",
        "never",
        r"user 'root' in account 'hasty': 00:01:00 for a job at most",
    ),
    "jobs of a QOS that is closed": Case(
        ("--qos=closed",),
        "QOSMaxJobsPerUserLimit",
        "never",
        r"closed its account or QOS[^$]*QOS 'closed': 0 jobs for each user",
    ),
    "CPUs of the account above": Case(
        ("--account=below", "--ntasks=3"),
        "AssocGrpCpuLimit",
        "never",
        r"account 'above': 2 CPUs at a time. The job asks for 3",
    ),
    "time of one of two associations": Case(
        ("--account=multi", "--partition=main", "--time=90"),
        "AssocMaxWallDurationPerJobLimit",
        "never",
        r"01:00:00 for a job at most. The job asks for 01:30:00[^$]*TimeLimit=01:00:00",
    ),
    "time of the QOS of the partition": Case(
        ("--partition=shared", "--time=5"),
        "QOSMaxWallDurationPerJobLimit",
        "never",
        r"QOS 'brief': 00:01:00 for a job at most",
    ),
    "CPUs on a node": Case(
        ("--qos=pernode", "--nodes=1", "--ntasks=4"),
        "QOSMaxCpuPerNode",
        "never",
        r"QOS 'pernode': 2 CPUs for a node at most. The job asks for 4",
    ),
    "CPUs for an account, some in use": Case(
        ("--qos=peraccount", "--ntasks=2"),
        "MaxCpuPerAccount",
        "waits",
        r"QOS 'peraccount': 2 CPUs for each account at a time[^$]*asks for 2",
        occupant=("--qos=peraccount", "--ntasks=2"),
    ),
    "CPUs for an account, too many": Case(
        ("--qos=peraccount", "--ntasks=3"),
        "MaxCpuPerAccount",
        "never",
        r"QOS 'peraccount': 2 CPUs for each account at a time[^$]*asks for 3[^$]*--ntasks",
    ),
    "CPU minutes for a job": Case(
        ("--qos=cpuminutes", "--time=20"),
        "QOSMaxCpuMinutesPerJobLimit",
        "never",
        r"QOS 'cpuminutes': 10 minutes of CPU for a job in all. The job asks for 20",
    ),
    "CPU minutes for a job in an account": Case(
        ("--account=patient", "--time=20"),
        "AssocMaxCpuMinutesPerJobLimit",
        "never",
        r"user 'root' in account 'patient': 10 minutes of CPU for a job in all[^$]*asks for 20",
    ),
    "CPU minutes of an account, used up": Case(
        ("--account=usedup", "--time=5"),
        "AssocGrpCPUMinutesLimit",
        "admin",
        r"account 'usedup': 0 minutes of CPU in all[^$]*sacctmgr show associations",
    ),
    "licenses": Case(
        ("--licenses=solver@flex:1",),
        "Licenses",
        "waits",
        "licenses that it needs are in use",
        occupant=("--licenses=solver@flex:1",),
    ),
    "begin": Case(("--begin=now+1hour",), "BeginTime", "waits", "before a given time"),
    "drained node": Case(
        ("--nodelist=node3",), r"ReqNodeNotAvail.*", "admin", r"node3 is drained: new disk"
    ),
    "resources": Case(
        ("--nodes=2", "--exclusive", "--nice=0"),
        "Resources|Priority",
        "waits",
        r"jobs? waiting in partition 'main', \d+ (is|are) before it",
        occupant=("--nodes=1",),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_reason_is_explained_with_the_limit_that_the_job_runs_into(
    in_cluster: VirtualCluster, case: Case
) -> None:
    jobs = []
    try:
        if case.occupant is not None:
            jobs.append(submit(in_cluster, *case.occupant))
            wait_until(lambda: explain_job(jobs[0], is_run=False).verdict.value == "running")
        jobs.append(submit(in_cluster, *case.options))
        answer = wait_for_reason(jobs[-1], case.reason)
    finally:
        on_head(in_cluster, "scancel", *jobs)
    said = "\n".join([answer.meaning, *answer.details, answer.step])
    assert re.fullmatch(case.verdict, answer.verdict.value), answer
    assert re.search(case.says, said), said


def test_a_job_that_is_held_says_who_holds_it(in_cluster: VirtualCluster) -> None:
    job = submit(in_cluster, "--hold")
    try:
        answer = wait_for_reason(job, "JobHeldUser")
        assert answer.verdict.value == "held"
        assert f"scontrol release {job}" in answer.step
        on_head(in_cluster, "scontrol", "hold", job)
        answer = wait_for_reason(job, "JobHeldAdmin")
        assert answer.verdict.value == "admin"
    finally:
        on_head(in_cluster, "scancel", job)


def test_a_dependency_names_the_job_and_one_that_cannot_be_met_never_starts(
    in_cluster: VirtualCluster,
) -> None:
    first = submit(in_cluster)
    second = submit(in_cluster, f"--dependency=afterok:{first}")
    try:
        answer = wait_for_reason(second, "Dependency")
        assert answer.verdict.value == "waits"
        assert answer.details == [f"it depends on afterok:{first}(unfulfilled)"]
        on_head(in_cluster, "scancel", first)
        answer = wait_for_reason(second, "DependencyNeverSatisfied")
        assert answer.verdict.value == "never"
    finally:
        on_head(in_cluster, "scancel", second)


def test_a_task_of_an_array_waits_for_the_others(in_cluster: VirtualCluster) -> None:
    array = submit(in_cluster, "--array=1-2%1")
    try:
        answer = wait_for_reason(f"{array}_2", "JobArrayTaskLimit")
        assert answer.verdict.value == "waits"
        assert "tasks of its array" in answer.meaning
    finally:
        on_head(in_cluster, "scancel", array)


def test_a_job_that_waits_for_another_one_starts_when_slurm_expects_that_to_end(
    in_cluster: VirtualCluster,
) -> None:
    occupant = submit(in_cluster, "--exclusive", "--nodes=2", "--time=10")
    waiting = submit(in_cluster, "--exclusive", "--nodes=2", "--time=1")
    try:
        answer = wait_for_reason(waiting, "Resources|Priority")
        assert answer.verdict.value == "waits"
        # Slurm's backfill scheduler says it, every half minute by default.
        wait_until(
            lambda: explain_job(waiting, is_run=False).starts_at is not None,
            "a time at which the job starts",
            timeout_s=120,
            interval_s=0.5,
        )
        begun = on_head(in_cluster, "squeue", "--noheader", "--format=%S", f"--jobs={occupant}")
        starts_at = explain_job(waiting, is_run=False).starts_at
        begun_at = datetime.fromisoformat(begun).timestamp()
        assert starts_at is not None
        # It counts in minutes.
        assert begun_at + 600 - 60 <= starts_at <= begun_at + 600 + 120
    finally:
        on_head(in_cluster, "scancel", occupant, waiting)


def test_a_reservation_that_has_not_begun_is_waited_for(in_cluster: VirtualCluster) -> None:
    later = ("StartTime=now+2hours", "Duration=60", "Nodes=node1", "Users=root")
    on_head(in_cluster, "scontrol", "create", "reservation", "ReservationName=later", *later)
    try:
        job = submit(in_cluster, "--reservation=later", "--time=5")
        try:
            answer = wait_for_reason(job, "Reservation")
        finally:
            on_head(in_cluster, "scancel", job)
    finally:
        # Slurm lets none go that jobs wait for.
        on_head(in_cluster, "scontrol", "delete", "ReservationName=later")
    assert answer.verdict.value == "waits"
    assert "has not begun" in answer.meaning


def test_a_partition_that_takes_no_more_jobs_starts_none(in_cluster: VirtualCluster) -> None:
    on_head(in_cluster, "scontrol", "create", "PartitionName=closing", "Nodes=node2")
    job = submit(in_cluster, "--partition=closing", "--begin=now+2")
    try:
        on_head(in_cluster, "scontrol", "update", "PartitionName=closing", "State=INACTIVE")
        answer = wait_for_reason(job, "PartitionInactive")
        assert answer.verdict.value == "admin"
        assert answer.details == ["partition 'closing' is INACTIVE"]
    finally:
        on_head(in_cluster, "scancel", job)


def test_a_job_that_is_queued_again_and_held_says_how_it_goes_on(
    in_cluster: VirtualCluster,
) -> None:
    job = submit(in_cluster, "--requeue", command="scontrol requeuehold $SLURM_JOB_ID; sleep 300")
    try:
        answer = wait_for_reason(job, "job_requeued_in_held_state")
        assert answer.verdict.value == "held"
        assert f"scontrol release {job}" in answer.step
    finally:
        on_head(in_cluster, "scancel", job)


@pytest.mark.parametrize(
    ("reason", "verdict"), [("job_requeued_in_held_state", "held"), ("None", "ended")]
)
def test_a_job_whose_nodes_are_cleaned_up_may_be_held(
    monkeypatch: pytest.MonkeyPatch, reason: str, verdict: str
) -> None:
    job = Job(job_id="7", state="COMPLETING", reason=reason)
    monkeypatch.setattr("hpctrain.slurm.why.find_job", lambda job_id: job)
    assert explain_job("7", is_run=False).verdict.value == verdict


def test_a_qos_that_is_gone_never_starts_a_job(in_cluster: VirtualCluster) -> None:
    job = submit(in_cluster, "--qos=gone", "--begin=now+2")
    try:
        on_head(in_cluster, "sacctmgr", "--immediate", "delete", "qos", "gone")
        assert wait_for_reason(job, "InvalidQOS").verdict.value == "never"
    finally:
        on_head(in_cluster, "scancel", job)


ENDS = {
    "fine": (("true",), (), "COMPLETED", "ended with 0"),
    "a code": (("exit 3",), (), "FAILED", "its script ended with 3"),
    "not found": (("no-such-command",), (), "FAILED", "was not found on the node"),
    "not executable": (("/etc/passwd",), (), "FAILED", "cannot be executed"),
    "killed": (("kill -KILL $$",), (), "FAILED", "killed by SIGKILL"),
    "a command killed": (("sh -c 'kill -SEGV $$'",), (), "FAILED", "killed by SIGSEGV"),
    "no directory for its log": (
        ("true",),
        ("--output=/no/such/directory/log",),
        "FAILED",
        "could not open the job's log.*the script never began",
    ),
}


@pytest.mark.parametrize(("command", "options", "state", "meaning"), ENDS.values(), ids=list(ENDS))
def test_an_end_is_explained(
    in_cluster: VirtualCluster,
    command: tuple[str],
    options: tuple[str, ...],
    state: str,
    meaning: str,
) -> None:
    job = submit(in_cluster, *options, command=command[0])
    answer = wait_for_end(job)
    assert answer.job.state == state, answer
    assert re.search(meaning, answer.meaning), answer


def wait_for_end(job_id: str) -> Explanation:
    def look() -> Explanation | None:
        answer = explain_job(job_id, is_run=False)
        return answer if answer.job.is_final else None

    answer = wait_until(look, f"the end of job {job_id}", interval_s=0.2, timeout_s=150)
    assert answer is not None
    return answer


def test_a_cancelled_a_preempted_and_a_job_of_a_lost_node_are_told_apart(
    in_cluster: VirtualCluster,
) -> None:
    cancelled = submit(in_cluster)
    node1 = ("--nodelist=node1", "--ntasks=15")
    preempted = submit(in_cluster, "--partition=low", "--no-requeue", *node1)
    lost = submit(in_cluster, "--no-requeue", "--nodelist=node2")
    for job in (cancelled, preempted, lost):
        wait_until(lambda job=job: explain_job(job, is_run=False).verdict.value == "running")
    on_head(in_cluster, "scancel", cancelled)
    high = submit(in_cluster, "--partition=high", *node1, command="true")
    assert wait_for_end(cancelled).job.state == "CANCELLED"
    ended = wait_for_end(preempted)
    assert ended.job.state == "PREEMPTED"
    assert "higher priority" in ended.meaning
    wait_for_end(high)
    in_cluster.power_off("node2")
    try:
        ended = wait_for_end(lost)
    finally:
        in_cluster.power_on("node2")
    assert ended.job.state == "NODE_FAIL"
    assert "--exclude" in ended.step


def test_a_job_that_the_controller_has_forgotten_is_found_in_the_accounting(
    in_cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(in_cluster, command="exit 3")
    wait_for_end(job)
    # It keeps them for an hour here.
    monkeypatch.setattr("hpctrain.slurm.why.find_job", lambda job_id: None)

    def look() -> Explanation | None:
        try:
            return explain_job(job, is_run=False)
        except LaunchError:
            return None

    answer = wait_until(look, "its record", interval_s=0.2)
    assert answer is not None
    wait_until(lambda: explain_job(job, is_run=False).job.state == "FAILED", interval_s=0.2)
    assert explain_job(job, is_run=False).job.exit_code == "3:0"
    with pytest.raises(LaunchError, match="Slurm knows no job 4711"):
        explain_job("4711", is_run=False)


def test_a_time_limit_is_named(in_cluster: VirtualCluster) -> None:
    ended = wait_for_end("1")
    assert ended.job.state == "TIMEOUT"
    assert "--time" in ended.step


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualCluster]:
    """A cluster of its own, on whose nodes no job is to begin."""
    with own_cluster(ClusterSpec(num_nodes=2, gpus_per_node=0)) as cluster:
        for name, value in cluster.environ.items():
            monkeypatch.setenv(name, value)
        yield cluster


def test_a_job_whose_prolog_fails_is_held_by_slurm(failing: VirtualCluster) -> None:
    with failing.layout.slurm_conf.open("a") as file:
        file.write("Prolog=/bin/false\n")
    on_head(failing, "scontrol", "reconfigure")
    job = submit(failing)
    answer = wait_for_reason(job, "launch_failed_requeued_held")
    assert answer.verdict.value == "held"
    assert "Slurm holds it after a start that failed" in answer.meaning
    assert f"scontrol release {job}" in answer.step
