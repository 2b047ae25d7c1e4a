"""`SnapshotCopies`: which memory a snapshot copies where, and what an optimizer waits for."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from hpctrain.bulk.slots import Slots
from hpctrain.bulk.state_file import BLOCK_BYTES
from hpctrain.torch.state.streams import copy_tensors

if TYPE_CHECKING:
    from hpctrain.torch.state.layout.save_plan import SavePlan

# A call that returns beside a busy thread waits up to 5 ms for Python's lock: few calls copy all.
# But after each of them the writer can go on, and what it has written can be used again.
_BATCHES = 16


@dataclass
class CopyList:
    """Tensors, and where each is copied to."""

    targets: list[torch.Tensor] = field(default_factory=list)
    sources: list[torch.Tensor] = field(default_factory=list)

    def add(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Add one."""
        self.targets.append(target)
        self.sources.append(source)

    def run(self, sources: list[torch.Tensor] | None = None) -> None:
        """Copy, in one call that does not hold Python's lock. Not collective.

        Parameters
        ----------
        sources
            In place of the others.
        """
        if self.targets:
            copy_tensors(self.targets, self.sources if sources is None else sources)

    def versions(self) -> list[int]:
        """Return how often each source was changed in place, as torch counts. Not collective."""
        return [0 if source.is_inference() else source._version for source in self.sources]


@dataclass(frozen=True, kw_only=True)
class CopyBatch:
    """Blocks that are copied in one call, while the training function goes on."""

    blocks: range
    gated: CopyList
    """What only the step of an optimizer changes."""
    late: CopyList
    """What anything may change, and has no place of its own."""


class SnapshotCopies:
    """Which memory is copied where, prepared once for as long as the tensors are the same.

    Parameters
    ----------
    plan
        Of the state.
    optimizers
        Those that wait before they change anything.
    slots
        Where to.
    """

    def __init__(
        self, plan: SavePlan, optimizers: Sequence[torch.optim.Optimizer], slots: Slots
    ) -> None:
        self.layout, self.slots = plan.layout, slots
        self._optimizers = tuple(map(weakref.ref, optimizers))
        # Kept, so that the next plan of the same tensors has them again.
        self._source = plan.source
        self.devices = {tensor.device for tensor in plan.source.tensors}
        self.until = [0] * len(optimizers)
        """How many blocks each optimizer waits for."""
        self.now = CopyList()
        """What anything may change."""
        self.now_blocks: set[int] = set()
        owners: dict[int, set[int]] = {}
        for number, optimizer in enumerate(optimizers):
            for tensor in _changed_by(optimizer):
                owners.setdefault(_storage(tensor), set()).add(number)
        memory = torch.frombuffer(slots.memory, dtype=torch.uint8)
        blocks = self.layout.blocks
        step = max(1, min(blocks, slots.blocks) // _BATCHES)
        self.batches = []
        for first in range(0, blocks, step):
            numbers = range(first, min(first + step, blocks))
            batch = CopyBatch(blocks=numbers, gated=CopyList(), late=CopyList())
            for block in numbers:
                place = block % slots.blocks * BLOCK_BYTES
                for start, source in plan.source.parts(block):
                    size = source.numel() * source.element_size()
                    part = memory[place + start : place + start + size]
                    target = part.view(source.dtype).view(source.shape)
                    # Several have parts of what cuDNN keeps in one piece, a layer of an LSTM.
                    its_owners = owners.get(_storage(source), set())
                    for owner in its_owners:
                        self.until[owner] = block + 1
                    if its_owners:
                        batch.gated.add(target, source)
                    elif block < slots.blocks:
                        self.now.add(target, source)
                        self.now_blocks.add(block)
                    else:
                        batch.late.add(target, source)
            self.batches.append(batch)

    def are_for(self, plan: SavePlan, optimizers: Sequence[torch.optim.Optimizer]) -> bool:
        """Return whether a plan is of the same tensors, and optimizers are the same."""
        known = [reference() for reference in self._optimizers]
        return plan.source is self._source and known == list(optimizers)

    def name_of(self, source: torch.Tensor) -> str:
        """Return the name of the tensor that a source is a part of. Not collective."""
        storage = _storage(source)
        names = (chunk.name for chunk in self.layout.chunks)
        tensors = zip(names, self._source.tensors, strict=True)
        return next(name for name, tensor in tensors if _storage(tensor) == storage)


def _changed_by(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
    yield from _tensors(list(optimizer.state.values()))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _storage(tensor: torch.Tensor) -> int:
    # The memory of a DTensor is that of this rank's shard.
    local = getattr(tensor, "_local_tensor", tensor)
    return int(local.untyped_storage().data_ptr())
