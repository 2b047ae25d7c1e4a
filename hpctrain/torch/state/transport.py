"""How ranks send each other blocks: by MPI inside a run, else by torch's process group."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

from hpctrain.errors import CheckpointError
from hpctrain.torch.state.ranks import GroupComm
from hpctrain.world import Communicator

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work

# What is begun between two ranks arrives in order.
_TAG = 1914
_WAITING_THREADS = 16


class Pending(Protocol):
    """Bytes that are on their way."""

    def done(self) -> bool:
        """Return whether they have left, or arrived; let them get on. Not collective."""


class Transport(Protocol):
    """Sends bytes from rank to rank. Only the main thread uses it."""

    def send(self, content: memoryview, rank: int) -> Pending:
        """Begin to send. The content stays as it is until that is done. Not collective."""

    def receive(self, into: memoryview, rank: int) -> Pending:
        """Begin to receive. Not collective."""


def transport(ranks: Communicator, *, timeout_s: float) -> Transport:
    """Return how these ranks send each other bytes. Collective at first.

    Parameters
    ----------
    timeout_s
        Seconds after which nobody waits for them any more.
    """
    return _GroupTransport(timeout_s) if isinstance(ranks, GroupComm) else _MpiTransport(ranks)


class _MpiTransport:
    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def send(self, content: memoryview, rank: int) -> Pending:
        from hpctrain.worker.mpi import start_sending

        return _MpiPending(start_sending(self._comm, content, rank, tag=_TAG))

    def receive(self, into: memoryview, rank: int) -> Pending:
        from hpctrain.worker.mpi import start_receiving

        return _MpiPending(start_receiving(self._comm, into, rank, tag=_TAG))


class _MpiPending:
    def __init__(self, request: Any) -> None:
        self._request = request

    def done(self) -> bool:
        return bool(self._request.Test())


class _GroupTransport:
    def __init__(self, timeout_s: float) -> None:
        self._group, self._timeout = _host_group(), timedelta(seconds=timeout_s)
        # What gloo has begun can only be waited for. Apart, so that what has arrived is seen while
        # others are slow to take what is sent.
        self._leaving, self._arriving = (
            ThreadPoolExecutor(_WAITING_THREADS, thread_name_prefix=f"hpctrain-{direction}")
            for direction in ("send", "receive")
        )

    def send(self, content: memoryview, rank: int) -> Pending:
        import torch
        from torch import distributed

        tensor = torch.frombuffer(content, dtype=torch.uint8)
        work = distributed.isend(tensor, rank, group=self._group, tag=_TAG)
        return _GroupPending(self._leaving.submit(self._wait, work), rank)

    def receive(self, into: memoryview, rank: int) -> Pending:
        import torch
        from torch import distributed

        tensor = torch.frombuffer(into, dtype=torch.uint8)
        work = distributed.irecv(tensor, rank, group=self._group, tag=_TAG)
        return _GroupPending(self._arriving.submit(self._wait, work), rank)

    def _wait(self, work: Work | None) -> bool:
        return work is None or bool(work.wait(self._timeout))


class _GroupPending:
    def __init__(self, waiting: Future[bool], rank: int) -> None:
        self._waiting, self._rank = waiting, rank

    def done(self) -> bool:
        try:
            return self._waiting.done() and self._waiting.result()
        except RuntimeError as error:
            raise CheckpointError(f"rank {self._rank} cannot be reached: {error}.") from error


# The default group, and the one that sends for it. torch keeps both until they are destroyed.
_host_groups: tuple[ref[ProcessGroup], ref[ProcessGroup]] | None = None


def _host_group() -> ProcessGroup:
    """Return a group that sends from the memory of the host. Collective at first."""
    from torch import distributed

    global _host_groups
    default: ProcessGroup = distributed.distributed_c10d._get_default_group()
    # After destroy_process_group() torch gives the same names again, so names do not tell.
    if _host_groups is not None and _host_groups[0]() is default:
        group = _host_groups[1]()
        if group is not None:
            return group
    group = default
    if "gloo" not in distributed.get_backend():
        group = distributed.new_group(backend="gloo")
    _host_groups = (ref(default), ref(group))
    return group
