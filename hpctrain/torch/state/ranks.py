"""The ranks that save and load together."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from hpctrain import timeouts
from hpctrain.errors import CheckpointError
from hpctrain.worker.context import active_worker, is_active
from hpctrain.world import Communicator, SerialComm

if TYPE_CHECKING:
    from hpctrain.worker.mpi import Comm

T = TypeVar("T")
_TOGETHER = (
    "Every rank must make the same calls in the same order, never inside `if rank == 0`, with "
    "tensors of the same names, shapes and types."
)
# Objects up to this size take one collective: their sizes are not exchanged before.
_TOLD_BYTES = 248
# How an answer of rank 0 begins.
_ANSWER, _FAILURE = b"a", b"f"


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


def ask_rank_0(
    ranks: Communicator,
    stage: str,
    content: bytes,
    answer: Callable[[Sequence[bytes]], Sequence[bytes]],
) -> bytes:
    """Send this rank's bytes to rank 0, and return what that answers this rank. Collective.

    What `exchange` gives to all ranks would fill the memory of each, if there are thousands. Here
    rank 0 receives what all send, and each other rank its own answer.

    Parameters
    ----------
    ranks, stage
        As for `exchange`.
    content
        What this rank sends.
    answer
        Called on rank 0, with what every rank sent: returns what each receives.

    Raises
    ------
    CheckpointError
        As of `exchange`; or on all ranks if rank 0 cannot answer.
    """
    # Ranks that make other calls are noticed here, and not by what comes next.
    lengths = exchange(ranks, stage, len(content))
    contents = _sent_to_rank_0(ranks, stage, content, lengths)
    given: list[bytes] = []
    cause = None
    if contents is not None:
        try:
            given = [_ANSWER + each for each in answer(contents)]
        # Whatever it is: the other ranks wait for an answer.
        except Exception as error:
            cause, reason = error, str(error) or type(error).__name__
            if not isinstance(error, CheckpointError):
                reason = f"rank 0 of {ranks.size} failed: {reason}"
            given = [_FAILURE + reason.encode(errors="replace")] * ranks.size
    received = _sent_by_rank_0(ranks, stage, given)
    if received[:1] == _FAILURE:
        raise CheckpointError(received[1:].decode()) from cause
    return received[1:]


def _gathered(ranks: Communicator, stage: str, sent: Any) -> list[Any]:
    if not _is_mpi(ranks):
        return ranks.allgather(sent)
    from hpctrain.worker.mpi import allgather_in_time

    call = partial(allgather_in_time, ranks, pickle.dumps(sent))
    return [pickle.loads(content) for content in _in_time(ranks, stage, call)]


def _sent_to_rank_0(
    ranks: Communicator, stage: str, content: bytes, lengths: Sequence[int]
) -> list[bytes] | None:
    """Return what all ranks sent, on rank 0. Collective."""
    if not _is_mpi(ranks):
        return ranks.gather(content)
    from hpctrain.worker.mpi import gather_in_time

    contents = _in_time(ranks, stage, partial(gather_in_time, ranks, content, lengths=lengths))
    return contents if ranks.rank == 0 else None


def _sent_by_rank_0(ranks: Communicator, stage: str, given: Sequence[bytes]) -> bytes:
    """Return what rank 0 has for this rank. Collective."""
    if not _is_mpi(ranks):
        return bytes(ranks.scatter(given if ranks.rank == 0 else None))
    from hpctrain.worker.mpi import scatter_in_time

    return _in_time(ranks, stage, partial(scatter_in_time, ranks, given))


def _is_mpi(ranks: Communicator) -> TypeGuard[Comm]:
    return hasattr(ranks, "Iallgather")


def _in_time(ranks: Communicator, stage: str, call: Callable[..., T | None]) -> T:
    """Return what a call of `hpctrain.worker.mpi` gives, or raise after the timeout. Collective."""
    if is_active():
        session = active_worker("hpctrain.torch.state").session
        timeout_s = session.commit_timeout_s
        with session.collective(stage) as waits:
            received = call(timeout_s=timeout_s, meanwhile=waits)
    else:
        timeout_s = timeouts.CHECKPOINT_PARTS_S
        received = call(timeout_s=timeout_s)
    if received is None:
        raise CheckpointError(
            f"rank {ranks.rank} waited {timeouts.describe(timeout_s)} in {stage}, and not "
            f"all {ranks.size} ranks came. {_TOGETHER} "
            f"SyncConfig(sync_timeout=...) sets how long to wait."
        )
    return received


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
        import torch.distributed

        objects: list[Any] | None = [None] * self.size if self.rank == root else None
        torch.distributed.gather_object(obj, objects, dst=root)
        return objects

    def scatter(self, objects: Sequence[Any] | None, root: int = 0) -> Any:
        """Return what the root has for this rank. Collective."""
        import torch.distributed

        received: list[Any] = [None]
        given = None if objects is None else list(objects)
        torch.distributed.scatter_object_list(received, given, src=root)
        return received[0]

    def allreduce(self, obj: Any, op: Callable[[Any, Any], Any]) -> Any:
        """Return every rank's object, joined two by two, lower ranks first. Collective."""
        first, *rest = self.allgather(obj)
        for other in rest:
            first = op(first, other)
        return first
