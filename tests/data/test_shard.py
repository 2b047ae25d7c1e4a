from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy
import pytest

from hpctrain.data import shard_dataset
from hpctrain.data.shard import DatasetShard, shard_rows
from hpctrain.errors import ConfigError


@pytest.mark.parametrize("num_rows", [0, 1, 3, 4, 10, 17])
@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_every_row_is_in_one_shard_and_shards_differ_by_one_row_at_most(
    num_rows: int, world_size: int
):
    shards = [shard_rows(num_rows, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert [row for shard in shards for row in shard] == list(range(num_rows))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def shards(dataset: Any, world_size: int = 2) -> list[Any]:
    return [shard_dataset(dataset, rank=r, world_size=world_size) for r in range(world_size)]


def test_a_list_is_split_without_copying_it():
    rows = [object() for _ in range(5)]
    first, second = shards(rows)
    assert isinstance(first, DatasetShard)
    assert (len(first), len(second)) == (3, 2)
    assert list(first) + list(second) == rows
    assert first[0] is rows[0]
    assert first[-1] is rows[2]
    assert list(first[1:]) == rows[1:3]
    with pytest.raises(IndexError):
        second[2]


def test_a_dataset_with_length_and_indices_is_split():
    class Squares:
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> int:
            return index**2

    assert [list(shard) for shard in shards(Squares())] == [[0, 1, 4], [9, 16]]


def test_the_shard_of_an_array_is_a_view():
    array = numpy.arange(10).reshape(5, 2)
    first, second = shards(array)
    assert first.base is not None
    assert numpy.shares_memory(first, array)
    assert (numpy.concatenate([first, second]) == array).all()


def test_a_data_frame_keeps_its_index():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": range(5)}, index=list("abcde"))
    first, second = shards(frame)
    assert list(first.index) == ["a", "b", "c"]
    assert list(second["x"]) == [3, 4]


def test_of_an_iterable_a_rank_takes_every_so_manieth_element():
    parts = [list(shard_dataset(iter(range(7)), rank=r, world_size=3)) for r in range(3)]
    assert parts == [[0, 3, 6], [1, 4], [2, 5]]


def test_a_rank_that_was_given_a_list_loads_no_numpy():
    code = """if True:
        import sys, hpctrain.data, hpctrain.trainer
        from hpctrain.data.shard import is_dataset, shard_dataset
        assert not is_dataset([1, 2]) and list(shard_dataset([1, 2], rank=0, world_size=2)) == [1]
        print(*{"numpy", "h5py", "pandas", "pyarrow", "torch"} & set(sys.modules))
    """
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert loaded.stdout.strip() == b""


def test_what_has_neither_rows_nor_an_iterator_is_refused():
    message = r"a dataset of type int cannot be split: .*DataConfig\(datasets_to_split=\[\.\.\.\]\)"
    with pytest.raises(ConfigError, match=message):
        shard_dataset(5, rank=0, world_size=2)
