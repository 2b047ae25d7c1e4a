"""Explain why an attempt failed: which rank, where, why, and what to look at."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.errors import CheckpointError, HpctrainError, TrainingFailedError, WorkerError
from hpctrain.execute.out_of_memory import advise_more_memory, describe_kill
from hpctrain.execute.rendezvous import WorkerMetadata
from hpctrain.execute.tracker import AttemptTracker
from hpctrain.frames import user_part_of_stack
from hpctrain.plan.spec import RunSpec
from hpctrain.rundir.display import list_ranks
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import read_end
from hpctrain.rundir.trust import read_spec
from hpctrain.worker.failure import RankFailure
from hpctrain.worker.imports import is_found_here

# Errors of frameworks when a peer is gone: an effect, not a cause.
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
_CRASHES = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV")
_OUT_OF_MEMORY = "Out Of Memory"
_PERHAPS_FOR_MEMORY = ": as a rule the kernel, out of memory"
_NOT_ON_NODE = (
    "The executor finds that module now. Is the filesystem that it is on mounted on {0}? If it "
    "is not, leave the node out: SlurmConfig(sbatch_args=['--exclude={0}'])."
)
_NOT_FOR_MEMORY = ", and not for want of memory: by a person or a program"


def first_failure(
    tracker: AttemptTracker, launcher_output: str = ""
) -> tuple[int, RankFailure | None]:
    """Return the rank that failed first, and its report if it sent one.

    Not collective. A silent death precedes any error that its peers report later; otherwise it is
    the first rank that was reported. Of several silent ones the launcher may have printed which it
    did not end itself. A rank that the kernel killed for want of memory is the cause of the rest.
    """
    causes = [
        failure for failure in tracker.failures.values() if not _COLLATERAL.search(failure.message)
    ]
    silent = [rank for rank in tracker.lost if rank not in tracker.failures]
    for rank in silent:
        if tracker.memory.get(rank, {}).get("kills"):
            return rank, None
    if causes:
        return causes[0].rank, causes[0]
    if silent:
        named = _ranks_that_launcher_blames(launcher_output)
        return next((rank for rank in named if rank in silent), silent[0]), None
    failure = next(iter(tracker.failures.values()))
    return failure.rank, failure


def names_a_death(launcher_output: str) -> bool:
    """Return whether a launcher has printed which rank died by itself. Not collective."""
    return bool(_ranks_that_launcher_blames(launcher_output))


def _ranks_that_launcher_blames(output: str) -> list[int]:
    # srun: "srun: error: node2: task 3: Exited with exit code 7"; those it ends are Terminated.
    # Open MPI: "process rank 2 with PID 0 on node x exited on signal 9"; since 5.0 in two lines.
    found = re.findall(
        r"\btask (\d+): (?!Terminated)|process\s+rank\s+(\d+)\s+with\s+PID\s", output
    )
    return [int(task or rank) for task, rank in found]


def explain_failure(
    tracker: AttemptTracker,
    *,
    workers: Sequence[WorkerMetadata],
    paths: RunPaths,
    attempt: int,
    checkpoint: Path | None,
    launcher_output: str | None,
    death: tuple[int, int] | None = None,
    calls: Sequence[str] = (),
) -> WorkerError:
    """Return the error that ``fit()`` raises. Not collective.

    Parameters
    ----------
    launcher_output
        What srun or mpiexec printed; None where the user has started the ranks.
    death
        The rank that died silently, and its wait status, if they are known. What the launcher
        printed does not count then.
    calls
        Which collective has failed, and who has not called it.
    """
    output = launcher_output if launcher_output and death is None else ""
    rank, failure = first_failure(tracker, output) if death is None else (death[0], None)
    memory = tracker.memory.get(rank, {})
    log = paths.rank_log(attempt, rank)
    worker = workers[rank] if 0 <= rank < len(workers) else None
    hostname = worker.hostname if worker else (failure.hostname if failure else "unknown")
    if failure is not None:
        cause = _reported_cause(failure, memory)
    else:
        pid = worker.pid if worker else -1
        cause = _silent_cause(tracker, output, rank=rank, pid=pid, death=death, log=log)
    others = "the output of the ranks" if launcher_output is None else paths.launcher_log(attempt)
    lines = [
        f"rank {rank} of {len(workers)} on {hostname} failed {cause.where}: {cause.reason}",
        f"  Log: {log if os.path.exists(log) else others}   "
        f"Last complete checkpoint: {checkpoint or 'none'}",
    ]
    cut_off = [other for other, relay in tracker.cut_off.items() if relay == rank]
    lines += _lines_of_cut_off(sorted(cut_off))
    lines += [f"  {call[0].upper()}{call[1:]}" for call in calls]
    if failure is not None and cause.killed:
        lines.append(f"  Of its processes, {memory['kills']} had been {describe_kill(memory)}")
    if cause.killed:
        lines.append(f"  {advise_more_memory(memory)}")
    lines += _lines_of_missing_parts(tracker, failure)
    found_here = failure is not None and _is_found_here(failure.missing_module, paths)
    if failure is not None and failure.advice:
        lines.append(f"  {_NOT_ON_NODE.format(hostname) if found_here else failure.advice}")
    if failure is not None and failure.hint:
        lines.append(f"  {failure.hint}")
    if cause.traceback:
        lines += ["", cause.traceback.rstrip()]
    error = WorkerError(
        "\n".join(lines),
        rank=rank,
        hostname=hostname,
        worker_failures={r: f.to_exception() for r, f in tracker.failures.items()},
        lasting=failure is not None and bool(failure.advice) and found_here is False,
    )
    if tracker.lost.get(rank):
        error.brief = f"node {hostname} is lost, with rank {rank}"
    else:
        error.brief = f"rank {rank} on {hostname} {_end_in_brief(failure, cause)}"
    return error


@dataclass(frozen=True, kw_only=True)
class _Cause:
    """Why a rank has failed."""

    where: str
    reason: str
    killed: bool
    """Whether the rank, or a process that it had started, was killed for want of memory."""
    traceback: str
    status: str | None = None
    """Of a silent end: faulthandler's words for a crash, a signal's name, or a status."""


def _reported_cause(failure: RankFailure, memory: Mapping[str, Any]) -> _Cause:
    return _Cause(
        where=f"after report {failure.report}" if failure.report else f"in phase {failure.phase}",
        reason=f"{failure.type}: {failure.message}" if failure.type else failure.message,
        # Not the rank itself, as it spoke: a child, such as a loader of data.
        killed=bool(memory.get("kills")),
        traceback=failure.traceback,
    )


def _silent_cause(
    tracker: AttemptTracker,
    launcher_output: str,
    *,
    rank: int,
    pid: int,
    death: tuple[int, int] | None,
    log: Path,
) -> _Cause:
    memory = tracker.memory.get(rank, {})
    crash, traceback = _crash_in(log)
    status = crash or _silent_end(tracker, launcher_output, rank=rank, pid=pid, death=death)
    killed = crash is None and _was_killed_for_memory(status, memory, launcher_output)
    reason = describe_kill(memory) if killed else crash or _describe_death(status, memory)
    if tracker.lost.get(rank):
        reason = "the agent of its node is gone too: the node, or its network, is down"
    return _Cause(
        where="without an exception",
        reason=reason,
        killed=killed,
        traceback=traceback,
        status=status,
    )


def _lines_of_cut_off(ranks: Sequence[int]) -> list[str]:
    """Return a line on ranks that were connected through the one that has failed."""
    if not ranks:
        return []
    what, whose = ("Ranks", "are") if len(ranks) > 1 else ("Rank", "is")
    return [
        f"  {what} {', '.join(map(str, ranks))} of this node {whose} connected through it, and not "
        f"known to have failed"
    ]


def _lines_of_missing_parts(tracker: AttemptTracker, failure: RankFailure | None) -> list[str]:
    """Return lines on ranks that one has waited for, whose own part of a checkpoint is written."""
    if failure is None or failure.type != CheckpointError.__qualname__:
        return []
    missing = tracker.missing_parts(failure.rank)
    if missing is None:
        return []
    found = {
        f"Ranks that have not made report {missing.report}": missing.absent,
        f"Ranks that still write their parts of report {missing.report}": missing.writing,
    }
    return [f"  {what}: {list_ranks(ranks)}" for what, ranks in found.items() if ranks]


def _end_in_brief(failure: RankFailure | None, cause: _Cause) -> str:
    """Return how a rank ended, as the predicate of a sentence."""
    if cause.killed:
        return "was killed (out of memory)"
    if failure is not None:
        first_line = (failure.message.splitlines() or [""])[0]
        described = f"{failure.type}: {first_line}" if failure.type else first_line
        return f"raised {described}" if failure.type else f"failed: {described}"
    status = cause.status
    if status is None:
        return "ended without an error"
    crash, comma, _ = status.partition(",")
    if comma or status in _CRASHES:
        return f"crashed ({crash})"
    return (
        f"was killed ({status})"
        if status.startswith(("SIG", "sig"))
        else (f"exited with status {status}")
    )


def name_next_step(error: TrainingFailedError, *, run: Path, checkpoint: Path | None) -> None:
    """Add to an error that ends a run where its files are, and how to resume it. Not collective."""
    resumes = f"with name={run.name!r} resumes from {checkpoint.name}" if checkpoint else "again"
    message, blank, traceback = str(error).partition("\n\n")
    error.args = (
        f"{message}\n  Run: {run}   Next: fix the cause, then fit() {resumes}.{blank}{traceback}",
    )


def _is_found_here(module: str, paths: RunPaths) -> bool | None:
    """Return whether the executor, elsewhere or later, finds a module; None if it cannot look."""
    with suppress(OSError, HpctrainError):
        settings = RunSpec.from_bytes(read_spec(paths)).settings if module else None
        if settings is None or settings.in_container:
            return False
        return is_found_here(module, settings.sys_path)
    return None


def _crash_in(log: Path) -> tuple[str | None, str]:
    """Return what faulthandler wrote at the end of the log of a crashed rank, and its stack."""
    end = _end_of(log)
    crash = re.search(r"^Fatal Python error: (.+)$", end, re.MULTILINE)
    if crash is None:
        return None, ""
    threads = re.findall(
        r"^(?:Current t|T)hread .*\n(?:  File .*\n?)+", end[crash.end() :], re.MULTILINE
    )
    # Where a thread without Python crashed, none is the current one; the main thread comes last.
    current = [thread for thread in threads if thread.startswith("Current")]
    stack = next(iter(current), threads[-1] if threads else "")
    # What C++ prints of an exception that nothing caught.
    what = re.findall(r"^  what\(\):  (.+)$", end[: crash.start()], re.MULTILINE)
    said = f" ({what[-1].strip()})" if what else ""
    described = (
        f"{crash.group(1)}{said}, a crash in compiled code; its log ends with the Python stack"
    )
    return described, user_part_of_stack(stack) if stack else ""


def _silent_end(
    tracker: AttemptTracker,
    launcher_output: str,
    *,
    rank: int,
    pid: int,
    death: tuple[int, int] | None,
) -> str | None:
    """Return how a rank ended that sent nothing of it: a signal's name, or a status."""
    if death is not None:
        return _name_end(death[1])
    if (status := _exit_status(launcher_output, rank, pid)) is not None:
        return status
    alone = tracker.lost.keys() - tracker.failures.keys() == {rank}
    return _signal_of_all(launcher_output, alone=alone)


