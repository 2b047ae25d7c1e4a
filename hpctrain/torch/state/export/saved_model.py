"""`SavedModel`: which tensors of a model a checkpoint has, and where in its files they are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain.bulk.index import INDEX_NAME, StateIndex
from hpctrain.bulk.state_file import DTYPE_BYTES, Chunk
from hpctrain.checkpoint_files import MANIFEST_NAME
from hpctrain.errors import CheckpointError
from hpctrain.rundir.manifest import DamagedManifestError, read_manifest
from hpctrain.rundir.staging import StagedFile
from hpctrain.rundir.verify import verify_files
from hpctrain.torch.state.export.verified_file import VerifiedFile
from hpctrain.torch.state.export.weights_files import find_weights_index, tied_names
from hpctrain.torch.state.find_index import MODEL_PART, find_index, model_key
from hpctrain.torch.state.state_dict.dtypes import dtype_called, live_kind

if TYPE_CHECKING:
    import torch

CONFIG_NAMES = ("config.json", "generation_config.json")
"""Files of Hugging Face that describe a model; they are exported with it."""


@dataclass(frozen=True, kw_only=True)
class SavedTensor:
    """A tensor of a model in a checkpoint."""

    name: str
    """In the model's ``state_dict()``."""
    dtype: str
    """Type of its bits in files, as safetensors calls it."""
    stored_shape: tuple[int, ...]
    """Of its bits in files; see `StateIndex.types`."""
    live_dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.stored_shape) * DTYPE_BYTES[self.dtype]

    @property
    def is_as_stored(self) -> bool:
        """Whether safetensors has its type; else its bits have another one."""
        return self.live_dtype == dtype_called(self.dtype)


@dataclass(frozen=True, kw_only=True)
class SavedChunk:
    """Where a part of a tensor is."""

    tensor: SavedTensor
    file: int
    """Number of the file."""
    start: int
    """Where it begins in the data of the file, in bytes."""
    chunk: Chunk

    @property
    def stop(self) -> int:
        """Where it ends."""
        return self.start + self.chunk.size


@dataclass(frozen=True, kw_only=True)
class SavedModel:
    """The model of a checkpoint."""

    directory: Path
    files: tuple[VerifiedFile, ...]
    """With tensors of the model."""
    tensors: tuple[SavedTensor, ...]
    """Each once, in the order of the state."""
    chunks: tuple[SavedChunk, ...]
    """In the order of the files and of the data in each, without those that have no bytes."""
    aliases: Mapping[str, str]
    """Further names of tensors, as of tied weights, with the name that is in `tensors`."""
    values: Mapping[str, Any]
    """Entries of the model's state that are no tensors, as JSON."""
    trees: tuple[str, ...]
    """Entries of the model's state that hold tensors among other values."""
    other_parts: tuple[str, ...]
    """What else the state has, such as the optimizer."""
    configs: tuple[str, ...]
    """Those of `CONFIG_NAMES` that are there."""

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.size for tensor in self.tensors)

    @property
    def is_verified(self) -> bool:
        """Whether there are digests to compare all files with."""
        return all(file.is_verified for file in self.files)


def find_model(directory: Path) -> SavedModel:
    """Return the model of a checkpoint: a state, or ``model.safetensors``. Not collective.

    Indexes and headers are compared with the manifest, if there is one; blocks are when they are
    read.

    Raises
    ------
    CheckpointError
        If it is damaged, incomplete, or another kind of checkpoint; the message says which.
    """
    committed = _committed(directory)
    if (directory / INDEX_NAME).exists():
        _verify(directory, committed, INDEX_NAME)
        index = find_index(directory)
        entries = _entries_of_state(index, directory)
    else:
        index = find_weights_index(directory)
        names = {name: name for name in index.shapes}
        entries = _Entries(names=names, aliases=tied_names(index, directory))
    sources = {source: name for name, source in entries.names.items()}
    tensors = _tensors(index, sources)
    places = sorted(_places(index, tensors, directory), key=lambda place: (place[0], place[2]))
    used = {number: n for n, number in enumerate(sorted({number for number, *_ in places}))}
    files = tuple(_open(index, number, directory, committed) for number in used)
    configs = tuple(name for name in CONFIG_NAMES if (directory / name).is_file())
    for name in configs:
        _verify(directory, committed, name)
    return SavedModel(
        directory=directory,
        files=files,
        tensors=tuple(tensors.values()),
        chunks=tuple(
            SavedChunk(tensor=tensors[chunk.name], file=used[number], start=start, chunk=chunk)
            for number, chunk, start in places
            if chunk.size
        ),
        aliases=entries.aliases,
        values=entries.values,
        trees=entries.trees,
        other_parts=entries.other_parts,
        configs=configs,
    )


@dataclass(frozen=True, kw_only=True)
class _Entries:
    """Of the model's ``state_dict()``."""

    names: Mapping[str, str]
    """Of tensors, with their name in the files."""
    aliases: Mapping[str, str]
    values: Mapping[str, Any] = field(default_factory=dict)
    trees: tuple[str, ...] = ()
    other_parts: tuple[str, ...] = ()


