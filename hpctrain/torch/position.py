"""Data loaders that can begin in the middle of an epoch, with the batches that would have come.

What a batch holds, random augmentation included, depends on the rank's seed, the epoch and the
batch's number only: neither on earlier batches, nor on which worker process loads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from hpctrain.errors import ConfigError
from hpctrain.torch import rng
from hpctrain.torch.loader import (
    GlobalBatchSampler,
    PreparedLoader,
    ShareSampler,
    has_usual_iterator,
    rebuild,
    samplers_of,
)


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where in its data a run is."""

    epoch: int = 0
    batch: int = 0
    """Batches of this epoch that this rank has been given."""
    consumed: int = 0
    """Items of this epoch that all ranks have been given: samples, or batches where a sampler of
    batches is shared out. It means the same with another number of ranks."""


class ResumableLoader:
    """Iterates over the rest of an epoch.

    Parameters
    ----------
    loader
        The user's, prepared or not.
    world_size
        Number of ranks.
    """

    def __init__(self, loader: DataLoader[Any], *, world_size: int) -> None:
        if not isinstance(loader, PreparedLoader):
            loader = PreparedLoader(loader, None, prefetch=False)
        self._loader = loader
        base = loader.base
        samplers = samplers_of(base)
        self._share = next((s for s in samplers if isinstance(s, ShareSampler)), None)
        shared = [sampler for sampler in samplers if isinstance(sampler, DistributedSampler)]
        self._is_shared_out = bool(shared)
        one = 1 if self._share is base.batch_sampler else base.batch_size or 1
        self.items_per_batch: int = getattr(
            base.batch_sampler, "global_batch_size", one * world_size
        )
        """Items that all ranks together are given with one batch each."""
        # Lightning's DistributedSamplerWrapper has the user's sampler in what it calls its dataset.
        wrapped = [getattr(sampler.dataset, "_sampler", None) for sampler in shared]
        parts = (base, *samplers, *wrapped)
        generators = [g for part in parts if (g := getattr(part, "generator", None))]
        self._generators = [(g, g.initial_seed()) for g in dict.fromkeys(generators)]
        self._numbered: _NumberedBatches | None = None
        self._iterable: DataLoader[Any] = loader
        if not has_usual_iterator(base):
            # What it makes of its batches can only be had from itself.
            return
        if isinstance(base.dataset, IterableDataset):
            if base.persistent_workers:
                # They would keep the seed of their first epoch.
                sizes = {"batch_size": base.batch_size, "drop_last": base.drop_last}
                self._iterable = loader.over(rebuild(base, persistent_workers=False, **sizes))
            return
        # Whether a batch sampler is true depends on a length, which not every one has.
        if base.batch_sampler is not None:
            self._numbered = _NumberedBatches(base.batch_sampler)
            draws: dict[str, Any] = {"batch_sampler": self._numbered}
        else:
            self._numbered = _NumberedBatches(base.sampler)
            draws = {"sampler": self._numbered, "batch_size": None}
        self._iterable = loader.over(
            rebuild(
                base,
                dataset=_SeededDataset(base.dataset),
                collate_fn=_SeededCollate(base.collate_fn),
                **draws,
            )
        )

    def resume(self, saved: Position, *, has_same_ranks: bool) -> Position:
        """Return where an epoch goes on that was interrupted. Not collective.

        What `hpctrain` shares out begins after any item. Of every other loader whole batches are
        skipped: as many as hold what was consumed, whatever size they had.

        Parameters
        ----------
        saved
            Where it was interrupted.
        has_same_ranks
            Whether as many ranks go on. With another number a loader that is not shared out is
            skipped to about the same place.

        Raises
        ------
        ConfigError
            If the batch size is another one, and what was consumed is no whole number of batches.
        """
        batch, rest = divmod(saved.consumed, self.items_per_batch)
        if self._share is not None:
            return saved if has_same_ranks else replace(saved, batch=batch)
        if rest and self._has_at_most(saved.consumed):
            # The last batch counts as a whole one, and was smaller: nothing of the epoch is left.
            batch += 1
        elif rest and has_same_ranks:
            raise ConfigError(
                f"the epoch was interrupted after {saved.consumed} samples of all ranks, and "
                f"batches of {self.items_per_batch} (batch size times ranks) do not end there. Use "
                f"the batch size of the run that was interrupted, or one of which "
                f"{saved.consumed} is a multiple."
            )
        return replace(saved, batch=batch, consumed=batch * self.items_per_batch)

    def _has_at_most(self, samples: int) -> bool:
        base = self._loader.base
        sampler: Any = base.sampler
        size = base.batch_size
        try:
            own = len(sampler)
        except (TypeError, NotImplementedError):  # of a stream
            return False
        return size is not None and own * self.items_per_batch <= samples * size

    def iterate(
        self, position: Position, *, seed: int, shared_seed: int | None = None
    ) -> Iterator[Any]:
        """Return the batches of an epoch from a position on. Not collective.

        Parameters
        ----------
        seed
            Of this rank.
        shared_seed
            Of all ranks, for an order that all draw and share out; None is for a DistributedSampler
            that needs none.
        """
        epoch_seed = order_seed = rng.mix(seed, position.epoch)
        if shared_seed is not None and self._is_shared_out:
            order_seed = rng.mix(shared_seed, position.epoch)
        self._loader.set_epoch(position.epoch)
        skip = position.batch
        if self._share is not None:
            self._share.start = position.consumed
            skip = 0
        for generator, first in self._generators:
            generator.manual_seed(rng.mix(first, position.epoch))
        if self._numbered is not None:
            # Samplers and loaders draw seeds when an iteration begins.
            with rng.seeded(order_seed):
                self._numbered.begin(skip, position.batch, epoch_seed, order_seed=order_seed)
            with rng.seeded(epoch_seed):
                return iter(self._iterable)
        return self._replay(skip, epoch_seed)

    def _replay(self, skip: int, seed: int) -> Iterator[Any]:
        """Begin anew and drop what was seen, for streams and for loaders of the user's own."""
        own = rng.capture()
        rng.seed_all(seed)
        batches = iter(self._iterable)
        number = 0
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                rng.restore(own)
                return
            number += 1
            if number <= skip:
                continue
            stream = rng.capture()
            rng.restore(own)
            yield batch
            own = rng.capture()
            rng.restore(stream)


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """One batch, with the seed of its random draws."""

    drawn: Any
    """Indices, or whatever the sampler of a loader without batches draws."""
    seed: int


