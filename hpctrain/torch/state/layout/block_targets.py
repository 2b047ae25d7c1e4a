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
from hpctrain.torch.state.layout.strided_copy import StridedCopy, strided_copies
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
    copies: list[tuple[Memory, StridedCopy]] = field(default_factory=list)
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
        for memory, rows in sorted(self.copies, key=lambda copy: copy[1].source):
            if rows.num_rows > 1 or rows.source != position or memory.array is None:
                return None
            position += rows.row_bytes
            memories.append(
                memoryview(memory.array[rows.target : rows.target + rows.row_bytes].data)
            )
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
        found = [(memory, part) for memory, rows in self.copies for part in rows.clip(low, high)]
        if len(found) != 1:
            return None
        ((memory, rows),) = found
        if (
            rows.num_rows > 1
            or memory.array is None
            or (rows.source, rows.row_bytes) != (0, high - low)
        ):
            return None
        return memoryview(memory.array[rows.target : rows.target + rows.row_bytes].data)

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
        for memory, rows in self.copies:
            # Most are elsewhere, if there are many.
            if rows.source < stop and rows.end > start:
                for part in rows.clip(start, stop):
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

    def copy(self, content: NDArray[np.uint8], rows: StridedCopy) -> None:
        """Copy rows of the content into it. Not collective."""
        shape = (rows.num_rows, rows.row_bytes)
        if self.array is None:
            source = torch.from_numpy(content)
            _copy(
                torch.as_strided(self._bytes, shape, (rows.target_stride, 1), rows.target),
                torch.as_strided(source, shape, (rows.source_stride, 1), rows.source),
            )
        elif rows.num_rows == 1:
            source_stop, stop = rows.source + rows.row_bytes, rows.target + rows.row_bytes
            self.array[rows.target : stop] = content[rows.source : source_stop]
        else:
            source_rows = np.ndarray(
                shape, np.uint8, content, offset=rows.source, strides=(rows.source_stride, 1)
            )
            target_rows = np.ndarray(
                shape, np.uint8, self.array, rows.target, strides=(rows.target_stride, 1)
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

    def add(self, chunk: int, tensor: torch.Tensor, *, offsets: Sequence[int]) -> None:
        """Have a region of a chunk read into a tensor. Not collective.

        Parameters
        ----------
        chunk
            Its number in the file.
        tensor
            Of the region's shape and the chunk's type.
        offsets
            Where in the chunk the region begins.
        """
        shape, item = self._layout.chunks[chunk].shape, tensor.element_size()
        copies = strided_copies(
            shape=shape,
            offsets=offsets,
            lengths=tensor.shape,
            source=self._layout.starts[chunk],
            target=int(tensor.storage_offset()) * item,
            target_strides=[stride * item for stride in tensor.stride()],
            item_bytes=item,
        )
        if copies is not None and not tensor.is_conj() and not tensor.is_neg():
            self._add(Memory(tensor), copies)
            return
        # Memory in another order, channels_last for instance, or of a conjugated or negated tensor:
        # read as it is in the file, and put into order once it is complete.
        staged = torch.empty(shape, dtype=tensor.dtype)
        region = staged[tuple(slice(o, o + n) for o, n in zip(offsets, tensor.shape, strict=True))]
        low = self._layout.starts[chunk]
        whole = StridedCopy(source=low, target=0, row_bytes=staged.numel() * item)
        self._add(Memory(staged), [whole], finished=lambda: _copy(tensor, region))

    def _add(
        self,
        memory: Memory,
        copies: Sequence[StridedCopy],
        *,
        finished: Callable[[], Any] | None = None,
    ) -> None:
        touched = []
        for rows in copies:
            for block in range(rows.source // BLOCK_BYTES, -(-rows.end // BLOCK_BYTES)):
                for clipped in rows.clip(*self._layout.extent(block)):
                    target = self._target(block, clipped)
                    target.copies.append((memory, clipped))
                    touched.append(target)
        if finished is not None:
            count_down = _CountDown(len(touched), finished)
            for target in touched:
                target.finished.append(count_down)

    def _target(self, block: int, rows: StridedCopy) -> BlockTarget:
        low, high = rows.source, rows.end
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
