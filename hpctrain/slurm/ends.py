"""Why a job ended, in words: Slurm's state, and the code that its script ended with."""

from __future__ import annotations

import re
import signal
from typing import NamedTuple

from hpctrain.plan.visibility import EXIT_INVISIBLE
from hpctrain.slurm.output import Job


class End(NamedTuple):
    """What the end of a job means."""

    meaning: str
    step: str = ""
    """What a person has to do."""


_LOOK_AT_LOG = "Its log has the reason"
_STATES = {
    "COMPLETED": End("its script ended with 0"),
    "TIMEOUT": End(
        "it ran until its time limit, and Slurm ended it",
        "Ask for more time (SlurmConfig(time=...), sbatch --time), or save checkpoints and resume",
    ),
    "DEADLINE": End(
        "it could not end before its --deadline", "Submit it with a later --deadline, or less time"
    ),
    "OUT_OF_MEMORY": End(
        "a process used more memory than the job has on its node, and the kernel killed it",
        "Ask for more memory (SlurmConfig(mem=...), sbatch --mem), or use more nodes",
    ),
    "NODE_FAIL": End(
        "one of its nodes failed while it ran",
        "Submit it again; if the same node fails again, leave it out (sbatch --exclude) and tell "
        "the site",
    ),
    "BOOT_FAIL": End("one of its nodes did not boot", "Submit it again"),
    "PREEMPTED": End(
        "a job of a higher priority needed its nodes",
        "Submit it again, or with a partition or QOS that is not preempted",
    ),
    "REVOKED": End("another cluster of the federation runs it"),
    "CANCELLED": End("a person cancelled it, or Slurm did because it could never start"),
}
_NOT_STARTED = 53
_NEVER_BEGAN = End(
    "Slurm could not open the job's log, or its working directory: the script never began",
    "Make the directory of --output where the nodes see it (not /tmp of the login node), and "
    "submit it again",
)
# Codes of the shell, and of the batch script where the executor could not begin.
_CODES = {
    EXIT_INVISIBLE: End(
        "a node does not see a directory that the run needs",
        "Use a storage_path on the filesystem that all nodes see",
    ),
    126: End(
        "a command of the script cannot be executed",
        "Make it executable (chmod +x), and look at its first line",
    ),
    127: End(
        "a command of the script was not found on the node",
        "Load its module, or activate the environment, in the script (SlurmConfig(setup=...))",
    ),
}
_SIGNALS = {
    "SIGKILL": "from Slurm after scancel or a time limit, or from the kernel where memory was used "
    "up",
    "SIGSEGV": "it crashed in compiled code, often in a library that was built for another MPI or "
    "CPU",
    "SIGILL": "it was built for another CPU than the node has",
    "SIGBUS": "memory that it had mapped is not there: /dev/shm or a disk may be full",
    "SIGABRT": "a library gave up; its log says why",
    "SIGTERM": "from scancel, preemption or a time limit",
}
_OF_HPCTRAIN = {
    2: End("a value or an option is invalid; nothing was started", _LOOK_AT_LOG),
    3: End("the ranks could not be started", _LOOK_AT_LOG),
    4: End("the run failed", _LOOK_AT_LOG),
    5: End("the run was stopped", "The same command resumes it"),
    6: End("another executor took the run over"),
}


def explain_end_of(job: Job, *, is_run: bool) -> End:
    """Return what the end of a job means.

    Pure; not collective.

    Parameters
    ----------
    job
        One that has ended.
    is_run
        Whether it is hpctrain's, whose exit codes have a meaning.

    Examples
    --------
    >>> explain_end_of(Job(job_id="7", state="FAILED", exit_code="127:0"), is_run=False).meaning
    'a command of the script was not found on the node'
    """
    state = job.state.split()[0] if job.state else ""
    status, number = _numbers(job.exit_code)
    # No signal, but how slurmd says that it could not start the script (measured with 22.05).
    if number == _NOT_STARTED:
        return _NEVER_BEGAN
    if state == "CANCELLED" and (by := re.search(r"by (\d+)", job.state)):
        return End(f"the user with the id {by[1]} cancelled it")
    if state == "CANCELLED" and job.reason.startswith("Dependency"):
        return End(
            "a job that it depends on ended in another way than it needs",
            "Submit it without that --dependency",
        )
    if state in _STATES:
        return _STATES[state]
    if number:
        return End(f"its script was killed by {_signal_name(number)}{_about(number)}", _LOOK_AT_LOG)
    if status > 128 and (name := _signal_name(status - 128)) != f"signal {status - 128}":
        return End(
            f"a command of its script was killed by {name}{_about(status - 128)}", _LOOK_AT_LOG
        )
    if status in _CODES:
        return _CODES[status]
    if is_run and status in _OF_HPCTRAIN:
        return _OF_HPCTRAIN[status]
    return End(f"its script ended with {status}", _LOOK_AT_LOG)


def _numbers(exit_code: str) -> tuple[int, int]:
    found = re.match(r"(\d+):(\d+)", exit_code)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _about(number: int) -> str:
    about = _SIGNALS.get(_signal_name(number))
    return f": {about}" if about else ""
