"""What Slurm's commands print of jobs, steps and allocations, read. Pure.

`hpctrain.slurm.cluster_output` reads what they print of a cluster. No other module knows their
formats.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hpctrain.plan.allocation import AllocatedNode
from hpctrain.slurm.cluster_output import count_gpus, parse_tres

_FINAL = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    ]
)
_NUM_ACCOUNTED = 10


@dataclass(frozen=True, kw_only=True)
class Job:
    """What Slurm's controller knows of a job."""

    job_id: str
    state: str
    """``PENDING``, ``RUNNING``, ``FAILED``, ... as ``man squeue`` lists them."""
    reason: str = ""
    exit_code: str = ""
    """``status:signal``."""
    nodes: str = ""
    restarts: int = 0
    """How often it was started again; counts as soon as it is requeued."""
    may_requeue: bool = False
    is_batch: bool = False
    """Whether it has a batch script that would run again."""
    is_preempted: bool = False
    end_time: float | None = None
    """Seconds since the epoch; None where it has no limit, or Slurm does not say."""
    is_unlimited: bool = False
    """Whether it has no time limit."""
    gpus: Mapping[str, int] = field(default_factory=dict)
    """By groups of nodes, as Slurm writes them; empty where not asked for, or not counted."""
    user: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    time_limit: str = ""
    """As Slurm writes it: ``1-00:00:00``, ``UNLIMITED``."""
    num_nodes: int = 0
    """At least so many nodes, while it is pending."""
    tres: Mapping[str, str] = field(default_factory=dict)
    """What it asked for of each resource that the cluster counts: ``cpu``, ``mem``, ``node``,
    ``gres/gpu``, with Slurm's units."""
    dependency: str = ""
    """Jobs that it waits for, as in ``afterok:5(unfulfilled)``."""
    start_time: float | None = None
    """When it began; of a pending job when Slurm expects it to, None where it does not say."""
    submit_time: float | None = None
    script: str = ""
    """Path of its batch script; empty for an interactive one, or one from stdin."""
    log: str = ""
    """Path of its output; empty where it has none."""
    array_task: str = ""
    """Of an array: its id and the task, or tasks that wait, as in ``7_3`` and ``7_[1-3]``."""

    @property
    def own_id(self) -> str:
        """By which scontrol and scancel take no other job.

        An array and the task that began last have the same id, which stands for all of its tasks.
        """
        return self.array_task or self.job_id

    @property
    def is_pending(self) -> bool:
        """Whether it waits in the queue, held or not."""
        return self.state == "PENDING"

    @property
    def is_running(self) -> bool:
        """Whether it runs and will run on; False as soon as Slurm ends it."""
        # The latter while Slurm sends SIGSTOP or SIGCONT to its nodes (seen with 22.05).
        return self.state in ("RUNNING", "SIGNALING")

    @property
    def is_final(self) -> bool:
        """Whether the job will not run any more."""
        return self.state.partition(" ")[0] in _FINAL


def parse_job(output: str) -> Job | None:
    """Return the job that ``scontrol --oneliner show job`` prints; None if it prints none.

    Not collective.

    Examples
    --------
    >>> parse_job("JobId=7 JobState=RUNNING ReqNodeList=(null) NodeList=node[1-2,4]").nodes
    'node[1-2,4]'
    """
    fields = _job_fields(output)
    if "JobId" not in fields:
        return None
    return Job(
        job_id=fields["JobId"],
        state=fields["JobState"],
        reason=fields.get("Reason", ""),
        exit_code=fields.get("ExitCode", ""),
        nodes=fields.get("NodeList", "").replace("(null)", ""),
        restarts=int(fields.get("Restarts", 0)),
        may_requeue=fields.get("Requeue") == "1",
        is_batch=fields.get("BatchFlag") == "1",
        is_preempted=fields.get("PreemptTime", "None") not in ("None", ""),
        end_time=parse_time(fields.get("EndTime", "")),
        is_unlimited=fields.get("TimeLimit") == "UNLIMITED",
        gpus=_job_gpus(output),
        user=_user(output),
        partition=_given(fields.get("Partition", "")),
        account=_given(fields.get("Account", "")),
        qos=_given(fields.get("QOS", "")),
        time_limit=fields.get("TimeLimit", ""),
        # "2-4" before it has begun.
        num_nodes=int(re.sub(r"\D.*", "", fields.get("NumNodes", "")) or 0),
        # One field until Slurm 22.05, two from 23.02.
        tres=parse_tres(fields.get("ReqTRES", fields.get("TRES", ""))),
        dependency=_given(fields.get("Dependency", "")),
        start_time=parse_time(fields.get("StartTime", "")),
        submit_time=parse_time(fields.get("SubmitTime", "")),
        script=_path(output, "Command", "SubmitLine|WorkDir"),
        log=_path(output, "StdOut", "Power|TresPerNode|TresPerTask|MailUser|$").replace(
            "/dev/null", ""
        ),
        array_task=_array_task(fields, output),
    )


