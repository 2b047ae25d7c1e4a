"""`Gate`: what changes a state waits until it is copied."""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from typing import Any, Protocol

import torch


class Awaited(Protocol):
    """A snapshot that is being copied."""

    def is_copied(self, blocks: int | None) -> bool:
        """Return whether so many blocks are copied, or all. Not collective."""

    def wait_until_copied(self, blocks: int | None) -> None:
        """Wait until they are. Not collective."""


_gates: weakref.WeakKeyDictionary[torch.optim.Optimizer | torch.nn.Module, Gate]
_gates = weakref.WeakKeyDictionary()


class Gate:
    """Holds back the step of an optimizer, or the loading of a model.

    It is a hook, and stays one: none can be removed while hooks are being called.
    """

    def __init__(self) -> None:
        # Weak: the thread that copies a snapshot keeps it; afterwards nothing is to be waited for.
        self._waits: list[tuple[weakref.ref[Awaited], int | None]] = []

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

    def close(self, snapshot: Awaited, blocks: int | None = None) -> None:
        """Hold back the next change until a snapshot is copied, or so many blocks of it.

        Not collective.
        """
        self._waits = [wait for wait in self._waits if _is_open(*wait)]
        self._waits.append((weakref.ref(snapshot), blocks))

    def __call__(self, *_: Any, **__: Any) -> None:
        """Wait, as a hook of whatever signature. Not collective."""
        while self._waits:
            reference, blocks = wait = self._waits[0]
            if (snapshot := reference()) is not None:
                snapshot.wait_until_copied(blocks)
            # Only now: another thread that comes meanwhile has to wait as well.
            with suppress(ValueError):
                self._waits.remove(wait)

    def open(self) -> None:
        """Hold nothing back. Not collective."""
        self._waits = []

    def __reduce__(self) -> tuple[type[Gate], tuple[()]]:
        # Of a model that is copied or pickled, hooks and all: no snapshot is taken of that one.
        return Gate, ()


def _is_open(reference: weakref.ref[Awaited], blocks: int | None) -> bool:
    snapshot = reference()
    return snapshot is not None and not snapshot.is_copied(blocks)


def wait_for_all() -> None:
    """Wait until whatever is being copied is. Not collective."""
    for gate in list(_gates.values()):
        gate()


def _open_all() -> None:
    # The thread that copies is not there in a fork, whose state is its own.
    for gate in list(_gates.values()):
        gate.open()


os.register_at_fork(after_in_child=_open_all)
