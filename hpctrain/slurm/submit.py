"""Submit the executor of a run as a job. The one module that uses submitit."""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from typing import Any

from hpctrain import environ
from hpctrain.config import ScalingConfig
from hpctrain.errors import LaunchError
from hpctrain.plan.argv import supervisor_argv
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.plan.visibility import process_checks, run_directory_check
from hpctrain.rundir import files
from hpctrain.rundir.files import write_atomic
from hpctrain.rundir.ledger import append_event
from hpctrain.rundir.paths import RunPaths
from hpctrain.slurm.client import ask_slurm, insist
from hpctrain.slurm.probe import explain_refusal

_SBATCH_TIMEOUT_S = 10.0


def batch_setup(plan: LaunchPlan, paths: RunPaths, *, cwd: str) -> list[str]:
    """Return the shell lines of the batch script before the executor.

    Not collective.

    Parameters
    ----------
    plan
        On what the run runs.
    paths
        The run directory.
    cwd
        The working directory of its processes.
    """
    return [
        # Comments to the shell, directives to sbatch as long as no command comes before them.
        *(f"#SBATCH {option}" for option in plan.extra_directives),
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


def submit_executor(plan: LaunchPlan, paths: RunPaths, scaling: ScalingConfig, *, cwd: str) -> str:
    """Submit the executor of a run; return the id of its job. Not collective.

    Parameters
    ----------
    scaling
        What was asked for, in whose words a refusal is explained.
    cwd
        The working directory of its processes.

    Raises
    ------
    LaunchError
        If Slurm refuses the job.
    """
    import submitit

    # A job whose log directory does not exist dies without a word, so it is made before.
    paths.submission.mkdir(parents=True, exist_ok=True)
    executor = submitit.SlurmExecutor(folder=paths.submission)
    executor.update_parameters(
        **_parameters(plan),
        setup=batch_setup(plan, paths, cwd=cwd),
        teardown=batch_teardown(),
        use_srun=False,
    )
    command = shlex.join(supervisor_argv(sys.executable, run_dir=str(paths.root)))
    try:
        # Not submit() of a function: submitit's own runner would import it, NumPy and asyncio into
        # the job and keep a pickle of a result that nobody reads, for 0.2 s of every start.
        job = executor._submit_command(command)
    except submitit.core.utils.FailedJobError as error:
        raise LaunchError(explain_refusal(_last_words(str(error)), scaling)) from error
    except FileNotFoundError as error:
        raise LaunchError(f"sbatch is not on PATH: {error}. Load Slurm's module.") from error
    # submitit has named it after the job; a successor is submitted with the same.
    write_atomic(paths.batch_script, job.paths.submission_file.read_bytes())
    return str(job.job_id)


def submit_successor(paths: RunPaths, *, patience_s: float) -> str:
    """Submit the run's batch script again, as another job; return its id. Not collective.

    Between the two entries in the ledger, ``handing-over`` and ``successor``, the new job may have
    begun: it then waits for the second one, and owns the run if that does not come.

    Raises
    ------
    LaunchError
        If Slurm refuses, or its controller does not answer within `patience_s`.
    """
    job_id = environ.variable("SLURM_JOB_ID")
    # Without it the new job takes itself for one that owns nothing.
    files.insist(lambda: append_event(paths, "handing-over", job_id=job_id), patience_s=patience_s)
    argv = ["sbatch", "--parsable", str(paths.batch_script)]
    # Of this job's variables sbatch would take some for options, and pass on the others.
    environment = environ.without_job_variables(environ.environment())
    answer = insist(
        lambda: ask_slurm(argv, timeout_s=_SBATCH_TIMEOUT_S, environment=environment),
        patience_s=patience_s,
    )
    successor = answer.strip().partition(";")[0]
    with suppress(OSError):
        # On a full disk: it waits for this word, and then does without.
        append_event(paths, "successor", job_id=successor, after=job_id)
    return successor


def _parameters(plan: LaunchPlan) -> dict[str, Any]:
    """Return submitit's parameters: our directives, and none of its own defaults."""
    directives = {
        name.replace("-", "_"): True if value is None else value
        for name, value in plan.directives.items()
    }
    return {
        "job_name": directives.pop("job_name"),
        "time": None,
        "wckey": None,
        "stderr_to_stdout": True,
        "signal_delay_s": plan.stop_notice_s,
        "additional_parameters": directives,
    }


def _last_words(text: str) -> str:
    lines = [line for line in text.splitlines() if "error:" in line or "sbatch" in line]
    return " ".join(dict.fromkeys(line.strip() for line in lines)) or text