class _NumberedBatches:
    """A sampler of batches that begins anywhere, and gives each batch its seed."""

    def __init__(self, batch_sampler: Any) -> None:
        self._sampler = batch_sampler
        self._drawn: Iterator[Any] = iter(())
        self._first = self._seed = 0

    def begin(self, skip: int, first: int, seed: int, *, order_seed: int) -> None:
        """Say how many batches the next iteration drops, the number of its first, and its seeds.

        That of the order is for samplers that draw when they are asked.
        """
        sampler = self._sampler
        if not _draws_at_once(sampler):
            sampler = _in_own_streams(sampler, order_seed)
        drawn = islice(sampler, skip, None)
        # The first now, and not in __iter__, which a loader with worker processes calls twice.
        self._drawn = chain(list(islice(drawn, 1)), drawn)
        self._first, self._seed = first, seed

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[_Batch]:
        return self._number(self._drawn, self._first, self._seed)

    @staticmethod
    def _number(drawn: Iterator[Any], first: int, seed: int) -> Iterator[_Batch]:
        for number, its in enumerate(drawn, start=first):
            yield _Batch(drawn=its, seed=rng.mix(seed, number))


# They use the process's generators for their first item only.
_AT_ONCE = {
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
}


def _draws_at_once(sampler: Any) -> bool:
    if type(sampler) is BatchSampler:
        sampler = sampler.sampler
    return type(sampler) in _AT_ONCE or isinstance(sampler, ShareSampler | GlobalBatchSampler)


def _in_own_streams(sampler: Any, seed: int) -> Iterator[Any]:
    """Give what a sampler draws with random streams of its own, whenever it is asked."""
    with rng.seeded(seed):
        drawn, streams = iter(sampler), rng.capture()
    while True:
        own = rng.capture()
        rng.restore(streams)
        try:
            batch = next(drawn)
        except StopIteration:
            return
        finally:
            streams = rng.capture()
            rng.restore(own)
        yield batch


@dataclass(frozen=True)
class _Fetched:
    """Samples of a batch, and the streams of the process that were put aside for them."""

    samples: Any
    own: dict[str, Any] | None


class _SeededDataset(Dataset[Any]):
    """A dataset whose batches are drawn from streams of their own.

    Its attributes are those of the other: a ``worker_init_fn`` finds them in its worker's dataset.
    """

    def __init__(self, dataset: Any) -> None:
        vars(self)["_dataset"] = dataset

    def __getattr__(self, name: str) -> Any:
        # Not how the other is pickled.
        if name == "_dataset" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, _Batch):
            return self._dataset[index]
        own = _begin(index)
        return _Fetched(self._dataset[index.drawn], own)

    def __getitems__(self, batch: _Batch) -> _Fetched:
        own, indices = _begin(batch), list(batch.drawn)
        if hasattr(self._dataset, "__getitems__"):
            return _Fetched(self._dataset.__getitems__(indices), own)
        return _Fetched([self._dataset[index] for index in indices], own)


def _begin(batch: _Batch) -> dict[str, Any] | None:
    """Seed the streams for a batch, and return what they were."""
    # A worker process has no other use for them.
    own = rng.capture() if get_worker_info() is None else None
    rng.seed_all(batch.seed)
    return own


class _SeededCollate:
    """Collates a batch, which may draw too, and brings the process's own streams back."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, fetched: _Fetched) -> Any:
        try:
            return self._collate(fetched.samples)
        finally:
            if fetched.own is not None:
                rng.restore(fetched.own)
