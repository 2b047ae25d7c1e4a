"""The supervisor of a job: ``python -m hpctrain.execute.supervisor RUN DIGEST``.

It keeps an executor running. It has no threads and does nothing but wait, so nothing can go wrong
in it; the executor is its child, and is started again if it dies of anything but its own decision.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from hpctrain import environ
from hpctrain.errors import HpctrainError, RunStoppedError, SupersededError
from hpctrain.execute.executor import Executor
from hpctrain.execute.failure_policy import MAX_RESTARTS_WITHOUT_ATTEMPT
from hpctrain.execute.fence import Fence
from hpctrain.execute.fork_server import fork_server_for
from hpctrain.execute.ownership import Ownership, await_ownership
from hpctrain.log import log, log_traceback
from hpctrain.plan import spec
from hpctrain.plan.spec import RunSpec
from hpctrain.rundir.directory import HeldDirectory
from hpctrain.rundir.ledger import count_attempts
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.run_record import RunRecord
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import read_status
from hpctrain.rundir.trust import check_run_directory, digest_spec, read_spec

_SIGNALS = (signal.SIGUSR2, signal.SIGTERM)


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
    attempts, without_progress = count_attempts(paths), 0
    while without_progress <= MAX_RESTARTS_WITHOUT_ATTEMPT and _is_here(directory):
        fence = Fence(paths)
        pid = os.fork()
        if pid == 0:
            os._exit(_run_executor(paths, spec_digest))
        _, wait_status = os.waitpid(pid, 0)
        if os.WIFEXITED(wait_status):
            if exit_status := os.WEXITSTATUS(wait_status):
                # So that the job is FAILED for Slurm, and its dependents with afterok do not start.
                raise SystemExit(exit_status)
            return
        status = None
        try:
            fence.check_after(paths, child=pid)
        except SupersededError as error:
            log(str(error))
            raise SystemExit(error.exit_code) from None
        try:
            RunRecord(directory.paths).append(
                "executor-died", signal=os.WTERMSIG(wait_status), pid=pid
            )
            status = read_status(directory.paths)
        except OSError as error:
            # The next executor sees for itself what became of this one.
            log(f"cannot write down that the executor died: {error}")
        if status is not None and status.state.is_final:
            # In a callback, as a rule: the run had ended.
            if status.state is RunState.FINISHED:
                return
            break
        # One that could begin an attempt has looked at the budgets; one that could not, has not.
        attempts, before = count_attempts(paths), attempts
        without_progress = 0 if attempts > before else without_progress + 1
    raise SystemExit(1)


def _is_here(directory: HeldDirectory) -> bool:
    try:
        directory.check()
    except RunStoppedError as error:
        log(str(error))
        return False
    return True


def stored_executor(
    paths: RunPaths, spec_digest: str | None = None, *, fork_server: str = ""
) -> Executor:
    """Return the executor of a run, as it was written into ``spec.pkl``.

    Not collective. This unpickles what the user's process has pickled.

    Parameters
    ----------
    spec_digest
        That of what was submitted; None if an older hpctrain has submitted it.
    fork_server
        Name of one that another process has started; empty without one.

    Raises
    ------
    ConfigError, DamagedFileError
        If another user could have written it, or has.
    """
    check_run_directory(paths.root)
    content = read_spec(paths, digest=spec_digest)
    run_spec = RunSpec.from_bytes(content)
    # Callbacks may be of modules beside the script.
    sys.path[:] = list(dict.fromkeys((*run_spec.settings.sys_path, *sys.path)))
    if run_spec.sources:
        from hpctrain.worker.pinned import pin_sources

        pin_sources(run_spec.sources)
    run_config, plan, resume_from = spec.unpack(run_spec.executor)
    return Executor(
        paths=paths,
        plan=plan,
        run_config=run_config,
        spec_digest=digest_spec(content),
        resume_from=resume_from,
        fork_server=fork_server_for(plan, run_spec.settings, offered=fork_server),
    )


def _run_executor(paths: RunPaths, spec_digest: str | None) -> int:
    """Run the executor in this process; return its exit status."""
    try:
        executor = stored_executor(paths, spec_digest)
        for number in _SIGNALS:
            signal.signal(number, lambda n, _: executor.signals.append(signal.Signals(n).name))
        executor.run()
    except BaseException as error:
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
