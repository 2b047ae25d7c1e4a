"""The model in the layout of `torch.distributed.checkpoint`, which writes and reads it itself.

Parts of tensors stay parts, as the ranks wrote them or smaller: torch puts them together when it
loads them. It asks for one at a time, in the order in which they are in the checkpoint.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
import xxhash
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint import save as save_by_torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult

from hpctrain.bulk.state_file import BLOCK_BYTES
from hpctrain.errors import CheckpointError
from hpctrain.rundir.files import fsync_directory
from hpctrain.torch.state.export.regions import slabs
from hpctrain.torch.state.export.saved_model import (
    CONFIG_NAMES,
    SavedChunk,
    SavedModel,
    SavedTensor,
)
from hpctrain.torch.state.export.verified_file import VerifiedFile

_MOST_BYTES = 32 * 2**20
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
        raise next(iter(error.failures.values()))[0] from error
    planner.finish()
    fsync_directory(directory)
    _compare(directory, planner.digests)


def is_dcp_export(name: str) -> bool:
    """Return whether an export may have written a file of this name. Not collective."""
    is_part = name.startswith("__") and name.endswith(".distcp")
    return is_part or name in (".metadata", *CONFIG_NAMES)


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
    def stop(self) -> int:
        """Where it ends."""
        return self.start + math.prod(self.lengths) * self.tensor.live_dtype.itemsize

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
        slab, content = next(self._contents)
        assert slab.key == write_item.index, "torch asks in another order than it was given"
        self.digests[slab.key] = xxhash.xxh3_64_intdigest(content.numpy().data)
        return slab.shaped(content)

    def finish(self) -> None:
        """Read what is left, after which a file is known to be what was committed."""
        for slab, _ in self._contents:
            raise AssertionError(f"torch has not asked for {slab.key}")

    def _read(self) -> Iterator[tuple[_Slab, torch.Tensor]]:
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
) -> Iterator[tuple[_Slab, torch.Tensor]]:
    """Give the content of parts of a file, which are in its order, as soon as each is read."""
    left = deque(slabs)
    content: torch.Tensor | None = None
    for block, memory in file.blocks(wanted):
        start, stop = file.layout.extent(block)
        while left and left[0].start < stop:
            slab = left[0]
            if content is None:
                content = torch.empty(slab.stop - slab.start, dtype=torch.uint8)
            low, high = max(slab.start, start), min(slab.stop, stop)
            target = content.numpy().data
            target[low - slab.start : high - slab.start] = memory[low - start : high - start]
            if high < slab.stop:
                break
            yield slab, content
            left.popleft()
            content = None


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


class _Comparing(DefaultLoadPlanner):
    """Takes the digest of each part that torch has read."""

    def __init__(self, digests: Mapping[MetadataIndex, int]) -> None:
        super().__init__()
        self._digests = digests
        self._dtypes: dict[str, torch.dtype] = {}

    def plan_of(self, metadata: Metadata) -> LoadPlan:
        """Return all parts. Not collective."""
        items = []
        for name, its in metadata.state_dict_metadata.items():
            assert isinstance(its, TensorStorageMetadata)
            self._dtypes[name] = its.properties.dtype
            for number, chunk in enumerate(its.chunks):
                index = MetadataIndex(name, chunk.offsets, number)
                start = torch.Size([0] * len(chunk.sizes))
                items.append(
                    ReadItem(
                        type=LoadItemType.TENSOR,
                        dest_index=index,
                        dest_offsets=start,
                        storage_index=index,
                        storage_offsets=start,
                        lengths=chunk.sizes,
                    )
                )
        return LoadPlan(items)

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        """Return memory for a part."""
        return torch.empty(read_item.lengths, dtype=self._dtypes[read_item.dest_index.fqn])

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Compare a part."""
        index = read_item.storage_index
        content = tensor.reshape(-1).view(torch.uint8).numpy().data
        if index in self._digests and xxhash.xxh3_64_intdigest(content) != self._digests[index]:
            raise CheckpointError(
                f"what was written was read again, and its {index.fqn} is not what was written. "
                f"Export to another filesystem, and tell the site about this one."
            )


def _compare(directory: Path, digests: Mapping[MetadataIndex, int]) -> None:
    reader = FileSystemReader(directory)
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    planner = _Comparing(digests)
    plan = planner.plan_of(metadata)
    if missing := digests.keys() - {item.storage_index for item in plan.items}:
        raise CheckpointError(f"what was written lacks {min(index.fqn for index in missing)}.")
    reader.read_data(plan, planner).wait()
