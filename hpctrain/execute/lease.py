"""The lease of a node's agent on the executor: what it does when the executor's node is lost.

Imported only then. A job that Slurm does not end with a node (``--no-kill``) stays there, running
without an owner, when that node was the executor's (measured with Slurm 22.05).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hpctrain import environ, timeouts
from hpctrain.errors import LaunchError
from hpctrain.execute.tuner_sign import leave_to_tuner, shows_life
from hpctrain.log import log
from hpctrain.own_time import OwnTime
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.plan import read_plan
from hpctrain.rundir.run_record import RunRecord
from hpctrain.rundir.states import RunEvent, RunState
from hpctrain.rundir.status import RunStatus, read_status
from hpctrain.slurm.client import retry
from hpctrain.slurm.job import cancel_job, read_own_job, requeue
from hpctrain.slurm.submit import submit_successor
from hpctrain.worker.node_socket import node_name

_LOOK_INTERVAL_S = 2.0
# A controller that is away for longer than its commands wait may come back.
_PAUSES_S = (60.0, 300.0, 900.0)


def is_reachable(address: tuple[str, int]) -> bool:
    """Return whether a host answers, be it with a refusal. Not collective."""
    try:
        socket.create_connection(address, timeout=timeouts.LEASE_CONNECTION_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True


def take_over(
    run_dir: Path,
    address: tuple[str, int],
    *,
    lease_s: float,
    let_end: Callable[[bool], object] = lambda _: None,
) -> None:
    """Let a run go on in another job, unless its executor, or another one, is alive.

    Not collective, but called on every node of the job: one of them acts.

    Parameters
    ----------
    run_dir
        The run directory.
    address
        Where the executor was.
    lease_s
        Seconds without a sign of life of any executor.
    let_end
        Called with whether a signal may end this agent: where another one acts, this one only
        waits, in case it does not succeed.
    """
    paths = RunPaths(run_dir)
    before = read_status(paths)
    if before is not None and before.state.is_final:
        return
    own = OwnTime(
        time.monotonic(), longest_gap_s=_LOOK_INTERVAL_S + timeouts.LEASE_CONNECTION_S + 1.0
    )
    patience_s = lease_s
    while own.look(time.monotonic()) < patience_s:
        present = read_status(paths)
        if (present and present.mark) != (before and before.mark):
            return
        if is_reachable(address):
            # The executor's supervisor, or Slurm, sees to it as a rule.
            patience_s = max(lease_s, timeouts.EXECUTOR_RESTART_S)
        time.sleep(_LOOK_INTERVAL_S)
    for pause_s in (*_PAUSES_S, None):
        present = read_status(paths)
        if (present and present.mark) != (before and before.mark):
            return
        if _acts(paths, before, is_last=pause_s is None, let_end=let_end):
            return
        time.sleep(pause_s or 0.0)


def _acts(
    paths: RunPaths,
    before: RunStatus | None,
    *,
    is_last: bool,
    let_end: Callable[[bool], object] = lambda _: None,
) -> bool:
    """Let the run go on in another job; return False if it is to be tried again.

    Slurm may refuse it, also another agent that tries at this moment and may die then. After the
    last try the job is cancelled: it would keep its nodes until its limit.
    """
    attempt = 0 if before is None else before.attempt
    let_end(False)
    if not _is_first(paths, attempt):
        let_end(True)
        return is_last
    record, host = RunRecord(paths), None if before is None else before.owner_host
    record.append("executor-lost", host=host, attempt=attempt, found_by=node_name())
    try:
        own_id = _continue_elsewhere(paths)
    except LaunchError as error:
        log(f"the run cannot go on in another job: {error}")
        if not is_last:
            paths.lease(attempt).unlink(missing_ok=True)
            return False
        record.append("gave-up", reason=f"its executor is lost, and Slurm refuses: {error}")
        own_id = _own_id()
    if own_id is not None:
        retry(partial(cancel_job, own_id), patience_s=timeouts.CONTROLLER_S)
    return True


def _is_first(paths: RunPaths, attempt: int) -> bool:
    """Return whether no other agent has begun to act."""
    try:
        os.close(os.open(paths.lease(attempt), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    return True


def _continue_elsewhere(paths: RunPaths) -> str | None:
    """Let the run go on in this job, queued again, or in another one.

    Returns
    -------
    str or None
        The job to cancel: this one, if another one goes on.

    Raises
    ------
    LaunchError
        If Slurm refuses, or does not answer.
    """
    job = read_own_job(patience_s=timeouts.CONTROLLER_S)
    if job is None or not job.is_running:
        # Slurm has noticed by itself.
        return None
    plan = read_plan(paths, needs=["launch_plan"])["launch_plan"]
    if plan["requeue"] and job.is_batch and job.may_requeue:
        try:
            # This process ends with the job.
            requeue(job.own_id, patience_s=timeouts.CONTROLLER_S)
            return None
        except LaunchError as refusal:
            if refusal.transient or plan["launcher"] != "slurm":
                # It may be queued all the same.
                raise
            RunRecord(paths).append("requeue-refused", job_id=job.job_id, error=str(refusal))
    if plan["launcher"] == "slurm":
        sign = plan.get("tuner_sign")
        if sign and shows_life(Path(sign), patience_s=timeouts.TUNER_SIGN_S):
            _leave_to_tuner(paths, job.job_id)
        else:
            _submit_successor(paths, job.job_id)
    return job.own_id


def _own_id() -> str | None:
    """Return what `Job.own_id` is of the job of this process, which Slurm does not tell."""
    task = environ.variable("SLURM_ARRAY_TASK_ID")
    if task is not None:
        return f"{environ.variable('SLURM_ARRAY_JOB_ID')}_{task}"
    return environ.variable("SLURM_JOB_ID")


def _submit_successor(paths: RunPaths, job_id: str) -> None:
    present = read_status(paths)
    successor = submit_successor(
        paths,
        patience_s=timeouts.CONTROLLER_S,
        why="",
        checkpoint=None if present is None else present.checkpoint,
    )
    present = read_status(paths)
    if present is not None and present.job_id == job_id:
        RunRecord(paths).write(present.after(RunEvent.SUBMITTED, job_id=successor))


def _leave_to_tuner(paths: RunPaths, job_id: str) -> None:
    record, present = RunRecord(paths), read_status(paths)
    if present is None or present.job_id != job_id:
        return
    why = f"node {present.owner_host}, which had the executor, is lost"
    patience_s = timeouts.CONTROLLER_S
    leave_to_tuner(paths, why=why, checkpoint=present.checkpoint, patience_s=patience_s)
    record.append("run-ended", state=RunState.STOPPED.value, error=why)
    # The last one: once the tuner sees it, the run begins anew.
    record.write(present.after(RunEvent.STOPPED, error=f"{why}; the tuner of its sweep goes on."))
