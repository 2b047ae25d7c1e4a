"""The ranks that save and load together."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from hpctrain import timeouts
from hpctrain.errors import CheckpointError
from hpctrain.worker.context import active_worker, is_active
from hpctrain.world import Communicator, SerialComm

_TOGETHER = (
    "Every rank must make the same calls in the same order, never inside `if rank == 0`, with "
    "tensors of the same names, shapes and types."
)
# Objects up to this size take one collective: their sizes are not exchanged before.
_TOLD_BYTES = 248


def communicator() -> Communicator:
    """Return the communicator of all ranks. Not collective.

    Inside a training function it is the run's (MPI), elsewhere torch's default process group if
    there is one, else this process alone.
    """
    if is_active():
        return active_worker("hpctrain.torch.state").comm
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return GroupComm()
    return SerialComm()


def exchange(ranks: Communicator, stage: str, value: Any) -> list[Any]:
    """Return every rank's value. Collective.

    Parameters
    ----------
    ranks
        All ranks.
    stage
        What is exchanged: ranks that are at another stage are noticed.
    value
        This rank's.

    Raises
    ------
    CheckpointError
        If ranks are at different stages, since the state of some has changed, or do not come; or if
        one failed before, see `failing_together`.
    """
    answers = _gathered(ranks, stage, (stage, value))
    others = {rank: other for rank, (other, _) in enumerate(answers) if other != stage}
    if others:
        raise CheckpointError(
            f"rank {ranks.rank} is in {stage}, and others are not: "
            f"{', '.join(f'rank {rank} in {other}' for rank, other in others.items())}. {_TOGETHER}"
        )
    values = [answer for _, answer in answers]
    for rank, failed in enumerate(values):
        if isinstance(failed, _Failed):
            raise CheckpointError(f"rank {rank} of {ranks.size} failed: {failed.reason}")
    return values


@dataclass(frozen=True)
class _Failed:
    reason: str


@contextmanager
def failing_together(ranks: Communicator, stage: str) -> Iterator[None]:
    """Do something before an exchange, so that an error here is an error on all ranks.

    Not collective, if all goes well: other ranks receive it in place of what they wait for.

    Parameters
    ----------
    ranks
        All ranks.
    stage
        Of the exchange that comes next.
    """
    try:
        yield
    except Exception as error:
        # The other ranks raise that; this one knows better.
        with suppress(CheckpointError):
            exchange(ranks, stage, _Failed(str(error) or type(error).__name__))
        raise


def _gathered(ranks: Communicator, stage: str, sent: Any) -> list[Any]:
    if not hasattr(ranks, "Iallgather"):
        return ranks.allgather(sent)
    from hpctrain.worker.mpi import allgather_in_time

    comm: Any = ranks
    content = pickle.dumps(sent)
    if is_active():
        session = active_worker("hpctrain.torch.state").session
        timeout_s = session.commit_timeout_s
        with session.collective(stage) as waits:
            contents = allgather_in_time(comm, content, timeout_s=timeout_s, meanwhile=waits)
    else:
        timeout_s = timeouts.CHECKPOINT_PARTS_S
        contents = allgather_in_time(comm, content, timeout_s=timeout_s)
    if contents is None:
        raise CheckpointError(
            f"rank {ranks.rank} waited {timeouts.describe(timeout_s)} in {stage}, and not "
            f"all {ranks.size} ranks came. {_TOGETHER} "
            f"SyncConfig(sync_timeout=...) sets how long to wait."
        )
    return [pickle.loads(content) for content in contents]


class GroupComm:
    """The default process group of torch as a `hpctrain.world.Communicator`."""

    @property
    def rank(self) -> int:
        """Position of the calling rank. Not collective."""
        import torch.distributed

        return int(torch.distributed.get_rank())

    @property
    def size(self) -> int:
        """Number of ranks. Not collective."""
        import torch.distributed

        return int(torch.distributed.get_world_size())

    def barrier(self) -> None:
        """Return when every rank has called. Collective."""
        import torch.distributed

        torch.distributed.barrier()

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Return the root's object on every rank. Collective."""
        import torch.distributed

        objects = [obj]
        torch.distributed.broadcast_object_list(objects, src=root)
        return objects[0]

    def allgather(self, obj: Any) -> list[Any]:
        """Return every rank's object, by rank. Collective."""
        content = pickle.dumps(obj)
        sent = self._allgather_bytes(content[:_TOLD_BYTES], _TOLD_BYTES, len(content))
        longest = max(size for size, _ in sent)
        if longest > _TOLD_BYTES:
            sent = self._allgather_bytes(content, longest, len(content))
        return [pickle.loads(content[:size]) for size, content in sent]

    def _allgather_bytes(self, content: bytes, room: int, size: int) -> list[tuple[int, bytes]]:
        """Return every rank's size, and its content with zeros up to `room`."""
        import torch
        from torch import distributed

        sent = size.to_bytes(8, "little") + content.ljust(room, b"\0")
        device = distributed.distributed_c10d._get_object_coll_device()
        mine = torch.frombuffer(bytearray(sent), dtype=torch.uint8).to(device)
        all_of_them = [torch.empty_like(mine) for _ in range(self.size)]
        distributed.all_gather(all_of_them, mine)
        received = [tensor.cpu().numpy().tobytes() for tensor in all_of_them]
        return [(int.from_bytes(one[:8], "little"), one[8:]) for one in received]

    def gather(self, obj: Any, root: int = 0) -> list[Any] | None:
        """Return every rank's object, by rank, on the root, and None elsewhere. Collective."""
        objects = self.allgather(obj)
        return objects if self.rank == root else None

    def allreduce(self, obj: Any, op: Callable[[Any, Any], Any]) -> Any:
        """Return every rank's object, joined two by two, lower ranks first. Collective."""
        first, *rest = self.allgather(obj)
        for other in rest:
            first = op(first, other)
        return first
