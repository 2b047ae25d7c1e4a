"""`BlockCopies`: what of which tensor is copied into a block of a file."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hpctrain.bulk.state_file import DTYPE_BYTES, StateFile

if TYPE_CHECKING:
    import torch


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
        self._prepared: dict[int, tuple[list[torch.Tensor], list[int]]] = {}

    def fill(self, block: int, memory: memoryview) -> None:
        """Copy a block's data into memory. Not collective."""
        import torch

        if block not in self._prepared:
            self._prepared[block] = self._prepare(block)
        sources, sizes = self._prepared[block]
        if not sources:
            return
        whole = torch.frombuffer(memory, dtype=torch.uint8, count=sum(sizes))
        targets = [
            part if source.dtype is torch.uint8 else part.view(source.dtype).view(source.shape)
            for part, source in zip(torch.split(whole, sizes), sources, strict=True)
        ]
        # Copies from a device go on behind the call, all at a time.
        devices = {source.device for source in sources if source.device.type != "cpu"}
        torch._foreach_copy_(targets, sources, non_blocking=bool(devices))
        for device in devices:
            torch.get_device_module(device).current_stream(device).synchronize()

    def parts(self, block: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Give what is copied into a block, and to where in it, in bytes. Not collective."""
        start = 0
        for source, size in zip(*self._prepare(block), strict=True):
            yield start, source
            start += size

    def _prepare(self, block: int) -> tuple[list[torch.Tensor], list[int]]:
        start, stop = self._layout.extent(block)
        starts, pieces = self._layout.starts, self._layout.pieces
        sources, sizes = [], []
        for index in range(bisect_right(starts, start) - 1, len(pieces)):
            if starts[index] >= stop:
                break
            width = DTYPE_BYTES[pieces[index].dtype]
            first = max(start - starts[index], 0) // width
            last = min(stop - starts[index], pieces[index].size) // width
            for part in _elements(self.tensors[index], first, last):
                sources.append(part)
                sizes.append(part.numel() * part.element_size())
        return sources, sizes


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
