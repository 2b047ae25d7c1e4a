"""Run a command of Slurm, bounded in time."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from hpctrain import environ, timeouts
from hpctrain.errors import LaunchError
from hpctrain.own_time import ANY_GAP_S, Deadline

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

# Of these, what srun does not wait for by itself.
_REFUSED_STEP = re.compile(
    r"Unable to create step for job \S+: (?:Memory required by task is not available|"
    r"Unable to contact|.*timed out|.*temporarily)",
    re.IGNORECASE,
)


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
        # Defaults for a person's eyes: SQUEUE_PARTITION would hide the jobs of all other
        # partitions, and SINFO_PARTITION these partitions.
        own = {
            name: value
            for name, value in present.items()
            if not name.startswith("SQUEUE_") and name != "SINFO_PARTITION"
        }
        try:
            self._process = subprocess.Popen(
                argv,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # Names and comments of users are in any encoding.
                encoding="utf-8",
                errors="backslashreplace",
                env=own,
            )
        except FileNotFoundError as error:
            raise LaunchError(
                f"{argv[0]} is not on PATH. Load Slurm's module, or choose another launcher "
                f"(HPCTRAIN_LAUNCHER=local)."
            ) from error

    def answer(
        self, *, timeout_s: float = timeouts.SLURM_COMMAND_S
    ) -> subprocess.CompletedProcess[str]:
        """Wait for its end, and return what it printed.

        Raises
        ------
        LaunchError
            If it does not answer in time.
        """
        with self._process as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired as error:
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

    def close(self) -> None:
        """Do without the answer."""
        with self._process as process:
            process.kill()


def run_slurm(
    argv: Sequence[str],
    *,
    timeout_s: float = timeouts.SLURM_COMMAND_S,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm and return what it printed. Not collective.

    Parameters
    ----------
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


def is_refused_for_now(printed: str) -> bool:
    """Return whether srun has not got its step for what another one still holds, or no answer.

    Not collective.
    """
    return bool(_REFUSED_STEP.search(printed))
