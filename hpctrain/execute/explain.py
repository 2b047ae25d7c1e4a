"""Say why an attempt failed: which rank, where, why, and what to look at."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hpctrain.errors import WorkerError
from hpctrain.execute.roll_call import WorkerMetadata
from hpctrain.execute.tracker import AttemptTracker
from hpctrain.rundir.paths import RunPaths
from hpctrain.worker.failure import RankFailure

# What frameworks say when a peer is gone: an effect, not a cause.
_COLLATERAL = re.compile(
    r"closed by peer|reset by peer|connection (?:was )?closed|socket.*(?:closed|timeout)|"
    r"broken pipe|remote process exited|NCCL.*(?:abort|remote)|gloo.*(?:timed out|connect)",
    re.IGNORECASE | re.DOTALL,
)
_SIGNALS = {
    "6": "SIGABRT",
    "7": "SIGBUS",
    "8": "SIGFPE",
    "9": "SIGKILL",
    "11": "SIGSEGV",
    "15": "SIGTERM",
}
_BY_HINT = {
    "SIGKILL": "killed by SIGKILL: as a rule the kernel, out of memory",
    "SIGSEGV": "killed by SIGSEGV: a crash in compiled code; its log ends with the Python stack",
}


def first_failure(
    tracker: AttemptTracker, launcher_output: str = ""
) -> tuple[int, RankFailure | None]:
    """Return the rank to blame, and what it said if it said anything.

    Not collective. A rank that died without a word comes before ranks that complain about a peer;
    otherwise the first that was heard of. Of several silent ones the launcher may have said which
    it did not end itself.
    """
    causes = [
        failure for failure in tracker.failures.values() if not _COLLATERAL.search(failure.message)
    ]
    silent = [rank for rank in tracker.lost if rank not in tracker.failures]
    if causes:
        return causes[0].rank, causes[0]
    if silent:
        named = _ranks_that_launcher_blames(launcher_output)
        return next((rank for rank in named if rank in silent), silent[0]), None
    failure = next(iter(tracker.failures.values()))
    return failure.rank, failure


def _ranks_that_launcher_blames(output: str) -> list[int]:
    # srun: "srun: error: node2: task 3: Exited with exit code 7"; those it ends are Terminated.
    # Open MPI: "process rank 2 with PID 0 on node x exited on signal 9".
    found = re.findall(
        r"\btask (\d+): (?!Terminated)|process rank (\d+) with PID \d+ on node", output
    )
    return [int(task or rank) for task, rank in found]


def explain_failure(
    tracker: AttemptTracker,
    *,
    workers: Sequence[WorkerMetadata],
    paths: RunPaths,
    attempt: int,
    checkpoint: Path | None,
    launcher_output: str,
) -> WorkerError:
    """Return the error that ``fit()`` raises. Not collective."""
    rank, failure = first_failure(tracker, launcher_output)
    worker = workers[rank] if 0 <= rank < len(workers) else None
    hostname = worker.hostname if worker else (failure.hostname if failure else "unknown")
    if failure is not None:
        reason = f"{failure.type}: {failure.message}" if failure.type else failure.message
        where = f"after report {failure.report}" if failure.report else f"in phase {failure.phase}"
    else:
        where = "without a word"
        reason = _cause_of_death(
            launcher_output, rank, worker.pid if worker else -1, paths.rank_log(attempt, rank)
        )
        if tracker.lost.get(rank):
            reason = "the agent of its node is gone too: the node, or its network, is down"
    log = paths.rank_log(attempt, rank)
    lines = [
        f"rank {rank} of {len(workers)} on {hostname} failed {where}: {reason}",
        f"  Log: {log if log.exists() else paths.launcher_log(attempt)}   "
        f"Last complete checkpoint: {checkpoint or 'none'}",
    ]
    if failure is not None and failure.traceback:
        lines += ["", failure.traceback.rstrip()]
    return WorkerError(
        "\n".join(lines),
        rank=rank,
        hostname=hostname,
        worker_failures={r: f.to_exception() for r, f in tracker.failures.items()},
    )


def _cause_of_death(launcher_output: str, rank: int, pid: int, log: Path) -> str:
    """Return how a process ended that could not say it itself."""
    # faulthandler's word, the last in the log of a rank that crashed.
    if crash := re.search(r"^Fatal Python error: (.+)$", _end_of(log), re.MULTILINE):
        return f"{crash.group(1)}, a crash in compiled code; its log ends with the Python stack"
    status = None
    # hydra: "=   PID 123 RUNNING AT host" and "=   EXIT CODE: 9"; a signal's number or a status. It
    # can be that of a rank which hydra itself killed afterwards, hence the pid.
    if found := re.search(rf"PID {pid} RUNNING AT.*?EXIT CODE: (\d+)", launcher_output, re.DOTALL):
        status = found.group(1)
        if re.search(r"EXIT STRING:.*signal", launcher_output) and status in _SIGNALS:
            status = _SIGNALS[status]
    # srun: "srun: error: node2: task 3: Exited with exit code 7", "... tasks 0-2,5: Killed".
    srun = r"tasks? ([\d,-]+): (?:Exited with exit code (\d+)|(Killed)|Segmentation fault)"
    for tasks, code, killed in re.findall(srun, launcher_output):
        if _holds(tasks, rank):
            status = code or ("SIGKILL" if killed else "SIGSEGV")
    # Open MPI: "process rank 2 with PID 0 on node x exited on signal 9 (Killed)", and for a status
    # "Process name: [[4711,1],2]" and "Exit code:    7" below it.
    if found := re.search(
        rf"process rank {rank} with PID.* exited on signal (\d+)", launcher_output
    ):
        status = _SIGNALS.get(found.group(1), f"signal {found.group(1)}")
    elif found := re.search(
        rf"Process name: \[\[\d+,\d+\],{rank}\]\s+Exit code:\s+(\d+)", launcher_output
    ):
        status = found.group(1)
    if re.search(r"oom.?kill|out of memory", launcher_output, re.IGNORECASE):
        return "killed by the kernel, out of memory"
    if status is None:
        return "its process ended (os._exit, a crash, or out of memory)"
    if status in _BY_HINT:
        return _BY_HINT[status]
    return (
        f"killed by {status}"
        if status.lower().startswith("sig")
        else f"exited with status {status}"
    )


def _holds(ranges: str, rank: int) -> bool:
    """Return whether srun's list of tasks, such as ``0-2,5``, has a rank."""
    bounds = (part.partition("-") for part in ranges.split(","))
    return any(int(first) <= rank <= int(last or first) for first, _, last in bounds)


def _end_of(log: Path) -> str:
    try:
        return log.read_bytes()[-20000:].decode(errors="replace")
    except FileNotFoundError:
        return ""
