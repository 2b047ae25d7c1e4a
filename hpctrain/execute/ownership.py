"""Which job owns a run: by the entries of those that were submitted for it in the ledger."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any

from hpctrain import environ, timeouts
from hpctrain.own_time import Deadline
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths

# A job can begin before the process that has submitted it has written so: by milliseconds.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.2


class Ownership(Enum):
    """Whether a job that begins owns the run that it was submitted for."""

    MINE = "this job"
    OTHERS = "another job"
    OVER = "nobody: it is over"
    UNDECIDED = "not written down yet"


def await_ownership(paths: RunPaths, *, patience_s: float = timeouts.OWNERSHIP_S) -> Ownership:
    """Return whether the job of this process owns the run. Not collective.

    Parameters
    ----------
    paths
        The run directory.
    patience_s
        Seconds to wait for an entry in the ledger that another process is about to make.
    """
    job_id = environ.variable("SLURM_JOB_ID")
    assert job_id is not None
    deadline, pause_s = Deadline(patience_s), _FIRST_PAUSE_S
    while True:
        verdict = judge_ownership(read_events(paths), job_id)
        if verdict is not Ownership.UNDECIDED:
            return verdict
        if deadline.is_over:
            # The process that submitted this job died before it could write so. No other is left.
            from hpctrain.rundir.run_record import RunRecord

            with suppress(OSError):
                RunRecord(paths).append("successor", job_id=job_id, after=None)
            return Ownership.MINE
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def judge_ownership(events: Iterable[Mapping[str, Any]], job_id: str) -> Ownership:
    """Return whether a job that begins owns its run. Pure; not collective.

    The last job that was submitted according to the ledger does, until the run has ended.
    """
    owner: str | None = None
    is_settled = is_over = False
    for event in events:
        name = event["event"]
        if name == "fit":
            owner, is_settled, is_over = None, False, False
        elif name == "handing-over":
            is_settled = False
        elif name in ("submitted", "successor"):
            owner, is_settled = event["job_id"], True
        elif name == "run-ended":
            is_over = True
    if is_over:
        return Ownership.OVER
    if owner == job_id:
        return Ownership.MINE
    return Ownership.OTHERS if is_settled else Ownership.UNDECIDED
