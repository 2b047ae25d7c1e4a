"""Batches of whatever structure, on their way to a device."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from copy import copy
from typing import Any

import torch


def move_batch(batch: Any, device: torch.device) -> Any:
    """Return a batch with its tensors on a device; what is not a tensor stays. Not collective."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if callable(getattr(batch, "to", None)):
        # Not every class that can be moved knows non_blocking.
        return batch.to(device)
    if isinstance(batch, MutableMapping):
        moved = copy(batch)
        moved.update({key: move_batch(value, device) for key, value in batch.items()})
        return moved
    if isinstance(batch, Mapping):
        return {key: move_batch(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move_batch(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(move_batch(value, device) for value in batch)
    return batch
