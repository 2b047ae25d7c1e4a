"""Data loaders that know their rank, the epoch and the device.

Imports torch, which only a process that computes should pay for: imported by
`hpctrain.torch.prepare_data_loader` when it is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any

import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from hpctrain.errors import ConfigError
from hpctrain.log import log_once
from hpctrain.loop_time import DATA, timed, waiting
from hpctrain.torch.batch import move_batch
from hpctrain.torch.order import SharedOrder
from hpctrain.world import World

_MANY_LOOKS = 3


class ShareSampler(DistributedSampler[Any]):
    """A DistributedSampler to which each iteration is an epoch of its own.

    An epoch can begin after `start` items, for ranks of another number than those that had them.
    """

    start = 0
    """Items of the next iteration's epoch that were given out before, to all ranks."""
    _drawn: int | None = None
    """Epoch of the last iteration, unless `set_epoch` was called since."""

    def __iter__(self) -> Iterator[Any]:
        """Return this rank's share of what is left of the epoch."""
        # A loader with worker processes calls this twice before it takes anything: what is drawn
        # is drawn when the first item is asked for.
        order, start = self.begin()
        left = len(order) - start
        rounds = left // self.num_replicas if self.drop_last else -(-left // self.num_replicas)
        end = start + rounds * self.num_replicas
        if order:
            yield from islice(cycle(order), start + self.rank, end, self.num_replicas)

    def begin(self) -> tuple[list[Any], int]:
        """Begin an iteration; return all items of its epoch, and how many were given out before.

        Not collective.
        """
        order, start = self._draw(), self.start
        self.start = 0
        self._drawn = self.epoch
        self.epoch += 1
        return order, start

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is. Not collective."""
        super().set_epoch(epoch)
        self._drawn = None

    def take_back(self) -> None:
        """Let the next iteration be the epoch of the last one once more. Not collective."""
        if self._drawn is not None:
            self.epoch, self._drawn = self._drawn, None

    def _draw(self) -> list[Any]:
        """Return all items of the epoch, in order; the same on every rank."""
        raise NotImplementedError


class EpochSampler(ShareSampler):
    """A share of the samples of a dataset, shuffled or not."""

    def _draw(self) -> list[Any]:
        count = len(self.dataset)  # type: ignore[arg-type]
        if not self.shuffle:
            return list(range(count))
        # As torch's DistributedSampler does it.
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order: list[int] = torch.randperm(count, generator=generator).tolist()
        return order


class ShardSampler(ShareSampler):
    """A share of what another sampler, of samples or of batches, draws for an epoch.

    Every rank draws the same, whatever its seeds are.
    """

    def __init__(self, sampler: Any, **shard: Any) -> None:
        super().__init__(sampler, shuffle=False, **shard)
        self._order = SharedOrder(sampler)
        self._kept: tuple[int, list[Any]] | None = None
        """Epoch of the last draw, and what was drawn."""

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is, to the other sampler too. Not collective."""
        super().set_epoch(epoch)
        parts: list[Any] = [self.dataset, getattr(self.dataset, "sampler", None)]
        for sampler in parts:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)

    def _draw(self) -> list[Any]:
        # A rank that has looked at the data would else have drawn once more than the others, which
        # counts if the sampler has a state without a seed.
        if self._kept is None or self._kept[0] != self.epoch:
            self._kept = None
            order = self._order.draw(self.epoch, seed=self.seed + self.epoch)
            self._kept = (self.epoch, order)
        return self._kept[1]