def parse_queue(output: str) -> dict[str, Job]:
    r"""Return the jobs that ``squeue --noheader --format=%A|%T|%r`` prints, by id.

    Not collective.

    Examples
    --------
    >>> parse_queue("7|PENDING|Priority\n")["7"].reason
    'Priority'
    """
    rows = [line.split("|", 2) for line in output.splitlines() if line.count("|") >= 2]
    return {
        job_id: Job(job_id=job_id, state=state, reason=_reason(reason))
        for job_id, state, reason in rows
    }


def parse_waiting(output: str) -> dict[str, int]:
    r"""Return the priorities that ``squeue --noheader --format=%A|%Q`` prints, by job.

    Not collective.

    Examples
    --------
    >>> parse_waiting("7|4294901759\n")
    {'7': 4294901759}
    """
    rows = [line.strip().partition("|") for line in output.splitlines()]
    return {job_id: int(priority) for job_id, _, priority in rows if priority.isdigit()}


def parse_accounted(output: str) -> Job | None:
    r"""Return the job that ``sacct --noheader --parsable2`` prints; None if it prints none.

    Not collective.

    Examples
    --------
    >>> parse_accounted("7|TIMEOUT|0:0|None|gpu|a|normal|01:00:00|2|node[1-2]\n").state
    'TIMEOUT'
    """
    row = output.partition("\n")[0].split("|")
    if len(row) < _NUM_ACCOUNTED:
        return None
    job_id, state, exit_code, reason, partition, account, qos, limit, num_nodes, nodes = row
    return Job(
        job_id=job_id,
        state=state,
        reason="" if reason == "None" else _reason(reason),
        exit_code=exit_code,
        nodes="" if nodes == "None assigned" else nodes,
        partition=partition,
        account=account,
        qos=qos,
        time_limit=limit,
        num_nodes=int(num_nodes or 0),
    )


def parse_scripts(output: str, is_script: Callable[[str], bool]) -> list[Job]:
    r"""Return the jobs of a script that ``squeue --noheader --format=%A|%T|%o`` prints.

    Not collective. The newest first.

    Parameters
    ----------
    is_script
        Says whether a path, as it was given to sbatch, is that of the script.

    Examples
    --------
    >>> output = "7|PENDING|/runs/a|b/batch.sh\n8|RUNNING|/other.sh\n"
    >>> parse_scripts(output, "/runs/a|b/batch.sh".__eq__)
    [Job(job_id='7', state='PENDING', ...
    """
    rows = [line.split("|", 2) for line in output.splitlines() if line.count("|") >= 2]
    jobs = [
        Job(job_id=job_id, state=state) for job_id, state, command in rows if is_script(command)
    ]
    return sorted(jobs, key=lambda job: int(job.job_id), reverse=True)


def parse_commands(output: str) -> dict[str, str]:
    r"""Return the scripts of the jobs that ``squeue --noheader --format=%A|%T|%o`` prints, by id.

    Not collective.

    Examples
    --------
    >>> parse_commands("7|PENDING|/runs/a|b/batch.sh\n")
    {'7': '/runs/a|b/batch.sh'}
    """
    rows = [line.split("|", 2) for line in output.splitlines() if line.count("|") >= 2]
    return {job_id: command for job_id, _, command in rows}


def parse_counts(text: str) -> tuple[int, ...]:
    """Return one number for each node from a variable such as ``SLURM_TASKS_PER_NODE``.

    Not collective.

    Examples
    --------
    >>> parse_counts("72(x2),36")
    (72, 72, 36)
    """
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return tuple(int(count) for count, times in found for _ in range(int(times or 1)))


