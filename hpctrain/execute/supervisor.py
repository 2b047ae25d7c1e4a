"""The supervisor of a job: ``python -m hpctrain.execute.supervisor RUN DIGEST``.

It keeps an executor running. It has no threads and does nothing but wait, so nothing can go wrong
in it; the executor is its child, and is started again if it dies of anything but its own decision.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain import environ, linux
from hpctrain.errors import HpctrainError, RunStoppedError, SupersededError
from hpctrain.execute.fence import Fence
from hpctrain.execute.first_steps import FirstSteps, begin_first_steps
from hpctrain.execute.ownership import Ownership, await_ownership
from hpctrain.log import log, log_traceback
from hpctrain.plan.spec import RunSpec
from hpctrain.rundir.directory import HeldDirectory
from hpctrain.rundir.ledger import newest_attempt
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.trust import check_run_directory, read_spec
from hpctrain.worker.uncollected import uncollected

if TYPE_CHECKING:
    from hpctrain.rundir.status import RunStatus

MAX_RESTARTS_WITHOUT_ATTEMPT = 3
"""An executor that is killed so often in a row before it begins an attempt is not started again."""

_SIGNALS = (signal.SIGUSR2, signal.SIGTERM)
# An executor is started within seconds, and its start has the CPUs to itself.
_CALM_S = 10.0


def supervise(run_dir: str, spec_digest: str | None = None) -> None:
    """Run the executor of a run to its end. Not collective."""
    # What a signal means is the executor's business, which gets it too, and has some seconds to act
    # before Slurm's SIGKILL.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    paths = RunPaths(Path(run_dir))
    owner = await_ownership(paths)
    if owner is not Ownership.MINE:
        job_id = environ.variable("SLURM_JOB_ID")
        log(f"{paths.root} is run by {owner.value}, not by job {job_id}.", to=sys.stdout)
        return
    directory = HeldDirectory(paths)
    attempts, without_progress = newest_attempt(paths), 0
    while without_progress <= MAX_RESTARTS_WITHOUT_ATTEMPT and _is_here(directory):
        fence = Fence(paths)
        pid = os.fork()
        if pid == 0:
            os._exit(_run_executor(paths, spec_digest))
        _import_for_another(pid)
        _, wait_status = os.waitpid(pid, 0)
        if os.WIFEXITED(wait_status):
            if exit_status := os.WEXITSTATUS(wait_status):
                # So that the job is FAILED for Slurm, and its dependents with afterok do not start.
                raise SystemExit(exit_status)
            return
        try:
            fence.check_after(paths, child=pid)
        except SupersededError as error:
            log(str(error))
            raise SystemExit(error.exit_code) from None
        status = _note_death(directory.paths, pid=pid, number=os.WTERMSIG(wait_status))
        if status is not None and status.state.is_final:
            # In a callback, as a rule: the run had ended.
            if status.state is RunState.FINISHED:
                return
            break
        # One that could begin an attempt has looked at the budgets; one that could not, has not.
        attempts, before = newest_attempt(paths), attempts
        without_progress = 0 if attempts > before else without_progress + 1
    raise SystemExit(1)


def _note_death(paths: RunPaths, *, pid: int, number: int) -> RunStatus | None:
    """Write down that a signal has killed the executor; return the run's status, if it is known."""
    try:
        from hpctrain.rundir.run_record import RunRecord
        from hpctrain.rundir.status import read_status

        RunRecord(paths).append("executor-died", signal=number, pid=pid)
        return read_status(paths)
    except (OSError, ImportError) as error:
        # The next executor sees for itself what became of this one.
        log(f"cannot write down that the executor died: {error}")
        return None


def _import_for_another(pid: int) -> None:
    """Import what an executor imports, once the one that is there has had its start.

    A filesystem that is away when it dies, and the cause of that, need not be read then.
    """
    try:
        descriptor = linux.pidfd_open(pid)
    except OSError:
        # Linux before 5.3.
        return
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        if not poller.poll(_CALM_S * 1000):
            importlib.import_module("hpctrain.execute.stored_executor")
    except Exception as error:
        log(f"an executor that follows this one will have to import anew: {error}")
    finally:
        os.close(descriptor)


def _is_here(directory: HeldDirectory) -> bool:
    try:
        directory.check()
    except RunStoppedError as error:
        log(str(error))
        return False
    return True


def _run_executor(paths: RunPaths, spec_digest: str | None) -> int:
    """Run the executor in this process; return its exit status."""
    signals: list[str] = []
    first_steps: FirstSteps | None = None
    try:
        # Before anything is started: what a process ignores, its children ignore.
        for number in _SIGNALS:
            signal.signal(number, lambda n, _: signals.append(signal.Signals(n).name))
        check_run_directory(paths.root)
        content = read_spec(paths, digest=spec_digest)
        run_spec = RunSpec.from_bytes(content)
        first_steps = begin_first_steps(paths, run_spec)
        with uncollected():
            # Most of what an executor imports is in this one.
            from hpctrain.execute.stored_executor import open_executor

        executor = open_executor(paths, content, run_spec, first_steps=first_steps, signals=signals)
        executor.run()
    except BaseException as error:
        if first_steps is not None:
            first_steps.abandon()
        return report_end(error)
    return 0


def report_end(error: BaseException) -> int:
    """Log what ended an executor; return the exit status of its process. Not collective."""
    if isinstance(error, HpctrainError):
        log(str(error))
        return error.exit_code if isinstance(error, SupersededError) else 1
    log_traceback(error)
    return 1


if __name__ == "__main__":
    supervise(*sys.argv[1:])
