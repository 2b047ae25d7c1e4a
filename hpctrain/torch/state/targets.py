"""Where the blocks of a file go: straight into the memory of live tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hpctrain.bulk.state_file import BLOCK_BYTES, StateFile
from hpctrain.torch.state.runs import Runs, runs_of
from hpctrain.torch.state.streams import wait_for_devices

if TYPE_CHECKING:
    from numpy.typing import NDArray

# More memories than that are read into in one go, and sorted out in the cache.
_MAX_MEMORIES = 64


@dataclass
class BlockTarget:
    """Where the bytes of one block go on this rank."""

    low: int
    high: int
    """Which bytes of the block are wanted, in all."""
    copies: list[tuple[Memory, Runs]] = field(default_factory=list)
    finished: list[Callable[[], None]] = field(default_factory=list)
    """To be called once the block is there."""

    def memories(self, size: int) -> list[memoryview] | None:
        """Return the memories that a block goes into as it is, one after another, or None.

        Not collective.

        Parameters
        ----------
        size
            Bytes of the block.
        """
        if len(self.copies) > _MAX_MEMORIES:
            return None
        position, memories = 0, []
        for memory, runs in sorted(self.copies, key=lambda copy: copy[1].source):
            if runs.num_runs > 1 or runs.source != position or memory.array is None:
                return None
            position += runs.length
            memories.append(memoryview(memory.array[runs.target : runs.target + runs.length].data))
        return memories if position == size else None

    def straight(self, low: int, high: int) -> memoryview | None:
        """Return the memory that a part of the block goes into as it is, or None. Not collective.

        Parameters
        ----------
        low, high
            Of the part.
        """
        if len(self.copies) > _MAX_MEMORIES:
            return None
        found = [(memory, part) for memory, runs in self.copies for part in runs.clip(low, high)]
        if len(found) != 1:
            return None
        ((memory, runs),) = found
        if (
            runs.num_runs > 1
            or memory.array is None
            or (runs.source, runs.length) != (0, high - low)
        ):
            return None
        return memoryview(memory.array[runs.target : runs.target + runs.length].data)

    def scatter(self, content: memoryview, start: int) -> None:
        """Copy what was read to where it goes. Not collective.

        Parameters
        ----------
        content
            Bytes of the block.
        start
            Where in the block they begin.
        """
        array = np.frombuffer(content, dtype=np.uint8)
        stop = start + len(content)
        for memory, runs in self.copies:
            # Most are elsewhere, if there are many.
            if runs.source < stop and runs.end > start:
                for part in runs.clip(start, stop):
                    memory.copy(array, part)

    def finish(self) -> None:
        """Say that the block is where it goes. Not collective."""
        for finished in self.finished:
            finished()


class Memory:
    """The memory of a tensor as bytes.

    Parameters
    ----------
    tensor
        Any: also a part of another one, on any device.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    # Made where blocks are read, so that nothing waits for it.
    @cached_property
    def array(self) -> NDArray[np.uint8] | None:
        """The bytes, if they are on the CPU."""
        return self._bytes.numpy() if self._tensor.device.type == "cpu" else None

    @cached_property
    def _bytes(self) -> torch.Tensor:
        storage = self._tensor.untyped_storage()
        return torch.empty(0, dtype=torch.uint8, device=self._tensor.device).set_(storage)

    def copy(self, content: NDArray[np.uint8], runs: Runs) -> None:
        """Copy runs of bytes of the content into it. Not collective."""
        shape = (runs.num_runs, runs.length)
        if self.array is None:
            source = torch.from_numpy(content)
            _copy(
                torch.as_strided(self._bytes, shape, (runs.target_step, 1), runs.target),
                torch.as_strided(source, shape, (runs.source_step, 1), runs.source),
            )
        elif runs.num_runs == 1:
            source_stop, stop = runs.source + runs.length, runs.target + runs.length
            self.array[runs.target : stop] = content[runs.source : source_stop]
        else:
            source_rows = np.ndarray(
                shape, np.uint8, content, offset=runs.source, strides=(runs.source_step, 1)
            )
            target_rows = np.ndarray(
                shape, np.uint8, self.array, runs.target, strides=(runs.target_step, 1)
            )
            target_rows[:] = source_rows


class FileTargets:
    """Where the blocks of one file go.

    Parameters
    ----------
    layout
        Of the file.
    """

    def __init__(self, layout: StateFile) -> None:
        self._layout = layout
        self.blocks: dict[int, BlockTarget] = {}
        """Those of which something is wanted, by number."""

    def add(self, piece: int, tensor: torch.Tensor, *, offsets: Sequence[int]) -> None:
        """Have a box of a piece read into a tensor. Not collective.

        Parameters
        ----------
        piece
            Its number in the file.
        tensor
            Of the box's shape and the piece's type.
        offsets
            Where in the piece the box begins.
        """
        shape, item = self._layout.pieces[piece].shape, tensor.element_size()
        runs = runs_of(
            shape=shape,
            offsets=offsets,
            lengths=tensor.shape,
            source=self._layout.starts[piece],
            target=int(tensor.storage_offset()) * item,
            target_strides=[stride * item for stride in tensor.stride()],
            item_bytes=item,
        )
        if runs is not None and not tensor.is_conj() and not tensor.is_neg():
            self._add(Memory(tensor), runs)
            return
        # Memory in another order, channels_last for instance, or of a conjugated or negated tensor:
        # read as it is in the file, and put into order once it is complete.
        staged = torch.empty(shape, dtype=tensor.dtype)
        box = staged[tuple(slice(o, o + n) for o, n in zip(offsets, tensor.shape, strict=True))]
        low = self._layout.starts[piece]
        whole = Runs(source=low, target=0, length=staged.numel() * item)
        self._add(Memory(staged), [whole], finished=lambda: _copy(tensor, box))

    def _add(
        self,
        memory: Memory,
        all_runs: Sequence[Runs],
        *,
        finished: Callable[[], Any] | None = None,
    ) -> None:
        touched = []
        for runs in all_runs:
            for block in range(runs.source // BLOCK_BYTES, -(-runs.end // BLOCK_BYTES)):
                for clipped in runs.clip(*self._layout.extent(block)):
                    target = self._target(block, clipped)
                    target.copies.append((memory, clipped))
                    touched.append(target)
        if finished is not None:
            count_down = _CountDown(len(touched), finished)
            for target in touched:
                target.finished.append(count_down)

    def _target(self, block: int, runs: Runs) -> BlockTarget:
        low, high = runs.source, runs.end
        target = self.blocks.setdefault(block, BlockTarget(low, high))
        target.low, target.high = min(target.low, low), max(target.high, high)
        return target


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy, and return when it is there: who loads may use another stream than this thread."""
    target.copy_(source)
    wait_for_devices({target.device})


class _CountDown:
    """Calls a function at the last of some calls, which come from several threads."""

    def __init__(self, calls: int, function: Callable[[], Any]) -> None:
        self._left, self._function = calls, function
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._function()