def _entries_of_state(index: StateIndex, directory: Path) -> _Entries:
    names: dict[str, str] = {}
    aliases: dict[str, str] = {}
    kept: dict[str, str] = {}
    trees = tuple(key for tree in index.trees if (key := model_key(tree)) is not None)
    for name in (*index.shapes, *index.aliases):
        key = model_key(name)
        if key is None or any(key.startswith(f"{tree}.") for tree in trees):
            continue
        # The tensor may be that of another part of the state, which shares it.
        source = index.aliases.get(name, name)
        if kept.setdefault(source, key) == key:
            names[key] = source
        else:
            aliases[key] = kept[source]
    everything = (*index.shapes, *index.aliases, *index.values, *index.trees)
    parts = sorted({name.partition(".")[0] for name in everything})
    if not names:
        raise CheckpointError(
            f"{directory} holds the state of {', '.join(parts) or 'nothing'}, and tensors of no "
            f"model. Save it with report_state(model=...), or read it with load_state()."
        )
    values = {
        key: value
        for name, value in index.values.items()
        if (key := model_key(name)) is not None
        and not any(f"{key}.".startswith(f"{tree}.") for tree in trees)
    }
    return _Entries(
        names=names,
        aliases=aliases,
        values=values,
        trees=trees,
        other_parts=tuple(part for part in parts if part != MODEL_PART),
    )


def _tensors(index: StateIndex, names: Mapping[str, str]) -> dict[str, SavedTensor]:
    """Return tensors by their names in the files."""
    dtypes = {chunk.name: chunk.dtype for file in index.files for chunk in file.layout.chunks}
    tensors = {}
    for source, name in names.items():
        if source not in index.shapes or source not in dtypes:
            raise CheckpointError(
                f"the index names no file with {source}, so the state is damaged. Export another "
                f"checkpoint."
            )
        live_dtype, shape = live_kind(source, dtypes[source], index)
        tensors[source] = SavedTensor(
            name=name,
            dtype=dtypes[source],
            stored_shape=index.shapes[source],
            live_dtype=live_dtype,
            shape=shape,
        )
    return tensors


def _places(
    index: StateIndex, tensors: Mapping[str, SavedTensor], directory: Path
) -> Iterator[tuple[int, Chunk, int]]:
    """Give file, chunk and its first byte in the data, for chunks that together are all tensors."""
    elements = dict.fromkeys(tensors, 0)
    seen = set()
    for number, file in enumerate(index.files):
        for chunk, start in zip(file.layout.chunks, file.layout.starts, strict=True):
            # Some programs write what all ranks have once a rank.
            key = (chunk.name, chunk.offsets, chunk.shape)
            if chunk.name not in tensors or key in seen:
                continue
            seen.add(key)
            _check_inside(chunk, tensors[chunk.name], directory / file.name)
            elements[chunk.name] += math.prod(chunk.shape)
            yield number, chunk, start
    for source, tensor in tensors.items():
        if elements[source] != (wanted := math.prod(tensor.stored_shape)):
            raise CheckpointError(
                f"{directory} has {elements[source]} of the {wanted} elements of {source}: a file "
                f"of it is missing. Export another checkpoint."
            )


def _check_inside(chunk: Chunk, tensor: SavedTensor, path: Path) -> None:
    shape = tensor.stored_shape
    fits = len(shape) == len(chunk.shape) == len(chunk.offsets) and all(
        offset >= 0 and offset + length <= size
        for offset, length, size in zip(chunk.offsets, chunk.shape, shape, strict=True)
    )
    if not fits or chunk.dtype != tensor.dtype:
        raise CheckpointError(
            f"{path} is damaged: its part of {chunk.name} is no part of a tensor of shape "
            f"{list(shape)} and type {tensor.dtype}. Export another checkpoint."
        )


def _committed(directory: Path) -> dict[str, StagedFile] | None:
    """Return what was committed, by its path; None of what no run has committed."""
    try:
        return {file.path: file for file in read_manifest(directory).files}
    except DamagedManifestError as error:
        if (directory / MANIFEST_NAME).exists():
            raise CheckpointError(
                f"checkpoint {directory.name}: {error}. Export another checkpoint."
            ) from error
        return None


def _verify(directory: Path, committed: Mapping[str, StagedFile] | None, name: str) -> None:
    if committed is not None and name in committed:
        verify_files(directory, [committed[name]], quick=False)


def _open(
    index: StateIndex, number: int, directory: Path, committed: Mapping[str, StagedFile] | None
) -> VerifiedFile:
    name = index.files[number].name
    if committed is not None and name not in committed:
        raise CheckpointError(
            f"{directory / name} is not among the files that were committed. Export another "
            f"checkpoint."
        )
    return VerifiedFile(
        directory / name,
        committed=None if committed is None else committed[name],
        indexed=index.files[number].layout,
    )
