from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from hpctrain.data import from_huggingface, from_torch
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
