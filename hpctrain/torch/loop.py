"""`LoopState`: the small state of a training loop, saved and restored in one call."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

from hpctrain.bulk.index import INDEX_NAME
from hpctrain.checkpoint import Checkpoint
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.torch import rng
from hpctrain.torch.device import get_devices
from hpctrain.torch.position import Position, ResumableLoader
from hpctrain.worker.context import active_worker

_SHARED = "loop.pt"


class Stateful(Protocol):
    """What has a state that can be taken out and put back: a scheduler, a gradient scaler."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Set the state."""


class LoopState:
    """Where a training loop is: epoch, batch, step, and all that draws or counts beside the model.

    Made by `hpctrain.torch.loop_state`.

    Parameters
    ----------
    loader
        Gives the batches.
    shared
        What is the same on every rank, by name.
    """

    def __init__(self, *, loader: DataLoader[Any] | None, shared: dict[str, Stateful]) -> None:
        world = active_worker("loop_state()").context.world
        self._world = world
        self._shared = shared
        self._devices = [device for device in get_devices() if device.type == "cuda"]
        self._loader: ResumableLoader | None = None
        if loader is not None:
            self._loader = ResumableLoader(loader, world_size=world.world_size)
        # Of this rank: ranks may be seeded alike, or each in its own way.
        self._seed = rng.mix(torch.initial_seed(), world.world_rank)
        self._position = Position()
        self._resumed: dict[str, Any] | None = None
        self.step = 0
        """Batches that this rank has been given in all epochs; the current one counts."""

    @property
    def epoch(self) -> int:
        """The current epoch, from 0; after the last batch of one, the next."""
        return self._position.epoch

    @property
    def batch(self) -> int:
        """Batches of this epoch that this rank has been given; the current one counts."""
        return self._position.batch

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Give the epochs that are left, the one that was interrupted first. Not collective.

        Without a loader there are no batches to count: what is saved within an epoch has it done.

        Parameters
        ----------
        num_epochs
            Epochs of the whole run.
        """
        while self.epoch < num_epochs:
            epoch = self.epoch
            if self._loader is None:
                self._position = Position(epoch=epoch + 1)
            yield epoch
            if self.epoch == epoch:
                # Left before its last batch.
                self._position = Position(epoch=epoch + 1)

    def batches(self, *, limit: int | None = None) -> Iterator[Any]:
        """Give the batches that are left of the current epoch. Not collective.

        Parameters
        ----------
        limit
            Batches of this rank after which the epoch is over; None gives all. Use it instead of
            ``break``: what is saved after that is within the epoch, which a resume then ends.

        Raises
        ------
        ConfigError
            If `loop_state` was given no loader, or the limit is less than 1.
        """
        if limit is not None and limit < 1:
            raise ConfigError(f"batches(limit={limit}): 1 or more, or None for all batches.")
        if self._loader is None:
            raise ConfigError("batches() needs loop_state(loader=...).")
        resumed, self._resumed = self._resumed, None
        batches = self._loader.iterate(self._position, seed=self._seed)
        if resumed is not None:
            # What was drawn since restore(), to build a model or a dataset, was drawn before the
            # loop in the run that was interrupted, too.
            rng.restore(resumed, self._devices)
        epoch = self.epoch
        left = None if limit is None else max(limit - self.batch, 0)
        for batch in islice(batches, left):
            self._position = Position(
                epoch=epoch,
                batch=self.batch + 1,
                consumed=self._position.consumed + self._loader.items_per_batch,
            )
            self.step += 1
            yield batch
        self._position = Position(epoch=epoch + 1)

    def save(self, directory: str | PathLike[str]) -> None:
        """Write the state into a directory that is reported by every rank.

        Not collective, but every rank has to save and report its part: each writes a small file of
        its own, rank 0 also what is the same on all.

        Parameters
        ----------
        directory
            Of this rank: what `hpctrain.checkpoint_dir` gave.
        """
        for name, content in self.to_files().items():
            Path(directory, name).write_bytes(content)

    def to_files(self) -> dict[str, bytes]:
        """Return the content of the files that `save` writes, by name. Not collective."""
        world = self._world
        own = {
            "rng": rng.capture(self._devices),
            "batch": self.batch,
            "seed": self._seed,
        }
        files = {_own_name(world.world_rank): _pickled(own)}
        if world.world_rank == 0:
            shared = {
                "world_size": world.world_size,
                "step": self.step,
                "epoch": self.epoch,
                "consumed": self._position.consumed,
                "seed": self._seed,
                "states": {name: part.state_dict() for name, part in self._shared.items()},
            }
            files[_SHARED] = _pickled(shared)
        return files

    def restore(self, checkpoint: Checkpoint | str | PathLike[str] | None) -> bool:
        """Go on where `save` was called; return whether there was something to restore.

        Not collective. This unpickles: open only checkpoints that you trust.

        With another number of ranks an epoch goes on with the samples that are left, if the loader
        came from `prepare_data_loader`, and random generators begin new streams.

        Parameters
        ----------
        checkpoint
            What `hpctrain.get_checkpoint` returned, None included; or a directory.

        Raises
        ------
        CheckpointError
            If the checkpoint does not hold the state of a loop, or not this rank's, or a file of it
            is damaged.
        ConfigError
            If it holds no state of a scheduler, scaler or optimizer that `loop_state` was given, or
            the loader's batch size is another one, whose batches do not end where the epoch was
            interrupted.
        """
        if checkpoint is None:
            return False
        if not isinstance(checkpoint, Checkpoint):
            checkpoint = Checkpoint(checkpoint)
        with checkpoint.as_directory() as directory:
            shared = _load(directory, _SHARED)
            missing = sorted(set(self._shared) - set(shared["states"]))
            if missing:
                raise ConfigError(
                    f"{directory} holds no state of {', '.join(missing)}. It has "
                    f"{sorted(shared['states']) or 'none'}: give loop_state() what the run began "
                    f"with."
                )
            for name, part in self._shared.items():
                part.load_state_dict(shared["states"][name])
            self.step = shared["step"]
            rank, world_size = self._world.world_rank, self._world.world_size
            has_same_ranks = shared["world_size"] == world_size
            if has_same_ranks:
                own = _load(directory, _own_name(rank))
                self._seed, batch, self._resumed = own["seed"], own["batch"], own["rng"]
            else:
                self._seed = rng.mix(shared["seed"], rank, self.step)
                rng.seed_all(self._seed)
                batch, self._resumed = 0, rng.capture(self._devices)
        saved = Position(epoch=shared["epoch"], batch=batch, consumed=shared["consumed"])
        if self._loader is not None:
            saved = self._loader.resume(saved, has_same_ranks=has_same_ranks)
        self._position = saved
        rng.restore(self._resumed, self._devices)
        return True


def loop_state(
    *,
    loader: DataLoader[Any] | None = None,
    shard: Stateful | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: Stateful | None = None,
    scaler: Stateful | None = None,
) -> LoopState:
    """Return the state of a training loop: what it takes to go on as if nothing had happened.

    Not collective. That is, beside what is given: epoch, batch and step; the random generators of
    Python, NumPy (the global one), torch, and CUDA on this rank's devices.

    Parameters
    ----------
    loader
        Whose batches `LoopState.batches` gives. What a batch holds, random augmentation in worker
        processes included, then depends on the seed, the rank, the epoch and the batch's number
        only; so a run that resumes in the middle of an epoch loads nothing of what it has seen. Of
        an iterable dataset it loads, and drops, what it has seen.
    shard
        What `hpctrain.get_dataset_shard` gave of a `hpctrain.data.Dataset`, in place of a loader:
        its epoch goes on after the last batch. It counts epochs itself: ``while shard.epoch < 10``.
    optimizer
        The same on every rank, as with DDP. Sharded ones (FSDP) are saved with their model, by
        ``torch.distributed.checkpoint``.
    scheduler
        Of learning rates.
    scaler
        Of gradients.

    Returns
    -------
    LoopState
        At the beginning of a run, until it is restored.

    Raises
    ------
    ConfigError
        If the optimizer's parameters are sharded.

    Examples
    --------
    ::

        state = hpctrain.torch.loop_state(loader=loader, optimizer=optimizer)
        state.restore(hpctrain.get_checkpoint())
        for epoch in state.epochs(10):
            for inputs, targets in state.batches():
                ...
                if state.step % 100 == 0:
                    with hpctrain.checkpoint_dir() as d:
                        state.save(d)
                        hpctrain.report({"loss": loss.item()}, Checkpoint(d))
    """
    if optimizer is not None and _is_sharded(optimizer):
        raise ConfigError(
            "loop_state(optimizer=...): its parameters are sharded over the ranks (FSDP). Save it "
            "with its model, by torch.distributed.checkpoint, and leave it out here."
        )
    given = {"shard": shard, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    shared: dict[str, Any] = {name: part for name, part in given.items() if part is not None}
    return LoopState(loader=loader, shared=shared)


def _own_name(rank: int) -> str:
    return f"loop-rank-{rank:05d}.pt"


def _pickled(state: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _load(directory: str, name: str) -> Any:
    try:
        # Schedulers have states of any class.
        return torch.load(Path(directory, name), map_location="cpu", weights_only=False)
    except FileNotFoundError as error:
        next_step = "Every rank has to call save() and to report its part."
        if name == _SHARED and Path(directory, INDEX_NAME).exists():
            next_step = (
                "It holds a state that was saved without a loop: give report_state(loop=...). To "
                "begin at the first epoch with what load_state() read, leave restore() out."
            )
        raise CheckpointError(f"{directory} has no {name}. {next_step}") from error
    # Whatever the classes of a pickle raise.
    except Exception as error:
        what = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        raise CheckpointError(
            f"{Path(directory, name)} cannot be read: {what}. Restore another checkpoint."
        ) from error


def _is_sharded(optimizer: torch.optim.Optimizer) -> bool:
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return any(hasattr(parameter, "to_local") for parameter in parameters)
