"""`Snapshots`: states as they were at one moment, copied and written in the background.

What only the step of an optimizer changes, its parameters and its state, is copied while forward
and backward go on, and the step waits until that is done. All else may change at any time, and is
copied in the call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hpctrain.bulk.slots import Slots
from hpctrain.bulk.state_file import BLOCK_BYTES
from hpctrain.bulk.state_file_writer import StateFileWriter, Written
from hpctrain.control.memory import free_bytes
from hpctrain.errors import CheckpointError
from hpctrain.own_time import wait_for
from hpctrain.torch.state.engine.snapshot_copies import CopyBatch, SnapshotCopies
from hpctrain.torch.state.engine.step_gate import Gate
from hpctrain.torch.state.layout.save_plan import SavePlan
from hpctrain.torch.state.streams import StreamEvents, pin
from hpctrain.worker.upload import Background

# Copying is several times as fast as a disk: by the time that the last blocks are copied, the first
# are written. So this is enough to wait for no disk, and leaves room for what a writer has besides.
_OF_STATE = 15 / 16
_OF_FREE_MEMORY = 0.5
_MIN_BLOCKS = 4


class Snapshots:
    """The snapshots of a rank: one may be copied while the one before is written.

    Parameters
    ----------
    timeout_s
        Seconds to wait for a copy, which waits for the disk where memory is short.
    processes
        Those of this node that take snapshots, and share its memory.
    memory
        Bytes to copy into; None for about the size of the state, and half of what is free at most.
    """

    def __init__(self, *, timeout_s: float, processes: int = 1, memory: int | None = None) -> None:
        self._timeout_s, self._processes, self._memory = timeout_s, processes, memory
        self._background = Background(threaded=True, name="hpctrain-snapshot")
        # torch would start more threads for each thread that copies; they spin in between, on the
        # cores that train.
        self._background.submit(partial(torch.set_num_threads, 1))
        self._background.wait(timeout_s)
        # It is also the number for threads to come, and is taken back for them.
        torch.set_num_threads(torch.get_num_threads())
        self._slots: Slots | None = None
        self._copies: SnapshotCopies | None = None
        # Weak: the thread that copies or writes a snapshot keeps it; afterwards nothing is to be
        # waited for.
        self._newest: weakref.ref[Snapshot] | None = None
        self._watched: list[weakref.ref[Any]] = []

    def take(
        self,
        plan: SavePlan,
        *,
        changed_by: Sequence[Any],
        name: str,
    ) -> Snapshot:
        """Return a snapshot of a state as it is now; training may go on at once.

        Not collective. The caller must call `Snapshot.finish` or `Snapshot.discard`, from any
        thread.

        Parameters
        ----------
        plan
            Of the state.
        changed_by
            What the state is of. Of the optimizers among it the steps wait, and of the models
            ``load_state_dict``. What no optimizer has is copied in this call.
        name
            What it is of, for errors.

        Raises
        ------
        CheckpointError
            If the snapshot before is not copied in time.
        """
        optimizers = [part for part in changed_by if isinstance(part, torch.optim.Optimizer)]
        if (newest := self._newest_alive()) is not None:
            newest.wait_until_copied()
            del newest
        copies = self._copies
        if copies is None or not copies.are_for(plan, optimizers):
            self._copies = copies = None
            self._copies = copies = SnapshotCopies(plan, optimizers, self._slots_for(plan))
            changing = torch.optim.Optimizer | torch.nn.Module
            self._watched = [
                weakref.ref(part, self._forget) for part in changed_by if isinstance(part, changing)
            ]
        snapshot = Snapshot(copies, name=name, timeout_s=self._timeout_s)
        snapshot.copy_now()
        for optimizer, until in zip(optimizers, copies.until, strict=True):
            if until:
                Gate.of(optimizer).close(snapshot, until)
        for model in changed_by:
            if isinstance(model, torch.nn.Module):
                Gate.of(model).close(snapshot)
        self._newest = weakref.ref(snapshot)
        self._background.submit(snapshot.copy)
        return snapshot

    def _forget(self, _: object) -> None:
        """Let go of what is prepared for a model that was deleted."""
        self._copies = None

    def _newest_alive(self) -> Snapshot | None:
        return None if self._newest is None else self._newest()

    def _slots_for(self, plan: SavePlan) -> Slots:
        blocks, memory = plan.layout.blocks, self._memory
        if memory is None:
            had = 0 if self._slots is None else len(self._slots.memory)
            free = int((free_bytes() + had) * _OF_FREE_MEMORY) // self._processes
            memory = min(int(blocks * _OF_STATE) * BLOCK_BYTES, free)
        wanted = max(min(memory // BLOCK_BYTES, blocks), _MIN_BLOCKS)
        if self._slots is None or self._slots.blocks != wanted:
            if (newest := self._newest_alive()) is not None:
                # Else there would be the memory of two.
                newest.wait_until_written()
                del newest
            self._newest = self._slots = None
            self._slots = Slots(wanted)
            pin(self._slots, plan.source.tensors)
        return self._slots


class Snapshot:
    """A state as it was when the snapshot was taken; made by `Snapshots.take`.

    Parameters
    ----------
    copies
        What to copy.
    name
        What it is of, for errors.
    timeout_s
        Seconds to wait for a copy, or for memory.
    """

    def __init__(self, copies: SnapshotCopies, *, name: str, timeout_s: float) -> None:
        self._copies, self._name, self._timeout_s = copies, name, timeout_s
        self._slots, self._change = copies.slots, copies.slots.change
        self._blocks = copies.layout.blocks
        self._copied = 0
        self._closed = False
        self._error: BaseException | None = None
        # Blocks whose places are this snapshot's, and neither being copied nor being written.
        self._held: set[int] = set()
        self._late: list[list[torch.Tensor]] = []
        self._versions: list[list[int]] = []
        self._stream_events: StreamEvents

    def finish(self, path: Path) -> Written:
        """Write the file, durably, once all is copied, or what makes room for the rest is.

        Not collective. Frees the memory and releases all waiters, even on error.

        Parameters
        ----------
        path
            Of the file. Its directory exists.

        Raises
        ------
        CheckpointError
            If it cannot be written, or something was changed before it was copied.
        """
        try:
            with StateFileWriter(path, self._copies.layout, ring=self._slots) as writer:
                for block in range(self._blocks):
                    self._hand_over(block)
                    writer.put(block, self._slots.place(block))
                return writer.finish()
        finally:
            self._close(None)

    def discard(self) -> None:
        """Free the memory, and release all waiters. Not collective."""
        self._close(None)

    def wait_until_copied(self, blocks: int | None = None) -> None:
        """Wait until all blocks are copied, or so many, or the snapshot is closed.

        Not collective.

        Raises
        ------
        CheckpointError
            If that takes too long. The snapshot is discarded.
        """
        self._wait(lambda: self.is_copied(blocks))

    def is_copied(self, blocks: int | None = None) -> bool:
        """Return whether all blocks are copied, or so many, or the snapshot is closed.

        Not collective.
        """
        return self._closed or self._copied >= (self._blocks if blocks is None else blocks)

    def wait_until_written(self) -> None:
        """Wait until all memory is free again. Not collective.

        Raises
        ------
        CheckpointError
            If that takes too long. The snapshot is discarded.
        """
        self._wait(lambda: self._slots.are_free(range(self._slots.blocks)))

    # Called by `Snapshots`.

    def copy_now(self) -> None:
        """Copy what may change at any time. Not collective."""
        copies = self._copies
        with self._change:
            self._wait(lambda: self._slots.are_free(copies.now_blocks))
            self._slots.occupy(copies.now_blocks)
        self._held.update(copies.now_blocks)
        try:
            copies.now.run()
            self._late = [
                [tensor.clone() for tensor in batch.late.sources] for batch in copies.batches
            ]
            self._versions = [batch.gated.versions() for batch in copies.batches]
            self._stream_events = StreamEvents(copies.devices)
        except BaseException:
            self.discard()
            raise

    def copy(self) -> None:
        """Copy all else, in the background. Not collective."""
        try:
            with self._stream_events.after():
                for number, batch in enumerate(self._copies.batches):
                    if not self._copy_batch(number, batch):
                        return
                    self._late[number] = []
        except BaseException as error:
            self._close(error)

    def _copy_batch(self, number: int, batch: CopyBatch) -> bool:
        """Copy the blocks of a batch; return whether anybody wants more."""
        missing = [block for block in batch.blocks if block not in self._held]
        with self._change:
            self._wait(lambda: self._closed or self._slots.are_free(missing))
            if self._closed:
                return False
            self._slots.occupy(missing)
            self._held.difference_update(batch.blocks)
        try:
            batch.gated.run()
            batch.late.run(self._late[number])
            versions = zip(batch.gated.versions(), self._versions[number], strict=True)
            for source, (now, before) in zip(batch.gated.sources, versions, strict=True):
                if now != before:
                    raise self._torn(source)
        except BaseException:
            self._slots.release(batch.blocks)
            raise
        with self._change:
            if self._closed:
                self._slots.release(batch.blocks)
                return False
            self._held.update(batch.blocks)
            self._copied = batch.blocks.stop
            self._change.notify_all()
        return True

    def _hand_over(self, block: int) -> None:
        # While something copies, a thread that hashes would take a core from training. So only
        # blocks whose memory is needed again do not wait for the last one.
        is_in_the_way = block + self._slots.blocks < self._blocks
        copied = block + 1 if is_in_the_way else self._blocks
        with self._change:
            self._wait(lambda: self._closed or self._copied >= copied)
            if self._closed:
                raise self._error or CheckpointError(f"{self._name} was discarded.")
            self._held.remove(block)

    def _wait(self, until: Callable[[], bool]) -> None:
        with self._change:
            if not wait_for(self._change, until, self._timeout_s):
                error = CheckpointError(
                    f"{self._name}: {self._copied} of {self._blocks} blocks were copied within "
                    f"{self._timeout_s:.0f} s; the others wait for memory, which waits for the "
                    f"disk. SyncConfig(sync_timeout=...) sets how long to wait."
                )
                self._close(error)
                raise error

    def _close(self, error: BaseException | None) -> None:
        with self._change:
            self._closed = True
            self._error = self._error or error
            self._slots.release(self._held)
            self._held.clear()

    def _torn(self, source: torch.Tensor) -> CheckpointError:
        name = self._copies.name_of(source)
        return CheckpointError(
            f"{self._name}: {name} was changed in place before it was copied, by something else "
            f"than the step of an optimizer that was given. Give every optimizer, change it before "
            f"the report or after the next step, or use CheckpointUploadMode.SYNC."
        )
