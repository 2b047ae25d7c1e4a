"""`read_dcp`: what ``FileSystemWriter`` of `torch.distributed.checkpoint` wrote.

torch reads the tensors. What it pickled beside them is read without running anything.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader
from torch.distributed.checkpoint import load as load_by_torch
from torch.distributed.checkpoint._nested_dict import unflatten_state_dict
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem

from hpctrain.bulk.index import IndexedFile, StateIndex
from hpctrain.bulk.state_file import Chunk, StateFile
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.torch.state.dcp import DCP_METADATA_NAME
from hpctrain.torch.state.layout.load_plan import saved_name
from hpctrain.torch.state.state_dict.dtypes import safetensors_name
from hpctrain.torch.state.state_dict.flatten import FlatState
from hpctrain.torch.state.state_dict.json_values import encode

METADATA_NAME = DCP_METADATA_NAME
# All that torch pickles there. Whole modules would not do: each has what it imports, os included.
_NAMES = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "pathlib": {"Path", "PosixPath"},
    # Python 3.13 pickles paths by this name.
    "pathlib._local": {"Path", "PosixPath"},
    "collections": {"OrderedDict"},
}


def find_dcp_index(directory: Path) -> StateIndex:
    """Return an index of what there is, as if it lay in one file of ours. Not collective.

    Raises
    ------
    CheckpointError
        If it is damaged, or holds what is neither a tensor nor a plain value.
    """
    metadata = _Reader(directory).read_metadata()
    tensors = {
        name: found
        for name, found in metadata.state_dict_metadata.items()
        if isinstance(found, TensorStorageMetadata)
    }
    chunks = [
        Chunk(
            name=name,
            dtype=safetensors_name(found.properties.dtype, name=name),
            shape=tuple(found.size),
            offsets=(0,) * len(found.size),
        )
        for name, found in tensors.items()
    ]
    flat: dict[str, Any] = dict.fromkeys(set(metadata.state_dict_metadata) - set(tensors))
    _load(directory, flat, alone=True)
    paths = metadata.planner_data or {}
    nested = unflatten_state_dict(flat, {name: paths.get(name, (name,)) for name in flat})
    values: dict[str, Any] = {}
    for name, value in nested.items():
        _add_values(values, name, value)
    return StateIndex(
        files=(IndexedFile(name=METADATA_NAME, layout=StateFile.plan(chunks)),),
        shapes={chunk.name: chunk.shape for chunk in chunks},
        values=values,
        plain_names=True,
        types={},
    )


def read_dcp(directory: Path, state: FlatState, index: StateIndex) -> None:
    """Read all tensors of a state. Collective, if torch has a process group.

    Raises
    ------
    CheckpointError
        If a file is missing or cannot be read.
    """
    wanted = {saved_name(name, index): tensor for name, tensor in state.tensors.items()}
    alone = not torch.distributed.is_initialized()
    state_dict = {str(name): tensor for name, tensor in wanted.items() if name is not None}
    _load(directory, state_dict, alone=alone)


class _Reader(FileSystemReader):
    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        path = Path(self.path, METADATA_NAME)
        try:
            with open(path, "rb") as file:
                metadata = _Unpickler(file).load()
            if not isinstance(metadata, Metadata):
                raise TypeError(f"it holds a {type(metadata).__name__}")
            stored = (metadata.storage_data or {}).values()
            names = {Path(part.relative_path) for part in stored}
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
        except Exception as error:  # whatever a strange pickle brings about
            raise CheckpointError(
                f"{path} is damaged, or would run code: {error}. Load another checkpoint."
            ) from error
        for name in names:
            if name.is_absolute() or ".." in name.parts:
                raise CheckpointError(
                    f"{path} takes tensors from {name}, and a checkpoint has its files in its own "
                    f"directory. Load another checkpoint."
                )
        return metadata


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # Of protocol 4 on, a dot in a name is an attribute of an attribute.
        is_type = module == "torch" and isinstance(vars(torch).get(name), torch.dtype)
        if is_type or name in _NAMES.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


class _Planner(DefaultLoadPlanner):
    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        try:
            loaded = torch.load(value, weights_only=True)
        except pickle.UnpicklingError as error:
            raise CheckpointError(
                f"{read_item.dest_index.fqn} is neither a tensor nor a plain value, and reading it "
                f"would run code. Load it with torch.distributed.checkpoint."
            ) from error
        self.state_dict[read_item.dest_index.fqn] = loaded


def _load(directory: Path, state: dict[str, Any], *, alone: bool) -> None:
    try:
        with warnings.catch_warnings():
            # That there is no process group is no news.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            reader, planner = _Reader(directory), _Planner()
            load_by_torch(state, storage_reader=reader, planner=planner, no_dist=alone)
    except CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        raise CheckpointError(
            f"{directory} cannot be loaded: {first}. Load another checkpoint."
        ) from error


def _add_values(values: dict[str, Any], name: str, value: Any) -> None:
    """Add a value by its name, and all that is in it: which of them is wanted is not known yet."""
    try:
        values[name] = encode(value, name=name)
    except ConfigError:
        return
    if isinstance(value, Mapping | list):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in items:
            _add_values(values, f"{name}.{key}", item)
