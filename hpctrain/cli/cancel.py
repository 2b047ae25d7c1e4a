"""``hpctrain cancel``: stop a run so that it can be resumed, or end it at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hpctrain.cli.options import DEFAULT_STORAGE, DryRunOption, RunArgument, StorageOption

if TYPE_CHECKING:
    from hpctrain.cli.run_view import RunView
    from hpctrain.rundir.paths import RunPaths

_END_PATIENCE_S = 45.0
"""Slurm's KillWait is 30 s."""
_POLL_S = 0.2


def cancel(
    run: RunArgument,
    storage: StorageOption = DEFAULT_STORAGE,
    now: Annotated[
        bool, typer.Option("--now", help="End it at once, without a last checkpoint.")
    ] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Stop a run at its next report.

    The same command resumes it. A job that has not begun is taken back from Slurm.
    """
    from hpctrain.cli.exit_codes import say
    from hpctrain.cli.run_view import find_run, view_run

    paths = find_run(run, storage)
    view = view_run(paths)
    if view.is_over:
        say(f"{view.name} is {view.state}; there is nothing to cancel.")
        if not view.status.is_of(paths.root):
            say(f"Its original is {view.status.path}, and was not touched.")
        return
    if view.job_state == "PENDING":
        _withdraw(paths, view, dry_run=dry_run)
    elif now:
        _end_now(paths, view, dry_run=dry_run)
    elif dry_run:
        print(f"would ask {view.name} to stop: {paths.stop_request}")
    else:
        _request_stop(paths)
        say(
            f"asked {view.name} to stop at its next report. Wait for it with: hpctrain wait "
            f"{paths.root}   End it at once with: hpctrain cancel --now {paths.root}"
        )


def _request_stop(paths: RunPaths) -> None:
    import time

    from hpctrain.rundir.files import write_atomic

    write_atomic(paths.stop_request, f"hpctrain cancel, {time.time():.0f}\n".encode())


def _withdraw(paths: RunPaths, view: RunView, *, dry_run: bool) -> None:
    from hpctrain.slurm.job import cancel_argv, cancel_job

    assert view.status.job_id is not None
    if dry_run:
        print(f"would run: {' '.join(cancel_argv(view.status.job_id, only_pending=True))}")
        return
    # It may begin at any moment; then it is not to be ended like this.
    cancel_job(view.status.job_id, only_pending=True)
    if _has_job_ended(view.status.job_id, patience_s=5.0):
        _record_end(paths, f"job {view.status.job_id} was cancelled before it began")
    else:
        _request_stop(paths)
        print(f"job {view.status.job_id} has begun, and was asked to stop at its next report.")


def _end_now(paths: RunPaths, view: RunView, *, dry_run: bool) -> None:
    status = view.status
    if status.launcher == "slurm":
        _end_job(paths, view, dry_run=dry_run)
    elif dry_run:
        print(f"would send SIGTERM to process {status.owner_pid} on {status.owner_host}")
    else:
        _end_process(paths, view)


def _end_job(paths: RunPaths, view: RunView, *, dry_run: bool) -> None:
    from hpctrain.cli.exit_codes import say
    from hpctrain.slurm.job import cancel_argv, cancel_job

    job_id = view.status.job_id
    assert job_id is not None
    if dry_run:
        print(f"would run: {' '.join(cancel_argv(job_id))}")
        return
    cancel_job(job_id)
    if _has_job_ended(job_id, patience_s=_END_PATIENCE_S):
        _record_end(paths, f"job {job_id} was ended by hpctrain cancel --now")
    else:
        say(f"Slurm has been told to end job {job_id}, and has not done it yet.")


def _end_process(paths: RunPaths, view: RunView) -> None:
    import os
    import signal
    import socket
    import time

    from hpctrain.errors import ConfigError
    from hpctrain.execute.process import process_start_time

    status = view.status
    if status.owner_host != socket.gethostname():
        raise ConfigError(
            f"{view.name} is run by process {status.owner_pid} on {status.owner_host}, and this is "
            f"{socket.gethostname()}. Run hpctrain cancel --now there, or leave --now out."
        )
    try:
        # While it is open, the number cannot become another process's.
        descriptor = os.pidfd_open(status.owner_pid)
    except ProcessLookupError:
        _record_end(paths, "its executor is gone")
        return
    try:
        if process_start_time(status.owner_pid) == status.owner_start:
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
    finally:
        os.close(descriptor)
    deadline = time.monotonic() + _END_PATIENCE_S
    while process_start_time(status.owner_pid) == status.owner_start:
        if time.monotonic() > deadline:
            raise ConfigError(
                f"process {status.owner_pid} was sent SIGTERM {_END_PATIENCE_S:.0f} s ago and "
                f"still runs. kill -9 {status.owner_pid} ends it without its consent."
            )
        time.sleep(_POLL_S)
    _record_end(paths, "it was ended by hpctrain cancel --now")


def _has_job_ended(job_id: str, *, patience_s: float) -> bool:
    import time

    from hpctrain.slurm.job import find_job

    deadline = time.monotonic() + patience_s
    while True:
        job = find_job(job_id)
        if job is None or job.is_final:
            return True
        if job.state == "RUNNING" and patience_s < _END_PATIENCE_S:
            return False
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)


def _record_end(paths: RunPaths, reason: str) -> None:
    """Write the last word of a run whose executor cannot any more."""
    import time

    from hpctrain.cli.exit_codes import say
    from hpctrain.rundir.ledger import append_event
    from hpctrain.rundir.status import RunState, read_status, write_status

    status = read_status(paths)
    assert status is not None
    if not status.state.is_final:
        message = f"{reason}; the same command resumes it."
        write_status(
            paths,
            status.with_changes(state=RunState.STOPPED, error=message, ended_at=time.time()),
        )
        append_event(paths, "run-ended", state=RunState.STOPPED.value, error=message)
    say(f"{paths.root.name} is over: {reason}.")
