"""The executor of submitit, for the text of a script. The one module that uses submitit."""

from __future__ import annotations

from pathlib import Path

import submitit


# Not submit() of a function: submitit's own runner would import it, NumPy and asyncio into the job
# and keep a pickle of a result that is not read, for 0.2 s of every start. What is used in its
# place is the method by which submitit's plug-ins differ from one another; its name begins with an
# underscore, so pyproject.toml bounds the version, and tests/slurm/test_executor.py calls it.
class ScriptExecutor(submitit.SlurmExecutor):
    """Makes the text of a batch script.

    Parameters
    ----------
    folder
        Where the script says that the job's log lies.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder=folder)

    @classmethod
    def affinity(cls) -> int:
        """Return that Slurm can be used: a script can be shown where it is not installed."""
        return 2

    def render(self, command: str) -> str:
        """Return the text of a batch script with a command. Not collective."""
        return self._make_submission_file_text(command, uid="")
