"""`Gate`: what changes a state waits until it is copied."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

_gates: weakref.WeakKeyDictionary[torch.optim.Optimizer | torch.nn.Module, Gate]
_gates = weakref.WeakKeyDictionary()


class Gate:
    """Holds back the step of an optimizer, or the loading of a model.

    It is a hook, and stays one: none can be removed while hooks are being called.
    """

    def __init__(self) -> None:
        self._waits: list[Callable[[], None]] = []

    @staticmethod
    def of(changing: torch.optim.Optimizer | torch.nn.Module) -> Gate:
        """Return the gate of an optimizer or a model, made at first use. Not collective."""
        gate = _gates.get(changing)
        if gate is None:
            gate = _gates[changing] = Gate()
            if isinstance(changing, torch.nn.Module):
                changing.register_load_state_dict_pre_hook(gate)  # type: ignore[no-untyped-call]
            else:
                changing.register_step_pre_hook(gate)
        return gate

    def close(self, wait: Callable[[], None]) -> None:
        """Call this once, before the next change. Not collective."""
        self._waits.append(wait)

    def __call__(self, *_: Any, **__: Any) -> None:
        """Wait, as a hook of whatever signature. Not collective."""
        while self._waits:
            self._waits.pop(0)()


def wait_for_all() -> None:
    """Wait until whatever is being copied is. Not collective."""
    for gate in list(_gates.values()):
        gate()
