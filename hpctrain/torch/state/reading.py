"""`StateReading`: all that a rank reads of the files of a state, sends on and receives."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType

from hpctrain.bulk.reader import BlockReader, DamagedError, scratch_memory
from hpctrain.bulk.state_file import StateFile
from hpctrain.bulk.unreadable import UnreadableError
from hpctrain.errors import CheckpointError
from hpctrain.torch.state.exchange import Block, Schedule, Transfer, Wants
from hpctrain.torch.state.targets import FileTargets
from hpctrain.torch.state.transport import Pending, Transport

# While two hash or copy, the others have the disk.
_THREADS = 4
# Blocks that are read ahead, or still on their way out; and that are on their way in.
_OUTGOING = 4
_INCOMING = 4
_POLL_S = 1e-4
TIMEOUT_S = 1800.0
"""Seconds to wait for one block, of another rank or of the disk."""

_abandoned: list[Pending] = []


@dataclass(frozen=True, kw_only=True)
class ReadFile:
    """A file of a state, as it is read."""

    path: Path
    layout: StateFile
    """With the digests of its blocks, if it has any."""


def wants_of(targets: Mapping[int, FileTargets]) -> Wants:
    """Return what this rank wants, for `plan_exchange`. Not collective.

    Parameters
    ----------
    targets
        Of this rank, by the number of the file.
    """
    wants: list[tuple[int, int, int, int, int]] = []
    for number, file_targets in sorted(targets.items()):
        for block, target in sorted(file_targets.blocks.items()):
            low, high = target.low, target.high
            last = wants[-1] if wants else None
            # Whole blocks in a row are told of together: a replica wants them all.
            if last is not None and last[0] == number and last[2:] == (block, low, high):
                wants[-1] = (number, last[1], block + 1, low, high)
            else:
                wants.append((number, block, block + 1, low, high))
    return wants


class StateReading:
    """One rank's part in reading a state.

    Parameters
    ----------
    files
        All files.
    targets
        Where blocks go on this rank, by the number of the file.
    schedule
        What all ranks do.
    rank
        This one.
    transport
        How blocks are sent; None if there is only one rank.
    timeout_s
        Seconds to wait for one block, of another rank or of the disk.
    """

    def __init__(
        self,
        files: Sequence[ReadFile],
        targets: Mapping[int, FileTargets],
        schedule: Schedule,
        *,
        rank: int,
        transport: Transport | None,
        timeout_s: float,
    ) -> None:
        self._files, self._targets = files, targets
        self._own, self._shared = schedule.own[rank], schedule.shared[rank]
        self._transfers = [t for t in schedule.transfers if rank in (t.reader, t.receiver)]
        self._rank, self._transport, self._timeout_s = rank, transport, timeout_s
        self._readers: dict[int, BlockReader] = {}
        self._memory: SimpleQueue[memoryview] = SimpleQueue()
        self._open = ExitStack()
        self.complaint: str | None = None
        """Why a file could not be opened."""
        self.damage: list[str] = []
        """What could not be read as it was written."""
        self.bytes_read = 0
        """Of the data of files, by this rank."""

    def __enter__(self) -> StateReading:
        """Open the files that this rank reads, or say why not in `complaint`."""
        try:
            for number in sorted({number for number, _ in (*self._own, *self._shared)}):
                file = self._files[number]
                reader = BlockReader(file.path, file.layout)
                self._readers[number] = self._open.enter_context(reader)
        except CheckpointError as error:
            self.complaint = str(error)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the files."""
        self._open.close()

    def run(self) -> None:
        """Read, send and receive. Collective if something is sent.

        A block that is damaged is sent like any other, and told of in `damage`: no rank waits for
        it in vain.

        Raises
        ------
        CheckpointError
            If a block does not come in time.
        """
        for _ in range(min(_THREADS, len(self._own))):
            self._memory.put(scratch_memory())
        # What others wait for does not queue behind what nobody else wants.
        pools = [
            ThreadPoolExecutor(_THREADS, thread_name_prefix=f"hpctrain-read-{blocks}")
            for blocks in ("own", "shared")
        ]
        try:
            futures = [pools[0].submit(self._read_own, block) for block in self._own]
            if self._transport is not None:
                self._exchange(self._transport, pools[1])
            for block, future in zip(self._own, futures, strict=True):
                self._await(future, block)
        finally:
            for pool in pools:
                # Whoever hangs in a filesystem does so for ever: without an error all have ended.
                pool.shutdown(wait=False, cancel_futures=True)

    def _read_own(self, block: Block) -> None:
        """Read what nobody else wants, straight to where it goes."""
        if self.damage:
            return
        number, index = block
        reader, target = self._readers[number], self._targets[number].blocks[index]
        start, stop = reader.layout.extent(index)
        memories, scratch = target.memories(stop - start), self._memory.get()
        try:
            if memories is None:
                target.scatter(reader.read(index, scratch))
            else:
                reader.read_into(index, memories, scratch)
        finally:
            self._memory.put(scratch)
        target.finish()

    def _read_shared(self, block: Block, memory: memoryview) -> None:
        """Read what others want too into memory, and copy from there what is wanted here."""
        number, index = block
        content = self._readers[number].read(index, memory)
        self._targets[number].blocks[index].scatter(content)

    def _exchange(self, transport: Transport, pool: ThreadPoolExecutor) -> None:
        """Take part in all transfers, in their order: who waits, waits for one that can go on."""
        rank = self._rank
        arriving = _Arriving(
            [(t, self._straight(t)) for t in self._transfers if t.receiver == rank], transport
        )
        leaving = _Leaving(
            self._shared,
            lambda block, memory: pool.submit(self._read_shared, block, memory),
        )
        for block, group in itertools.groupby(self._transfers, key=lambda t: t.block):
            target = self._targets[block[0]].blocks[block[1]]
            transfers = list(group)
            if transfers[0].reader != rank:
                arrival = arriving.next()
                self._wait(arrival.pending, arrival.transfer)
                if arrival.scratch is not None:
                    target.scatter(arrival.content, start=arrival.transfer.low)
                arriving.give(arrival.scratch)
            else:
                while not leaving.is_reading(block):
                    self._finish_oldest(leaving)
                memory, future = leaving.reading(block)
                self._await(future, block, meanwhile=transport.progress)
                pendings = [transport.send(memory[t.low : t.high], t.receiver) for t in transfers]
                leaving.sent(memory, list(zip(pendings, transfers, strict=True)))
            target.finish()
        while leaving.on_their_way:
            self._finish_oldest(leaving)

    def _straight(self, transfer: Transfer) -> memoryview | None:
        number, block = transfer.block
        return self._targets[number].blocks[block].straight(transfer.low, transfer.high)

    def _finish_oldest(self, leaving: _Leaving) -> None:
        memory, pendings = leaving.on_their_way.popleft()
        for pending, transfer in pendings:
            self._wait(pending, transfer)
        leaving.give(memory)

    def _await(
        self, future: Future[None], block: Block, meanwhile: Callable[[], None] | None = None
    ) -> None:
        """Wait for a block to be read."""
        file = self._files[block[0]]
        deadline = time.monotonic() + self._timeout_s
        try:
            while True:
                try:
                    future.result(_POLL_S if meanwhile is not None else self._timeout_s)
                    break
                except FutureTimeoutError:
                    if time.monotonic() > deadline:
                        raise CheckpointError(
                            f"{file.path} did not give its block {block[1]} in "
                            f"{self._timeout_s:.0f} s. Ask the site about this filesystem."
                        ) from None
                    if meanwhile is not None:
                        meanwhile()
        except (DamagedError, UnreadableError) as error:
            self.damage.append(str(error))
        start, stop = file.layout.extent(block[1])
        self.bytes_read += stop - start

    def _wait(self, pending: Pending, transfer: Transfer) -> None:
        """Wait for a block to arrive, or to have left."""
        if pending.wait(self._timeout_s):
            return
        # Its memory may still be written to.
        _abandoned.append(pending)
        number, block = transfer.block
        other = transfer.reader if transfer.receiver == self._rank else transfer.receiver
        raise CheckpointError(
            f"rank {self._rank} waited {self._timeout_s:.0f} s for rank {other}, with which it "
            f"shares block {block} of {self._files[number].path}. Every rank must call "
            f"load_state(), and reach that file; what rank {other} does is in its log."
        )


