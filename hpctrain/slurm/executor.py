"""The executor of submitit, for a script that is stored. The one module that uses submitit."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError


class SubmissionError(Exception):
    """That sbatch has ended with an error.

    Parameters
    ----------
    printed
        What it printed.
    returncode
        Its exit status.
    """

    def __init__(self, printed: str, returncode: int) -> None:
        super().__init__(printed)
        self.printed = printed
        self.returncode = returncode


# Not submit() of a function: submitit's own runner would import it, NumPy and asyncio into the job
# and keep a pickle of a result that is not read, for 0.2 s of every start. What is used in its
# place are the methods by which submitit's plug-ins differ from one another; their names begin with
# an underscore, so pyproject.toml bounds the version, and tests/slurm/test_executor.py calls them.
class ScriptExecutor(submitit.SlurmExecutor):
    """Makes the text of a batch script, and submits a script that is stored.

    Parameters
    ----------
    folder
        Where the script says that the job's log lies; at a submission, where submitit keeps its
        copy of the script.
    sbatch
        The command that submits, without the script.
    """

    def __init__(self, folder: Path, *, sbatch: Sequence[str] = ("sbatch",)) -> None:
        super().__init__(folder=folder)
        self._sbatch = list(sbatch)

    @classmethod
    def affinity(cls) -> int:
        """Return that Slurm can be used: a script can be shown where it is not installed."""
        return 2

    def render(self, command: str) -> str:
        """Return the text of a batch script with a command. Not collective."""
        return super()._make_submission_file_text(command, uid="")

    def submit_script(self, script: Path) -> str:
        """Submit a stored script; return the job's id. Not collective.

        Raises
        ------
        SubmissionError
            If sbatch fails, or does not say which job it has submitted.
        """
        try:
            return str(self._submit_command(str(script)).job_id)
        except FailedJobError as error:
            cause = error.__cause__
            status = cause.returncode if isinstance(cause, subprocess.CalledProcessError) else -1
            raise SubmissionError(str(error), status) from error
        except FailedSubmissionError as error:
            raise SubmissionError(str(error), 0) from error

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        self._script = command
        return Path(command).read_text()

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        # Not the copy: `scontrol show job` names the script for as long as it knows the job.
        return [*self._sbatch, self._script]
