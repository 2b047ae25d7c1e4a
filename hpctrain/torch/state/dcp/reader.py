"""`StateReader`: `torch.distributed.checkpoint.load` of what `save_state` wrote, verified."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from hpctrain import timeouts
from hpctrain.bulk.header import read_layout
from hpctrain.bulk.index import StateIndex
from hpctrain.bulk.state_file import Chunk
from hpctrain.errors import CheckpointError
from hpctrain.torch.state.dcp.torch_files import METADATA_NAME
from hpctrain.torch.state.engine.open_readers import ReadFile
from hpctrain.torch.state.engine.read_blocks import StateReading
from hpctrain.torch.state.find_index import find_index
from hpctrain.torch.state.layout.block_targets import FileTargets
from hpctrain.torch.state.layout.load_plan import plan_global, requests_of
from hpctrain.torch.state.state_dict.dtypes import as_stored, live_kind
from hpctrain.torch.state.state_dict.json_values import decode
from hpctrain.torch.state.streams import wait_for_devices

__all__ = ["StateReader"]


class StateReader(StorageReader):
    """Reads states for ``torch.distributed.checkpoint.load(..., storage_reader=StateReader(d))``.

    Directories of `hpctrain.torch.save_state` and `hpctrain.torch.StateWriter`, verified while they
    are read; and of other programs that write safetensors, which have no digests. Each rank reads
    what it wants by itself: `hpctrain.torch.load_state` reads each byte once for all ranks.

    Parameters
    ----------
    path
        The directory; None takes the ``checkpoint_id`` that ``load`` is given.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._values: dict[str, Any] = {}
        self._places: dict[tuple[str, tuple[int, ...]], tuple[int, int]] = {}
        self._index: StateIndex | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Read another directory from here on. Not collective."""
        if checkpoint_id:
            self._path = Path(checkpoint_id)

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return what there is to be read. Not collective.

        Raises
        ------
        CheckpointError
            If there is no state, or its index is damaged.
        """
        # A reader may be used for one directory after another.
        self._values.clear()
        self._places.clear()
        index = self._index = find_index(self._directory)
        if any(file.name == METADATA_NAME for file in index.files):
            raise CheckpointError(
                f"{self._directory} was written by torch.distributed.checkpoint's own writer, and "
                f"StateReader reads what StateWriter and save_state() wrote. Leave storage_reader= "
                f"out, and give checkpoint_id=; or call hpctrain.torch.load_state()."
            )
        tensors: dict[str, Any] = {}
        for number, file in enumerate(index.files):
            for chunk_number, chunk in enumerate(file.layout.chunks):
                dtype, shape = live_kind(chunk.name, chunk.dtype, index)
                # In a file some types have a dimension more.
                offsets, sizes = chunk.offsets[: len(shape)], chunk.shape[: len(shape)]
                self._places.setdefault((chunk.name, offsets), (number, chunk_number))
                properties = TensorProperties(dtype=dtype)
                size = torch.Size(shape)
                found = tensors.setdefault(
                    chunk.name, TensorStorageMetadata(properties=properties, size=size, chunks=[])
                )
                region = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
                if region not in found.chunks:
                    found.chunks.append(region)
        for name, other in index.aliases.items():
            tensors[name] = tensors[other]
        for name, value in index.values.items():
            self._add_values(name, decode(value))
        return Metadata(
            state_dict_metadata={**tensors, **dict.fromkeys(self._values, BytesStorageMetadata())},
            storage_meta=StorageMeta(checkpoint_id=self._directory),
        )

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any
    ) -> None:
        """Do nothing. Not collective."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan as it is. Not collective."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans as they are. Not collective."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what a plan lists, straight to where the planner wants it. Not collective.

        Raises
        ------
        CheckpointError
            If a file is missing or damaged.
        """
        assert self._index is not None
        files = {
            number: ReadFile(path=self._directory / file.name, layout=file.layout)
            for number, file in enumerate(self._index.files)
        }
        targets: dict[int, FileTargets] = {}
        begun = []
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                content = io.BytesIO()
                torch.save(self._values[item.storage_index.fqn], content)
                content.seek(0)
                planner.load_bytes(item, content)
            else:
                number, chunk = self._place(item)
                if number not in targets:
                    path = files[number].path
                    files[number] = ReadFile(path=path, layout=read_layout(path))
                    targets[number] = FileTargets(files[number].layout)
                target = planner.resolve_tensor(item).detach()
                memory, stored = self._memory(target, files[number].layout.chunks[chunk])
                offsets = (*item.storage_offsets, *(0,) * (stored.dim() - memory.dim()))
                targets[number].add(chunk, stored, offsets=offsets)
                begun.append((item, target, memory))
        wait_for_devices({memory.device for _, _, memory in begun})
        with StateReading(
            files,
            targets,
            plan_global([requests_of(targets)]),
            rank=0,
            transport=None,
            timeout_s=timeouts.STATE_READ_S,
        ) as reading:
            if reading.failure is not None:
                raise CheckpointError(reading.failure)
            reading.run()
        if reading.damage:
            raise CheckpointError(f"{reading.damage[0]} Load another checkpoint.")
        for item, target, memory in begun:
            if memory is not target:
                target.copy_(memory)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether this may be a directory of a state. Not collective."""
        return Path(checkpoint_id).is_dir()

    @property
    def _directory(self) -> Path:
        if self._path is None:
            raise CheckpointError(
                "StateReader has no directory. Give it one, or checkpoint_id= to load()."
            )
        return self._path

    def _place(self, item: ReadItem) -> tuple[int, int]:
        assert self._index is not None
        name = item.storage_index.fqn
        name = self._index.aliases.get(name, name)
        offsets = item.storage_index.offset or (0,) * len(item.storage_offsets)
        return self._places[name, tuple(offsets)]

    def _memory(self, target: torch.Tensor, chunk: Chunk) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what a chunk is read into, and a view of it with the type of the file."""
        assert self._index is not None
        dtype, _ = live_kind(chunk.name, chunk.dtype, self._index)
        memory = target
        # Of conjugated and negated numbers there may be no such view.
        if target.dtype != dtype or target.is_conj() or target.is_neg():
            memory = torch.empty(target.shape, dtype=dtype, device=target.device)
        return memory, as_stored(memory, name=chunk.name)

    def _add_values(self, name: str, value: Any) -> None:
        """Take a value by its name, and what is in it by the names that torch gives that."""
        self._values[name] = value
        if isinstance(value, dict | list):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in items:
                self._add_values(f"{name}.{key}", item)
