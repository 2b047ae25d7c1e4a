"""Data loaders whose place in an epoch Lightning saves and restores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset

import hpctrain
from hpctrain.torch import rng
from hpctrain.torch.loader import PreparedLoader
from hpctrain.torch.position import Position, ResumableLoader
from hpctrain.world import World

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from hpctrain.data import DataIterator
    from hpctrain.data.split import Tail


def make_resumable(
    loader: Any, *, trainer: Trainer, then: Callable[[Any], Any], world: World
) -> Any:
    """Return what a strategy makes of a loader, resumable if the Trainer trains with it.

    Collective. Loaders of iterable datasets, and those that have a state or an iteration of
    their own, are left as they are.

    Parameters
    ----------
    loader
        With the sampler that Lightning gave it.
    trainer
        Whose progress says where in the epoch a run is.
    then
        The strategy's own ``process_dataloader``.
    world
        Where this rank stands.
    """
    processed = then(loader)
    if (
        trainer.training
        and isinstance(processed, DataLoader)
        and type(processed).__iter__ is DataLoader.__iter__
        and processed.batch_sampler is not None
        and not isinstance(processed.dataset, IterableDataset)
        and not hasattr(processed, "load_state_dict")
    ):
        return ResumableDataLoader(processed, trainer=trainer, world=world)
    return processed


class ResumableDataLoader(PreparedLoader):
    """A data loader with Lightning's ``state_dict()`` and ``load_state_dict()``.

    What a batch holds, random augmentation included, depends on the seed, the rank, the epoch and
    the batch's number only. All ranks make it together: the seed is that of rank 0.

    Parameters
    ----------
    base
        Where batches come from.
    trainer
        Whose epochs they are.
    world
        Where this rank stands.
    """

    def __init__(self, base: DataLoader[Any], *, trainer: Trainer, world: World) -> None:
        super().__init__(base, None, prefetch=False)
        self._resumable = ResumableLoader(base, world_size=world.world_size)
        self._trainer = trainer
        self._world = world
        # Lightning saves the state of rank 0 and gives it to all ranks.
        self._seed: int = trainer.strategy.broadcast(torch.initial_seed())
        self._position = Position()
        self._resumed: Position | None = None

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Iterate over what is left of an epoch."""
        resumed, self._resumed = self._resumed, None
        progress: Any = self._trainer.fit_loop.epoch_progress.current
        self._position = resumed or Position(epoch=progress.processed)
        batches = self._resumable.iterate(
            self._position,
            seed=rng.mix(self._seed, self._world.world_rank),
            shared_seed=self._seed,
        )
        return self._count(batches)

    def _count(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            at = self._position
            self._position = Position(
                epoch=at.epoch,
                batch=at.batch + 1,
                consumed=at.consumed + self._resumable.items_per_batch,
            )
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Return which batch is next; the same on all ranks. Not collective."""
        at = self._position
        if self._trainer.is_last_batch:
            at = Position(epoch=at.epoch + 1)
        return {
            "epoch": at.epoch,
            "batch": at.batch,
            "consumed": at.consumed,
            "world_size": self._world.world_size,
            "seed": self._seed,
        }

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Let the next iteration begin where the state was taken. Not collective."""
        saved = Position(**{name: state_dict[name] for name in ("epoch", "batch", "consumed")})
        has_same_ranks = state_dict["world_size"] == self._world.world_size
        self._resumed = self._resumable.resume(saved, has_same_ranks=has_same_ranks)
        if self._resumed.batch != saved.batch or not has_same_ranks:
            _set_batches_done(self._trainer, self._resumed.batch)
        self._seed = state_dict["seed"]


class ShardLoader:
    """What Lightning iterates over in place of a data loader: this rank's part of a dataset.

    Parameters
    ----------
    shard
        What `hpctrain.get_dataset_shard` gave.
    trainer
        Whose epochs they are.
    arguments
        Of the shard's ``iter_torch_batches()``.
    """

    def __init__(
        self, shard: DataIterator, *, trainer: Trainer, arguments: Mapping[str, Any]
    ) -> None:
        self._shard = shard
        self._trainer = trainer
        self._arguments = dict(arguments)
        self._batch_size: int = self._arguments.setdefault("batch_size", 256)

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        given = self._arguments
        tail: Tail | None = "drop" if given.get("drop_last") else given.get("tail")
        return self._shard.num_batches(self._batch_size, tail=tail)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over what is left of an epoch."""
        return self._shard.iter_torch_batches(**self._arguments)

    def state_dict(self) -> dict[str, Any]:
        """Return which rows are next; the same on all ranks. Not collective."""
        state = self._shard.state_dict()
        if self._trainer.is_last_batch:
            state.update(epoch=state["epoch"] + 1, taken=[], mixing=None)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next iteration begin where the state was taken. Not collective."""
        self._shard.load_state_dict(state_dict)
        taken = state_dict["taken"]
        world_size = hpctrain.get_context().get_world_size()
        if taken and taken[-1]["world_size"] != world_size:
            rows = sum(part["world_size"] * part["rows"] for part in taken)
            _set_batches_done(self._trainer, rows // (world_size * self._batch_size))


def _set_batches_done(trainer: Trainer, batch: int) -> None:
    """Correct how far Lightning thinks that it is in an epoch, for ranks of another number."""
    if batch == 0:
        # The epoch is over, or has not begun: what Lightning knows is right.
        return
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    progress.ready = progress.started = progress.processed = batch
    # It is saved before it is complete, and Lightning adds what is missing.
    progress.completed = batch - 1
