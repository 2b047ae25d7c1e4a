"""`BlockSource`: what of which tensor is copied into a block of a file."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpctrain.bulk.state_file import DTYPE_BYTES, HASHED_BYTES, StateFile

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class _Sources:
    """What goes into a block, each with the byte where it begins there."""

    tensors: Sequence[tuple[int, torch.Tensor]]
    """On devices, or with strides: torch copies them."""
    contents: Sequence[tuple[int, memoryview]]
    """In the memory of the CPU, one after the other."""


class BlockSource:
    """The tensors of a file, cut at the borders of its blocks.

    Parameters
    ----------
    layout
        Of the file.
    tensors
        Of its chunks, in their order; on any device, and with any strides.
    """

    def __init__(self, layout: StateFile, tensors: Sequence[torch.Tensor]) -> None:
        self.layout = layout
        self.tensors = tensors

    def fill(self, block: int, memory: memoryview) -> Iterator[int]:
        """Copy a block's data, as they are now, into memory. Not collective.

        Any thread may call it. Python's lock is held while a part is copied, which takes less time
        than to get it again, and given away while the caller hashes the parts.

        Parameters
        ----------
        block
            Its number.
        memory
            As many bytes as the block has.

        Yields
        ------
        int
            How many bytes are there, after each part that stays in the cache, and at the end.
        """
        sources = self._sources(block)
        _copy_tensors(sources.tensors, memory)
        done = 0
        for start, content in sources.contents:
            for first in range(0, len(content), HASHED_BYTES):
                part = content[first : first + HASHED_BYTES]
                stop = start + first + len(part)
                memory[stop - len(part) : stop] = part
                if stop - done >= HASHED_BYTES:
                    yield stop
                    done = stop
        yield len(memory)

    def parts(self, block: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Give what is copied into a block, and to where in it, in bytes. Not collective."""
        start, stop = self.layout.extent(block)
        starts, chunks = self.layout.starts, self.layout.chunks
        position = 0
        for index in range(bisect_right(starts, start) - 1, len(chunks)):
            if starts[index] >= stop:
                break
            width = DTYPE_BYTES[chunks[index].dtype]
            first = max(start - starts[index], 0) // width
            last = min(stop - starts[index], chunks[index].size) // width
            for source in _elements(self.tensors[index], first, last):
                yield position, source
                position += source.numel() * source.element_size()

    def _sources(self, block: int) -> _Sources:
        import torch

        tensors, contents = [], []
        for start, source in self.parts(block):
            flat = source.dtype is torch.uint8 and source.dim() == 1 and source.is_contiguous()
            if flat and source.is_cpu:
                contents.append((start, source.numpy().data))
            else:
                tensors.append((start, source))
        return _Sources(tensors=tensors, contents=contents)


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


def _copy_tensors(sources: Sequence[tuple[int, torch.Tensor]], memory: memoryview) -> None:
    if not sources:
        return
    import torch

    from hpctrain.torch.state.streams import copy_tensors

    whole = torch.frombuffer(memory, dtype=torch.uint8)
    targets = []
    for start, source in sources:
        part = whole[start : start + source.numel() * source.element_size()]
        targets.append(part.view(source.dtype).view(source.shape))
    copy_tensors(targets, [source for _, source in sources])
