"""A loader that goes on in the middle of an epoch gives what would have come. Without ranks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from hpctrain.errors import ConfigError
from hpctrain.log import log_once
from tests.worlds import make_world

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset, IterableDataset  # noqa: E402

from hpctrain.torch.loader import PreparedLoader, shard_loader  # noqa: E402
from hpctrain.torch.position import Position, ResumableLoader  # noqa: E402


class Noisy(Dataset):
    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index), torch.rand(()).item()])


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return (torch.tensor([float(index), torch.rand(()).item()]) for index in range(9))


class Lazy:
    """A sampler that draws each batch when it is asked for."""

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[list[int]]:
        return ([random.randrange(9), random.randrange(9)] for _ in range(6))


class Hundredfold(DataLoader):
    def __iter__(self) -> Iterator[Any]:
        return (batch * 100 for batch in super().__iter__())


def sharded(loader: DataLoader, *, ranks: int = 1, rank: int = 0, **options: Any) -> DataLoader:
    own = shard_loader(loader, make_world(rank, ranks, num_nodes=ranks), **options)
    return PreparedLoader(own, None, prefetch=False)


def stream(*, batch_size: int = 2) -> DataLoader:
    options = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "fork"}
    return DataLoader(Stream(), batch_size=batch_size, **options)


LOADERS: dict[str, Callable[[], DataLoader]] = {
    "no batches": lambda: DataLoader(Noisy(), batch_size=None),
    "no batches, prepared": lambda: sharded(DataLoader(Noisy(), batch_size=None, shuffle=True)),
    "no batches, worker process": lambda: DataLoader(
        Noisy(), batch_size=None, sampler=[0, 3, 1, 2, 8], num_workers=1
    ),
    "persistent workers": stream,
    "lazy sampler": lambda: DataLoader(Noisy(), batch_sampler=Lazy()),
    "of the user's own": lambda: Hundredfold(Noisy(), batch_size=2, shuffle=True),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_the_rest_of_an_epoch_is_what_would_have_come(kind: str) -> None:
    loader = ResumableLoader(LOADERS[kind](), world_size=1)
    items = loader.items_per_batch
    epochs = [
        [batch.tolist() for batch in loader.iterate(Position(epoch=epoch), seed=7)]
        for epoch in range(2)
    ]
    assert epochs[0] != epochs[1]
    # What is drawn beside it does not count.
    random.seed(3)
    resumed = ResumableLoader(LOADERS[kind](), world_size=1)
    rest = [
        batch.tolist()
        for batch in resumed.iterate(Position(epoch=1, batch=2, consumed=2 * items), seed=7)
    ]
    assert len(rest) > 1
    assert rest == epochs[1][2:]


def resumed(*, batch_size: int, has_same_ranks: bool = True) -> list[int]:
    """Return what is left of an epoch that was interrupted after 4 batches of 4 samples."""
    loader = ResumableLoader(DataLoader(range(64), batch_size=batch_size), world_size=1)
    saved = Position(epoch=1, batch=4, consumed=16)
    position = loader.resume(saved, has_same_ranks=has_same_ranks)
    return [sample for batch in loader.iterate(position, seed=7) for sample in batch.tolist()]


@pytest.mark.parametrize("batch_size", [2, 4, 8, 16])
def test_an_epoch_goes_on_after_the_same_sample_with_batches_of_another_size(
    batch_size: int,
) -> None:
    assert resumed(batch_size=batch_size) == list(range(16, 64))


def test_batches_that_do_not_end_where_an_epoch_was_interrupted_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"after 16 samples .* batches of 6 .* 16 is a multiple"):
        resumed(batch_size=6)
    # Another number of ranks goes on at about the same place.
    assert resumed(batch_size=6, has_same_ranks=False)[0] == 12


class Endless(Lazy):
    def __len__(self) -> int:
        raise NotImplementedError


@pytest.mark.parametrize("sampler", [Endless(), iter(range(64))])
def test_batches_of_a_sampler_without_a_length_are_refused_likewise(sampler: Any) -> None:
    loader = DataLoader(range(64), batch_size=6, sampler=sampler)
    saved = Position(epoch=1, batch=4, consumed=16)
    with pytest.raises(ConfigError, match=r"after 16 samples .* batches of 6 .* 16 is a multiple"):
        ResumableLoader(loader, world_size=1).resume(saved, has_same_ranks=True)


def test_an_epoch_that_ended_with_a_smaller_batch_is_over_with_batches_of_any_size() -> None:
    loader = ResumableLoader(DataLoader(range(100), batch_size=30), world_size=1)
    saved = Position(epoch=1, batch=7, consumed=7 * 16)  # the last of 7 batches had 4 samples
    position = loader.resume(saved, has_same_ranks=True)
    assert list(loader.iterate(position, seed=7)) == []


def test_what_is_shared_out_goes_on_after_any_sample() -> None:
    loader = ResumableLoader(sharded(DataLoader(range(64), batch_size=6)), world_size=1)
    saved = Position(epoch=1, batch=4, consumed=16)
    position = loader.resume(saved, has_same_ranks=True)
    batches = loader.iterate(position, seed=7)
    assert [sample for batch in batches for sample in batch.tolist()] == list(range(16, 64))


@pytest.mark.parametrize("samples", [25, 26])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_last_batch_of_all_ranks_is_filled_up_alike(samples: int, batch: int) -> None:
    def last(rank: int, position: Position) -> Any:
        own = DataLoader(range(samples), shuffle=True)
        loader = sharded(own, ranks=4, rank=rank, global_batch_size=12)
        *_, found = ResumableLoader(loader, world_size=4).iterate(position, seed=7)
        return found.tolist()

    for rank in range(4):
        whole = last(rank, Position(epoch=2))
        assert last(rank, Position(epoch=2, batch=batch, consumed=12 * batch)) == whole


@pytest.mark.parametrize("options", [{}, {"global_batch_size": 2}])
def test_a_loader_with_an_iteration_of_its_own_is_refused(options: dict[str, int]) -> None:
    prepare = partial(sharded, Hundredfold(range(4), batch_size=2), **options)
    with pytest.raises(ConfigError, match=r"Hundredfold has an __iter__\(\) .*add_dist_sampler=Fa"):
        prepare()


def test_a_loop_that_only_looks_at_the_data_is_logged_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_once.cache_clear()
    loader = sharded(DataLoader(range(8), batch_size=2, shuffle=True))
    for _ in range(2):
        for _ in range(2):
            next(iter(loader))
        # An epoch of one's own ends the looks.
        assert len(list(loader)) == 4
    assert "note:" not in capsys.readouterr().err
    first = {tuple(next(iter(loader)).tolist()) for _ in range(4)}
    assert len(first) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "note:" in line]
    assert "3 iterations in a row" in line
    assert "from one iterator" in line
