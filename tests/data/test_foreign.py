from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from hpctrain.data import from_huggingface, from_torch, shard_dataset
from hpctrain.errors import ConfigError


class Squares:
    def __init__(self, item: Any) -> None:
        self.item = item

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return self.item(index)


@pytest.mark.parametrize(
    ("item", "schema"),
    [
        (lambda i: (torch.full((2,), i), i), "item: int64[2], label: int64"),
        (lambda i: {"a": np.float32(i), "b": "word"}, "a: float32, b: object"),
        (lambda i: torch.tensor(float(i)), "item: float32"),
    ],
)
def test_items_of_a_torch_dataset_are_rows(item: Any, schema: str):
    dataset = from_torch(Squares(item))
    assert str(dataset.schema()) == schema
    seen = [
        b for r in range(3) for b in dataset.shard(rank=r, world_size=3).iter_batches(batch_size=2)
    ]
    first = next(iter(dataset.schema()))
    assert sorted(
        np.concatenate([b[first].reshape(len(b[first]), -1)[:, 0] for b in seen])
    ) == list(range(10))


def test_tensors_of_a_tensor_dataset_are_not_asked_for_one_by_one():
    tensors = TensorDataset(torch.arange(6).reshape(3, 2), torch.arange(3))
    dataset = from_torch(tensors, columns=["x", "y"])
    assert dataset.to_numpy()["x"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert dataset.memory_bytes == 9 * 8
    with pytest.raises(ConfigError, match="an item of the dataset has 2 values"):
        from_torch(tensors, columns=["x"])


def test_streams_and_empty_datasets_of_torch_are_refused():
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter([])

    with pytest.raises(ConfigError, match="Stream is a stream"):
        from_torch(Stream())
    with pytest.raises(ConfigError, match="list is empty"):
        from_torch([])


def test_a_hugging_face_dataset_stays_in_its_files(tmp_path: Path):
    rows = {"n": list(range(1000)), "text": [f"t{i}" for i in range(1000)], "m": [None, 1] * 500}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "saved")
    dataset = from_huggingface(datasets.load_from_disk(tmp_path / "saved"))
    assert str(dataset.schema()) == "n: int64, text: object, m: float64"
    assert dataset.memory_bytes == 0
    again = pickle.loads(pickle.dumps(dataset))
    assert len(pickle.dumps(dataset)) < 20_000
    parts = [b for r in (0, 1) for b in again.shard(rank=r, world_size=2).iter_batches()]
    assert np.concatenate([b["n"] for b in parts]).tolist() == list(range(1000))
    assert parts[-1]["text"][-1] == "t999"


def test_rows_that_a_hugging_face_dataset_has_chosen_are_kept():
    chosen = datasets.Dataset.from_dict({"n": list(range(10))}).select([7, 1, 3])
    dataset = from_huggingface(chosen)
    assert dataset.to_numpy()["n"].tolist() == [7, 1, 3]
    assert dataset.memory_bytes > 0
    with pytest.raises(ConfigError, match=r"not a DatasetDict: choose one split"):
        from_huggingface(datasets.DatasetDict(train=chosen))


class Doubled(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        return tuple(2 * value for value in super().__getitem__(index))


class Half(TensorDataset):
    def __len__(self) -> int:
        return super().__len__() // 2


class Bare:
    """Has tensors that are no rows of it."""

    tensors = (torch.zeros(3),)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def test_a_dataset_with_tensors_is_asked_for_its_items():
    tensors = torch.arange(6)
    for dataset, expected in (
        (Doubled(tensors), [0, 2, 4, 6, 8, 10]),
        (Half(tensors), [0, 1, 2]),
        (Bare(), [0, 1, 2, 3]),
    ):
        assert from_torch(dataset).to_numpy()["item"].tolist() == expected


@pytest.mark.parametrize("other", [300, -300, 0.5, None, np.nan, "x", 2**70, 1j])
def test_an_item_that_does_not_fit_the_type_of_the_first_one_is_refused(other: Any):
    dataset = from_torch(Squares(lambda i: other if i == 7 else np.int8(i)))
    for read in (dataset.to_numpy, lambda: list(dataset.iter_batches(batch_size=1))):
        with pytest.raises(
            ConfigError, match=r"column 'item' of type int8 has missing values, or values of type"
        ):
            read()
    # Another type is none of our business where it says the same.
    same = from_torch(Squares(lambda i: float(i) if i == 7 else np.int8(i))).to_numpy()["item"]
    assert (same.dtype, same.tolist()) == (np.int8, list(range(10)))


def test_what_a_transform_makes_of_a_hugging_face_dataset_are_its_rows():
    plain = datasets.Dataset.from_dict({"n": list(range(10)), "m": [0.5] * 10})

    def double(batch: dict[str, Any]) -> dict[str, Any]:
        return {
            "twice": [2 * n for n in batch["n"]],
            "t": [torch.full((2,), n) for n in batch["n"]],
        }

    dataset = from_huggingface(plain.select(range(9, 0, -1)).with_transform(double))
    assert str(dataset.schema()) == "twice: int64, t: int64[2]"
    assert dataset.to_numpy()["twice"].tolist() == list(range(18, 0, -2))
    assert dataset.to_numpy()["t"][:, 1].tolist() == list(range(9, 0, -1))
    narrow = plain.with_format("numpy", columns=["m"])
    assert from_huggingface(narrow).columns() == ["m"]
    shown = plain.with_format("numpy", columns=["m"], output_all_columns=True)
    assert from_huggingface(shown).columns() == ["n", "m"]


def test_two_values_of_an_item_cannot_have_one_name():
    with pytest.raises(ConfigError, match="more than one column is called 'x'"):
        from_torch(Squares(lambda i: (i, i)), columns=["x", "x"])


class InBatches(Dataset):  # type: ignore[type-arg]
    """Reads many rows at once, and could not be read one by one."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [{"x": np.full(2, index), "of": len(indices)} for index in indices]


def test_what_torch_fetches_in_batches_is_fetched_in_batches():
    expected = [batch["x"].numpy() for batch in DataLoader(InBatches(), batch_size=5)]
    found = from_torch(InBatches())
    assert np.array_equal(found.to_numpy()["x"], np.concatenate(expected))
    assert found.to_numpy()["of"].tolist() == [10] * 10
    shards = [shard_dataset(InBatches(), rank=rank, world_size=2) for rank in range(2)]
    loaded = [batch["x"].numpy() for s in shards for batch in DataLoader(s, batch_size=5)]
    assert np.array_equal(loaded, expected)


def test_a_batch_of_another_number_of_items_is_refused():
    class Short(InBatches):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return super().__getitems__(indices)[:1]

    with pytest.raises(
        ConfigError, match=r"__getitems__\(\) of Short returned 1 items for 10 indices"
    ):
        from_torch(Short()).to_numpy()
