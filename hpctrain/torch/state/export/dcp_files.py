"""The model in the layout of `torch.distributed.checkpoint`, which writes and reads it itself.

Parts of tensors stay parts, as the ranks wrote them or smaller: torch puts them together when it
loads them. It asks for one at a time, in the order in which they are in the checkpoint.
"""

from __future__ import annotations

import errno
import math
import warnings
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
import xxhash
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint import save as save_by_torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult

from hpctrain.bulk.state_file import BLOCK_BYTES
from hpctrain.errors import HpctrainError
from hpctrain.rundir.files import fsync_directory
from hpctrain.torch.state.export.dcp_compare import compare_dcp
from hpctrain.torch.state.export.regions import slabs
from hpctrain.torch.state.export.saved_model import (
    CONFIG_NAMES,
    SavedChunk,
    SavedModel,
    SavedTensor,
)
from hpctrain.torch.state.export.verified_file import VerifiedFile

_MOST_BYTES = 8 * 2**20
"""Of a part, all of which is in memory while torch writes or reads it."""


def write_dcp(model: SavedModel, directory: Path) -> None:
    """Write a model into an empty directory, durably, and compare it. Not collective.

    Raises
    ------
    CheckpointError
        If the checkpoint is damaged, or what was written is not there.
    OSError
        If it cannot be written.
    """
    planner = _SavePlanner(model)
    writer = _Writer(model, directory)
    try:
        with warnings.catch_warnings():
            # That there is no process group is no news.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            save_by_torch({}, storage_writer=writer, planner=planner, no_dist=True)
    except CheckpointException as error:
        raise _reason(next(iter(error.failures.values()))[0]) from error
    planner.finish()
    fsync_directory(directory)
    compare_dcp(directory, planner.digests)


def is_dcp_export(name: str) -> bool:
    """Return whether an export may have written a file of this name. Not collective."""
    is_part = name.startswith("__") and name.endswith(".distcp")
    return is_part or name in (".metadata", *CONFIG_NAMES)


def _reason(failure: BaseException) -> BaseException:
    """Return what a failure in a call of torch began with."""
    reason: BaseException | None = failure
    while reason is not None and not isinstance(reason, OSError | HpctrainError):
        reason = reason.__cause__ or reason.__context__
    if reason is None and isinstance(failure, RuntimeError):
        # torch's own writer knows no errno.
        return OSError(errno.EIO, f"torch.save() failed: {failure}")
    return reason or failure


class _Slab(NamedTuple):
    """A part of a tensor that is written at once, whose bytes lie one after the other."""

    tensor: SavedTensor
    file: int
    """Number of the checkpoint's file."""
    start: int
    """In the data of that file, in bytes."""
    offsets: tuple[int, ...]
    """In the tensor."""
    lengths: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.lengths) * self.tensor.live_dtype.itemsize

    @property
    def stop(self) -> int:
        """Where it ends."""
        return self.start + self.size

    @property
    def key(self) -> MetadataIndex:
        """What torch calls it."""
        return MetadataIndex(self.tensor.name, torch.Size(self.offsets))

    def item(self) -> WriteItem:
        """Return what torch plans with. Not collective."""
        data = TensorWriteData(
            chunk=ChunkStorageMetadata(torch.Size(self.offsets), torch.Size(self.lengths)),
            properties=TensorProperties(dtype=self.tensor.live_dtype),
            size=torch.Size(self.tensor.shape),
        )
        return WriteItem(index=self.key, type=WriteItemType.SHARD, tensor_data=data)

    def shaped(self, content: torch.Tensor) -> torch.Tensor:
        """Return bytes as the part. Not collective."""
        return content.view(self.tensor.live_dtype).reshape(self.lengths)


