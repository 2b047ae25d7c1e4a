"""`StateWriter`: lets `torch.distributed.checkpoint.save` write as `save_state` does."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from hpctrain.bulk.index import INDEX_NAME, IndexedFile, StateIndex, file_name
from hpctrain.bulk.state_file import Chunk, StateFile
from hpctrain.bulk.state_file_writer import write_state_file
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.torch.state.layout.block_source import BlockSource
from hpctrain.torch.state.layout.shards import LocalShard, shard_of
from hpctrain.torch.state.save import shared_ring, write_index
from hpctrain.torch.state.state_dict.json_values import encode

__all__ = ["StateWriter"]


class _Tensor(NamedTuple):
    """What rank 0 receives of a tensor."""

    chunk: Chunk
    shape: tuple[int, ...]
    torch_type: str


class _Value(NamedTuple):
    """What rank 0 receives of a value."""

    json: Any


class StateWriter(StorageWriter):
    """Writes states for ``torch.distributed.checkpoint.save(..., storage_writer=StateWriter(d))``.

    What it writes is what `hpctrain.torch.save_state` writes: a file a rank, with digests, past the
    page cache, durable when ``save`` returns. `hpctrain.torch.load_state`,
    `hpctrain.torch.StateReader`, safetensors and torch's ``HuggingFaceStorageReader`` read it. Give
    ``planner=hpctrain.torch.StatePlanner()`` too where ranks have the same tensors.

    Parameters
    ----------
    path
        The directory, which holds no state yet; None takes the ``checkpoint_id`` that ``save`` is
        given.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else Path(path)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Take another directory. Not collective."""
        if checkpoint_id:
            self._path = Path(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Look at the directory. Not collective.

        Raises
        ------
        ConfigError
            If it holds a state, or ranks are to save without communication.
        """
        if not kwargs.get("use_collectives", True):
            raise ConfigError(
                "use_collectives=False: without them no rank knows all files of a state. Leave it "
                "out; with StateWriter what ranks send each other is small."
            )
        if is_coordinator and (self._directory / INDEX_NAME).exists():
            raise ConfigError(
                f"{self._directory} holds a state already, which would be lost if this one were "
                f"not finished. Save into a new directory, or remove it first."
            )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Make the directory. Not collective."""
        self._directory.mkdir(parents=True, exist_ok=True)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Name each rank's file. Not collective: rank 0 calls it."""
        return [
            replace(plan, storage_data=file_name(number, len(plans)))
            for number, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's file. Not collective.

        Raises
        ------
        CheckpointError
            If the disk is full or fails.
        ConfigError
            If something cannot be saved.
        """
        shards: dict[str, LocalShard] = {}
        results: list[WriteResult] = []
        for item in plan.items:
            name, size = item.index.fqn, 0
            record: _Value | _Tensor | None = None
            resolved: Any = planner.resolve_data(item)
            if item.tensor_data is None:
                # These bytes were made by the planner, in this process.
                resolved.seek(0)
                record = _Value(encode(torch.load(resolved, weights_only=False), name=name))
            elif resolved.numel() or not item.tensor_data.size.numel():
                chunk = item.tensor_data.chunk
                shard = shard_of(name, resolved.detach(), item.tensor_data.size, chunk.offsets)
                if name in shards:
                    raise ConfigError(
                        f"this rank holds several shards of {name}, and a file has one. Save it as "
                        f"a DTensor, of which each rank has one shard."
                    )
                shards[name] = shard
                own = shard.shard.chunk(0, shard.shard.rows)
                size, record = own.size, _Tensor(own, shard.shard.shape, shard.shard.torch_type)
            results.append(WriteResult(index=item.index, size_in_bytes=size, storage_data=record))
        layout = _layout(results)
        copies = BlockSource(layout, [shards[chunk.name].content for chunk in layout.chunks])
        path = self._directory / plan.storage_data
        write_state_file(path, layout, copies.fill, ring=shared_ring(copies.tensors))
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Make the state complete. Not collective: rank 0 calls it.

        Raises
        ------
        CheckpointError
            If the disk is full or fails.
        """
        shapes: dict[str, tuple[int, ...]] = {}
        types: dict[str, str] = {}
        values: dict[str, _Value] = {}
        for result in (result for its in results for result in its):
            record = result.storage_data
            if isinstance(record, _Tensor):
                shapes[result.index.fqn] = record.shape
                if record.torch_type:
                    types[result.index.fqn] = record.torch_type
            elif isinstance(record, _Value):
                values[result.index.fqn] = record
        files = tuple(
            IndexedFile(name=file_name(number, len(results)), layout=_layout(its))
            for number, its in enumerate(results)
        )
        paths = metadata.planner_data if isinstance(metadata.planner_data, dict) else {}
        index = StateIndex(
            files=files, shapes=shapes, values=_nested(values, shapes, paths), types=types
        )
        if failure := write_index(self._directory, index):
            raise CheckpointError(failure)

    def storage_meta(self) -> StorageMeta | None:
        """Return where it is written. Not collective."""
        return StorageMeta(checkpoint_id=self._directory)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether this may be a directory. Not collective."""
        return not Path(checkpoint_id).is_file()

    @property
    def _directory(self) -> Path:
        if self._path is None:
            raise ConfigError(
                "StateWriter has no directory. Give it one, or checkpoint_id= to save()."
            )
        return self._path


def _layout(results: Sequence[WriteResult]) -> StateFile:
    record = (result.storage_data for result in results)
    return StateFile.plan(data.chunk for data in record if isinstance(data, _Tensor))


def _nested(
    values: Mapping[str, _Value],
    shapes: Mapping[str, Any],
    paths: Mapping[str, Sequence[str | int]],
) -> dict[str, Any]:
    """Return values as `save_state` names them: a tree without a tensor has one name."""
    tree: dict[str | int, Any] = {}
    for name in [*values, *shapes]:
        *above, last = paths.get(name, (name,))
        node = tree
        for key in above:
            node = node.setdefault(key, {})
        node[last] = values.get(name)
    found: dict[str, Any] = {}
    for key, node in tree.items():
        optimizer = isinstance(node, dict) and set(node) <= {"state", "param_groups"}
        _name_values(str(key), node, found, keep_top=optimizer)
    return found


def _name_values(name: str, node: Any, found: dict[str, Any], *, keep_top: bool = False) -> None:
    if keep_top or _holds_tensor(node):
        for key, item in node.items() if isinstance(node, dict) else ():
            _name_values(f"{name}.{key}", item, found)
    else:
        found[name] = _json_of(node)


def _holds_tensor(node: Any) -> bool:
    return node is None or (isinstance(node, dict) and any(map(_holds_tensor, node.values())))


def _json_of(node: Any) -> Any:
    if isinstance(node, _Value):
        return node.json
    items = {key: _json_of(item) for key, item in node.items()}
    return list(items.values()) if all(isinstance(key, int) for key in items) else items
