"""Weights in a checkpoint that ``Checkpoint.from_dict`` made, read without running its code."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hpctrain.errors import CheckpointError

_MODEL = "model"

# What a pickled tensor calls. Storages are bytes that torch.load reads.
_ALLOWED = {
    ("collections", "OrderedDict"),
    ("torch", "Size"),
    ("torch", "device"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_tensor_v2"),
}


class _TensorUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return _load_storage
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it holds {module}.{name}")


def _load_storage(content: bytes) -> Any:
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def read_weights_of_dict(path: Path) -> dict[str, torch.Tensor]:
    """Return the weights under the key "model" of a pickled dict, on the CPU.

    Not collective. Nothing is unpickled but tensors, numbers and texts.

    Raises
    ------
    CheckpointError
        If it holds more, or no weights.
    """
    try:
        content = _TensorUnpickler(io.BytesIO(path.read_bytes())).load()
    except Exception as error:  # whatever a strange pickle brings about
        raise CheckpointError(
            f"{path} is damaged, or reading it would run code: {error}. Save the weights alone, as "
            f'in Checkpoint.from_dict({{"model": model.state_dict()}}), or use '
            f"TorchCheckpoint.from_model()."
        ) from error
    weights = content.get(_MODEL) if isinstance(content, dict) else None
    if not isinstance(weights, Mapping):
        raise CheckpointError(
            f"{path} has no weights: a dict with model.state_dict() under the key {_MODEL!r} is "
            f"needed."
        )
    return dict(weights)
