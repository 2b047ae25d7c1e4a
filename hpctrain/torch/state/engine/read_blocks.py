"""`StateReading`: all that a rank reads of the files of a state, sends on and receives."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import SimpleQueue

from hpctrain import timeouts
from hpctrain.bulk.block_reader import scratch_memory
from hpctrain.errors import CheckpointError
from hpctrain.own_time import LOOK_INTERVAL_S, Deadline
from hpctrain.torch.state.engine.open_readers import OpenReaders, ReadFile, why_not_opened
from hpctrain.torch.state.engine.relay import Incoming, Outgoing, StuckError, relay, text_of
from hpctrain.torch.state.engine.transport import Transport
from hpctrain.torch.state.layout.block_targets import FileTargets
from hpctrain.torch.state.layout.load_plan import Block, Schedule, Transfer

# While two hash or copy, the others have the disk.
_THREADS = 4
# That are read ahead for other ranks or on their way to them; as many may be on their way here.
_PARTS = 6
"""Seconds to wait for other ranks or the disk, if nothing moves meanwhile."""


class StateReading:
    """One rank's part in reading a state.

    Parameters
    ----------
    files
        By number: at least those of which this rank wants something.
    targets
        Where blocks go on this rank, by the number of the file.
    schedule
        What ranks do, at least this one.
    rank
        This one.
    transport
        How blocks are sent; None if there is only one rank.
    timeout_s
        Seconds to wait for other ranks or the disk, if nothing moves meanwhile.
    """

    def __init__(
        self,
        files: Mapping[int, ReadFile],
        targets: Mapping[int, FileTargets],
        schedule: Schedule,
        *,
        rank: int,
        transport: Transport | None,
        timeout_s: float,
    ) -> None:
        self._files, self._targets = files, targets
        self._own, self._shared = schedule.own[rank], schedule.shared[rank]
        self._sent = [t for t in schedule.transfers if t.reader == rank]
        self._received = [t for t in schedule.transfers if t.receiver == rank]
        self._rank, self._transport, self._timeout_s = rank, transport, timeout_s
        self._readers = OpenReaders(files)
        self._memory: SimpleQueue[memoryview] = SimpleQueue()
        self._for_sent: list[memoryview] = []
        self._for_received: list[memoryview] = []
        self.failure: str | None = None
        """Why a file could not be opened, or that memory is short."""
        self.bytes_read = 0
        """Of the data of files, by this rank."""
        self._damage: dict[Block, str] = {}
        self._stopped = False
        self._moved_at = 0.0

    def __enter__(self) -> StateReading:
        """Open each file that this rank reads, or set `failure`.

        Memory to read through is mapped now as well, while nothing has been changed.
        """
        try:
            for _ in range(min(_THREADS, len(self._own))):
                self._memory.put(scratch_memory())
            self._for_sent = [scratch_memory() for _ in range(_PARTS if self._sent else 0)]
            self._for_received = [scratch_memory() for _ in range(_PARTS if self._received else 0)]
            for number in sorted({number for number, _ in (*self._own, *self._shared)}):
                with self._readers.use(number):
                    pass
        except CheckpointError as error:
            self.failure = why_not_opened(error)
        except (OSError, MemoryError) as error:
            self.failure = (
                f"there is no memory to read a checkpoint through: {text_of(error)}. Raise the "
                f"limit of this process (ulimit -v), or give the job more memory."
            )
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        self._readers.close()

    @property
    def damage(self) -> list[str]:
        """What could not be read as it was written, or not be put into place."""
        return [text for _, text in sorted(self._damage.items())]

    def run(self) -> None:
        """Read, send and receive. Collective if something is sent.

        A block that is damaged is sent like any other, and named in `damage`, so that no rank
        waits for it for ever.

        Raises
        ------
        CheckpointError
            If a block does not come in time.
        """
        # Separate pools, so blocks for other ranks do not wait behind local ones.
        pools = [
            ThreadPoolExecutor(_THREADS, thread_name_prefix=f"hpctrain-read-{blocks}")
            for blocks in ("own", "shared")
        ]
        try:
            futures = [pools[0].submit(self._read_own, block) for block in self._own]
            if self._transport is not None:
                self._share(self._transport, pools[1])
            self._await(dict(zip(futures, self._own, strict=True)))
        except BaseException:
            # What a disk gives later is not put into place any more.
            self._stopped = True
            raise
        finally:
            for pool in pools:
                # Do not wait: a thread may be stuck in the filesystem for ever.
                pool.shutdown(wait=False, cancel_futures=True)

    def _read_own(self, block: Block) -> None:
        """Read a block that only this rank needs, unless the load has failed already."""
        if self._damage or self._stopped:
            return
        try:
            self._read_into_place(*block)
        # Whatever it is, a device without memory for instance: the others wait for this rank.
        except Exception as error:
            self._damage[block] = text_of(error)
        finally:
            self._moved_at = time.monotonic()

    def _read_into_place(self, number: int, index: int) -> None:
        target = self._targets[number].blocks[index]
        start, stop = self._readers.layout(number).extent(index)
        memories, scratch = target.memories(stop - start), self._memory.get()
        try:
            with self._readers.use(number) as reader:
                if memories is not None:
                    reader.read_into(index, memories, scratch)
                    parts: Iterable[memoryview] = ()
                else:
                    parts = reader.read_parts(index, scratch)
                first = 0
                for part in parts:
                    if self._stopped:
                        return
                    target.scatter(part, first)
                    first += len(part)
        finally:
            self._memory.put(scratch)
        target.finish()

    def _share(self, transport: Transport, pool: ThreadPoolExecutor) -> None:
        """Read, send and receive what several ranks want."""
        outgoing = Outgoing(
            self._sent,
            readers=self._readers,
            targets=self._targets,
            transport=transport,
            memories=self._for_sent,
            submit=pool.submit,
        )
        incoming = Incoming(
            self._received,
            targets=self._targets,
            transport=transport,
            memories=self._for_received,
        )
        try:
            relay(outgoing, incoming, timeout_s=self._timeout_s)
        except StuckError as error:
            raise self._late(error.awaited) from None
        self._damage |= outgoing.damage | incoming.damage
        self.bytes_read += outgoing.bytes_read

    def _await(self, blocks: Mapping[Future[None], Block]) -> None:
        """Wait for the blocks that only this rank needs."""
        left: Collection[Future[None]] = blocks
        moved_at, deadline = self._moved_at, Deadline(self._timeout_s)
        while left:
            # For all at once: to be woken by each would take time from those who read.
            _, left = wait(left, min(deadline.left_s, LOOK_INTERVAL_S))
            if self._moved_at != moved_at:
                moved_at, deadline = self._moved_at, Deadline(self._timeout_s)
            elif left and deadline.is_over:
                raise self._late(min(blocks[future] for future in left))
        for future, (number, block) in blocks.items():
            future.result()
            start, stop = self._files[number].layout.extent(block)
            self.bytes_read += stop - start

    def _late(self, awaited: Block | Transfer) -> CheckpointError:
        waited = timeouts.describe(self._timeout_s)
        if not isinstance(awaited, Transfer):
            number, block = awaited
            return CheckpointError(
                f"{self._files[number].path} did not give its block {block} in {waited}. Ask the "
                f"site about this filesystem."
            )
        number, block = awaited.block
        other = awaited.reader if awaited.receiver == self._rank else awaited.receiver
        return CheckpointError(
            f"rank {self._rank} waited {waited} for rank {other}, with which it shares block "
            f"{block} of {self._files[number].path}. Every rank must call load_state(), and reach "
            f"that file; what rank {other} does is in its log."
        )
