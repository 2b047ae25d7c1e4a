"""Batches of all ranks together, and how they are shared out. No ranks are needed for that."""

from __future__ import annotations

import pytest

from hpctrain.errors import ConfigError
from hpctrain.world import World
from tests.worlds import make_world

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, IterableDataset  # noqa: E402

from hpctrain.torch.loader import PreparedLoader, shard_loader  # noqa: E402


def world(rank: int, size: int) -> World:
    return make_world(rank, size, num_nodes=size)


def epoch_of(
    size: int, *, samples: int = 48, batch: int = 12, epoch: int = 0, **loader: object
) -> list[list[list[int]]]:
    """Return for each step what each rank gets."""
    ranks = []
    for rank in range(size):
        own = DataLoader(range(samples), batch_size=1, **loader)
        prepared = PreparedLoader(
            shard_loader(own, world(rank, size), global_batch_size=batch), None, prefetch=False
        )
        prepared.set_epoch(epoch)
        ranks.append([b.tolist() for b in prepared])
        assert len(ranks[-1]) == len(prepared)
    return [list(step) for step in zip(*ranks, strict=True)]


@pytest.mark.parametrize("shuffle", [False, True])
def test_each_step_has_the_same_samples_whatever_the_number_of_ranks(shuffle: bool):
    by_size = [
        [sorted(s for rank in step for s in rank) for step in epoch_of(size, shuffle=shuffle)]
        for size in (1, 3, 4, 5)
    ]
    assert by_size[1:] == by_size[:1] * 3
    assert [len(step) for step in by_size[0]] == [12] * 4
    assert sorted(s for step in by_size[0] for s in step) == list(range(48))


def test_each_epoch_is_shuffled_anew():
    assert epoch_of(3, shuffle=True, epoch=1) != epoch_of(3, shuffle=True)


def test_where_a_batch_cannot_be_divided_some_ranks_have_one_sample_more():
    assert [len(rank) for rank in epoch_of(5)[0]] == [3, 3, 2, 2, 2]


def test_the_last_batch_is_filled_up_to_equal_parts_or_dropped():
    steps = epoch_of(4, samples=26)
    assert [[len(rank) for rank in step] for step in steps] == [[3] * 4, [3] * 4, [1] * 4]
    seen = sorted(s for step in steps for rank in step for s in rank)
    assert seen == sorted([*range(26), 0, 1])
    assert len(epoch_of(4, samples=26, drop_last=True)) == 2


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(8))


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Stream(), batch_size=2),
        DataLoader(range(8), batch_sampler=[[0, 1], [2, 3]]),
        DataLoader(range(8), batch_size=None),
    ],
)
def test_a_loader_that_makes_its_batches_itself_is_refused(loader: DataLoader):
    with pytest.raises(ConfigError, match=r"global_batch_size=8\) needs a loader that draws"):
        shard_loader(loader, world(0, 2), global_batch_size=8)


def test_less_than_one_sample_a_rank_is_refused():
    with pytest.raises(ConfigError, match=r"global_batch_size=2\) is less than one sample .* 3 r"):
        shard_loader(DataLoader(range(8)), world(0, 3), global_batch_size=2)


def test_an_epoch_that_four_ranks_began_is_ended_by_three():
    from hpctrain.torch.position import Position, ResumableLoader

    def batches_from(position: Position, rank: int, size: int) -> list[list[int]]:
        own = shard_loader(
            DataLoader(range(48), shuffle=True), world(rank, size), global_batch_size=12
        )
        loader = ResumableLoader(PreparedLoader(own, None, prefetch=False), world_size=size)
        assert loader.items_per_batch == 12
        return [batch.tolist() for batch in loader.iterate(position, seed=7)]

    whole = [batches_from(Position(epoch=2), rank, 4) for rank in range(4)]
    began = [sample for rank in whole for batch in rank[:1] for sample in batch]
    rest = [batches_from(Position(epoch=2, batch=1, consumed=12), rank, 3) for rank in range(3)]
    assert [len(batches) for batches in rest] == [3] * 3
    ended = [sample for rank in rest for batch in rank for sample in batch]
    assert sorted(began + ended) == list(range(48))
