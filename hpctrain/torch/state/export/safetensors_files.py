"""The model as Hugging Face's files: ``model.safetensors``, or several and their index."""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpctrain.bulk.header import read_layout
from hpctrain.bulk.state_file import DTYPE_BYTES
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.own_files import create_file
from hpctrain.rundir.files import write_unseen
from hpctrain.torch.state.export.copy_blocks import Place, TensorTargets
from hpctrain.torch.state.export.saved_model import CONFIG_NAMES, SavedModel, SavedTensor

_INDEX_NAME = "model.safetensors.index.json"
_METADATA = "__metadata__"
_NAMES = re.compile(r"model(-\d{5,}-of-\d{5,})?\.safetensors")
_ALIGNED_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, kw_only=True)
class _File:
    name: str
    header: bytes
    places: Mapping[str, int]
    """Where each tensor begins in the file, in bytes."""
    size: int


def write_safetensors(model: SavedModel, directory: Path, *, max_shard_bytes: int) -> None:
    """Write a model into an empty directory, durably, and compare it. Not collective.

    Raises
    ------
    ConfigError
        If safetensors has no such tensors.
    CheckpointError
        If the checkpoint is damaged, or what was written is not there.
    OSError
        If it cannot be written.
    """
    _check_types(model)
    shards = _split(model.tensors, max_shard_bytes)
    files = [_plan(model, shard, number, len(shards)) for number, shard in enumerate(shards)]
    places = {
        name: Place(number, start)
        for number, file in enumerate(files)
        for name, start in file.places.items()
    }
    paths = [directory / file.name for file in files]
    for path, file in zip(paths, files, strict=True):
        with open(create_file(path), "wb") as stream:
            stream.write(file.header)
            stream.truncate(file.size)
    with TensorTargets(model, paths, places) as targets:
        targets.copy()
        targets.compare()
    for path, file in zip(paths, files, strict=True):
        _check_header(path, file)
    if len(files) > 1:
        write_unseen(directory / _INDEX_NAME, _index(model, files))


def is_safetensors_export(name: str) -> bool:
    """Return whether an export may have written a file of this name. Not collective."""
    return name in (*CONFIG_NAMES, _INDEX_NAME) or _NAMES.fullmatch(name) is not None


def _check_types(model: SavedModel) -> None:
    for tensor in model.tensors:
        if not tensor.is_as_stored:
            called = str(tensor.live_dtype).removeprefix("torch.")
            raise ConfigError(
                f"{tensor.name} has elements of type {called}, which safetensors does not support. "
                f"Export as torch or dcp, or convert it before it is saved."
            )
    for name in (*(tensor.name for tensor in model.tensors), *model.aliases):
        if name == _METADATA or any("\ud800" <= letter <= "\udfff" for letter in name):
            raise ConfigError(
                f"{name!r} is not a name that a tensor can have in safetensors. Export as torch or "
                f"dcp."
            )


def _split(tensors: Sequence[SavedTensor], max_bytes: int) -> list[list[SavedTensor]]:
    """Return tensors by file; one that is larger than a file may be has a file of its own."""
    shards: list[list[SavedTensor]] = [[]]
    room = max_bytes
    for tensor in tensors:
        if tensor.size > room and shards[-1]:
            shards.append([])
            room = max_bytes
        shards[-1].append(tensor)
        room -= tensor.size
    return shards


def _plan(model: SavedModel, tensors: Sequence[SavedTensor], number: int, count: int) -> _File:
    name = "model.safetensors"
    if count > 1:
        name = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
    own = {tensor.name for tensor in tensors}
    # As safetensors.torch.save_model names the tensors that it leaves out.
    metadata = {alias: kept for alias, kept in model.aliases.items() if kept in own}
    content: dict[str, object] = {_METADATA: {**metadata, "format": "pt"}}
    starts, position = {}, 0
    # Wide types first, so that each is aligned to its type.
    for tensor in sorted(tensors, key=lambda tensor: -DTYPE_BYTES[tensor.dtype]):
        starts[tensor.name] = position
        content[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.stored_shape),
            "data_offsets": [position, position + tensor.size],
        }
        position += tensor.size
    text = json.dumps(content, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // _ALIGNED_BYTES) * _ALIGNED_BYTES)
    if len(text) > _MAX_HEADER_BYTES:
        raise ConfigError(
            f"{name} would have a header of {len(text)} bytes, and safetensors reads "
            f"{_MAX_HEADER_BYTES}. Give a smaller max_shard_size."
        )
    header = struct.pack("<Q", len(text)) + text
    return _File(
        name=name,
        header=header,
        places={tensor: len(header) + start for tensor, start in starts.items()},
        size=len(header) + position,
    )


def _check_header(path: Path, file: _File) -> None:
    with open(path, "rb", buffering=0) as stream:
        found = stream.read(len(file.header))
        size = os.fstat(stream.fileno()).st_size
    layout = read_layout(path)
    if found != file.header or size != file.size or len(layout.chunks) != len(file.places):
        raise CheckpointError(
            f"{path.name} was read again, and its header is not what was written. Export to "
            f"another filesystem, and tell the site about this one."
        )


def _index(model: SavedModel, files: Sequence[_File]) -> bytes:
    names = {name: file.name for file in files for name in file.places}
    content = {"metadata": {"total_size": model.size}, "weight_map": names}
    return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()
