"""Submit the executor of a run as a job: the first one, and its successors."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpctrain import environ, timeouts
from hpctrain.config import ScalingConfig
from hpctrain.errors import ConfigError, LaunchError
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.plan.process_argv import supervisor_argv
from hpctrain.plan.sbatch import escape_directives, option_words
from hpctrain.plan.visibility import process_checks, run_directory_check
from hpctrain.rundir import files
from hpctrain.rundir.files import make_directory, write_atomic
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.run_record import RunRecord
from hpctrain.rundir.trust import check_run_directory
from hpctrain.slurm.client import (
    explain_unknown_job,
    find_submitted_job,
    is_passing,
    retry,
    run_slurm,
    sbatch_argv,
)
from hpctrain.slurm.probe import explain_refusal

# Exit statuses of coreutils' `timeout` and `env`.
_TIMED_OUT = 124
_NOT_FOUND = 127


def make_batch_script(
    plan: LaunchPlan, paths: RunPaths, *, cwd: str, spec_digest: str | None = None
) -> str:
    """Return the script of a run's jobs: of the first one, and of its successors.

    Not collective.

    Parameters
    ----------
    plan
        On what the run runs.
    paths
        The run directory.
    cwd
        The working directory of its processes.
    spec_digest
        That of ``spec.pkl``, if it is there: Slurm keeps the script that it was given, so the job
        runs nothing else.
    """
    # submitit takes as long to import as all else of a submission.
    from hpctrain.slurm.executor import ScriptExecutor

    executor = ScriptExecutor(paths.submission)
    executor.update_parameters(
        **script_parameters(plan.directives, signal_delay_s=plan.stop_notice_s),
        setup=batch_setup(plan, paths, cwd=cwd),
        teardown=batch_teardown(),
        # The steps that the executor starts are its own: it is none itself.
        use_srun=False,
    )
    argv = supervisor_argv(sys.executable, run_dir=str(paths.root), spec_digest=spec_digest)
    return executor.render(shlex.join(argv))


def batch_setup(plan: LaunchPlan, paths: RunPaths, *, cwd: str) -> list[str]:
    """Return the shell lines of the batch script before the executor.

    Not collective. The arguments are those of `make_batch_script`.
    """
    return [
        # Without a trap the shell ends at the warning of a preemption or scancel, and Slurm kills
        # the executor with it; with one it waits for its child.
        "trap : TERM USR2",
        run_directory_check(str(paths.root)),
        # It may unpack the environment, or make the directory.
        *plan.setup,
        *process_checks(cwd, sys.executable),
    ]


def batch_teardown() -> list[str]:
    """Return the shell lines of the batch script after the executor. Pure; not collective."""
    return [
        "status=$?",
        # Killed, and not by the end of the job, which this shell would not have survived: out of
        # memory, as a rule. The ledger bounds how often that is tried.
        'test $status -le 128 || scontrol requeue "$SLURM_JOB_ID"',
        "exit $status",
    ]


def submit_executor(
    plan: LaunchPlan, paths: RunPaths, scaling: ScalingConfig, *, cwd: str, spec_digest: str
) -> str:
    """Submit the executor of a run; return the id of its job. Not collective.

    Parameters
    ----------
    scaling
        What was asked for, in whose words a refusal is explained.
    cwd
        The working directory of its processes.
    spec_digest
        That of ``spec.pkl``.

    Raises
    ------
    LaunchError
        If Slurm refuses the job.
    """
    # A job whose log directory does not exist dies and prints nothing, so it is made before.
    make_directory(paths.submission, below=paths.root)
    # Lines of its setup may hold a password.
    script = make_batch_script(plan, paths, cwd=cwd, spec_digest=spec_digest).encode()
    write_atomic(paths.batch_script, script, mode=0o600)
    return submit_stored(paths.batch_script, plan.first_job_directives, scaling=scaling)


def submit_successor(
    paths: RunPaths, *, patience_s: float, why: str, checkpoint: str | None
) -> str:
    """Submit the run's batch script again, as another job; return its id. Not collective.

    Between the two entries in the ledger, ``handing-over`` and ``successor``, the new job may have
    begun: it then waits for the second one, and owns the run if that does not come.

    Parameters
    ----------
    patience_s
        Seconds for which it is tried.
    why
        Why the job that submits it ends.
    checkpoint
        Name of the checkpoint that the run resumes from; None if it has none.

    Raises
    ------
    LaunchError
        If Slurm refuses, or its controller does not answer within `patience_s`.
    """
    try:
        # What it submits is read by its path.
        check_run_directory(paths.root)
    except ConfigError as error:
        raise LaunchError(str(error)) from error
    job_id = environ.variable("SLURM_JOB_ID")
    # Without it the new job takes itself for one that owns nothing.
    files.retry(
        lambda: RunRecord(paths).append("handing-over", job_id=job_id), patience_s=patience_s
    )
    successor = retry(
        lambda: submit_stored(paths.batch_script, timeout_s=timeouts.SUCCESSOR_SUBMISSION_S),
        patience_s=patience_s,
    )
    with suppress(OSError):
        # On a full disk: it waits for this word, and then does without.
        RunRecord(paths).append(
            "successor", job_id=successor, after=job_id, why=why, checkpoint=checkpoint
        )
    return successor


def submit_stored(
    script: Path,
    directives: Mapping[str, str | None] | None = None,
    *,
    timeout_s: timeouts.Timeout | None = None,
    scaling: ScalingConfig | None = None,
) -> str:
    """Submit a script that is stored in the run directory; return the job's id. Not collective.

    Parameters
    ----------
    directives
        Further options of sbatch, which are not in the script.
    timeout_s
        Seconds that sbatch may take; None leaves it to Slurm.
    scaling
        What was asked for, in whose words a refusal is explained; None leaves Slurm's own.

    Raises
    ------
    LaunchError
        If Slurm refuses, or does not answer.
    """
    command = [
        # It ends what a wrapper around sbatch has started, too.
        *([] if timeout_s is None else ["timeout", "--kill-after=1", f"{timeout_s:g}"]),
        *sbatch_argv(),
        *option_words(directives or {}),
        str(script),
    ]
    try:
        # Its disk may be away for some time, which sbatch does not tell from a file that is none.
        script.open().close()
        # Not through submitit, which takes what is not UTF-8 for the end of sbatch.
        answer = run_slurm(command, timeout_s=None)
    except OSError as error:
        raise LaunchError(f"the script of the job: {error}", transient=True) from error
    if answer.returncode == _NOT_FOUND:
        raise LaunchError("sbatch is not on PATH. Load Slurm's module.")
    if answer.returncode == _TIMED_OUT and timeout_s is not None:
        printed = f"sbatch did not answer within {timeouts.describe(timeout_s)}."
        raise LaunchError(printed, transient=True)
    if answer.returncode != 0:
        printed = _last_words(answer.stderr) or f"sbatch ended with {answer.returncode}."
        raise LaunchError(
            printed if scaling is None else explain_refusal(printed, scaling),
            transient=is_passing(printed),
        )
    job_id = find_submitted_job(answer.stdout)
    if job_id is None:
        raise LaunchError(explain_unknown_job(answer.stdout))
    return job_id


def script_parameters(
    directives: Mapping[str, str | None], *, signal_delay_s: int
) -> dict[str, Any]:
    """Return submitit's parameters: our directives, and none of its own defaults.

    Not collective.

    Parameters
    ----------
    directives
        Options of sbatch, without dashes.
    signal_delay_s
        Seconds before the time limit at which the job's steps get a signal.
    """
    parameters = {
        name.replace("-", "_"): True if value is None else value
        for name, value in escape_directives(directives).items()
    }
    return {
        "job_name": parameters.pop("job_name"),
        "time": None,
        "wckey": None,
        "stderr_to_stdout": True,
        "signal_delay_s": signal_delay_s,
        "additional_parameters": parameters,
    }


def _last_words(text: str) -> str:
    lines = [line for line in text.splitlines() if "error:" in line or "sbatch" in line]
    return " ".join(dict.fromkeys(line.strip() for line in lines)) or text
