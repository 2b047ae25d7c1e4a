"""Parts of ranks, epochs, and going on in the middle of one."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from hpctrain.data import DataIterator, Dataset, from_numpy
from hpctrain.errors import ConfigError


def rows(count: int) -> Dataset:
    return from_numpy({"x": np.arange(count * 2, dtype="f4").reshape(-1, 2), "y": np.arange(count)})


def parts(dataset: Dataset, world_size: int, **arguments: Any) -> list[DataIterator]:
    return [dataset.shard(rank=r, world_size=world_size, **arguments) for r in range(world_size)]


def epoch(iterator: DataIterator, **arguments: Any) -> list[list[int]]:
    return [batch["y"].tolist() for batch in iterator.iter_batches(**arguments)]


def flat(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch]


@pytest.mark.parametrize("count", [1, 2, 5, 9, 64, 1000])
@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 10, 2000])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_row_comes_once_in_as_many_batches_on_every_rank(
    count: int, world_size: int, batch_size: int, shuffle: bool
):
    epochs = [
        epoch(part, batch_size=batch_size, shuffle=shuffle, local_shuffle_buffer_size=16)
        if shuffle
        else epoch(part, batch_size=batch_size)
        for part in parts(rows(count), world_size)
    ]
    assert sorted(flat(flat(epochs))) == list(range(count))
    assert len(set(map(len, epochs))) == 1
    for batches in zip(*epochs, strict=True):
        sizes = [len(batch) for batch in batches]
        assert max(sizes) - min(sizes) <= 1
    if batch_size > 1:
        # Only a rank that has no row at all has an empty batch.
        assert all(len(batch) for part in epochs for batch in part if flat(part))


def test_a_rank_without_rows_gets_one_batch_without_rows_but_with_columns():
    batches = list(rows(1).shard(rank=1, world_size=2).iter_batches())
    assert len(batches) == 1
    assert (batches[0]["x"].shape, batches[0]["x"].dtype) == ((0, 2), np.float32)


def test_drop_gives_full_batches_only_and_refuses_to_give_none():
    epochs = [epoch(p, batch_size=4, drop_last=True) for p in parts(rows(30), 3)]
    assert [[len(b) for b in batches] for batches in epochs] == [[4, 4]] * 3
    assert len(set(flat(flat(epochs)))) == 24
    with pytest.raises(ConfigError, match=r"'drop' leaves nothing of 30 rows: .* 11 on each of 3"):
        parts(rows(30), 3)[0].iter_batches(batch_size=11, tail="drop")


@pytest.mark.parametrize("count", [1, 5, 13, 24])
def test_pad_repeats_rows_until_every_batch_is_full(count: int):
    epochs = [epoch(p, batch_size=4) for p in parts(rows(count), 3, tail="pad")]
    assert {len(b) for batches in epochs for b in batches} == {4}
    assert len({len(batches) for batches in epochs}) == 1
    assert set(flat(flat(epochs))) == set(range(count))


def test_a_shuffle_is_another_one_each_epoch_and_the_same_for_the_same_seed():
    (one,), (two,) = parts(rows(1000), 1), parts(rows(1000), 1)
    first, second = epoch(one, shuffle=True), epoch(one, shuffle=True)
    assert first != second
    assert flat(first) != sorted(flat(first)) == list(range(1000))
    assert [epoch(two, shuffle=True), epoch(two, shuffle=True)] == [first, second]
    assert epoch(parts(rows(1000), 1)[0], shuffle=True, local_shuffle_seed=1) != first


def test_a_shuffle_mixes_rows_from_all_over_the_dataset():
    (part,) = parts(rows(10_000), 1)
    batch = next(part.iter_batches(batch_size=100, local_shuffle_buffer_size=1000))
    assert len(set(batch["y"] // 1000)) >= 4


def test_samples_and_labels_stay_together_in_a_shuffle():
    for batch in rows(1000).shard(rank=0, world_size=1).iter_batches(shuffle=True):
        assert (batch["x"][:, 0] == batch["y"] * 2).all()


@pytest.mark.parametrize("shuffle", [{}, {"local_shuffle_buffer_size": 32}])
@pytest.mark.parametrize("worlds", [(4, 2), (2, 3, 1), (1, 5), (3, 3)])
@pytest.mark.parametrize("tail", ["uneven", "drop", "pad"])
def test_an_epoch_goes_on_with_another_number_of_ranks_and_no_row_is_missed_or_comes_twice(
    worlds: tuple[int, ...], shuffle: dict[str, Any], tail: str
):
    dataset, seen = rows(1003), []
    state: Any = None
    for number, world_size in enumerate(worlds):
        iterators = parts(dataset, world_size)
        is_last = number == len(worlds) - 1
        states = []
        for iterator in iterators:
            if state is not None:
                iterator.load_state_dict(state)
            # The last ones take what is left to the last row.
            how = {"tail": "uneven" if is_last else tail, **shuffle}
            batches = iterator.iter_batches(batch_size=10 + number, **how)
            seen += [b["y"] for b in (batches if is_last else islice(batches, 3))]
            states.append(json.loads(json.dumps(iterator.state_dict())))
        assert all(s == states[0] for s in states)
        state = states[0]
    given = np.concatenate(seen).tolist()
    assert sorted(set(given) if tail == "pad" else given) == list(range(1003))
    assert state["epoch"] == 1


def test_what_has_been_read_ahead_does_not_count_as_given_out():
    first, second = parts(rows(100), 1)[0], parts(rows(100), 1)[0]
    batches = first.iter_batches(batch_size=10, prefetch_batches=5)
    given = flat(next(batches)["y"].tolist() for _ in range(3))
    second.load_state_dict(first.state_dict())
    assert given + flat(epoch(second)) == list(range(100))


def test_breaking_off_begins_the_next_epoch():
    (part,) = parts(rows(100), 1)
    next(part.iter_batches(batch_size=10))
    assert part.epoch == 0
    assert len(flat(epoch(part))) == 100
    assert part.epoch == 2


def test_a_resumed_epoch_that_is_over_gives_no_batch_and_then_the_next_one():
    (first,), (second,) = parts(rows(20), 1), parts(rows(20), 1)
    batches = first.iter_batches(batch_size=10)
    next(batches), next(batches)
    second.load_state_dict(first.state_dict())
    assert epoch(second) == []
    assert len(flat(epoch(second))) == 20


def test_an_epoch_goes_on_only_with_the_same_rows_and_the_same_shuffle():
    (part,) = parts(rows(100), 1)
    next(part.iter_batches(shuffle=True, batch_size=10))
    state = part.state_dict()
    with pytest.raises(ConfigError, match="has 90 rows, and had 100 when epoch 0 began"):
        parts(rows(90), 1)[0].load_state_dict(state)
    (other,) = parts(rows(100), 1)
    other.load_state_dict(state)
    for unlike in ({}, {"shuffle": True, "local_shuffle_seed": 1}):
        with pytest.raises(ConfigError, match=r"epoch 0 began with .* cannot resume"):
            other.iter_batches(batch_size=10, **unlike)


def test_after_a_filter_ranks_still_have_the_same_number_of_batches():
    small = rows(100).filter(lambda batch: batch["y"] < 10)
    epochs = [epoch(p, batch_size=10) for p in parts(small, 3)]
    assert sorted(flat(flat(epochs))) == list(range(10))
    assert [len(batches) for batches in epochs] == [4, 4, 4]


def test_the_number_of_batches_is_known_before():
    for part in parts(rows(101), 3):
        assert part.num_batches(10) == len(epoch(part, batch_size=10)) == 4
        assert part.num_batches(10, tail="drop") == 3
        assert part.num_rows in (33, 34)


def test_a_part_can_be_read_into_memory():
    taken = [part.materialize().to_numpy()["y"].tolist() for part in parts(rows(10), 3)]
    assert taken == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert parts(rows(2), 3)[2].materialize().num_rows == 0


def test_tensors_have_the_types_that_are_asked_for():
    (part,) = parts(rows(10), 1)
    batch = next(part.iter_torch_batches(batch_size=4))
    assert {name: (t.dtype, tuple(t.shape)) for name, t in batch.items()} == {
        "x": (torch.float32, (4, 2)),
        "y": (torch.int64, (4,)),
    }
    batch = next(part.iter_torch_batches(dtypes={"x": torch.float64}, device="cpu"))
    assert (batch["x"].dtype, batch["y"].dtype) == (torch.float64, torch.int64)
    assert next(part.iter_torch_batches(dtypes=torch.float16))["y"].dtype == torch.float16
    assert next(part.iter_torch_batches(collate_fn=lambda b: b["y"].sum())) == 45


def test_tensors_may_be_written_to_without_changing_the_dataset():
    (part,) = parts(rows(4), 1)
    next(part.iter_torch_batches())["y"][:] = 9
    assert epoch(part) == [[0, 1, 2, 3]]


def test_big_endian_numbers_become_tensors_and_strings_are_refused():
    swapped = from_numpy({"y": np.arange(3, dtype=">f4")}).shard(rank=0, world_size=1)
    assert next(swapped.iter_torch_batches())["y"].tolist() == [0, 1, 2]
    words = from_numpy({"word": ["a", "b"]}).shard(rank=0, world_size=1)
    with pytest.raises(ConfigError, match="column 'word' of type object cannot be a tensor"):
        next(words.iter_torch_batches())


@pytest.mark.parametrize("size", [0, 2.5, "3"])
def test_a_buffer_that_is_no_number_of_rows_is_refused(size):
    message = f"local_shuffle_buffer_size={size!r} is not a number of rows"
    with pytest.raises(ConfigError, match=message):
        parts(rows(4), 1)[0].iter_batches(local_shuffle_buffer_size=size)


def test_to_tf_says_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    (part,) = parts(rows(4), 1)
    with pytest.raises(ConfigError, match=r"needed for to_tf\(\).*'hpctrain\[tensorflow\]'"):
        part.to_tf("x", "y")


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_old_iterator_does_not_move_the_position_of_a_new_one(shuffle: bool):
    (part,) = parts(rows(10), 1)
    (alone,) = parts(rows(10), 1)
    options = {"batch_size": 2, "shuffle": shuffle}
    first, unbegun = part.iter_batches(**options), part.iter_batches(**options)
    expected = [flat(epoch(alone, **options)), flat(epoch(alone, **options))]
    seen = [next(first), next(first)]
    second = part.iter_batches(**options)
    next(second)
    state = part.state_dict()
    assert [taken["rows"] for taken in state["taken"]] == [2]
    # It still gives the rows of its own epoch.
    seen += first
    assert [n for batch in seen for n in batch["y"]] == expected[0]
    assert [n for batch in unbegun for n in batch["y"]] == expected[0]
    assert part.state_dict() == state
    left = [n for batch in second for n in batch["y"]]
    assert left == expected[1][2:]
    assert (part.epoch, part.state_dict()["taken"]) == (2, [])


def test_a_part_counts_its_rows_and_keeps_its_place():
    dataset = rows(10)
    assert [part.count() for part in parts(dataset, 3)] == [4, 3, 3]
    filtered = parts(dataset.filter(lambda batch: batch["y"] < 5), 3)
    batches = iter(filtered[1].iter_batches(batch_size=2))
    next(batches)
    state = filtered[1].state_dict()
    assert [part.count() for part in filtered] == [4, 1, 0]
    assert filtered[1].state_dict() == state
    doubled = dataset.map_batches(lambda b: {"y": np.repeat(b["y"], 2)}, keeps_rows=False)
    assert [part.count() for part in parts(doubled, 3)] == [8, 6, 6]


@pytest.mark.parametrize("given", [1, 10, 256, 300])
@pytest.mark.parametrize("worlds", [(1, 1), (2, 2), (2, 3), (3, 1)])
def test_an_epoch_of_single_rows_goes_on_after_the_rows_that_were_given(
    worlds: tuple[int, int], given: int
):
    seen, states = [], []
    for part in parts(rows(1003), worlds[0]):
        seen += [row["y"] for row in islice(part.iter_rows(), given)]
        states.append(part.state_dict())
    assert all(state == states[0] for state in states)
    for part in parts(rows(1003), worlds[1]):
        part.load_state_dict(json.loads(json.dumps(states[0])))
        seen += [row["y"] for row in part.iter_rows()]
    assert sorted(seen) == [*range(1003)]


def test_single_rows_of_padded_or_filtered_batches_come_again_rather_than_never():
    dataset = rows(1003)
    for of, tail in ((dataset, "pad"), (dataset.filter(lambda batch: batch["y"] >= 0), "uneven")):
        seen: set[int] = set()
        for part in parts(of, 2, tail=tail):
            seen.update(row["y"] for row in islice(part.iter_rows(), 300))
            state = part.state_dict()
        for part in parts(of, 2, tail=tail):
            part.load_state_dict(state)
            seen.update(row["y"] for row in part.iter_rows())
        assert seen == {*range(1003)}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (lambda ds: ds.random_shuffle(seed=None), lambda ds: ds.random_shuffle(seed=None)),
        (lambda ds: ds.random_shuffle(seed=1), lambda ds: ds.random_shuffle()),
        (lambda ds: ds.randomize_block_order(seed=1), lambda ds: ds.randomize_block_order(seed=2)),
        (lambda ds: ds, lambda ds: ds.random_shuffle(seed=1)),
        (lambda ds: ds.sort("y"), lambda ds: ds.sort("y", descending=True)),
        (lambda ds: ds.random_shuffle(seed=1).union(ds), lambda ds: ds.union(ds)),
    ],
)
def test_an_epoch_goes_on_only_with_the_rows_in_the_same_order(
    before: Callable[[Any], Any], after: Callable[[Any], Any]
):
    (part,) = parts(before(rows(100)), 1)
    next(part.iter_batches(batch_size=10))
    state = json.loads(json.dumps(part.state_dict()))
    (other,) = parts(after(rows(100)), 1)
    with pytest.raises(ConfigError, match="rows are in another order than when epoch 0 began"):
        other.load_state_dict(state)
    (same,) = parts(pickle.loads(pickle.dumps(part.dataset)), 1)
    same.load_state_dict(state)
    # What an older version saved.
    del state["order"]
    other.load_state_dict(state)
    # At the beginning of an epoch any order will do.
    other.load_state_dict({**part.state_dict(), "taken": []})


def test_an_epoch_goes_on_with_the_same_rows_from_elsewhere():
    whole = rows(100)
    (part,) = parts(whole.random_shuffle(seed=1), 1)
    next(part.iter_batches(batch_size=10))
    halves = (
        whole.take_ranges([range(50)])
        .materialize()
        .union(whole.take_ranges([range(50, 100)]).materialize())
    )
    (other,) = parts(halves.random_shuffle(seed=1), 1)
    other.load_state_dict(part.state_dict())