@dataclass(frozen=True, kw_only=True)
class _Arrival:
    transfer: Transfer
    content: memoryview
    scratch: memoryview | None
    """What the content is in, if it has to go somewhere else."""
    pending: Pending


class _Arriving:
    """What comes in; memory for it is given to the transport ahead of time."""

    def __init__(
        self, transfers: Sequence[tuple[Transfer, memoryview | None]], transport: Transport
    ) -> None:
        self._left, self._transport = deque(transfers), transport
        self._begun: deque[_Arrival] = deque()
        self._scratch: list[memoryview] = []
        for _ in range(min(_INCOMING, len(transfers))):
            self.give(None)

    def next(self) -> _Arrival:
        return self._begun.popleft()

    def give(self, scratch: memoryview | None) -> None:
        """Begin with the next one, for which there may be memory that was used before."""
        if scratch is not None:
            self._scratch.append(scratch)
        if not self._left:
            return
        transfer, content = self._left.popleft()
        used = None
        if content is None:
            used = self._scratch.pop() if self._scratch else scratch_memory()
            content = used[: transfer.high - transfer.low]
        pending = self._transport.receive(content, transfer.reader)
        self._begun.append(
            _Arrival(transfer=transfer, content=content, scratch=used, pending=pending)
        )


class _Leaving:
    """Blocks that are read ahead, and those that are on their way to others."""

    def __init__(
        self, blocks: Sequence[Block], read: Callable[[Block, memoryview], Future[None]]
    ) -> None:
        self._left, self._read = deque(blocks), read
        self._reading: dict[Block, tuple[memoryview, Future[None]]] = {}
        self.on_their_way: deque[tuple[memoryview, list[tuple[Pending, Transfer]]]] = deque()
        for _ in range(min(_OUTGOING, len(blocks))):
            self.give(scratch_memory())

    def is_reading(self, block: Block) -> bool:
        return block in self._reading

    def reading(self, block: Block) -> tuple[memoryview, Future[None]]:
        return self._reading.pop(block)

    def sent(self, memory: memoryview, pendings: list[tuple[Pending, Transfer]]) -> None:
        self.on_their_way.append((memory, pendings))

    def give(self, memory: memoryview) -> None:
        """Use memory for the next one."""
        if self._left:
            block = self._left.popleft()
            self._reading[block] = memory, self._read(block, memory)
