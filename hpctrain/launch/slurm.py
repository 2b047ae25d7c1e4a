"""Submit the executor to Slurm. The one module that uses submitit."""

from __future__ import annotations

import shlex
import sys
import time
from typing import Any, NoReturn

from hpctrain import environ
from hpctrain.errors import LaunchError
from hpctrain.launch.probe import explain_refusal
from hpctrain.launch.request import Submission
from hpctrain.plan.argv import supervisor_argv
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.rundir.files import write_atomic
from hpctrain.rundir.ledger import append_event, count_attempts
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import RunState, RunStatus, read_status, write_status

# BSD's sysexits.h: EX_NOINPUT.
_EXIT_STORAGE_INVISIBLE = 66


def submit(submission: Submission) -> None:
    """Submit the run's executor as a job.

    Not collective. Once the job id is printed this process can be killed without harm to the run.

    Raises
    ------
    LaunchError
        If Slurm refuses the job.
    """
    request, plan = submission.request, submission.plan
    paths = request.paths
    job_id = _submit_executor(submission)
    status = RunStatus(
        name=paths.root.name,
        state=RunState.SUBMITTED,
        launcher="slurm",
        attempt=count_attempts(paths),
        job_id=job_id,
        started_at=time.time(),
    )
    _write_unless_begun(paths, status)
    append_event(paths, "submitted", job_id=job_id, directives=dict(plan.directives))
    if request.run_config.verbose and not environ.detach_requested():
        print(f"hpctrain: submitted {paths.root.name} as job {job_id}: {paths.root}", flush=True)


def detach(paths: RunPaths) -> NoReturn:
    """Print the job id of a run, and nothing else on stdout; end this process. Not collective."""
    status = read_status(paths)
    assert status is not None
    job = status.job_id or ""
    # `hpctrain submit` sends what the script itself prints to stderr.
    print(job, file=sys.__stdout__, flush=True)
    print(
        f"hpctrain: {status.name} is job {job or '(none: it runs without Slurm)'}. Follow it with: "
        f"hpctrain attach {paths.root}",
        file=sys.stderr,
        flush=True,
    )
    raise SystemExit(0)


def batch_setup(plan: LaunchPlan, paths: RunPaths) -> list[str]:
    """Return the shell lines of the batch script before the executor. Pure; not collective."""
    root = shlex.quote(str(paths.root))
    return [
        # Comments to the shell, directives to sbatch as long as no command comes before them.
        *(f"#SBATCH {option}" for option in plan.extra_directives),
        # Without a trap the shell ends at the warning of a preemption or scancel, and Slurm kills
        # the executor with it; with one it waits for its child.
        "trap : TERM USR2",
        # First of all, and in shell: what cannot be seen from here cannot say so in Python.
        f'test -r {root}/spec.pkl || {{ echo "hpctrain: $(hostname) does not see {root}. Choose a '
        f'storage_path that login and compute nodes share." >&2; '
        f"exit {_EXIT_STORAGE_INVISIBLE}; }}",
        *plan.setup,
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


def _submit_executor(submission: Submission) -> str:
    import submitit

    request, plan = submission.request, submission.plan
    paths = request.paths
    # A job whose log directory does not exist dies without a word, so it is made before.
    paths.submission.mkdir(parents=True, exist_ok=True)
    executor = submitit.SlurmExecutor(folder=paths.submission)
    executor.update_parameters(
        **_parameters(plan),
        setup=batch_setup(plan, paths),
        teardown=batch_teardown(),
        use_srun=False,
    )
    command = shlex.join(supervisor_argv(sys.executable, run_dir=str(paths.root)))
    try:
        # Not submit() of a function: submitit's own runner would import it, NumPy and asyncio into
        # the job and keep a pickle of a result that nobody reads, for 0.2 s of every start.
        job = executor._submit_command(command)
    except submitit.core.utils.FailedJobError as error:
        raise LaunchError(
            explain_refusal(_last_words(str(error)), request.scaling_config)
        ) from error
    except FileNotFoundError as error:
        raise LaunchError(f"sbatch is not on PATH: {error}. Load Slurm's module.") from error
    # submitit has named it after the job; a successor is submitted with the same.
    write_atomic(paths.batch_script, job.paths.submission_file.read_bytes())
    return str(job.job_id)


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


def _write_unless_begun(paths: RunPaths, status: RunStatus) -> None:
    # A quick cluster begins before sbatch has returned here: the executor's word then stands.
    present = read_status(paths)
    if present is None or present.job_id != status.job_id:
        write_status(paths, status)


def _last_words(text: str) -> str:
    lines = [line for line in text.splitlines() if "error:" in line or "sbatch" in line]
    return " ".join(dict.fromkeys(line.strip() for line in lines)) or text