def _exit_status(launcher_output: str, rank: int, pid: int) -> str | None:
    """Return how a process ended by its launcher's output: a signal's name, or a status."""
    status = None
    # hydra: "=   PID 123 RUNNING AT host" and "=   EXIT CODE: 9"; a signal's number or a status. It
    # can be that of a rank which hydra itself killed afterwards, hence the pid.
    if found := re.search(rf"PID {pid} RUNNING AT.*?EXIT CODE: (\d+)", launcher_output, re.DOTALL):
        status = found.group(1)
        if re.search(r"EXIT STRING:.*signal", launcher_output) and status in _SIGNALS:
            status = _SIGNALS[status]
    # srun: "srun: error: node2: task 3: Exited with exit code 7", "... tasks 0-2,5: Killed".
    srun = r"tasks? ([\d,-]+): (?:Exited with exit code (\d+)|(Killed)|(Out Of)|Segmentation fault)"
    for tasks, code, killed, memory in re.findall(srun, launcher_output):
        if _holds(tasks, rank):
            status = code or ("SIGKILL" if killed else _OUT_OF_MEMORY if memory else "SIGSEGV")
    # Open MPI: "process rank 2 with PID 0 on node x exited on signal 9 (Killed)", since 5.0 in two
    # lines, and for a status "Process name: [[4711,1],2]", since 5.0 "[prterun-x-4711@1,2]", and
    # "Exit code:    7" below it.
    words = rf"process rank {rank} with PID \d+ on node \S+ exited on signal (\d+)"
    if found := re.search(words.replace(" ", r"\s+"), launcher_output):
        status = _SIGNALS.get(found.group(1), f"signal {found.group(1)}")
    elif found := re.search(rf"Process name: \[\S+,{rank}\]\s+Exit code:\s+(\d+)", launcher_output):
        status = found.group(1)
    return status


