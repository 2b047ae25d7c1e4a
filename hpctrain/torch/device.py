"""Which device a rank computes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.worker.context import active_worker

if TYPE_CHECKING:
    import torch


def get_device() -> torch.device:
    """Return this rank's device: its first GPU, or the CPU. Not collective.

    Raises
    ------
    WorkerContextError
        Outside of a training function.
    """
    return _devices("get_device()")[0]


def get_devices() -> list[torch.device]:
    """Return this rank's devices: its GPUs, or the CPU. Not collective.

    The index of a GPU is its place in ``CUDA_VISIBLE_DEVICES``, which is left as the site set it:
    NCCL wants to see the GPUs of the other ranks of the node.

    Raises
    ------
    WorkerContextError
        Outside of a training function.
    """
    return _devices("get_devices()")


def _devices(caller: str) -> list[torch.device]:
    indices = active_worker(caller).context.gpu_indices
    import torch

    return [torch.device("cuda", index) for index in indices] or [torch.device("cpu")]