class GlobalBatchSampler:
    """Batches of this rank, which are as large as wanted together with those of all others.

    All ranks take turns over what is drawn for a batch, so that what all of them have been given
    after so many batches is the beginning of what is drawn, whatever their number.

    Parameters
    ----------
    sampler
        Draws the samples of all ranks, the same on each of them.
    global_batch_size
        Samples of all ranks together.
    world
        Which rank this is.
    drop_last
        Whether the last batch is left out if it is smaller.
    """

    def __init__(
        self,
        sampler: ShareSampler,
        *,
        global_batch_size: int,
        world: World,
        drop_last: bool,
    ) -> None:
        self.sampler = sampler
        self.global_batch_size = global_batch_size
        self.drop_last = drop_last
        self._world = world

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        batches, rest = divmod(len(self.sampler), self.global_batch_size)
        return batches + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[list[Any]]:
        """Return this rank's batches of an epoch."""
        order, given = self.sampler.begin()
        rank, size = self._world.world_rank, self._world.world_size
        for start in range(given, len(order), self.global_batch_size):
            drawn = order[start : start + self.global_batch_size]
            if len(drawn) < self.global_batch_size:
                if self.drop_last:
                    return
                # A rank without samples would let the others wait in a collective.
                drawn += islice(cycle(order), -len(drawn) % size)
            yield drawn[rank::size]


class PreparedLoader(DataLoader[Any]):
    """A data loader whose batches come on a device, and whose shuffle knows the epoch.

    Parameters
    ----------
    base
        Where batches come from; its attributes are this object's too.
    device
        Where they go; None leaves them where they are.
    prefetch
        Whether the next batch is copied on a stream of its own meanwhile.
    """

    def __init__(
        self, base: DataLoader[Any], device: torch.device | None, *, prefetch: bool
    ) -> None:
        self.__dict__.update(vars(base))
        self._base = base
        self._device = device
        self._prefetch = prefetch
        self._looks = 0
        """How many iterations, up to the last one, were left after their first batch."""

    @property
    def base(self) -> DataLoader[Any]:
        """Where batches come from."""
        return self._base

    def over(self, base: DataLoader[Any]) -> PreparedLoader:
        """Return a loader of other batches for the same device. Not collective."""
        return PreparedLoader(base, self._device, prefetch=self._prefetch)

    def __len__(self) -> int:
        """Return the number of batches of this rank."""
        return len(self._base)

    def __getattr__(self, name: str) -> Any:
        """Give what a class of the user's own adds to DataLoader."""
        if name == "_base":
            raise AttributeError(name)
        return getattr(self._base, name)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is, after a resume. Not collective."""
        for part in (*samplers_of(self._base), self._base.dataset):
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Iterate over the batches of one epoch.

        An iteration that is left after its first batch was a look at the data, often by one rank
        alone: the next one is the same epoch.
        """
        shares = [s for s in samplers_of(self._base) if isinstance(s, ShareSampler)]
        looks, self._looks = self._looks, 0
        if looks:
            for share in shares:
                share.take_back()
        if looks == _MANY_LOOKS and shares:
            log_once(
                f"note: {looks} iterations in a row over a prepared loader were left after their "
                f"first batch. Each such iteration is a look at the data, and the next one begins "
                f"with the same batch. Take batch after batch from one iterator: batches = "
                f"iter(loader); next(batches)."
            )
        # It starts the processes of workers.
        with waiting(DATA):
            batches: Iterator[Any] = iter(self._base)
        if self._device is not None and self._prefetch:
            batches = _prefetched(batches, self._device)
        elif self._device is not None:
            batches = (move_batch(batch, self._device) for batch in batches)
        return timed(self._watched(batches, looks + 1) if shares else batches)

    def _watched(self, batches: Iterator[Any], looks: int) -> Iterator[Any]:
        for batch in islice(batches, 1):
            self._looks = looks
            yield batch
        self._looks = 0
        yield from batches


def samplers_of(loader: DataLoader[Any]) -> tuple[Any, ...]:
    """Return what decides on the samples of a loader; None for what it has not. Not collective."""
    batches = loader.batch_sampler
    return (loader.sampler, batches, getattr(batches, "sampler", None))