def read_allocation(
    variables: Mapping[str, str], hosts: Sequence[str], gpus: Mapping[str, int]
) -> dict[str, AllocatedNode]:
    """Return what an allocation has of each of its nodes.

    Not collective.

    Parameters
    ----------
    variables
        The environment of a process in it.
    hosts
        Its nodes.
    gpus
        GPUs of nodes, as far as they are known.
    """

    def by_node(name: str) -> Sequence[int | None]:
        counts = parse_counts(variables.get(name, ""))
        return counts if len(counts) == len(hosts) else [None] * len(hosts)

    # Without a number of tasks Slurm counts one for each CPU. In a step the tasks are its own.
    is_asked = {"SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"} & variables.keys()
    has_tasks = is_asked and "SLURM_STEP_ID" not in variables
    return {
        host: AllocatedNode(
            tasks=tasks if has_tasks else None,
            cpus=cpus,
            gpus=gpus.get(host),
            mem_mib=_memory_of_node(variables, cpus),
        )
        for host, tasks, cpus in zip(
            hosts, by_node("SLURM_TASKS_PER_NODE"), by_node("SLURM_JOB_CPUS_PER_NODE"), strict=True
        )
    }


def _memory_of_node(variables: Mapping[str, str], cpus: int | None) -> int | None:
    """Return how many MiB of a node an allocation has; None where Slurm does not count them."""
    per_node, per_cpu = (variables.get(f"SLURM_MEM_PER_{of}", "") for of in ("NODE", "CPU"))
    if per_node.isdigit():
        # 0 is all that the node has.
        return int(per_node) or None
    return int(per_cpu) * cpus if per_cpu.isdigit() and int(per_cpu) and cpus is not None else None


def parse_step_owners(output: str) -> dict[str, tuple[str, int]]:
    """Return host and process of the srun of each step, from ``scontrol --oneliner show step``.

    Not collective. A batch script has none.

    Examples
    --------
    >>> parse_step_owners("StepId=81.0 Name=python SrunHost:Pid=node1:8849")
    {'81.0': ('node1', 8849)}
    """
    owners = {}
    for line in output.splitlines():
        step = re.search(r"(?<!\S)StepId=(\S+)", line)
        owner = re.search(r"(?<!\S)SrunHost:Pid=([^\s()]+):(\d+)", line)
        if step and owner:
            owners[step[1]] = (owner[1], int(owner[2]))
    return owners


def _job_fields(output: str) -> dict[str, str]:
    """Return the fields of the first job; those with words of a user may be cut at a space."""
    # Users write the name, which comes before UserId, and the comment, the features and the paths,
    # which come after all that is read here. Any of them may hold "JobState=FAILED".
    ids = _ids(output)
    begin = output.find(" UserId=") if ids is None else ids.start(1)
    head, rest = (output[:begin], output[begin:]) if begin >= 0 else (output, "")
    text = f"{head.split(' ')[0]} {rest}" if rest else head
    fields: dict[str, str] = {}
    for name, value in re.findall(r"(?<!\S)(\w+)=(\S*)", text):
        fields.setdefault(name, value)
    return fields


# The last that looks so: the name of a job may, too. Those of users and groups of a Windows domain
# may have spaces.
_IDS = re.compile(r".*( UserId=([^(]+)\(\d+\) GroupId=[^(]+\(\d+\) )", re.DOTALL)


def _ids(output: str) -> re.Match[str] | None:
    """Return what says whose the job is: group 1, and 2 is the user."""
    begin = output.find(" Command=")
    return _IDS.match(output, 0, begin if begin > 0 else len(output))


def _user(output: str) -> str:
    ids = _ids(output)
    return "" if ids is None else ids[2]


def _path(output: str, name: str, following: str) -> str:
    # A path may have spaces.
    line = output.partition("\n")[0]
    found = re.search(rf" {name}=(.*?)\s*(?: (?:{following})=|$)", line)
    return _given(found[1]) if found else ""


def _array_task(fields: Mapping[str, str], output: str) -> str:
    found = re.match(r"JobId=\d+ ArrayJobId=(\d+) ArrayTaskId=(\S+)", output)
    if found is None:
        return ""
    task = found[2] if found[2].isdigit() else f"[{found[2]}]"
    return f"{found[1]}_{task}"


def _reason(printed: str) -> str:
    # As scontrol prints it: "job_requeued_in_held_state".
    return printed.replace(" ", "_")


def _given(value: str) -> str:
    return "" if value in ("(null)", "N/A") else value


def _job_gpus(output: str) -> dict[str, int]:
    """Return the GPUs of each group of nodes, which ``scontrol --details`` adds."""
    found = re.findall(r"(?<!\S)Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)", output)
    gpus = {nodes: count_gpus(gres) for nodes, gres in found}
    return gpus if any(gpus.values()) else {}


def parse_time(text: str) -> float | None:
    """Return a time in seconds since the epoch; None if it is not known. Not collective."""
    if text.isdigit():
        # 0 is a time that is not known; SLURM_TIME_FORMAT=%s.
        return float(text) or None
    try:
        # In the time zone of this process. The hour that a clock goes back over comes twice.
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None
