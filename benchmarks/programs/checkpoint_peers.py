"""The ways to save and load a state that other programs have, durable as ours, unverified."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch


def make_state(size: int, *, tensor_bytes: int = 4 * 2**20) -> dict[str, torch.Tensor]:
    """Return float32 tensors of `size` bytes in all, all of them touched."""
    torch.manual_seed(0)
    elements = tensor_bytes // 4
    one = torch.rand(elements)
    return {f"layers.{i:04d}.weight": one + i for i in range(size // tensor_bytes)}


def torch_save(directory: Path, state: Mapping[str, torch.Tensor]) -> None:
    """Save with torch.save."""
    torch.save(dict(state), directory / "state.pt")
    _fsync(directory)


def safetensors_save(directory: Path, state: Mapping[str, torch.Tensor]) -> None:
    """Save with safetensors."""
    from safetensors.torch import save_file

    save_file(dict(state), directory / "state.safetensors")
    _fsync(directory)


def dcp_save(directory: Path, state: Mapping[str, torch.Tensor]) -> None:
    """Save with torch.distributed.checkpoint."""
    import torch.distributed.checkpoint as dcp

    writer = dcp.FileSystemWriter(directory, sync_files=True, overwrite=True)
    dcp.save(dict(state), storage_writer=writer)


def torch_load(directory: Path, state: Mapping[str, torch.Tensor]) -> None:
    """Load with torch.load into live tensors."""
    _copy(torch.load(directory / "state.pt", weights_only=True), state)


def torch_load_mapped(directory: Path, state: Mapping[str, torch.Tensor]) -> None:
    """Load with torch.load(mmap=True) into live tensors."""
    _copy(torch.load(directory / "state.pt", weights_only=True, mmap=True), state)


def safetensors_load(directory: Path, state: Mapping[str, torch.Tensor]) -> None:
    """Load with safetensors into live tensors."""
    from safetensors.torch import load_file

    _copy(load_file(directory / "state.safetensors"), state)


def dcp_load(directory: Path, state: Mapping[str, torch.Tensor]) -> None:
    """Load with torch.distributed.checkpoint, which loads in place."""
    import torch.distributed.checkpoint as dcp

    dcp.load(dict(state), storage_reader=dcp.FileSystemReader(directory))


SAVES: Mapping[str, Callable[[Path, Mapping[str, torch.Tensor]], None]] = {
    "torch.save": torch_save,
    "safetensors": safetensors_save,
    "DCP": dcp_save,
}
LOADS: Mapping[str, Callable[[Path, Mapping[str, torch.Tensor]], None]] = {
    "torch.load": torch_load,
    "torch.load mmap": torch_load_mapped,
    "safetensors": safetensors_load,
    "DCP": dcp_load,
}


def gather_and_save(directory: Path, state: Mapping[str, torch.Tensor]) -> None:
    """Gather what all ranks have at rank 0, and save it there; collective over the ranks."""
    import torch.distributed as dist

    parts: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(pickle.dumps(dict(state), protocol=5), parts)
    if parts is not None:
        torch.save([pickle.loads(part) for part in parts], directory / "state.pt")
        _fsync(directory)
    dist.barrier()


def empty(directory: Path) -> None:
    """Make an empty directory of this name."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)


def _copy(loaded: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in state.items():
        tensor.copy_(loaded[name])


def _fsync(directory: Path) -> None:
    for path in [*directory.iterdir(), directory]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
