"""Warn of ranks that each train a model of their own, as without ``prepare_model()``.

Each rank leaves a digest of its parameters, as they are after the first optimizer step, in the
store of the process group. After two more reports, or at the end of the training function, rank 0
compares them. Nobody waits for another rank, and no collective is called. There is no warning of
models of other shapes, which are stages of a pipeline, of sharded ones, or once any process group
was used: its user keeps models together, or apart, on purpose.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import distributed_c10d
from torch.optim import optimizer

from hpctrain.world import World

_REPORTS = 2
# What is compared: parameters of the first optimizer that makes a step, the begin of each.
_MOST_PARAMETERS = 32
_MOST_VALUES = 4096
_MOST_RANKS = 8
_WARNING = (
    "every rank trains a model of its own: parameters of ranks 0 and {rank} differ, and nothing "
    "was sent through the process group. Wrap the model, as in "
    "model = hpctrain.torch.prepare_model(model), so that gradients are averaged over the ranks. "
    "If it is meant so: "
    "warnings.filterwarnings('ignore', message='every rank trains')."
)


class SeparateModelsWatch:
    """Compares the parameters of ranks once.

    Parameters
    ----------
    store
        Shared by all ranks.
    world
        Where this rank stands.
    count_reports
        Returns how many reports this rank has made.
    """

    def __init__(self, store: Any, world: World, count_reports: Callable[[], int]) -> None:
        self._store = store
        self._rank = world.world_rank
        self._others = range(1, min(world.world_size, _MOST_RANKS))
        self._count_reports = count_reports
        self._own: bytes | None = None
        self._look_after = count_reports() + _REPORTS
        # For all optimizers of the process; a call of it takes less than a microsecond.
        self._hook: Any = optimizer.register_optimizer_step_post_hook(self._after_step)

    def look(self) -> None:
        """Compare, if all have made a step; on rank 0. Not collective."""
        if self._own is None or self._rank != 0 or self._hook is None:
            return
        if _group_was_used():
            self.close()
            return
        names = [f"parameters/{rank}" for rank in self._others]
        if not self._store.check(names):
            return
        self.close()
        form, values = self._own[:16], self._own[16:]
        sent = self._store.multi_get(names)
        if any(other[:16] != form for other in sent):
            return
        differing = [r for r, other in zip(self._others, sent, strict=True) if other[16:] != values]
        if differing:
            warnings.warn(_WARNING.format(rank=differing[0]), UserWarning, stacklevel=2)

    def close(self) -> None:
        """Leave the optimizers alone. Not collective. Harmless if repeated."""
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()

    def _after_step(self, stepped: torch.optim.Optimizer, *_: Any) -> None:
        if self._own is None:
            self._own = _digest(stepped)
            if self._own is None or self._rank >= _MOST_RANKS:
                self.close()
            elif self._rank > 0:
                self._store.set(f"parameters/{self._rank}", self._own)
                self.close()
        elif self._count_reports() >= self._look_after:
            self._look_after = self._count_reports() + 1
            self.look()


def _digest(stepped: torch.optim.Optimizer) -> bytes | None:
    """Return a digest of the shapes of parameters, and one of values; None if they are sharded."""
    shapes, values = hashlib.sha256(), hashlib.sha256()
    found = [parameter for group in stepped.param_groups for parameter in group["params"]]
    for parameter in found[:_MOST_PARAMETERS]:
        if type(parameter.data) is not torch.Tensor or parameter.layout is not torch.strided:
            return None
        shapes.update(f"{tuple(parameter.shape)} {parameter.dtype} ".encode())
        part = parameter.detach().reshape(-1)[:_MOST_VALUES]
        values.update(part.contiguous().view(torch.uint8).cpu().numpy().tobytes())
    shapes.update(str(len(found)).encode())
    return shapes.digest()[:16] + values.digest()[:16]


def _group_was_used() -> bool:
    """Return whether this rank has sent or received anything through a process group."""
    try:
        groups: list[Any] = list(distributed_c10d._world.pg_map)
        return not groups or any(group._get_sequence_number_for_group() for group in groups)
    # Names of torch's own, which not every backend has.
    except (AttributeError, RuntimeError):
        return True
