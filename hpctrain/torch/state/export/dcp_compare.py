"""`compare_dcp`: whether torch reads from a directory what was written into it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import xxhash
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

from hpctrain.errors import CheckpointError


def compare_dcp(directory: Path, digests: Mapping[MetadataIndex, int]) -> None:
    """Let torch read all parts, and compare each. Not collective.

    Parameters
    ----------
    directory
        What was written.
    digests
        The xxh3_64 of each part that has bytes.

    Raises
    ------
    CheckpointError
        If one differs, or is missing.
    """
    reader = FileSystemReader(directory)
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    planner = _Comparing(digests)
    plan = planner.plan_of(metadata)
    if missing := digests.keys() - {item.storage_index for item in plan.items}:
        raise CheckpointError(f"what was written lacks {min(index.fqn for index in missing)}.")
    reader.read_data(plan, planner).wait()


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
