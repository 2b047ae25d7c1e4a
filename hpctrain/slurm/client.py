"""Run a command of Slurm, bounded in time."""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from hpctrain import environ, timeouts
from hpctrain.errors import LaunchError
from hpctrain.own_time import ANY_GAP_S, Deadline
from hpctrain.plan.sbatch_options import hidden_variables

T = TypeVar("T")
_RETRY_INTERVAL_S = 2.0
# A step that has just died may still hold what the next one needs: "Unable to create step for job
# 1: Memory required by task is not available" (seen with Slurm 22.05 in a job queued again).
_PASSING = re.compile(r"[Uu]nable to (contact|create step)|timed out|try again|temporarily")

# Limits of jobs that wait or run, as in "AssocMaxSubmitJobLimit" and "QOSGrpSubmitJobsLimit" of
# squeue(1); and MaxJobCount of slurm.conf.
_SUBMIT_LIMIT = re.compile(
    r"(Assoc|QOS)\w*SubmitJobs?\w*Limit|job queue full|Unable to create job record"
)

_SUBMITTED = re.compile(r"^Submitted batch job (\d+)", re.MULTILINE)
# The cluster comes after a semicolon.
_PARSABLE = re.compile(r"^(\d+)(?:;\S+)?$", re.MULTILINE)

# Of these, what srun does not wait for by itself.
_REFUSED_STEP = re.compile(
    r"Unable to create step for job \S+: (?:Memory required by task is not available|"
    r"Unable to contact|.*timed out|.*temporarily)",
    re.IGNORECASE,
)

# Defaults for a person's eyes and hands: SQUEUE_PARTITION would hide the jobs of all other
# partitions, SCANCEL_STATE would leave jobs alone, and for SCANCEL_INTERACTIVE scancel asks without
# an end where stdin has ended (seen with 22.05). What all commands need begins with SLURM_.
_FOR_A_PERSON = ("SACCT_", "SCANCEL_", "SCONTROL_", "SINFO_", "SQUEUE_")

# All jobs of a large cluster are less.
_LONGEST_ANSWER = 256 * 2**20
_CHUNK = 64 * 1024


class Asked:
    """A command of Slurm that runs meanwhile.

    Parameters
    ----------
    argv
        The command.
    environment
        Its whole environment; None is that of this process.

    Raises
    ------
    LaunchError
        If it is not installed.
    """

    def __init__(
        self, argv: Sequence[str], *, environment: Mapping[str, str] | None = None
    ) -> None:
        self._argv = argv
        present = environ.environment() if environment is None else environment
        own = {k: v for k, v in present.items() if not k.startswith(_FOR_A_PERSON)}
        try:
            self._process = subprocess.Popen(
                argv,
                # One that asks gets no answer, and must not take it from a person's terminal.
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=own,
            )
        except FileNotFoundError as error:
            raise LaunchError(
                f"{argv[0]} is not on PATH. Load Slurm's module, or choose another launcher "
                f"(HPCTRAIN_LAUNCHER=local)."
            ) from error

    def answer(
        self, *, timeout_s: float | None = timeouts.SLURM_COMMAND_S
    ) -> subprocess.CompletedProcess[str]:
        """Wait for its end, and return what it printed; None waits for as long as it takes.

        Raises
        ------
        LaunchError
            If it does not answer in time, or prints without an end.
        """
        with self._process as process:
            try:
                stdout, stderr = self._read(timeout_s)
            except subprocess.TimeoutExpired as error:
                assert timeout_s is not None
                process.kill()
                raise LaunchError(
                    f"'{' '.join(self._argv)}' did not answer within "
                    f"{timeouts.describe(timeout_s)}.",
                    transient=True,
                ) from error
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(self._argv, process.returncode, stdout, stderr)

    def _read(self, timeout_s: float | None) -> list[str]:
        """Return its stdout and stderr, once it has ended.

        Not communicate(), which keeps whatever is printed.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s

        def left_s() -> float | None:
            return None if end is None else max(0.0, end - time.monotonic())

        streams = [self._process.stdout, self._process.stderr]
        printed = {stream.fileno(): bytearray() for stream in streams if stream is not None}
        with selectors.DefaultSelector() as selector:
            for descriptor in printed:
                selector.register(descriptor, selectors.EVENT_READ)
            while selector.get_map():
                if left_s() == 0:
                    raise subprocess.TimeoutExpired(self._argv, 0)
                for key, _ in selector.select(left_s()):
                    chunk = os.read(key.fd, _CHUNK)
                    printed[key.fd] += chunk
                    if not chunk:
                        selector.unregister(key.fd)
                    elif len(printed[key.fd]) > _LONGEST_ANSWER:
                        raise LaunchError(
                            f"'{' '.join(self._argv)}' prints more than "
                            f"{_LONGEST_ANSWER >> 20} MiB, which no answer of Slurm has."
                        )
        self._process.wait(left_s())
        # Names and comments of users are in any encoding.
        return [text.decode(errors="backslashreplace") for text in printed.values()]

    def close(self) -> None:
        """Do without the answer."""
        with self._process as process:
            process.kill()


def run_slurm(
    argv: Sequence[str],
    *,
    timeout_s: float | None = timeouts.SLURM_COMMAND_S,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm and return what it printed. Not collective.

    Parameters
    ----------
    timeout_s
        Seconds that it may take; None leaves it to Slurm.
    environment
        Its whole environment; None is that of this process.

    Raises
    ------
    LaunchError
        If it is not installed, or does not answer in time.
    """
    return Asked(argv, environment=environment).answer(timeout_s=timeout_s)


