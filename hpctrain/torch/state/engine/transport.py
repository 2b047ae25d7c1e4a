"""How ranks send each other blocks: by MPI inside a run, else by torch's process group."""

from __future__ import annotations

import itertools
import threading
from datetime import timedelta
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol
from weakref import finalize, ref

from hpctrain.errors import CheckpointError
from hpctrain.torch.state.ranks import GroupComm
from hpctrain.world import Communicator

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work

# What is begun between two ranks arrives in order.
_TAG = 1914
_TAGS = 1024


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


_loads = itertools.count()


def transport(ranks: Communicator) -> Transport:
    """Return how these ranks send each other bytes. Collective."""
    # Of a load that failed, something may still be on its way: the next one must not receive it.
    tag = _TAG + next(_loads) % _TAGS
    if isinstance(ranks, GroupComm):
        return _GroupTransport(tag)
    return _MpiTransport(ranks, tag)


class _MpiTransport:
    def __init__(self, comm: Any, tag: int) -> None:
        self._comm, self._tag = comm, tag

    def send(self, content: memoryview, rank: int) -> Pending:
        from hpctrain.worker.mpi import start_sending

        return _MpiPending(start_sending(self._comm, content, rank, tag=self._tag))

    def receive(self, into: memoryview, rank: int) -> Pending:
        from hpctrain.worker.mpi import start_receiving

        return _MpiPending(start_receiving(self._comm, into, rank, tag=self._tag))


class _MpiPending:
    def __init__(self, request: Any) -> None:
        self._request = request

    def done(self) -> bool:
        return bool(self._request.Test())


class _GroupTransport:
    def __init__(self, tag: int) -> None:
        self._group, self._tag = _host_group(), tag
        # Apart, so that what has arrived is seen while others are slow to take what is sent.
        self._leaving, self._arriving = _Waiting("send"), _Waiting("receive")

    def send(self, content: memoryview, rank: int) -> Pending:
        import torch
        from torch import distributed

        tensor = torch.frombuffer(content, dtype=torch.uint8)
        work = distributed.isend(tensor, rank, group=self._group, tag=self._tag)
        return self._leaving.add(work, rank)

    def receive(self, into: memoryview, rank: int) -> Pending:
        import torch
        from torch import distributed

        tensor = torch.frombuffer(into, dtype=torch.uint8)
        work = distributed.irecv(tensor, rank, group=self._group, tag=self._tag)
        return self._arriving.add(work, rank)


class _Waiting:
    """A thread that waits for what gloo has begun, in order: gloo does not show what is done.

    It ends with this object, and does not keep a process from its end.
    """

    def __init__(self, name: str) -> None:
        self._begun: SimpleQueue[tuple[Work | None, _GroupPending] | None] = SimpleQueue()
        threading.Thread(
            target=_wait_for_all, args=[self._begun], name=f"hpctrain-{name}", daemon=True
        ).start()
        finalize(self, self._begun.put, None)

    def add(self, work: Work | None, rank: int) -> _GroupPending:
        pending = _GroupPending(rank)
        self._begun.put((work, pending))
        return pending


def _wait_for_all(begun: SimpleQueue[tuple[Work | None, _GroupPending] | None]) -> None:
    while (each := begun.get()) is not None:
        work, pending = each
        try:
            if work is not None:
                # Whoever asks whether it is done knows how long that may take.
                work.wait(timedelta(days=365))
        except RuntimeError as error:
            pending.error = error
        pending.is_over.set()


class _GroupPending:
    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.is_over = threading.Event()
        self.error: RuntimeError | None = None

    def done(self) -> bool:
        if self.is_over.is_set() and self.error is not None:
            raise CheckpointError(f"rank {self._rank} cannot be reached: {self.error}.")
        return self.is_over.is_set()


# The default group, and the one that sends for it. torch keeps both until they are destroyed.
_host_groups: tuple[ref[ProcessGroup], ref[ProcessGroup]] | None = None


def _host_group() -> ProcessGroup:
    """Return a group that sends from the memory of the host. Collective at first."""
    from torch import distributed

    global _host_groups
    default: ProcessGroup = distributed.distributed_c10d._get_default_group()
    # After destroy_process_group() torch gives the same names again, so names do not identify it.
    if _host_groups is not None and _host_groups[0]() is default:
        group = _host_groups[1]()
        if group is not None:
            return group
    group = default
    if "gloo" not in distributed.get_backend():
        group = distributed.new_group(backend="gloo")
    _host_groups = (ref(default), ref(group))
    return group