class _SavePlanner(DefaultSavePlanner):
    """Plans parts that are read when torch asks for them."""

    def __init__(self, model: SavedModel) -> None:
        super().__init__(flatten_state_dict=False)
        self.digests: dict[MetadataIndex, int] = {}
        self._model = model
        self._slabs = [slab for chunk in model.chunks for slab in _slabs_of(chunk)]
        self._contents = self._read()
        self._written: torch.Tensor | None = None

    def create_local_plan(self) -> SavePlan:
        """Return all parts, in the order in which they are in the checkpoint."""
        empty = [_whole(tensor) for tensor in self._model.tensors if not tensor.size]
        self.plan = SavePlan([slab.item() for slab in (*self._slabs, *empty)])
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        """Return the content of the next part."""
        assert write_item.tensor_data is not None
        if not write_item.tensor_data.size.numel():
            properties = write_item.tensor_data.properties
            return torch.empty(write_item.tensor_data.size, dtype=properties.dtype)
        if self._written is not None:
            # torch keeps the last part of each tensor until all are written.
            self._written.untyped_storage().resize_(0)
        slab, content, digest = next(self._contents)
        self._written = content
        assert slab.key == write_item.index, "torch asks in another order than it was given"
        self.digests[slab.key] = digest
        return slab.shaped(content)

    def finish(self) -> None:
        """Read what is left, after which a file is known to be what was committed."""
        for slab, *_ in self._contents:
            raise AssertionError(f"torch has not asked for {slab.key}")

    def _read(self) -> Iterator[tuple[_Slab, torch.Tensor, int]]:
        for number, file in enumerate(self._model.files):
            slabs = [slab for slab in self._slabs if slab.file == number]
            wanted = {
                block
                for slab in slabs
                for block in range(slab.start // BLOCK_BYTES, -(-slab.stop // BLOCK_BYTES))
            }
            yield from _fill(slabs, file, wanted)


def _fill(
    slabs: list[_Slab], file: VerifiedFile, wanted: Collection[int]
) -> Iterator[tuple[_Slab, torch.Tensor, int]]:
    """Give the content of parts of a file, which are in its order, as soon as each is read."""
    left = deque(slabs)
    content, digest = torch.empty(0, dtype=torch.uint8), xxhash.xxh3_64()
    for block, memory in file.blocks(wanted):
        start, stop = file.layout.extent(block)
        while left and left[0].start < stop:
            slab = left[0]
            low, high = max(slab.start, start), min(slab.stop, stop)
            if low == slab.start:
                content, digest = torch.empty(slab.size, dtype=torch.uint8), xxhash.xxh3_64()
            part = memory[low - start : high - start]
            digest.update(part)
            # Not through NumPy, which would not let go of the memory.
            content[low - slab.start : high - slab.start] = torch.frombuffer(
                part, dtype=torch.uint8
            )
            if high < slab.stop:
                break
            yield slab, content, digest.intdigest()
            left.popleft()


def _slabs_of(saved: SavedChunk) -> Iterator[_Slab]:
    tensor, chunk = saved.tensor, saved.chunk
    # In a file some types have a dimension more.
    shape = chunk.shape[: len(tensor.shape)]
    start = saved.start
    for offsets, lengths in slabs(
        shape, item_bytes=tensor.live_dtype.itemsize, most_bytes=_MOST_BYTES
    ):
        places = tuple(a + b for a, b in zip(chunk.offsets, offsets, strict=False))
        slab = _Slab(tensor, saved.file, start, places, lengths)
        yield slab
        start = slab.stop


def _whole(tensor: SavedTensor) -> _Slab:
    return _Slab(tensor, 0, 0, (0,) * len(tensor.shape), tensor.shape)


class _Writer(FileSystemWriter):
    """Gives tensors their further names too, which have the same bytes."""

    def __init__(self, model: SavedModel, directory: Path) -> None:
        # One thread, and nothing ahead: parts are asked for in the order of the plan.
        super().__init__(directory, thread_count=1, per_thread_copy_ahead=0)
        self._aliases = model.aliases

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write what torch finds everything by."""
        known = metadata.state_dict_metadata
        metadata.state_dict_metadata = {
            **known,
            **{alias: known[name] for alias, name in self._aliases.items()},
        }
        named: dict[str, list[str]] = {}
        for alias, name in self._aliases.items():
            named.setdefault(name, []).append(alias)
        further = [
            replace(result, index=replace(result.index, fqn=alias))
            for its in results
            for result in its
            for alias in named.get(result.index.fqn, ())
        ]
        super().finish(metadata, [*results, further])
