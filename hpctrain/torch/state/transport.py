"""How ranks send each other blocks: by MPI inside a run, else by torch's process group."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

from hpctrain.torch.state.ranks import GroupComm
from hpctrain.world import Communicator

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work

# What is begun between two ranks arrives in order.
_TAG = 1914


class Pending(Protocol):
    """Bytes that are on their way."""

    def wait(self, timeout_s: float) -> bool:
        """Wait until they have left, or arrived; return False after the timeout."""


class Transport(Protocol):
    """Sends bytes from rank to rank. Only the main thread uses it."""

    def send(self, content: memoryview, rank: int) -> Pending:
        """Begin to send. The content stays as it is until that is waited for. Not collective."""

    def receive(self, into: memoryview, rank: int) -> Pending:
        """Begin to receive. Not collective."""

    def progress(self) -> None:
        """Let what is on its way get on, if it does not by itself. Not collective."""


def transport(ranks: Communicator) -> Transport:
    """Return how these ranks send each other bytes. Collective at first."""
    return _GroupTransport() if isinstance(ranks, GroupComm) else _MpiTransport(ranks)


class _MpiTransport:
    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def send(self, content: memoryview, rank: int) -> Pending:
        from hpctrain.worker.mpi import start_sending

        return _MpiPending(start_sending(self._comm, content, rank, tag=_TAG))

    def receive(self, into: memoryview, rank: int) -> Pending:
        from hpctrain.worker.mpi import start_receiving

        return _MpiPending(start_receiving(self._comm, into, rank, tag=_TAG))

    def progress(self) -> None:
        self._comm.Iprobe()


class _MpiPending:
    def __init__(self, request: Any) -> None:
        self._request = request

    def wait(self, timeout_s: float) -> bool:
        from hpctrain.worker.mpi import wait_for

        return wait_for(self._request, timeout_s=timeout_s)


class _GroupTransport:
    def __init__(self) -> None:
        self._group = _host_group()

    def send(self, content: memoryview, rank: int) -> Pending:
        import torch
        from torch import distributed

        tensor = torch.frombuffer(content, dtype=torch.uint8)
        return _GroupPending(distributed.isend(tensor, rank, group=self._group, tag=_TAG))

    def receive(self, into: memoryview, rank: int) -> Pending:
        import torch
        from torch import distributed

        tensor = torch.frombuffer(into, dtype=torch.uint8)
        return _GroupPending(distributed.irecv(tensor, rank, group=self._group, tag=_TAG))

    def progress(self) -> None:
        pass


class _GroupPending:
    def __init__(self, work: Work | None) -> None:
        self._work = work

    def wait(self, timeout_s: float) -> bool:
        if self._work is None:
            return True
        try:
            return bool(self._work.wait(timedelta(seconds=timeout_s)))
        except RuntimeError:
            return False


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
