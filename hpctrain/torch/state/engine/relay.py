"""Blocks that several ranks want: one of them reads each, part by part, and sends it to the others.

What goes out and what comes in go on by themselves, each in the order of the schedule: while a rank
waits for what another one reads, it reads and sends its own. Of all transfers that are not done the
first has memory on both its sides, so no ring of ranks waits for itself.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import xxhash

from hpctrain.bulk.block_reader import PART_BYTES
from hpctrain.own_time import OwnTime
from hpctrain.torch.state.engine.open_readers import OpenReaders
from hpctrain.torch.state.engine.transport import Pending, Transport
from hpctrain.torch.state.layout.block_targets import BlockTarget, FileTargets
from hpctrain.torch.state.layout.load_plan import Block, Transfer

# Long messages advance only while a thread asks for their state.
_PAUSE_S = 2e-4


class StuckError(Exception):
    """Nothing has moved for too long.

    Parameters
    ----------
    awaited
        The first thing that this rank waits for: a block of the disk, or a transfer.
    """

    def __init__(self, awaited: Block | Transfer) -> None:
        super().__init__(f"nothing moves: {awaited} is waited for")
        self.awaited = awaited


class Outgoing:
    """What this rank reads for others too.

    Parameters
    ----------
    transfers
        Those of which this rank is the reader, in the order of the schedule.
    readers
        Of all files.
    targets
        By the number of the file.
    transport
        How parts are sent.
    memories
        Of `scratch_memory`: as many parts are read ahead, or still on their way out.
    submit
        Has a part read in another thread.
    """

    def __init__(
        self,
        transfers: Sequence[Transfer],
        *,
        readers: OpenReaders,
        targets: Mapping[int, FileTargets],
        transport: Transport,
        memories: Sequence[memoryview],
        submit: Callable[[Callable[[], None]], Future[None]],
    ) -> None:
        self._readers, self._targets = readers, targets
        self._transport, self._submit = transport, submit
        self._left = self._parts(transfers)
        self._reading: deque[_Reading] = deque()
        self._leaving: list[_Leaving] = []
        self._digest = xxhash.xxh3_64()
        self._stopped = False
        self.damage: dict[Block, str] = {}
        """What could not be read as it was written, or not be put into place."""
        self.bytes_read = 0
        """Of the data of files."""
        _unfinished.append(self)
        # Memory first: a part that there is none for stays to be read later.
        for memory, part in zip(memories, self._left, strict=False):
            self._read(part, memory)

    def go_on(self) -> bool:
        """Send what has been read, and read into what has left; return whether there was any."""
        moved = False
        while self._reading and self._reading[0].future.done():
            self._send(self._reading.popleft())
            moved = True
        for leaving in self._leaving[:]:
            leaving.pendings[:] = [each for each in leaving.pendings if not each[0].done()]
            if not leaving.pendings:
                self._leaving.remove(leaving)
                moved = True
                if (part := next(self._left, None)) is not None:
                    self._read(part, leaving.memory)
        return moved

    def stop(self) -> None:
        """Have what is still being read not be put into place any more. Not collective."""
        self._stopped = True

    @property
    def awaited(self) -> Block | Transfer | None:
        """What it waits for first: the disk, or a rank; None once all is done."""
        if self._reading:
            return self._reading[0].part.block
        return self._leaving[0].pendings[0][1] if self._leaving else None

    def _parts(self, transfers: Sequence[Transfer]) -> Iterator[_BlockPiece]:
        for block, group in itertools.groupby(transfers, key=lambda t: t.block):
            start, stop = self._readers.layout(block[0]).extent(block[1])
            wanted = list(group)
            for first in range(0, stop - start, PART_BYTES):
                size = min(PART_BYTES, stop - start - first)
                cuts = [cut for t in wanted if (cut := _cut(t, first)) is not None]
                is_last = first + size == stop - start
                yield _BlockPiece(block=block, first=first, size=size, is_last=is_last, cuts=cuts)

    def _read(self, part: _BlockPiece, memory: memoryview) -> None:
        number, index = part.block
        target = self._targets[number].blocks[index]

        def read() -> None:
            with self._readers.use(number) as reader:
                content = reader.read_part(index, part.first, memory)
            if not self._stopped:
                # At once, while the processor's caches have it.
                target.scatter(content, part.first)

        self._reading.append(_Reading(part=part, memory=memory, future=self._submit(read)))

    def _send(self, read: _Reading) -> None:
        part, content = read.part, read.memory[: read.part.size]
        number, index = part.block
        if (error := read.future.exception()) is not None:
            # Of a block of which nothing can be read, one error will do.
            self.damage.setdefault(part.block, text_of(error))
        sent = [content[cut.low - part.first : cut.high - part.first] for cut in part.cuts]
        pendings = [
            (self._transport.send(chunk, cut.receiver), cut)
            for chunk, cut in zip(sent, part.cuts, strict=True)
        ]
        self._leaving.append(_Leaving(memory=read.memory, pendings=pendings))
        self.bytes_read += part.size
        self._digest.update(content)
        if not part.is_last:
            return
        digest, self._digest = self._digest.hexdigest(), xxhash.xxh3_64()
        if part.block not in self.damage:
            try:
                with self._readers.use(number) as reader:
                    reader.verify(index, digest)
                self._targets[number].blocks[index].finish()
            except Exception as error:
                self.damage[part.block] = text_of(error)


class Incoming:
    """What other ranks read for this one.

    Parameters
    ----------
    transfers
        Those of which this rank is the receiver, in the order of the schedule.
    targets
        By the number of the file.
    transport
        How parts are received.
    memories
        Of `scratch_memory`: as many parts are on their way in. Those that do not go straight into a
        tensor arrive there.
    """

    def __init__(
        self,
        transfers: Sequence[Transfer],
        *,
        targets: Mapping[int, FileTargets],
        transport: Transport,
        memories: Sequence[memoryview],
    ) -> None:
        self._targets, self._transport = targets, transport
        self._left = (cut for transfer in transfers for cut in _cuts(transfer))
        # Given to the transport ahead of time.
        self._arriving: list[_Arriving] = []
        self._scratch = list(memories)
        self._missing = Counter({t.block: sum(1 for _ in _cuts(t)) for t in transfers})
        self.damage: dict[Block, str] = {}
        """What could not be put into place."""
        _unfinished.append(self)
        for cut in itertools.islice(self._left, len(memories)):
            self._receive(cut)

    def go_on(self) -> bool:
        """Put into place what has arrived; return whether there was any."""
        moved = False
        for arriving in self._arriving[:]:
            if arriving.pending.done():
                self._arriving.remove(arriving)
                moved = True
                try:
                    self._place(arriving)
                except Exception as error:
                    self.damage.setdefault(arriving.cut.block, text_of(error))
                if arriving.scratch is not None:
                    self._scratch.append(arriving.scratch)
                if (cut := next(self._left, None)) is not None:
                    self._receive(cut)
        return moved

    @property
    def awaited(self) -> Transfer | None:
        """What it waits for first; None once all is done."""
        return self._arriving[0].cut if self._arriving else None

    def _target(self, block: Block) -> BlockTarget:
        return self._targets[block[0]].blocks[block[1]]

    def _receive(self, cut: Transfer) -> None:
        content, scratch = self._target(cut.block).straight(cut.low, cut.high), None
        if content is None:
            scratch = self._scratch.pop()
            content = scratch[: cut.high - cut.low]
        pending = self._transport.receive(content, cut.reader)
        self._arriving.append(_Arriving(cut=cut, content=content, scratch=scratch, pending=pending))

    def _place(self, arrived: _Arriving) -> None:
        cut = arrived.cut
        target = self._target(cut.block)
        if arrived.scratch is not None:
            target.scatter(arrived.content, cut.low)
        self._missing[cut.block] -= 1
        if not self._missing[cut.block]:
            target.finish()


# Their memory may be written to until all has arrived, whatever becomes of the load.
_unfinished: list[Outgoing | Incoming] = []


def relay(outgoing: Outgoing, incoming: Incoming, *, timeout_s: float) -> None:
    """Go on with both until all is done. Collective.

    What fails on one rank is named in `damage`, so that no rank waits for ever.

    Raises
    ------
    StuckError
        If nothing has moved for so long.
    """
    own = OwnTime(time.monotonic())
    moved_at = 0.0
    try:
        while (awaited := outgoing.awaited or incoming.awaited) is not None:
            # Both, always.
            if outgoing.go_on() + incoming.go_on():
                moved_at = own.look(time.monotonic())
            elif own.look(time.monotonic()) - moved_at > timeout_s:
                raise StuckError(awaited)
            else:
                time.sleep(_PAUSE_S)
    except BaseException:
        outgoing.stop()
        raise
    _unfinished.remove(outgoing)
    _unfinished.remove(incoming)


def text_of(error: BaseException) -> str:
    """Return what an error says, or else what it is. Not collective."""
    return str(error) or type(error).__name__


@dataclass(frozen=True, kw_only=True)
class _BlockPiece:
    """Of a block: as much of it as is read at a time."""

    block: Block
    first: int
    """Where in the block it begins."""
    size: int
    is_last: bool
    cuts: Sequence[Transfer]
    """What is sent of it."""


@dataclass(frozen=True, kw_only=True)
class _Reading:
    part: _BlockPiece
    memory: memoryview
    future: Future[None]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Leaving:
    memory: memoryview
    pendings: list[tuple[Pending, Transfer]]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Arriving:
    cut: Transfer
    content: memoryview
    scratch: memoryview | None
    """What the content is in, if it has to go somewhere else."""
    pending: Pending


def _cuts(transfer: Transfer) -> Iterator[Transfer]:
    """Yield what is sent of each part of a block."""
    for first in range(0, transfer.high, PART_BYTES):
        if (cut := _cut(transfer, first)) is not None:
            yield cut


def _cut(transfer: Transfer, first: int) -> Transfer | None:
    """Return what is sent of one part of a block, if that is anything."""
    low, high = max(transfer.low, first), min(transfer.high, first + PART_BYTES)
    return replace(transfer, low=low, high=high) if low < high else None
