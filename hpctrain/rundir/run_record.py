"""`RunRecord`: the one writer of ``status.json`` and ``ledger.jsonl``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpctrain.rundir.ledger import append_event
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import RunStatus, write_status


@dataclass(frozen=True)
class RunRecord:
    """Writes ``status.json`` and ``ledger.jsonl``; nothing else in hpctrain does.

    While an executor is at work, only its `hpctrain.execute.executor_record.ExecutorRecord` uses
    this class. Other processes use it where there is none. These write both files: ``fit()`` before
    one begins, one that settles an interrupted submission, a job that cannot open what was
    submitted, an agent whose executor is lost, ``hpctrain cancel``, and the tuner of a trial whose
    executor is gone. These only append to the ledger: a job that was never named as the successor,
    a supervisor whose executor died, and a command that finds the job gone. What
    ``submit_successor`` appends is read by the next job before its executor begins.
    """

    paths: RunPaths
    """The run directory."""

    def write(self, status: RunStatus) -> RunStatus:
        """Write the status and return it, stamped with the time. Not collective."""
        return write_status(self.paths, status)

    def append(self, event: str, **details: Any) -> None:
        """Append an event to the ledger. Not collective. Durable when this returns.

        Parameters
        ----------
        event
            ``fit``, ``submitted``, ... as in the description of the run directory.
        **details
            JSON values.

        Raises
        ------
        OSError
            If it cannot be written as a whole.
        """
        append_event(self.paths, event, **details)
