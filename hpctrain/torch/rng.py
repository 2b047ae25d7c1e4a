"""The states of the random generators of a process: Python's, NumPy's, torch's, CUDA's."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from hpctrain.worker.seeding import mix as mix


def capture(devices: Sequence[torch.device] = ()) -> dict[str, Any]:
    """Return the states of all generators. Not collective.

    Parameters
    ----------
    devices
        Those of CUDA whose generators are meant too.
    """
    state: dict[str, Any] = {
        "python": random.getstate(),
        "torch": torch.default_generator.get_state(),
        "cuda": [torch.cuda.get_rng_state(device) for device in devices],
    }
    if "numpy" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        state["numpy"] = (kind, keys.tolist(), *rest)
    return state


def restore(state: dict[str, Any], devices: Sequence[torch.device] = ()) -> None:
    """Set all generators to what `capture` returned. Not collective."""
    random.setstate(state["python"])
    torch.default_generator.set_state(state["torch"])
    for device, saved in zip(devices, state["cuda"], strict=False):
        torch.cuda.set_rng_state(saved, device)
    if "numpy" in state:
        import numpy

        numpy.random.set_state(state["numpy"])


def seed_all(seed: int) -> None:
    """Seed Python, NumPy and torch on the CPU. Not collective."""
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from other streams for a while; the process's own go on as if nothing was drawn."""
    own = capture()
    seed_all(seed)
    try:
        yield
    finally:
        restore(own)