def _name_end(wait_status: int) -> str:
    """Return how a process ended: a signal's name, or a status."""
    if not os.WIFSIGNALED(wait_status):
        return str(os.WEXITSTATUS(wait_status))
    number = str(os.WTERMSIG(wait_status))
    return _SIGNALS.get(number, f"signal {number}")


def _signal_of_all(launcher_output: str, *, alone: bool) -> str | None:
    """Return by which signal ranks ended, if that is known of the one that failed first.

    Parameters
    ----------
    alone
        Whether no other rank died silently.
    """
    # hydra, where it killed none itself, prints "EXIT STRING: Killed (signal 9)": the bitwise or of
    # the signals of all. MPICH aborts the peers of a rank that died, with a status and no signal.
    if "BAD TERMINATION" in launcher_output:
        return None
    found = re.search(r"EXIT STRING: .*\(signal (\d+)\)", launcher_output)
    name = None if found is None else _SIGNALS.get(found.group(1), f"signal {found.group(1)}")
    return name if alone or name == "SIGKILL" else None


def _was_killed_for_memory(
    status: str | None, memory: Mapping[str, Any], launcher_output: str
) -> bool:
    if status not in (None, "SIGKILL", _OUT_OF_MEMORY):
        return False
    if status == _OUT_OF_MEMORY or memory.get("kills"):
        return True
    # slurmstepd, of one of its tasks: "Detected 1 oom_kill event in StepId=12.0".
    slurm = re.search(r"oom.?kill|out of memory", launcher_output, re.IGNORECASE)
    return "kills" not in memory and slurm is not None


def _describe_death(status: str | None, memory: Mapping[str, Any]) -> str:
    # Where the kernel counts what it kills for want of memory, it did not.
    counted = "kills" in memory
    if status is None:
        causes = (
            "os._exit, a crash, or a kill" if counted else "os._exit, a crash, or out of memory"
        )
        return f"its process ended ({causes})"
    if status == "SIGKILL":
        return f"killed by SIGKILL{_NOT_FOR_MEMORY if counted else _PERHAPS_FOR_MEMORY}"
    if status == "SIGSEGV":
        return "killed by SIGSEGV: a crash in compiled code; its log ends with the Python stack"
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
    with suppress(OSError):
        return read_end(log, 20_000).decode(errors="replace")
    return ""
