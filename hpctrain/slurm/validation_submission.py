"""Submits the job of one validation: its script, its record, and why it ended."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpctrain import environ, timeouts
from hpctrain.log import log
from hpctrain.plan.spec import ValidationJob
from hpctrain.plan.visibility import process_checks, run_directory_check
from hpctrain.rundir.files import make_directory, write_atomic
from hpctrain.rundir.manifest import Manifest
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import is_job_id, is_same_file
from hpctrain.slurm.job import cancel_job, find_jobs_of_script
from hpctrain.slurm.output import Job
from hpctrain.slurm.submit import script_parameters, submit_stored

TIMED_OUT = 124
"""Exit status of coreutils' ``timeout``."""
# No step of it gets a signal: it has none.
_SIGNAL_DELAY_S = 1
_WHY = {
    "OUT_OF_MEMORY": "used more memory than it had: ask for more with resources={{'memory': ...}} "
    "of the ValidationConfig, or SlurmConfig(mem=...)",
    "TIMEOUT": "reached its time limit: ask for more with SlurmConfig(time=...)",
    "CANCELLED": "was cancelled",
    "PREEMPTED": "was preempted: with SlurmConfig(sbatch_args=['--requeue']) Slurm starts such a "
    "job again",
    "NODE_FAIL": "lost its node ({nodes})",
    "BOOT_FAIL": "lost its node ({nodes})",
}


def make_validation_script(
    job: ValidationJob,
    paths: RunPaths,
    manifest: Manifest,
    *,
    argv: Sequence[str],
    cwd: str,
    use_gpu: bool,
    timeout_s: float | None,
) -> str:
    """Return the script of the job that validates a checkpoint. Not collective.

    Parameters
    ----------
    argv
        The command of the validation.
    cwd
        Its working directory.
    use_gpu
        Whether it sees GPUs.
    timeout_s
        Seconds after which it is ended, from its start; None for no end but that of the job.
    """
    # submitit takes as long to import as all else of a submission.
    from hpctrain.slurm.executor import ScriptExecutor

    executor = ScriptExecutor(paths.submission)
    directives = {
        **job.directives,
        "output": str(paths.validation_log(manifest.attempt, manifest.report)),
    }
    variables = {
        # What the function starts by itself stays on its machine.
        environ.RANK_MARKER: "1",
        **({} if use_gpu else {"CUDA_VISIBLE_DEVICES": ""}),
        **job.environment,
    }
    executor.update_parameters(
        **script_parameters(directives, signal_delay_s=_SIGNAL_DELAY_S),
        setup=[
            *_keep_end(end_file(paths.validation_job(manifest.attempt, manifest.report))),
            run_directory_check(str(paths.root)),
            *job.setup,
            *process_checks(cwd, sys.executable),
            *(f"export {name}={shlex.quote(value)}" for name, value in variables.items()),
        ],
        use_srun=False,
    )
    if timeout_s is not None:
        argv = [
            "timeout",
            f"--kill-after={timeouts.VALIDATION_JOB_END_S:g}",
            f"{timeout_s:g}",
            *argv,
        ]
    return executor.render(shlex.join(argv))


def _keep_end(path: Path) -> list[str]:
    """Return the shell lines that write down how the script ends, however it does."""
    end, part = shlex.quote(str(path)), shlex.quote(f"{path}.part")
    return [
        # Of the same job before Slurm queued it again.
        f"rm -f {end}",
        # At the end of a job the shell waits for its child, and goes on.
        "trap : TERM",
        # One that was cancelled may end when another is submitted in its place.
        f'hpctrain_end() {{ printf "%s %s %s\\n" "$?" "$SECONDS" "$SLURM_JOB_ID" >{part} && '
        f"mv {part} {end}; }}",
        "trap hpctrain_end EXIT",
    ]


