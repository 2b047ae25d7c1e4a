"""Small collectives for training functions.

They use MPI, on hpctrain's own communicator, so they do not interfere with those of the framework.
"""

from __future__ import annotations

from typing import Any, TypeVar

from hpctrain import timeouts
from hpctrain.errors import TrainingFailedError
from hpctrain.worker.context import active_worker

__all__ = ["barrier", "broadcast_from_rank_zero"]

T = TypeVar("T")


def barrier(*, timeout_s: float = timeouts.BARRIER_S) -> None:
    """Return when every rank has called. Collective.

    Parameters
    ----------
    timeout_s
        Seconds to wait for the slowest rank.

    Raises
    ------
    TrainingFailedError
        If not every rank called in time.
    WorkerContextError
        Outside of a training function.
    """
    _await_all_ranks("barrier()", timeout_s)


def broadcast_from_rank_zero(data: T, *, timeout_s: float = timeouts.BARRIER_S) -> T:
    """Return rank 0's `data` on every rank. Collective.

    Parameters
    ----------
    data
        Any object that can be pickled; only rank 0's counts. Meant for small objects: a seed, a
        name, a decision.
    timeout_s
        As in `barrier`.

    Raises
    ------
    TrainingFailedError, WorkerContextError
        As in `barrier`.
    """
    comm = _await_all_ranks("broadcast_from_rank_zero()", timeout_s)
    result: T = comm.bcast(data)
    return result


def _await_all_ranks(call: str, timeout_s: float) -> Any:
    """Wait until every rank has called; return their communicator."""
    worker = active_worker(call)
    comm: Any = worker.comm
    if comm.size == 1:
        return comm
    from hpctrain.worker.mpi import wait_barrier

    with worker.session.collective(call) as waits:
        has_come = wait_barrier(comm, timeout_s=timeout_s, meanwhile=waits)
    if not has_come:
        raise TrainingFailedError(
            f"rank {comm.rank} waited {timeouts.describe(timeout_s)} in {call}, and not all "
            f"{comm.size} ranks called it. Every rank must call it the same number of times; "
            f"timeout_s sets how long to wait."
        )
    return comm