def ask_slurm(
    argv: Sequence[str],
    *,
    timeout_s: float = timeouts.SLURM_COMMAND_S,
    environment: Mapping[str, str] | None = None,
    may_die: bool = False,
) -> str:
    """Return what a command of Slurm prints. Not collective.

    Parameters
    ----------
    environment
        Its whole environment; None is that of this process.
    may_die
        Whether a signal may end it: Slurm ends a job so quickly that the command that asked for it
        dies with it.

    Raises
    ------
    LaunchError
        If it fails, is not installed, or does not answer in time.
    """
    answer = run_slurm(argv, timeout_s=timeout_s, environment=environment)
    if answer.returncode != 0 and not (may_die and answer.returncode < 0):
        printed = (answer.stderr + answer.stdout).strip()
        command = " ".join([Path(argv[0]).name, *argv[1:]])
        raise LaunchError(f"{command}: {printed}", transient=is_passing(printed))
    return answer.stdout


def retry(act: Callable[[], T], *, patience_s: float) -> T:
    """Return what `act` returns; call it again while Slurm's controller is away. Not collective.

    Raises
    ------
    LaunchError
        Its last one, if that is not transient or `patience_s` seconds are over.
    """
    deadline = Deadline(patience_s, longest_gap_s=ANY_GAP_S)
    while True:
        try:
            return act()
        except LaunchError as error:
            if not error.transient or deadline.is_over:
                raise
        time.sleep(_RETRY_INTERVAL_S)


def is_passing(printed: str) -> bool:
    """Return whether what a command of Slurm printed may be over when it is tried again.

    Not collective.
    """
    return bool(_PASSING.search(printed))


def find_submit_limit(printed: str) -> str | None:
    """Return the limit of the number of jobs for which sbatch was refused one; None if for none.

    Not collective.

    Examples
    --------
    >>> find_submit_limit("sbatch: error: QOSMaxSubmitJobPerUserLimit")
    'QOSMaxSubmitJobPerUserLimit'
    >>> find_submit_limit("sbatch: error: QOSMaxWallDurationPerJobLimit")
    """
    found = _SUBMIT_LIMIT.search(printed)
    if found is None:
        return None
    return found[0] if found[1] else "MaxJobCount"


def sbatch_argv() -> list[str]:
    """Return the beginning of a command that submits a script as it is written. Not collective.

    Variables that sbatch reads as options would win over the script, and those of a job or a rank
    that this process is in would reach the new job.
    """
    environment = environ.environment()
    of_launcher = environment.keys() - environ.without_launcher_variables(environment).keys()
    hidden = [*hidden_variables(environment), *sorted(of_launcher)]
    return ["env", *(f"--unset={name}" for name in hidden), "sbatch"]


def find_submitted_job(printed: str, *, parsable: bool = False) -> str | None:
    r"""Return the id of the job that sbatch says it has submitted; None if it does not say so.

    Not collective. A wrapper of the site may print more.

    Parameters
    ----------
    parsable
        Whether sbatch was given ``--parsable``.

    Examples
    --------
    >>> find_submitted_job("Last job 41 used 3 GPU-hours\nSubmitted batch job 42 on cluster alps")
    '42'
    """
    found = (_PARSABLE if parsable else _SUBMITTED).findall(printed)
    return found[-1] if found else None


def explain_unknown_job(printed: str) -> str:
    """Return what to do where sbatch does not say which job it has submitted. Not collective."""
    return (
        f"sbatch did not say which job it has submitted, but {printed.strip()[:200]!r}: a job may "
        f"wait all the same. Look for it with 'squeue --me', and cancel it, before you try again."
    )


def is_refused_for_now(printed: str) -> bool:
    """Return whether srun has not got its step for what another one still holds, or no answer.

    Not collective.
    """
    return bool(_REFUSED_STEP.search(printed))
