"""Stop a run: at its next report, or at once."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from hpctrain import linux, timeouts
from hpctrain.errors import ConfigError, HpctrainError, LaunchError
from hpctrain.execute.process import process_start_time
from hpctrain.launch.settle import read_settled_status
from hpctrain.log import log
from hpctrain.own_time import ANY_GAP_S, Deadline
from hpctrain.rundir.files import write_atomic
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import is_same_file
from hpctrain.rundir.run_record import RunRecord
from hpctrain.rundir.states import RunEvent, RunState
from hpctrain.rundir.status import RunStatus, read_status
from hpctrain.rundir.sweep import sweep_of
from hpctrain.slurm.job import cancel_job, find_job, find_script_of_job, scripts_of_jobs
from hpctrain.slurm.validation_submission import record_file, validation_jobs

_POLL_S = 0.2


def cancel_run(paths: RunPaths, *, now: bool, patience_s: float = timeouts.CANCEL_END_S) -> str:
    """Stop a run, if it is not over; return what was done, for a person.

    Not collective. `now`: end it at once. Otherwise it stops at its next report, and a job that has
    not begun is taken back from Slurm.

    Parameters
    ----------
    patience_s
        Seconds for which the end of its job is waited for.

    Raises
    ------
    ConfigError
        If it cannot be ended from here.
    LaunchError
        If Slurm does not answer.
    """
    done = _stop_run(paths, now=now, patience_s=patience_s)
    return done + end_validations(paths) if now else done


def _stop_run(paths: RunPaths, *, now: bool, patience_s: float) -> str:
    status = read_settled_status(paths)
    if status is not None and status.state.is_final:
        return f"{status.name} is {status.state.value}; there is nothing to cancel."
    if status is not None and status.job_id is not None and status.launcher == "slurm":
        job = find_job(status.job_id)
        if job is not None and not job.is_final:
            _refuse_foreign_job(paths, status.job_id)
        if job is not None and job.state == "PENDING":
            return withdraw_job(paths, status.job_id)
        if now:
            return end_job(paths, status.job_id, patience_s=patience_s)
    elif now and status is not None and status.state is not RunState.SUBMITTING:
        return end_process(paths, status)
    elif now:
        raise ConfigError(
            f"{paths.root.name} is being submitted, and has no job yet that could be ended. Try "
            f"again in a moment, or leave --now out."
        )
    return request_stop(paths)


def request_stop(paths: RunPaths) -> str:
    """Ask the executor of a run to stop it at its next report; return what was done."""
    write_atomic(paths.stop_request, f"hpctrain cancel, {time.time():.0f}\n".encode())
    return (
        f"asked {paths.root.name} to stop at its next report. Wait for it with: hpctrain wait "
        f"{paths.root}   End it at once with: hpctrain cancel --now {paths.root}"
    )


def withdraw_job(paths: RunPaths, job_id: str) -> str:
    """Take a job back that has not begun; return what was done. Not collective."""
    # It may begin at any moment; then it is not to be ended like this.
    cancel_job(job_id, only_pending=True)
    if _has_job_ended(job_id, patience_s=timeouts.CANCEL_BEGIN_S, may_run=False):
        return record_end(paths, f"job {job_id} was cancelled before it began")
    request_stop(paths)
    return f"job {job_id} has begun, and was asked to stop at its next report."


def end_job(paths: RunPaths, job_id: str, *, patience_s: float = timeouts.CANCEL_END_S) -> str:
    """End the job of a run at once; return what was done. Not collective."""
    cancel_job(job_id)
    if _has_job_ended(job_id, patience_s=patience_s, may_run=True):
        return record_end(paths, f"job {job_id} was ended by hpctrain cancel --now")
    return f"Slurm has been asked to end job {job_id}, and has not done it yet."


def end_process(paths: RunPaths, status: RunStatus) -> str:
    """End the executor of a run at once; return what was done. Not collective.

    Raises
    ------
    ConfigError
        If it is on another host, or does not end.
    """
    was_there = signal_process(paths, status)
    return await_process(paths, status, was_there=was_there, patience_s=timeouts.CANCEL_END_S)


def signal_process(paths: RunPaths, status: RunStatus) -> bool:
    """Send SIGTERM to the executor of a run; return whether it was there. Not collective.

    Raises
    ------
    ConfigError
        If it is on another host.
    """
    refuse_unknown_process(paths, status)
    if sweep_of(paths.root) is not None:
        # Without it the tuner would start another one in its place.
        request_stop(paths)
    if status.owner_host != socket.gethostname():
        raise ConfigError(
            f"{paths.root.name} is run by process {status.owner_pid} on {status.owner_host}, and "
            f"this is {socket.gethostname()}. Run hpctrain cancel --now there, or leave --now out."
        )
    return _signal_executor(paths, status)


def await_process(paths: RunPaths, status: RunStatus, *, was_there: bool, patience_s: float) -> str:
    """Wait for the end of an executor that was sent SIGTERM; return what was done.

    Not collective.

    Parameters
    ----------
    was_there
        As `signal_process` returns it.
    patience_s
        Seconds for which it is waited for.

    Raises
    ------
    ConfigError
        If it does not end.
    """
    if was_there:
        _await_executor(status, patience_s)
    how = "it was ended by hpctrain cancel --now" if was_there else "its executor is gone"
    return record_end(paths, how)


def end_processes(runs: Iterable[RunPaths], *, patience_s: float) -> None:
    """End the executors of some runs, all at the same time. Not collective.

    What goes wrong with one of them is logged.

    Parameters
    ----------
    patience_s
        Seconds for which their ends are waited for, all together.
    """
    deadline, signalled = Deadline(patience_s, longest_gap_s=ANY_GAP_S), []
    for paths in runs:
        with _warned():
            status = read_status(paths)
            if status is not None and not status.state.is_final:
                signalled.append((paths, status, signal_process(paths, status)))
    for paths, status, was_there in signalled:
        left_s = deadline.left_s
        with _warned():
            await_process(paths, status, was_there=was_there, patience_s=left_s)


@contextmanager
def _warned() -> Iterator[None]:
    """Log what goes wrong with one of several runs."""
    try:
        yield
    except (HpctrainError, OSError) as error:
        log(f"warning: {error}")


def end_executor(paths: RunPaths, status: RunStatus) -> bool:
    """End the process of this host that a status names, and write nothing down; wait for its end.

    Not collective. Returns whether there was a process of that number.

    Raises
    ------
    ConfigError
        If it is not at work on the run, or does not end.
    """
    was_there = _signal_executor(paths, status)
    if was_there:
        _await_executor(status, timeouts.CANCEL_END_S)
    return was_there


def _signal_executor(paths: RunPaths, status: RunStatus) -> bool:
    try:
        # While it is open, the number cannot become another process's.
        descriptor = linux.pidfd_open(status.owner_pid)
    except ProcessLookupError:
        return False
    try:
        if process_start_time(status.owner_pid) == status.owner_start:
            _refuse_foreign_process(paths, status.owner_pid)
            linux.pidfd_send_signal(descriptor, signal.SIGTERM)
    finally:
        os.close(descriptor)
    return True


def _await_executor(status: RunStatus, patience_s: float) -> None:
    deadline = Deadline(patience_s, longest_gap_s=ANY_GAP_S)
    while process_start_time(status.owner_pid) == status.owner_start:
        if deadline.is_over:
            raise ConfigError(
                f"process {status.owner_pid} was sent SIGTERM and still runs"
                f"{_show_patience(patience_s)}. kill -9 {status.owner_pid} ends it without a "
                f"checkpoint."
            )
        time.sleep(_POLL_S)


def _show_patience(patience_s: float) -> str:
    # None is left where others were waited for before.
    return f" after {timeouts.describe(patience_s)}" if patience_s else ""


def end_validations(paths: RunPaths) -> str:
    """Cancel the jobs that validate checkpoints of a run; return what was done, with a space.

    Not collective. A run that resumes submits them again. Nothing is asked of Slurm where there are
    none.
    """
    jobs = validation_jobs(paths)
    if not jobs:
        return ""
    ended, numbers = [], ", ".join(jobs.values())
    try:
        known = scripts_of_jobs(paths.batch_script)
        for script, job_id in jobs.items():
            # Whatever is in the files, no other job is ended.
            if job_id in known and is_same_file(known[job_id], script):
                cancel_job(job_id)
                ended.append(job_id)
            for path in (record_file(script), script):
                path.unlink(missing_ok=True)
    except (LaunchError, OSError) as error:
        return f" Jobs that validate its checkpoints may go on ({numbers}): {error}"
    return f" Cancelled what validates its checkpoints: job {', '.join(ended)}." if ended else ""


def refuse_unknown_process(paths: RunPaths, status: RunStatus) -> None:
    """Refuse to end a run whose process is not known.

    Raises
    ------
    ConfigError
        If its status does not name it.
    """
    if status.owner_pid <= 0:
        raise ConfigError(
            f"{paths.status} does not say which process runs {paths.root.name}. Try again in some "
            f"seconds, in which its executor writes the file, or leave --now out."
        )


def _refuse_foreign_process(paths: RunPaths, pid: int) -> None:
    """Refuse to signal a process that is not at work on the run, whatever is in its files."""
    # An executor holds the directory open all the time, and no other user can make it do so.
    try:
        root, descriptors = os.stat(paths.root), os.listdir(f"/proc/{pid}/fd")
    except OSError as error:
        raise ConfigError(
            f"process {pid} cannot be ended from here: {error.strerror}. Leave --now out."
        ) from error
    for descriptor in descriptors:
        with suppress(OSError):
            if os.path.samestat(os.stat(f"/proc/{pid}/fd/{descriptor}"), root):
                return
    raise ConfigError(
        f"{paths.status} names process {pid} as the executor, which does not have {paths.root} "
        f"open: it was not signalled. Look at it with: ps -fp {pid}   If that is not of the run, "
        f"the file is not to be trusted."
    )


def _refuse_foreign_job(paths: RunPaths, job_id: str) -> None:
    """Refuse to end a job that is not one of the run, whatever is in its files."""
    script = find_script_of_job(job_id, paths.batch_script)
    if script is not None and is_same_file(script, paths.batch_script):
        return
    whose = "another user's" if script is None else f"one that runs {script}"
    raise ConfigError(
        f"{paths.status} names job {job_id}, which is {whose} and not of this run: it was not "
        f"cancelled. Look at it with: scontrol show job {job_id}"
    )


def record_end(paths: RunPaths, reason: str) -> str:
    """Write the last status of a run whose executor cannot any more; return it in words."""
    status = read_status(paths)
    assert status is not None
    if not status.state.is_final:
        message = f"{reason}; the same command resumes it."
        RunRecord(paths).write(status.after(RunEvent.STOPPED, error=message))
        RunRecord(paths).append("run-ended", state=RunState.STOPPED.value, error=message)
    return f"{paths.root.name} is over: {reason}."


def _has_job_ended(job_id: str, *, patience_s: float, may_run: bool) -> bool:
    deadline = Deadline(patience_s, longest_gap_s=ANY_GAP_S)
    while True:
        job = find_job(job_id)
        if job is None or job.is_final:
            return True
        if job.state == "RUNNING" and not may_run:
            return False
        if deadline.is_over:
            return False
        time.sleep(_POLL_S)