def submit_validation(paths: RunPaths, manifest: Manifest, script: str, *, digest: str) -> str:
    """Submit the job that validates a checkpoint; return its id. Not collective.

    A job that an earlier executor has submitted for it is taken over: it may have died before it
    could write the id down. One of another ``spec.pkl`` would refuse to run, and is cancelled.

    Parameters
    ----------
    script
        That of the job.
    digest
        That of ``spec.pkl``, which the script names.

    Raises
    ------
    LaunchError
        If Slurm refuses the job, or does not answer.
    OSError
        If the run directory cannot be written; not once the job is submitted.
    """
    stored = paths.validation_job(manifest.attempt, manifest.report)
    make_directory(stored.parent, below=paths.root)
    make_directory(paths.logs(manifest.attempt), below=paths.root)
    jobs = find_jobs_of_script(stored) if stored.exists() else []
    is_current = names_spec(stored, digest)
    if not is_current:
        for job in jobs:
            cancel_job(job.job_id)
    if jobs and is_current:
        job_id = jobs[0].job_id
    else:
        for left in (
            # First: beside the new script it would name a job of the old one.
            record_file(stored),
            end_file(stored),
            paths.validation_result(manifest.attempt, manifest.report),
            paths.validation_failure(manifest.attempt, manifest.report),
        ):
            left.unlink(missing_ok=True)
        # Lines of its setup may hold a password.
        write_atomic(stored, script.encode(), mode=0o600)
        job_id = submit_stored(stored, timeout_s=timeouts.VALIDATION_SUBMISSION_S)
    record = {"job_id": job_id, "script": str(stored), "created_at": manifest.created_at}
    try:
        write_atomic(record_file(stored), json.dumps(record).encode())
    except OSError as error:
        # Whoever looks for it finds it in the queue, by its script.
        log(
            f"warning: job {job_id}, which validates checkpoint {manifest.name}, is not written "
            f"down: {error}"
        )
    return job_id


def names_spec(script: Path, digest: str) -> bool:
    """Return whether the job of a script validates with this ``spec.pkl``. Not collective.

    ``fit()`` writes the file again, and a job that was submitted before refuses one that differs.
    """
    try:
        return digest.encode() in script.read_bytes()
    except FileNotFoundError:
        return False
    except OSError:
        # A server that fails over: no job is cancelled for that.
        return True


def end_file(script: Path) -> Path:
    """Return the file that says how a job of a script ended: exit status, seconds, id."""
    return script.with_suffix(".end")


def record_file(script: Path) -> Path:
    """Return the file that says which job a script was submitted as."""
    return script.with_suffix(".json")


def read_record(script: Path, manifest: Manifest) -> str | None:
    """Return the job that validates a checkpoint; None if there is none. Not collective."""
    record = _read_record(script)
    return record.get("job_id") if record.get("created_at") == manifest.created_at else None


def validation_jobs(paths: RunPaths) -> dict[Path, str]:
    """Return the jobs of a run's validations by their script, as far as they are not taken in.

    Not collective.
    """
    scripts = [path.with_suffix(".sh") for path in paths.submission.glob("validation-*.json")]
    records = {script: _read_record(script) for script in scripts}
    return {script: record["job_id"] for script, record in records.items() if record}


def explain_job_end(job: Job) -> str:
    """Return why the job of a validation has ended. Pure; not collective.

    Examples
    --------
    >>> explain_job_end(Job(job_id="7", state="NODE_FAIL", nodes="node3"))
    'its job 7 lost its node (node3)'
    """
    why = _WHY.get(job.state)
    if why is not None:
        return f"its job {job.job_id} {why.format(nodes=job.nodes)}"
    return f"its job {job.job_id} ended ({job.state}, ExitCode {job.exit_code}, {job.reason})"


def _read_record(script: Path) -> dict[str, Any]:
    """Return what `submit_validation` wrote; empty if it did not, or for another run directory."""
    try:
        record = json.loads(record_file(script).read_bytes())
        # Of a copy of the directory it is the job of the other.
        is_own = is_same_file(record["script"], script) and is_job_id(record["job_id"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return dict(record) if is_own else {}
