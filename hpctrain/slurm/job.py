"""One job of Slurm: ask about it, requeue it, cancel it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from hpctrain import environ, timeouts
from hpctrain.errors import ConfigError, LaunchError
from hpctrain.plan.visibility import EXIT_INVISIBLE, explain_invisible
from hpctrain.rundir.reading import is_same_file
from hpctrain.slurm.client import ask_slurm, retry, run_slurm
from hpctrain.slurm.output import Job, parse_commands, parse_job, parse_queue, parse_scripts


def find_job(
    job_id: str, *, timeout_s: float = timeouts.SLURM_COMMAND_S, with_details: bool = False
) -> Job | None:
    """Return what Slurm's controller knows of a job, or None if it has forgotten it.

    Not collective. Works without accounting; the controller forgets a job some minutes after its
    end (MinJobAge).

    Parameters
    ----------
    with_details
        Whether to ask also for what the job has of each of its nodes: `Job.gpus`.

    Raises
    ------
    LaunchError
        If the controller does not answer.
    """
    details = ["--details"] if with_details else []
    answer = run_slurm(
        ["scontrol", *details, "--oneliner", "show", "job", job_id],
        timeout_s=timeout_s,
        # Seconds since the epoch: "standard" says an hour of each autumn twice, and what a user
        # chooses for their eyes may leave the date out.
        environment={**environ.environment(), "SLURM_TIME_FORMAT": "%s"},
    )
    if answer.returncode != 0 and "Invalid job id" in answer.stderr + answer.stdout:
        return None
    job = parse_job(_record_of(job_id, answer.stdout)) if answer.returncode == 0 else None
    if job is None:
        said = answer.stderr.strip() or f"no job in {answer.stdout.strip()[:200]!r}."
        raise LaunchError(f"scontrol show job {job_id}: {said}", transient=True)
    return job


def _record_of(job_id: str, printed: str) -> str:
    # Of an array all tasks are printed, and one of them has the array's id as its own.
    lines = printed.splitlines(keepends=True)
    return next((line for line in lines if line.startswith(f"JobId={job_id} ")), printed)


def find_jobs_of_script(script: Path) -> list[Job]:
    """Return the jobs of this user that run a stored batch script and are not over.

    Not collective. The newest first.

    Raises
    ------
    LaunchError
        If the controller does not answer.
    """
    printed = _print_scripts(script)
    jobs = parse_scripts(printed, lambda command: _is_script(command, script))
    return [job for job in jobs if not job.is_final]


def _is_script(command: str, script: Path) -> bool:
    # A user may have thousands of jobs: no look at the files of those of another name.
    return command.endswith(f"/{script.name}") and is_same_file(command, script)


def find_script_of_job(job_id: str, script: Path) -> str | None:
    """Return the script of a job of the user who owns `script`; None if it is no job of theirs.

    Not collective.

    Raises
    ------
    LaunchError
        If the controller does not answer.
    """
    return scripts_of_jobs(script).get(job_id)


def scripts_of_jobs(script: Path) -> dict[str, str]:
    """Return the scripts of all jobs of the user who owns `script`, by id. Not collective.

    Raises
    ------
    LaunchError
        If the controller does not answer.
    """
    return parse_commands(_print_scripts(script))


def _print_scripts(script: Path) -> str:
    user = f"--user={script.parent.stat().st_uid}"
    argv = ["squeue", "--noheader", "--local", "--states=all", user, "--format=%A|%T|%o"]
    return ask_slurm(argv, timeout_s=timeouts.QUEUE_S)


class Queue:
    """The jobs of some users, asked for with one call at first use.

    Parameters
    ----------
    uids
        The users: the controller sends the jobs of one, and not all of the cluster's.
    """

    def __init__(self, uids: Iterable[int]) -> None:
        self._uids = sorted(set(uids))
        self._jobs: dict[str, Job] | None = None
        self._error: LaunchError | None = None

    def find_job(self, job_id: str) -> Job | None:
        """Return what Slurm's controller knows of a job, or None if it has forgotten it.

        Not collective. State and reason only.

        Raises
        ------
        LaunchError
            If the controller does not answer; each time, but it is waited for only once.
        """
        if self._error is not None:
            raise self._error
        if self._jobs is None:
            users = ",".join(map(str, self._uids))
            argv = ["squeue", "--noheader", "--local", "--states=all", f"--user={users}"]
            try:
                printed = ask_slurm([*argv, "--format=%A|%T|%r"], timeout_s=timeouts.QUEUE_S)
            except LaunchError as error:
                self._error = error
                raise
            self._jobs = parse_queue(printed)
        return self._jobs.get(job_id)


def read_own_job(*, patience_s: float) -> Job | None:
    """Return what Slurm knows of the job of this process; None where it is in none.

    Not collective. Asks again while the controller is away.

    Raises
    ------
    LaunchError
        If the controller does not answer within `patience_s`.
    """
    job_id = environ.variable("SLURM_JOB_ID")
    if job_id is None:
        return None

    def ask() -> Job:
        job = find_job(job_id, timeout_s=timeouts.OWN_JOB_S)
        if job is None:
            raise LaunchError(f"Slurm has forgotten job {job_id}, which SLURM_JOB_ID names.")
        return job

    return retry(ask, patience_s=patience_s)


def refuse_ended_allocation() -> None:
    """Refuse to start ranks in an allocation that has ended. Not collective.

    The variables that describe an allocation outlive it in a terminal multiplexer that was started
    inside.

    Raises
    ------
    ConfigError
        If Slurm says that the job of this process is over, or has forgotten it.
    """
    job_id = environ.variable("SLURM_JOB_ID")
    if job_id is None:
        return
    try:
        job = find_job(job_id)
    except LaunchError:
        # Without an answer the ranks may start all the same.
        return
    if job is None or job.is_final:
        how = "Slurm has forgotten it" if job is None else job.state
        raise ConfigError(
            f"SLURM_JOB_ID={job_id} is set here, but that job has ended ({how}): this shell, or "
            f"the tmux or screen around it, was started inside it. Use a shell that was not, or "
            f"forget the job first (in bash: unset ${{!SLURM_*}}), and run it again."
        )


def requeue(job_id: str, *, patience_s: float) -> None:
    """Let Slurm queue the job of this process again. Slurm ends this process soon afterwards.

    Not collective. What has to survive must be written down before.

    Parameters
    ----------
    job_id
        `Job.own_id`: that of an array queues all of its tasks.
    patience_s
        Seconds for which it is tried.

    Raises
    ------
    LaunchError
        If Slurm refuses, or its controller does not answer within `patience_s`.
    """
    argv = ["scontrol", "requeue", job_id]
    retry(
        lambda: ask_slurm(argv, timeout_s=timeouts.OWN_JOB_S, may_die=True), patience_s=patience_s
    )


def cancel_argv(job_id: str, *, only_pending: bool = False) -> list[str]:
    """Return the command that ends a job; `only_pending`: unless it has begun. Not collective."""
    return ["scancel", *(["--state=PENDING"] if only_pending else []), job_id]


def cancel_job(job_id: str, *, only_pending: bool = False) -> None:
    """End a job; `only_pending`: unless it has begun. One that has ended is no error.

    Not collective. The id of an array ends all of its tasks: `Job.own_id` is that of one.

    Raises
    ------
    LaunchError
        If Slurm refuses, or does not answer.
    """
    answer = run_slurm(cancel_argv(job_id, only_pending=only_pending))
    if answer.returncode != 0 and not _ENDED.search(answer.stderr):
        raise LaunchError(f"scancel: {answer.stderr.strip()}", transient=True)


def cancel_jobs(job_ids: Sequence[str]) -> None:
    """End jobs with one call; those that have ended are no error. Not collective.

    Raises
    ------
    LaunchError
        If Slurm refuses one of them, or does not answer.
    """
    answer = run_slurm(["scancel", *job_ids])
    said = [line for line in answer.stderr.splitlines() if line and not _ENDED.search(line)]
    if answer.returncode != 0 and (said or not answer.stderr.strip()):
        raise LaunchError(f"scancel: {' '.join(said)}", transient=True)


_ENDED = re.compile(r"Invalid job id|already completing or completed")


_SAID = re.compile(r"^hpctrain: (.+)$", re.MULTILINE)


def has_seen_nothing(job: Job, *, log: str) -> bool:
    """Return whether a job ended before its executor began, as its node lacks a path. Pure.

    Not collective.

    Parameters
    ----------
    log
        The end of its log.
    """
    # 53 is Slurm's answer when the directory of --output is not there (measured with 22.05); 24.11
    # and 26.05 start the script all the same, which then ends by itself (measured).
    if "53" in job.exit_code.split(":"):
        return True
    return _is_invisible(job) and (not log or _SAID.search(log) is not None)


def _is_invisible(job: Job) -> bool:
    return job.exit_code.partition(":")[0] == str(EXIT_INVISIBLE)


def explain_end(job: Job, *, storage: str, log_path: str, log: str) -> str:
    """Return why a job ended before its executor wrote anything. Pure; not collective.

    Parameters
    ----------
    storage
        The run directory.
    log_path
        The job's log.
    log
        The end of it.
    """
    status, _, signal = job.exit_code.partition(":")
    if _is_invisible(job) and (found := _SAID.search(log)):
        return f"job {job.job_id} could not begin: {found[1]}"
    lines = [f"job {job.job_id} ended ({job.state}, ExitCode {job.exit_code}, Reason {job.reason})"]
    if has_seen_nothing(job, log=log):
        who = f"the nodes ({job.nodes}) do not see"
        lines.append(
            f"before it could write its log: "
            f"{explain_invisible(who, f'the run directory {storage}')}"
        )
    else:
        lines.append("before the executor of the run said anything.")
        if signal == "0" and not log:
            lines.append(
                f"Nothing of hpctrain ends with {status} and prints nothing: look at the lines of "
                f"SlurmConfig(setup=...) and of the site profile."
            )
        lines.append(f"Its log: {log_path}")
    if log:
        lines.append(f"It said:\n{log}")
    return " ".join(lines)