def shard_loader(
    loader: DataLoader[Any], world: World, *, global_batch_size: int | None = None
) -> DataLoader[Any]:
    """Return a loader of this rank's part, or the loader itself where it has one. Not collective.

    Raises
    ------
    ConfigError
        If a sampler cannot say how much it draws, or the size of the loader's batches is not for
        others to choose.
    """
    if global_batch_size is not None:
        return _in_global_batches(loader, world, global_batch_size)
    if any(isinstance(sampler, DistributedSampler) for sampler in samplers_of(loader)):
        return loader
    if isinstance(loader.dataset, IterableDataset):
        return loader
    _check_iterator(loader)
    shard: dict[str, Any] = {"num_replicas": world.world_size, "rank": world.world_rank}
    if loader.batch_size is None and loader.batch_sampler is not None:
        _check_length(loader.batch_sampler)
        drawn = ShardSampler(loader.batch_sampler, **shard)
        return rebuild(loader, batch_sampler=drawn)
    sampler = _shard_samples(loader, drop_last=loader.drop_last, **shard)
    return rebuild(
        loader, sampler=sampler, batch_size=loader.batch_size, drop_last=loader.drop_last
    )


def _shard_samples(loader: DataLoader[Any], **shard: Any) -> ShareSampler:
    if _is_plain(loader):
        shuffle = isinstance(loader.sampler, RandomSampler)
        return EpochSampler(loader.dataset, shuffle=shuffle, **shard)
    _check_length(loader.sampler)
    return ShardSampler(loader.sampler, **shard)


def _in_global_batches(loader: DataLoader[Any], world: World, size: int) -> DataLoader[Any]:
    if size < world.world_size:
        raise ConfigError(
            f"prepare_data_loader(global_batch_size={size}) is less than one sample for each of "
            f"{world.world_size} ranks. Use {world.world_size} or more, or fewer workers."
        )
    own = isinstance(loader.sampler, DistributedSampler)
    if own or loader.batch_size is None or isinstance(loader.dataset, IterableDataset):
        raise ConfigError(
            f"prepare_data_loader(global_batch_size={size}) needs a loader that draws samples and "
            f"puts them into batches itself. This one has an iterable dataset, a batch sampler, a "
            f"DistributedSampler or no batches: let it give each rank its part of a batch."
        )
    _check_iterator(loader)
    batches = GlobalBatchSampler(
        _shard_samples(loader, num_replicas=1, rank=0),
        global_batch_size=size,
        world=world,
        drop_last=loader.drop_last,
    )
    return rebuild(loader, batch_sampler=batches)


def _is_plain(loader: DataLoader[Any]) -> bool:
    """Return whether a loader goes through its dataset once, shuffled or not."""
    sampler = loader.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
    return type(sampler) is SequentialSampler


def _check_length(sampler: Any) -> None:
    if not hasattr(sampler, "__len__"):
        raise ConfigError(
            f"prepare_data_loader(): {type(sampler).__name__} has no __len__, so it cannot be "
            f"shared out evenly over the ranks. Give it one, or let it draw for its rank by itself "
            f"and set add_dist_sampler=False."
        )


def has_usual_iterator(loader: DataLoader[Any]) -> bool:
    """Return whether a loader gives what torch's own class gives. Not collective."""
    its, usual = type(loader), DataLoader
    return (its.__iter__, its._get_iterator) == (usual.__iter__, usual._get_iterator)


def _check_iterator(loader: DataLoader[Any]) -> None:
    if not has_usual_iterator(loader):
        raise ConfigError(
            f"prepare_data_loader(): {type(loader).__name__} has an __iter__() of its own, which "
            f"would be lost. Use collate_fn, or draw for this rank and set add_dist_sampler=False."
        )


def rebuild(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """Return a loader like another but for some arguments. Not collective.

    A DataLoader refuses another sampler, or another dataset, once it is made.
    """
    arguments: dict[str, Any] = {
        "dataset": loader.dataset,
        "num_workers": loader.num_workers,
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
        "generator": loader.generator,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
        "pin_memory_device": loader.pin_memory_device,
        "in_order": loader.in_order,
    }
    return DataLoader(**{**arguments, **changes})


def _prefetched(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    ready: list[Any] = []
    for batch in batches:
        # Memory of a batch that was given out may be used again for this copy: only after what
        # the compute stream was told to do with it so far.
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            moved = move_batch(batch, device)
        del batch
        if ready:
            yield ready.pop()
        torch.cuda.current_stream(device).wait_stream(stream)
        ready.append(moved)
        del moved
    yield from ready
