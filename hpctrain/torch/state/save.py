"""`save_state`: a model's whole state into a directory, by all ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain.bulk.index import INDEX_NAME, StateIndex
from hpctrain.bulk.ring import Ring
from hpctrain.bulk.state_file_writer import write_state_file
from hpctrain.bulk.switch_interval import short_switch_interval
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.rundir.files import fsync_directory, write_atomic
from hpctrain.torch.state.layout.save_plan import PLANNING, plan_save
from hpctrain.torch.state.ranks import communicator, exchange, failing_together
from hpctrain.torch.state.state_dict.flatten import FlatState, flatten_state
from hpctrain.world import Communicator

if TYPE_CHECKING:
    import torch

# One is filled while the other is written. With more of them the disk is not faster, but a block
# has left the cache when it is used again, and each GiB takes a core a fifth longer.
_RING_BLOCKS = 2
_ring: Ring | None = None


def _forget_ring() -> None:
    """Let a child process make its own memory: it does not get that of its parent."""
    global _ring
    _ring = None


os.register_at_fork(after_in_child=_forget_ring)


def save_state(
    directory: str | PathLike[str],
    *,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    **others: Any,
) -> None:
    """Save a model, its optimizer and all else, as they are now, at the speed of the disk.

    Collective: every rank calls it, with the same names. It returns when all of it is on disk.

    Each rank writes one file, which safetensors can read; a sharded model is not gathered, and of
    parameters and optimizer state that all ranks have, each writes a part. Every 8 MiB have a
    digest. Extra memory is 16 MiB a rank, kept for the next time.

    Parameters
    ----------
    directory
        Made if needed; all ranks see it. It holds no state yet.
    model
        Plain, compiled, or wrapped in DDP or `torch.distributed.fsdp.fully_shard`.
    optimizer
        Of its parameters; one or several.
    **others
        What else there is, by name: models, schedulers, scalers, whatever has ``state_dict()``
        and ``load_state_dict()``, and dicts of tensors, numbers, strings, lists ... Parameters
        and the state of optimizers are taken to be the same on all ranks, if they are not sharded;
        of all else that is not sharded rank 0's is saved, and rank 0 writes it. Hence give a module
        and not a large ``dict(module.state_dict())`` whose memory is none of the model's.

    Raises
    ------
    ConfigError
        If something of it cannot be saved, or the directory holds a state.
    CheckpointError
        If the disk is full or fails: on all ranks, so that all of them can go on.
    """
    # Not only for the blocks: calls of the system give the lock away, and views of tensors that go.
    ranks = communicator()
    with short_switch_interval(awaited=True):
        with failing_together(ranks, PLANNING):
            state = flatten_state(model=model, optimizer=optimizer, others=others)
        write_state(Path(directory), state, ranks=ranks)


def write_state(target: Path, state: FlatState, *, ranks: Communicator) -> None:
    """Write what `save_state` saves. Collective.

    Raises
    ------
    ConfigError
        If the directory holds a state.
    CheckpointError
        If the disk is full or fails.
    """
    plan = plan_save(state, communicator=ranks)
    with failing_together(ranks, "saving"):
        occupied = ranks.rank == 0 and (target / INDEX_NAME).exists()
    if exchange(ranks, "saving", occupied)[0]:
        raise ConfigError(
            f"{target} holds a state already, which would be lost if this one were not finished. "
            f"Save into a new directory, or remove it first."
        )
    path, failure, cause = target / plan.name, None, None
    try:
        target.mkdir(parents=True, exist_ok=True)
        ring = shared_ring(plan.source.tensors)
        write_state_file(path, plan.layout, plan.source.fill, ring=ring)
    # Whatever it is, a device without memory for instance: the others wait for this rank.
    except Exception as error:
        failure, cause = str(error) or type(error).__name__, error
    failures = [text for text in exchange(ranks, "written", failure) if text is not None]
    if not failures:
        failure = None if plan.index is None else write_index(target, plan.index)
        failures = [text for text in exchange(ranks, "indexed", failure) if text is not None]
    if failures:
        path.unlink(missing_ok=True)
        text = f"{failures[0]} ({len(failures)} of {ranks.size} ranks failed)"
        raise CheckpointError(text) from cause


def shared_ring(tensors: Sequence[torch.Tensor]) -> Ring:
    """Return the memory that this process's files go through.

    Not collective. It is made for the first file, and kept for the next.

    Parameters
    ----------
    tensors
        What is written.
    """
    global _ring
    if _ring is None:
        from hpctrain.torch.state.streams import pin

        _ring = Ring(_RING_BLOCKS)
        pin(_ring, tensors)
    return _ring


def write_index(directory: Path, index: StateIndex) -> str | None:
    """Make a state complete, once all its files are on disk; return what went wrong, or None.

    Not collective.
    """
    try:
        write_atomic(directory / INDEX_NAME, index.encode(), durable=True)
        fsync_directory(directory.parent)
    # Whatever it is: all ranks wait for the outcome.
    except Exception as error:
        with suppress(OSError):
            # It would be one of files that are removed.
            (directory / INDEX_NAME).unlink(missing_ok=True)
        return f"{directory / INDEX_NAME} could not be written: {error}."
    return None
