"""`StatePlanner`: lets `torch.distributed.checkpoint.save` write each byte once, and evenly."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

from hpctrain.torch.state.layout.balance import HeldRows, RowRange, balance_rows
from hpctrain.torch.state.layout.shards import held_of, row_dimension

__all__ = ["StatePlanner"]


class StatePlanner(DefaultSavePlanner):
    """Shares what several ranks have out over them, for ``dcp.save(..., planner=StatePlanner())``.

    torch's own planner gives a replicated tensor to one rank. This one cuts it between rows, so
    that all ranks write equally many bytes; it is for any storage writer.

    Parameters
    ----------
    flatten_state_dict, flatten_sharded_tensors
        As for torch's.
    """

    def __init__(
        self, flatten_state_dict: bool = True, flatten_sharded_tensors: bool = True
    ) -> None:
        super().__init__(
            flatten_state_dict=flatten_state_dict, flatten_sharded_tensors=flatten_sharded_tensors
        )

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Balance the rows, and go on as torch does. Not collective: rank 0 calls it."""
        return super().create_global_plan(_balanced(all_plans))

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        """Return what is to be written, of a tensor the rows of this rank. Not collective."""
        data = write_item.tensor_data
        if data is None:
            return super().resolve_data(write_item)
        name, chunk = write_item.index.fqn, data.chunk
        for local, offsets in _held(name, self.state_dict[name]):
            starts = [a - b for a, b in zip(chunk.offsets, offsets, strict=True)]
            ends = [start + size for start, size in zip(starts, chunk.sizes, strict=True)]
            if all(s >= 0 for s in starts) and all(map(int.__le__, ends, local.shape)):
                for dimension, (start, size) in enumerate(zip(starts, chunk.sizes, strict=True)):
                    local = local.narrow(dimension, start, size)
                found: torch.Tensor = self.transform_object(write_item, local)
                return found
        return super().resolve_data(write_item)


def _held(name: str, held: Any) -> Iterator[tuple[torch.Tensor, Sequence[int]]]:
    if isinstance(held, ShardedTensor):
        for shard in held.local_shards():
            yield shard.tensor, shard.metadata.shard_offsets
    elif (found := held_of(name, held)) is not None:
        yield found


def _balanced(plans: Sequence[SavePlan]) -> list[SavePlan]:
    holders: dict[MetadataIndex, list[int]] = {}
    items: dict[MetadataIndex, WriteItem] = {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            data = item.tensor_data
            # Shards without elements may begin where another one begins.
            if data is None or data.chunk.sizes.numel() or not data.size.numel():
                holders.setdefault(item.index, []).append(rank)
                items.setdefault(item.index, item)
    held = [
        HeldRows(holders=tuple(ranks), rows=_rows(items[index]), row_bytes=_row_bytes(items[index]))
        for index, ranks in holders.items()
    ]
    balanced: list[list[WriteItem]] = [[] for _ in plans]
    for index, ranges in zip(holders, balance_rows(held, load=[0] * len(plans)), strict=True):
        for rows in ranges:
            balanced[rows.rank].append(_slice(items[index], rows))
    return [replace(plan, items=its) for plan, its in zip(plans, balanced, strict=True)]


def _rows(item: WriteItem) -> int:
    sizes = item.tensor_data.chunk.sizes if item.tensor_data else ()
    return sizes[row_dimension(sizes)] if sizes else 1


def _row_bytes(item: WriteItem) -> int:
    if item.tensor_data is None:
        return 0
    width = torch.empty((), dtype=item.tensor_data.properties.dtype).element_size()
    return item.tensor_data.chunk.sizes.numel() * width // max(_rows(item), 1)


def _slice(item: WriteItem, rows: RowRange) -> WriteItem:
    data = item.tensor_data
    if data is None or (rows.start, rows.stop) == (0, _rows(item)):
        return item
    dimension = row_dimension(data.chunk.sizes)
    offsets, sizes = list(data.chunk.offsets), list(data.chunk.sizes)
    offsets[dimension] += rows.start
    sizes[dimension] = rows.stop - rows.start
    chunk = ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes))
    return replace(
        item,
        index=MetadataIndex(item.index.fqn, chunk.offsets),
        type=WriteItemType.SHARD,
        tensor_data=replace(data, chunk=chunk),
    )
