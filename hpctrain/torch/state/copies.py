"""`BlockCopies`: what of which tensor is copied into a block of a file."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hpctrain.bulk.state_file import DTYPE_BYTES, StateFile

if TYPE_CHECKING:
    import torch

# torch copies tensors of fewer than 32768 elements in the calling thread. With several threads it
# takes eight times the CPU time on a machine that does other things too: they spin. A word is as
# wide as an element can be, so that a part is as large as it can be.
_PART_WORDS = 2**15 - 1
_WORD_BYTES = 16


class _Copy(NamedTuple):
    """What goes to a stretch of a block."""

    start: int
    stop: int
    dtype: torch.dtype
    """As which the stretch is seen."""
    shape: tuple[int, ...] | None
    """Of a tensor that is copied whole; None: elements one after the other, in parts."""
    sources: tuple[torch.Tensor, ...]


class BlockCopies:
    """The tensors of a file, cut at the borders of its blocks.

    Parameters
    ----------
    layout
        Of the file.
    tensors
        Of its pieces, in their order; on any device, and with any strides.
    """

    def __init__(self, layout: StateFile, tensors: Sequence[torch.Tensor]) -> None:
        self._layout = layout
        self.tensors = tensors
        self._prepared: dict[int, list[_Copy]] = {}

    def fill(self, block: int, memory: memoryview) -> None:
        """Copy a block's data into memory. Not collective."""
        import torch

        if block not in self._prepared:
            self._prepared[block] = self._prepare(block)
        copies = self._prepared[block]
        if not copies:
            return
        whole = torch.frombuffer(memory, dtype=torch.uint8, count=copies[-1].stop)
        sources: list[torch.Tensor] = []
        targets: list[torch.Tensor] = []
        for copy in copies:
            target = whole[copy.start : copy.stop].view(copy.dtype)
            sources += copy.sources
            if copy.shape is None:
                targets += torch.split(target, _PART_WORDS)
            else:
                targets.append(target.view(copy.shape))
        # Copies from a device go on behind the call, all at a time.
        devices = {source.device for source in sources if not source.is_cpu}
        torch._foreach_copy_(targets, sources, non_blocking=bool(devices))
        for device in devices:
            torch.get_device_module(device).current_stream(device).synchronize()

    def parts(self, block: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Give what is copied into a block, and to where in it, in bytes. Not collective."""
        start, stop = self._layout.extent(block)
        starts, pieces = self._layout.starts, self._layout.pieces
        position = 0
        for index in range(bisect_right(starts, start) - 1, len(pieces)):
            if starts[index] >= stop:
                break
            width = DTYPE_BYTES[pieces[index].dtype]
            first = max(start - starts[index], 0) // width
            last = min(stop - starts[index], pieces[index].size) // width
            for source in _elements(self.tensors[index], first, last):
                yield position, source
                position += source.numel() * source.element_size()

    def _prepare(self, block: int) -> list[_Copy]:
        return [copy for start, source in self.parts(block) for copy in _copies(source, start)]


def _elements(tensor: torch.Tensor, first: int, last: int) -> Iterator[torch.Tensor]:
    """Give views that have the elements from `first` to `last` one after the other."""
    import torch

    if first >= last:
        return
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        yield tensor.reshape(-1)[first:last].view(torch.uint8)
    elif (first, last) == (0, tensor.numel()):
        yield tensor
    else:
        row = math.prod(tensor.shape[1:])
        begin, end = -(-first // row), last // row
        if begin > end:
            yield from _elements(tensor[end], first - end * row, last - end * row)
            return
        if first < begin * row:
            yield from _elements(tensor[begin - 1], first - (begin - 1) * row, row)
        if begin < end:
            yield tensor[begin:end]
        yield from _elements(tensor[end], 0, last - end * row) if last > end * row else ()


def _copies(source: torch.Tensor, start: int) -> Iterator[_Copy]:
    """Cut bytes of the CPU into parts that one thread copies, in words where they are aligned."""
    import torch

    stop = start + source.numel() * source.element_size()
    if source.dtype is not torch.uint8 or source.dim() != 1 or not source.is_cpu:
        yield _Copy(start, stop, source.dtype, tuple(source.shape), (source,))
        return
    aligned = start % _WORD_BYTES == source.storage_offset() % _WORD_BYTES == 0
    words = source.numel() // _WORD_BYTES * _WORD_BYTES if aligned else 0
    if words:
        parts = torch.split(source[:words].view(torch.complex128), _PART_WORDS)
        yield _Copy(start, start + words, torch.complex128, None, tuple(parts))
    if words < source.numel():
        parts = torch.split(source[words:], _PART_WORDS)
        yield _Copy(start + words, stop, torch.uint8, None, tuple(parts))
